"""Computes whether a claim is really needed: by consumers of the streams that carry it, or by readers with a lease.

Owns what actors requested and which replies they got: leases, resets and start positions of consumers, and which copies
of a stream are known to carry a claim. The positions of consumers are read from the broker itself. A need counts
against a deletion only if it existed when the deleting process began to decide: no process can react to a need that arises
while an object store is already deleting. Must not know how claims are stored, except for what is documented: a copy
counts once a claim was released from it, a lease says what was read only from its start on, and a consumer that began
after a message has not read it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

from headrace.claims import Reference
from headrace.protocol import subjects
from headrace.sim.clock import SECOND_NS
from headrace.sim.network.sim_transport import SimHost

IDENT_HEADER = "Ident"
_NEVER_NS = 1 << 62
#: Requests without a reply have happened by then, or never will: longer than any stall.
_UNCERTAIN_NS = 15 * SECOND_NS


class ClaimMessage(NamedTuple):
    """A message that carries a reference."""

    stream: str
    seq: int
    subject: bytes
    ident: str
    reference: Reference

    def __str__(self) -> str:
        return f"{self.stream} {self.seq} ({self.reference.object_key})"


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """Terms of a lease: everything above `ack_floor` is still to be read.

    From `start_seq` on, if set, the rest was read.
    """

    stream: str
    reader: str
    ack_floor: int
    start_seq: int | None = None
    filters: tuple[str, ...] = ()

    def matches_filter(self, claim_message: ClaimMessage) -> bool:
        return not self.filters or any(
            subjects.matches(pattern.encode(), claim_message.subject) for pattern in self.filters
        )

    def requires(self, claim_message: ClaimMessage) -> bool:
        return claim_message.seq > self.ack_floor and self.matches_filter(claim_message)

    def has_read(self, claim_message: ClaimMessage) -> bool:
        return (
            self.start_seq is not None
            and self.start_seq <= claim_message.seq <= self.ack_floor
            and self.matches_filter(claim_message)
        )


@dataclass(frozen=True, slots=True)
class _ConfirmedLease:
    """Confirmed terms, since when they have been valid without a break, and how long at least they will be."""

    terms: LeaseTerms
    since_ns: int
    until_ns: int


class ClaimRequirements:
    """Which messages of one server's streams are needed; `copies` are those that mirror or source others."""

    def __init__(self, host: SimHost) -> None:
        self.copies: set[str] = set()
        self._host = host
        self._leases: dict[tuple[str, str], _ConfirmedLease] = {}
        self._written_terms: list[LeaseTerms] = []
        self._position_changed_ns: dict[tuple[str, str], int] = {}
        self._first_seqs: dict[tuple[str, str], int] = {}
        self._known_copies: set[tuple[str, str]] = set()

    @property
    def now_ns(self) -> int:
        return self._host.clock.now_ns()

    # Events reported by actors

    def record_release(self, key: str, stream: str) -> None:
        """Record that a reader of a copy released a claim: from now on the copy is known to carry it."""
        self._known_copies.add((key, stream))

    @contextmanager
    def changing_position(self, stream: str, consumer: str) -> Iterator[None]:
        """Wrap the creation or reset of a consumer: what it needs afterwards counts only from then on."""
        self._position_changed_ns[stream, consumer] = _NEVER_NS
        try:
            yield
        except BaseException:
            self._position_changed_ns[stream, consumer] = self.now_ns + _UNCERTAIN_NS
            raise
        self._position_changed_ns[stream, consumer] = self.now_ns

    def record_consumer_start(self, stream: str, consumer: str, first_seq: int) -> None:
        """Record that a consumer can have received nothing before that sequence, even if it is deleted later."""
        first_seq = min(first_seq, self._first_seqs.get((stream, consumer), first_seq))
        self._first_seqs[stream, consumer] = first_seq

    @contextmanager
    def writing_lease(self, terms: LeaseTerms, lease_s: int) -> Iterator[None]:
        """Wrap the writing of a lease; it counts once confirmed, and its duration runs from when it was sent."""
        name, until_ns = (terms.stream, terms.reader), self.now_ns + lease_s * SECOND_NS
        self._written_terms.append(terms)
        before = self._get_live_lease(name)
        try:
            yield
        except BaseException:
            # Either the old or the new terms are valid: what both protect is safe as long as the old ones last.
            if before is not None:
                ack_floor = max(before.terms.ack_floor, terms.ack_floor)
                self._leases[name] = replace(before, terms=replace(before.terms, ack_floor=ack_floor))
            raise
        lasts = (
            before is not None and before.terms.ack_floor <= terms.ack_floor and self.now_ns < before.until_ns
        )
        since_ns = before.since_ns if before is not None and lasts else self.now_ns
        self._leases[name] = _ConfirmedLease(terms, since_ns, until_ns)

    def _get_live_lease(self, name: tuple[str, str]) -> _ConfirmedLease | None:
        lease = self._leases.get(name)
        return lease if lease is not None and self.now_ns < lease.until_ns else None

    # Actual requirements

    def may_have_been_read(self, claim_message: ClaimMessage) -> bool:
        """Return whether anybody can have read this message."""
        found = self._host.broker.jetstream.streams[claim_message.stream].consumers
        names = [name for name in found if (claim_message.stream, name) not in self._first_seqs]
        if any(self._consumer_matches(claim_message, name) for name in names):
            return True
        first_seqs = (
            first for (stream, _), first in self._first_seqs.items() if stream == claim_message.stream
        )
        if any(first <= claim_message.seq for first in first_seqs):
            return True
        return any(
            terms.stream == claim_message.stream and terms.has_read(claim_message)
            for terms in self._written_terms
        )

    def find_blocking_consumer(self, claim_message: ClaimMessage, decision_ns: int) -> str:
        """Return the reader that needs a message's claim, and already did when the decision began; "" if there is none."""
        if (
            claim_message.stream in self.copies
            and (claim_message.reference.object_key, claim_message.stream) not in self._known_copies
        ):
            return ""
        for name, consumer in self._host.broker.jetstream.streams[claim_message.stream].consumers.items():
            progress = consumer.ack_state
            is_done = claim_message.seq not in progress.pending and claim_message.seq < progress.next_seq
            position_changed_ns = self._position_changed_ns.get((claim_message.stream, name), -1)
            if (
                not is_done
                and position_changed_ns < decision_ns
                and self._consumer_matches(claim_message, name)
            ):
                return name
        for (stream, reader), lease in self._leases.items():
            holds = lease.since_ns < decision_ns and self.now_ns < lease.until_ns
            if stream == claim_message.stream and holds and lease.terms.requires(claim_message):
                return f"the lease of {reader}"
        return ""

    def _consumer_matches(self, claim_message: ClaimMessage, name: str) -> bool:
        stream = self._host.broker.jetstream.streams[claim_message.stream]
        return stream.log.find_next(stream.consumers[name].filter, claim_message.seq) == claim_message.seq
