"""Handovers: what a source or mirror takes over when its consumer changes, until the new consumer has replaced the old.

Owns which old consumers to delete, from where the new one continues, and which messages the stream has already copied
through others. All of it is metadata, stored in the same frame as the configuration: a crash leaves no consumer behind,
and nothing is copied twice. Must not know requests; see `consumer_deletion`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from headrace.protocol.pattern_set import PatternSet
from headrace.storage import MetadataStore

KEY = b"handover/"
#: The index of consumers whose source was removed.
_REMOVED = ""


def make_key(ident: int) -> bytes:
    """Return the metadata key of a stream's handovers."""
    return KEY + b"%d" % ident


class ConsumerAddress(msgspec.Struct, array_like=True, frozen=True):
    """A consumer at an upstream: the prefix of its API, the stream, and its name."""

    api: str
    stream: str
    name: str

    def make_subject(self, verb: str) -> bytes:
        """Return the subject of a request about this consumer."""
        return f"{self.api}.CONSUMER.{verb}.{self.stream}.{self.name}".encode()

    @property
    def key(self) -> tuple[bytes, str]:
        """Under which a replicator that reads through it is registered."""
        return f"{self.api}.CONSUMER.CREATE.{self.stream}".encode(), self.name


class CopiedRange(msgspec.Struct, array_like=True, frozen=True):
    """The stream has copied every message up to `seq` that matches a filter; no filters: every message."""

    filters: list[str]
    seq: int

    def covers(self, filters: Sequence[str]) -> bool:
        """Whether it includes everything that these filters match."""
        if not self.filters:
            return True
        patterns = make_pattern_set(self.filters)
        return all(patterns.covers(each.encode()) for each in filters or (">",))


def make_pattern_set(filters: Iterable[str]) -> PatternSet:
    return PatternSet(each.encode() for each in filters)


class HandoverRecord(msgspec.Struct, array_like=True):
    """A handover as it is stored."""

    #: Up to where the old consumer acknowledged messages; -1 if that is not known.
    resume_seq: int = -1
    #: The old consumer, if its ack floor is not known.
    floor_of: ConsumerAddress | None = None
    retired: list[ConsumerAddress] = []
    copied: list[CopiedRange] = []
    #: The filters of a user-managed consumer, which its source does not name; None before it was in use.
    filters: list[str] | None = None


class Handover:
    """The handover of one source or mirror; empty most of the time."""

    __slots__ = ("_handovers", "record")

    def __init__(self, record: HandoverRecord, handovers: Handovers) -> None:
        self.record = record
        self._handovers = handovers

    def _save(self) -> None:
        self._handovers.save()

    @property
    def resume_seq(self) -> int:
        """Up to where the old consumer acknowledged messages; -1 if there is none, or it is not known."""
        return self.record.resume_seq

    @property
    def floor_of(self) -> ConsumerAddress | None:
        """The old consumer, if its ack floor is not known."""
        return self.record.floor_of

    @property
    def filters(self) -> list[str] | None:
        """What the consumer filters, as recorded; None if that is not known."""
        return self.record.filters

    @property
    def copied(self) -> list[CopiedRange]:
        """What predecessors have copied."""
        return self.record.copied

    @property
    def has_retired(self) -> bool:
        """Whether old consumers are to be deleted."""
        return bool(self.record.retired)

    def take_over(self, other: Handover, consumer: ConsumerAddress, acked_seq: int, *, deletes: bool) -> None:
        """Take over from a replicator that has stopped: where its consumer was, and what to delete."""
        old, record = other.record, self.record
        resume_seq, floor_of = acked_seq, None
        if resume_seq < 0:
            resume_seq, floor_of = old.resume_seq, old.floor_of
            if resume_seq < 0:
                floor_of = floor_of or consumer
        retired = [*old.retired, consumer] if deletes else old.retired
        if acked_seq >= 0:
            self._handovers.mark_as_own(consumer)
        old.resume_seq, old.floor_of, old.retired = -1, None, []
        if record.resume_seq >= 0:  # of another predecessor
            resume_seq = min(resume_seq, record.resume_seq) if resume_seq >= 0 else record.resume_seq
        record.resume_seq, record.floor_of = resume_seq, record.floor_of or floor_of
        record.retired = list(dict.fromkeys(record.retired + retired))
        self._save()

    def set_floor(self, seq: int) -> None:
        """Continue after this sequence, or that of another predecessor; -1 if the old consumer no longer exists."""
        record = self.record
        known = [each for each in (seq, record.resume_seq) if each >= 0]
        record.resume_seq, record.floor_of = min(known, default=-1), None
        self._save()

    def on_ready(self, filters: list[str] | None) -> None:
        """The new consumer exists: delete the old ones. `filters` are those of a user-managed consumer."""
        record = self.record
        if record.resume_seq >= 0 or record.floor_of is not None or record.filters != filters:
            record.resume_seq, record.floor_of, record.filters = -1, None, filters
            self._save()
        self.delete_retired()

    def delete_retired(self) -> None:
        """Delete the old consumers."""
        for consumer in list(self.record.retired):
            self._handovers.delete(consumer)

    def set_copied(self, ranges: list[CopiedRange]) -> None:
        """Remember what the stream has copied through other consumers of the upstream."""
        if self.record.copied != ranges:
            self.record.copied = ranges
            self._save()


class Handovers:
    """The handovers of one stream, by index name; `metadata` is None for a stream in memory."""

    __slots__ = ("_delete", "_key", "_mark_dirty", "_metadata", "_own", "_records")

    def __init__(
        self,
        metadata: MetadataStore | None,
        ident: int,
        mark_dirty: Callable[[], None],
        delete: Callable[[ConsumerAddress, bool], None],
    ) -> None:
        """`delete` starts to delete a consumer, after a look at its owner if the second argument is true.

        `on_deleted` has to be called when it is gone.
        """
        self._metadata = metadata
        self._key = make_key(ident)
        self._mark_dirty = mark_dirty
        self._delete = delete
        self._own: set[ConsumerAddress] = set()
        block = metadata.get(self._key) if metadata is not None else None
        self._records: dict[str, HandoverRecord] = (
            msgspec.msgpack.decode(block, type=dict[str, HandoverRecord]) if block else {}
        )

    def __bool__(self) -> bool:
        return bool(self._records)

    def open(self, index: str) -> Handover:
        """Return the handover of a source or mirror."""
        return Handover(self._records.setdefault(index, HandoverRecord()), self)

    def mark_as_own(self, consumer: ConsumerAddress) -> None:
        """Record that this stream has read through a consumer since the start, so it is certainly its own."""
        self._own.add(consumer)

    def delete(self, consumer: ConsumerAddress) -> None:
        """Start to delete a consumer."""
        self._delete(consumer, consumer not in self._own)

    def retire(self, consumer: ConsumerAddress | None, handover: Handover) -> None:
        """Delete the consumers of a source that was removed."""
        record = self._records.setdefault(_REMOVED, HandoverRecord())
        old = handover.record
        added = [*old.retired, *([consumer] if consumer is not None else [])]
        old.resume_seq, old.floor_of, old.retired = -1, None, []
        record.retired = list(dict.fromkeys(record.retired + added))
        self.save()
        for each in added:
            self.delete(each)

    def retire_unconfigured(self, configured: Iterable[str]) -> None:
        """Delete the old consumers of sources that no longer exist, after a restart."""
        indexes = set(configured)
        for index, record in list(self._records.items()):
            for consumer in [] if index in indexes else list(record.retired):
                self.delete(consumer)

    def on_deleted(self, consumer: ConsumerAddress) -> None:
        """Forget a consumer that is gone, or in use again."""
        changed = [each for each in self._records.values() if consumer in each.retired]
        for record in changed:
            record.retired.remove(consumer)
        self._own.discard(consumer)
        if changed:
            self.save()

    def all_retired(self) -> list[ConsumerAddress]:
        """Return all consumers that are not deleted yet."""
        return [consumer for record in self._records.values() for consumer in record.retired]

    def save(self) -> None:
        """Store all handovers with the open frame."""
        if self._metadata is None:
            return
        filled = {index: record for index, record in self._records.items() if record != HandoverRecord()}
        if filled:
            self._metadata.put(self._key, msgspec.msgpack.encode(filled))
        else:
            self._metadata.delete(self._key)
        self._mark_dirty()
