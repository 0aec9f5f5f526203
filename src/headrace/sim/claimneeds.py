"""Who needs a claim, in truth: consumers of the streams that carry it, and readers under a lease.

Owns what actors said and were told: leases, resets and beginnings of consumers, and which copies of a stream are known to
carry a claim. How far consumers are it reads from the broker itself. A need counts against whoever deletes only if it was
there when that one began to decide: nobody can heed what comes while an object store is already deleting.
It must not know how claims are kept, but for what is documented: a copy counts once a claim was released from it, a
lease says what was read only from its start on, who began behind a message has not read it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

from headrace.claims import Reference
from headrace.protocol import subjects
from headrace.sim.clock import SECOND_NS
from headrace.sim.host import SimHost

IDENT = "Ident"
_NEVER_NS = 1 << 62
#: What was sent and not answered has happened by then, or never will: longer than any stall.
_UNSURE_NS = 15 * SECOND_NS


class Carried(NamedTuple):
    """A message that carries a reference."""

    stream: str
    seq: int
    subject: bytes
    ident: str
    reference: Reference

    def __str__(self) -> str:
        return f"{self.stream} {self.seq} ({self.reference.object_key})"


@dataclass(frozen=True, slots=True)
class Terms:
    """What a lease says: everything above `acked` is still to be read; from `start` on, if it says so, the rest was."""

    stream: str
    reader: str
    acked: int
    start: int | None = None
    filters: tuple[str, ...] = ()

    def concerns(self, each: Carried) -> bool:
        return not self.filters or any(
            subjects.matches(pattern.encode(), each.subject) for pattern in self.filters
        )

    def needs(self, each: Carried) -> bool:
        return each.seq > self.acked and self.concerns(each)

    def has_read(self, each: Carried) -> bool:
        return self.start is not None and self.start <= each.seq <= self.acked and self.concerns(each)


@dataclass(frozen=True, slots=True)
class _Lease:
    """Terms that were confirmed, since when they hold without a break, and until when at least."""

    terms: Terms
    since_ns: int
    until_ns: int


class Needs:
    """What is needed of the streams of one server; `copies` are those that mirror others or have them as sources."""

    def __init__(self, host: SimHost) -> None:
        self.copies: set[str] = set()
        self._host = host
        self._leases: dict[tuple[str, str], _Lease] = {}
        self._said: list[Terms] = []
        self._moved_ns: dict[tuple[str, str], int] = {}
        self._began: dict[tuple[str, str], int] = {}
        self._placed: set[tuple[str, str]] = set()

    @property
    def now_ns(self) -> int:
        return self._host.clock.now_ns()

    # What actors tell

    def released(self, key: str, stream: str) -> None:
        """A reader of a copy has released a claim: from now on the copy is known to carry it."""
        self._placed.add((key, stream))

    @contextmanager
    def moving(self, stream: str, consumer: str) -> Iterator[None]:
        """A consumer is made or reset: what it needs from then on counts from then on."""
        self._moved_ns[stream, consumer] = _NEVER_NS
        try:
            yield
        except BaseException:
            self._moved_ns[stream, consumer] = self.now_ns + _UNSURE_NS
            raise
        self._moved_ns[stream, consumer] = self.now_ns

    def began(self, stream: str, consumer: str, first_seq: int) -> None:
        """A consumer that can have had nothing before that sequence; also when it is gone again."""
        first_seq = min(first_seq, self._began.get((stream, consumer), first_seq))
        self._began[stream, consumer] = first_seq

    @contextmanager
    def telling(self, terms: Terms, lease_s: int) -> Iterator[None]:
        """A lease is written down; it counts when that was confirmed, from the moment at which it was sent."""
        name, until_ns = (terms.stream, terms.reader), self.now_ns + lease_s * SECOND_NS
        self._said.append(terms)
        before = self._live(name)
        try:
            yield
        except BaseException:
            # The old terms hold, or the new ones: what both protect is safe for as long as the old ones last.
            if before is not None:
                acked = max(before.terms.acked, terms.acked)
                self._leases[name] = replace(before, terms=replace(before.terms, acked=acked))
            raise
        lasts = before is not None and before.terms.acked <= terms.acked and self.now_ns < before.until_ns
        since_ns = before.since_ns if before is not None and lasts else self.now_ns
        self._leases[name] = _Lease(terms, since_ns, until_ns)

    def _live(self, name: tuple[str, str]) -> _Lease | None:
        lease = self._leases.get(name)
        return lease if lease is not None and self.now_ns < lease.until_ns else None

    # What is so

    def concerned(self, each: Carried) -> bool:
        """Whether anybody can have read a message of this stream."""
        found = self._host.broker.jetstream.streams[each.stream].consumers
        names = [name for name in found if (each.stream, name) not in self._began]
        if any(self._takes(each, name) for name in names):
            return True
        began = (first for (stream, _), first in self._began.items() if stream == each.stream)
        if any(first <= each.seq for first in began):
            return True
        return any(terms.stream == each.stream and terms.has_read(each) for terms in self._said)

    def needing(self, each: Carried, decided_ns: int) -> str:
        """Who needs a message's claim, and did so when somebody began to decide about it; "" if nobody."""
        if each.stream in self.copies and (each.reference.object_key, each.stream) not in self._placed:
            return ""
        for name, consumer in self._host.broker.jetstream.streams[each.stream].consumers.items():
            progress = consumer.progress
            is_done = each.seq not in progress.pending and each.seq < progress.next_seq
            moved_ns = self._moved_ns.get((each.stream, name), -1)
            if not is_done and moved_ns < decided_ns and self._takes(each, name):
                return name
        for (stream, reader), lease in self._leases.items():
            holds = lease.since_ns < decided_ns and self.now_ns < lease.until_ns
            if stream == each.stream and holds and lease.terms.needs(each):
                return f"the lease of {reader}"
        return ""

    def _takes(self, each: Carried, name: str) -> bool:
        stream = self._host.broker.jetstream.streams[each.stream]
        return stream.log.next(stream.consumers[name].filter, each.seq) == each.seq
