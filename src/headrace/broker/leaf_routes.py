"""Where messages go over leafnode connections: the interest of other servers, and the routes made of it.

Interest that came over a connection is an entry of the hub like any other (`FarInterest`); when a route is made, all such
entries for its subject become one `Fan`, so that each connection carries a message once, whatever the number of
subscriptions behind it. Queue groups prefer members on this server. Invariant: a fan belongs to exactly one subject, so
what it may not send is decided when it is made. Knows nothing of how connections come about.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from headrace.broker.deliveries import records_of
from headrace.protocol.leaf import with_shown

if TYPE_CHECKING:
    from headrace.broker.progress_codec import Seqs


class Carrier(Protocol):
    """A connection, as far as messages go."""

    @property
    def cluster(self) -> str:
        """Of the other server; connections to the same cluster do not echo to each other."""

    @property
    def headers(self) -> bool:
        """Whether the other side takes headers."""

    @property
    def spoke(self) -> bool:
        """Whether the other side is the hub."""

    def may_send(self, subject: bytes) -> bool: ...
    def carry(
        self, subject: bytes, reply: bytes, queues: Sequence[bytes], header: bytes, payload: bytes
    ) -> None: ...
    def carry_run(self, data: bytes, count: int, size: int) -> None: ...


class FarInterest:
    """What another server wants: a pattern, and with a queue how many members it has there."""

    __slots__ = ("carrier", "pattern", "queue", "weight")

    def __init__(self, carrier: Carrier, pattern: bytes, queue: bytes | None, weight: int) -> None:
        self.carrier = carrier
        self.pattern = pattern
        self.queue = queue
        self.weight = weight


#: A queue group, the connections behind which it has members, and how many.
Choice = tuple[bytes, list[Carrier], list[int]]


class Fan:
    """The connections that get messages of one subject; a sink of the hub.

    `exact` is whether somebody asked for just this subject.
    """

    __slots__ = ("choices", "exact", "plain", "subject")

    def __init__(self, subject: bytes, plain: list[Carrier], choices: list[Choice], *, exact: bool) -> None:
        self.subject = subject
        self.plain = plain
        self.choices = choices
        self.exact = exact

    def offer(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> int:
        """Send across; how many connections took it. Another subject than the route's is the one to show."""
        if subject != self.subject:
            reply = with_shown(reply, subject)
        if not self.choices:
            for carrier in self.plain:
                carrier.carry(self.subject, reply, (), header, payload)
            return len(self.plain)
        targets: dict[Carrier, list[bytes]] = {carrier: [] for carrier in self.plain}
        for queue, members, weights in self.choices:
            chosen = members[0] if len(members) == 1 else random.choices(members, weights)[0]
            targets.setdefault(chosen, []).append(queue)
        for carrier, queues in targets.items():
            carrier.carry(self.subject, reply, queues, header, payload)
        return len(targets)

    def take_run(
        self,
        ack: bytes,
        view: memoryview,
        seqs: Seqs,
        at: int,
        most: int,
        dseq: int,
        pending: int,
        size_max: int,
    ) -> tuple[int, int]:
        """What `offer` does for a run of stored records that a consumer delivers; how many were sent and their size.

        The records are those of `view` that are in `seqs` from `at` on; the first has consumer sequence `dseq`. `ack` is the
        acknowledgement subject up to the stream sequence, `pending` counts the messages before this run.
        """
        if self.choices or not all(carrier.headers for carrier in self.plain):
            return 0, 0
        to = self.subject
        parts: list[bytes] = []
        count = size = 0
        for seq, time_ns, subject, header, payload in records_of(view, seqs, at, most):
            reply = b"%s%d.%d.%d.%d" % (ack, seq, dseq + count, time_ns, max(pending - count - 1, 0))
            if header:
                total = len(header) + len(payload)
                line = b"HMSG %s %s@%s %d %d\r\n" % (to, reply, subject, len(header), total)
                parts += (line, header, payload, b"\r\n")
            else:
                total = len(payload)
                parts += (b"LMSG %s %s@%s %d\r\n" % (to, reply, subject, total), payload, b"\r\n")
            count += 1
            size += len(to) + len(reply) + total
            if 0 <= size_max < size:
                break
        if count:
            data = b"".join(parts)
            for carrier in self.plain:
                carrier.carry_run(data, count, size)
        return count, size

    def beyond(self, origin: Carrier, queues: Collection[bytes]) -> Fan | None:
        """Where a message that came over `origin` goes on to, for these queue groups; None when nowhere."""

        def other(carrier: Carrier) -> bool:
            return carrier is not origin and not (origin.cluster and carrier.cluster == origin.cluster)

        plain = [carrier for carrier in self.plain if other(carrier)]
        choices: list[Choice] = []
        for queue, members, weights in self.choices:
            left = [pair for pair in zip(members, weights, strict=True) if other(pair[0])]
            if queue in queues and left:
                choices.append((queue, [carrier for carrier, _ in left], [weight for _, weight in left]))
        return Fan(self.subject, plain, choices, exact=self.exact) if plain or choices else None

    def for_group(self, group: bytes) -> Fan | None:
        """The part that reaches one queue group; None when it has no members across."""
        choices = [choice for choice in self.choices if choice[0] == group]
        return Fan(self.subject, [], choices, exact=self.exact) if choices else None

    @property
    def carriers(self) -> list[Carrier]:
        """Every connection it may use."""
        return [*self.plain, *(each for _, members, _ in self.choices for each in members)]


def fan_of(subject: bytes, found: Sequence[FarInterest], local_groups: Collection[bytes]) -> Fan | None:
    """The fan of a subject; None when nothing of it may cross."""
    plain: dict[Carrier, None] = {}
    groups: dict[bytes, dict[Carrier, int]] = {}
    exact = False
    for entry in found:
        if not entry.carrier.may_send(subject):
            continue
        if entry.queue is None:
            plain[entry.carrier] = None
            exact = exact or entry.pattern == subject
        elif entry.queue not in local_groups:
            group = groups.setdefault(entry.queue, {})
            group[entry.carrier] = group.get(entry.carrier, 0) + entry.weight
    if not plain and not groups:
        return None
    choices: list[Choice] = [(queue, list(group), list(group.values())) for queue, group in groups.items()]
    return Fan(subject, list(plain), choices, exact=exact)
