"""Routing over leafnode connections: the interest of other servers, and the fan-out built from it.

Interest received over a connection is an entry of the router like any other (`RemoteInterest`); when a route is built,
all such entries for its subject become one `LeafnodeFanout`, so that each connection carries a message once, however
many subscriptions the other side has. Queue groups prefer members on this server. Invariant: a fan-out belongs to
exactly one subject, so permissions are checked when it is built. Knows nothing of how connections are made.
See ADR 60.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from headrace._native import encode_leafnode_run
from headrace.protocol.leafnode import encode_original_subject

if TYPE_CHECKING:
    from headrace.storage.sequence_arrays import Seqs


class LeafnodeSender(Protocol):
    """A leafnode connection, as far as sending messages goes."""

    @property
    def cluster(self) -> str:
        """The cluster of the other server; messages are not echoed between connections to the same cluster."""

    @property
    def headers(self) -> bool:
        """Whether the other side supports headers."""

    @property
    def spoke(self) -> bool:
        """Whether the other side is the hub."""

    @property
    def supports_tracing(self) -> bool:
        """Whether the other side continues message traces."""

    @property
    def output_limit(self) -> int:
        """How many bytes may wait to be sent."""

    def may_send(self, subject: bytes) -> bool: ...
    def send_msg(
        self, subject: bytes, reply: bytes, queues: Sequence[bytes], header: bytes, payload: bytes
    ) -> None: ...
    def send_run(self, data: bytes | bytearray, count: int, size: int) -> None: ...


class RemoteInterest:
    """Interest of another server: a pattern, and for a queue the number of members there."""

    __slots__ = ("pattern", "queue", "sender", "weight")

    def __init__(self, sender: LeafnodeSender, pattern: bytes, queue: bytes | None, weight: int) -> None:
        self.sender = sender
        self.pattern = pattern
        self.queue = queue
        self.weight = weight


#: A queue group, the connections with members of it, and how many members each has.
QueueChoice = tuple[bytes, list[LeafnodeSender], list[int]]


class LeafnodeFanout:
    """The connections that get messages of one subject; an internal subscriber of the router.

    `exact` is whether there is a subscription to exactly this subject.
    """

    __slots__ = ("exact", "plain_senders", "queue_choices", "subject")

    def __init__(
        self,
        subject: bytes,
        plain_senders: list[LeafnodeSender],
        queue_choices: list[QueueChoice],
        *,
        exact: bool,
    ) -> None:
        self.subject = subject
        self.plain_senders = plain_senders
        self.queue_choices = queue_choices
        self.exact = exact

    def on_message(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> int:
        """Send to the other servers; return the number of connections.

        If `subject` is not the subject of the route, it is sent as the original subject.
        """
        if subject != self.subject:
            reply = encode_original_subject(reply, subject)
        if not self.queue_choices:
            for sender in self.plain_senders:
                sender.send_msg(self.subject, reply, (), header, payload)
            return len(self.plain_senders)
        targets = self.choose_targets()
        for sender, queues in targets.items():
            sender.send_msg(self.subject, reply, queues, header, payload)
        return len(targets)

    def choose_targets(self) -> dict[LeafnodeSender, list[bytes]]:
        """Return the connections for one message, each with the queue groups that it was chosen for."""
        targets: dict[LeafnodeSender, list[bytes]] = {sender: [] for sender in self.plain_senders}
        for queue, members, weights in self.queue_choices:
            chosen = members[0] if len(members) == 1 else random.choices(members, weights)[0]
            targets.setdefault(chosen, []).append(queue)
        return targets

    def send_to(
        self,
        sender: LeafnodeSender,
        queues: Sequence[bytes],
        subject: bytes,
        reply: bytes,
        header: bytes,
        payload: bytes,
    ) -> None:
        """Send a message over one of the connections."""
        if subject != self.subject:
            reply = encode_original_subject(reply, subject)
        sender.send_msg(self.subject, reply, queues, header, payload)

    #: What a record of a run grows by; see `UpstreamReceiver`.
    added_bytes = 0

    def is_ready(self, call: Callable[[], None]) -> bool:
        """Whether it takes a run; connections that are congested are asked themselves."""
        return True

    def take_run(
        self,
        ack_prefix: bytes,
        view: memoryview,
        seqs: Seqs,
        at: int,
        most: int,
        consumer_seq: int,
        pending: int,
        size_max: int,
    ) -> tuple[int, int]:
        """Send a run of stored records that a consumer delivers; return how many were sent and their size.

        The records are those of `view` that are in `seqs` from `at` on; the first has consumer sequence `consumer_seq`.
        `ack_prefix` is the ack subject up to the stream sequence, `pending` is the number of pending messages before
        this run.
        """
        if self.queue_choices or not all(sender.headers for sender in self.plain_senders):
            return 0, 0
        size_max = self._limit_run(size_max)
        data, count, size = encode_leafnode_run(
            self.subject, view, seqs, at, most, ack_prefix, consumer_seq, pending, size_max
        )
        if count:
            for sender in self.plain_senders:
                sender.send_run(data, count, size)
        return count, size

    def _limit_run(self, size_max: int) -> int:
        """Return how many bytes a run may have, so that the output of a slow connection does not pile up."""
        limit = min(sender.output_limit for sender in self.plain_senders)
        return limit if size_max < 0 else min(size_max, limit)

    def exclude(self, source: LeafnodeSender, queues: Collection[bytes]) -> LeafnodeFanout | None:
        """Return the fan-out of a message that came from `source`, for these queue groups; None if it goes nowhere."""

        def is_other(sender: LeafnodeSender) -> bool:
            return sender is not source and not (source.cluster and sender.cluster == source.cluster)

        plain_senders = [sender for sender in self.plain_senders if is_other(sender)]
        queue_choices: list[QueueChoice] = []
        for queue, members, weights in self.queue_choices:
            remaining = [pair for pair in zip(members, weights, strict=True) if is_other(pair[0])]
            if queue in queues and remaining:
                queue_choices.append(
                    (queue, [sender for sender, _ in remaining], [weight for _, weight in remaining])
                )
        return (
            LeafnodeFanout(self.subject, plain_senders, queue_choices, exact=self.exact)
            if plain_senders or queue_choices
            else None
        )

    def for_queue(self, queue: bytes) -> LeafnodeFanout | None:
        """Return the fan-out to one queue group; None if it has no remote members."""
        queue_choices = [choice for choice in self.queue_choices if choice[0] == queue]
        return LeafnodeFanout(self.subject, [], queue_choices, exact=self.exact) if queue_choices else None

    @property
    def senders(self) -> list[LeafnodeSender]:
        """Every connection that this fan-out may use."""
        return [*self.plain_senders, *(each for _, members, _ in self.queue_choices for each in members)]


def make_fanout(
    subject: bytes, found: Sequence[RemoteInterest], local_groups: Collection[bytes]
) -> LeafnodeFanout | None:
    """Build the fan-out of a subject; None if permissions allow none of it."""
    plain_senders: dict[LeafnodeSender, None] = {}
    groups: dict[bytes, dict[LeafnodeSender, int]] = {}
    exact = False
    for entry in found:
        if not entry.sender.may_send(subject):
            continue
        if entry.queue is None:
            plain_senders[entry.sender] = None
            exact = exact or entry.pattern == subject
        elif entry.queue not in local_groups:
            group = groups.setdefault(entry.queue, {})
            group[entry.sender] = group.get(entry.sender, 0) + entry.weight
    if not plain_senders and not groups:
        return None
    queue_choices: list[QueueChoice] = [
        (queue, list(group), list(group.values())) for queue, group in groups.items()
    ]
    return LeafnodeFanout(subject, list(plain_senders), queue_choices, exact=exact)
