"""The mirror and sources of one stream: which replicators run, and their positions.

Owns the comparison of a configuration with what runs: unchanged entries continue undisturbed, new ones start where their
index name was before, changed consumers take over the position.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace.broker.sourcing.consumer_deletion import ConsumerDeletions
from headrace.broker.sourcing.consumer_ownership import ConsumerOwner
from headrace.broker.sourcing.copy_writer import CopyWriter
from headrace.broker.sourcing.handover import ConsumerAddress, CopiedRange, Handover, Handovers
from headrace.broker.sourcing.mirror_writer import MirrorWriter
from headrace.broker.sourcing.replicator import Replicator
from headrace.broker.sourcing.source_positions import SourcePositions
from headrace.broker.sourcing.source_writer import SourceWriter
from headrace.broker.sourcing.staged_atomic_batch import PendingBatch
from headrace.broker.sourcing.upstream_requests import Upstream
from headrace.jetstream_api import responses
from headrace.jetstream_api.configs import StreamConfig, StreamSource, copy_config
from headrace.jetstream_api.names import short_hash
from headrace.jetstream_api.validation.sourcing import make_index_name
from headrace.storage import MetadataStore

if TYPE_CHECKING:
    from headrace.broker.streams.stream_context import StreamContext

#: A mirror serves direct gets for its upstream once its lag is below this.
CAUGHT_UP_LAG = 10


class Sourcing:
    """The replicators of one stream, by index name; `metadata` is None for a stream in memory."""

    __slots__ = (
        "_deletions",
        "_jetstream",
        "_log",
        "_message_count",
        "_metadata",
        "_owner",
        "_replicators",
        "_stream",
        "_to_delete",
        "handovers",
        "positions",
    )

    def __init__(self, stream: StreamContext, metadata: MetadataStore | None) -> None:
        self._stream = stream
        self._jetstream = stream.jetstream
        self._log = stream.log
        self._metadata = metadata
        self._replicators: dict[str, Replicator] = {}
        self._message_count = 0  # as of the last commit
        self._to_delete: list[ConsumerAddress] = []
        self.positions = SourcePositions(metadata, stream.log.ident)
        self.handovers = Handovers(metadata, stream.log.ident, stream.mark_dirty, self._delete_consumer)
        jetstream = stream.jetstream
        server = short_hash(str(jetstream.store.store_id))
        self._owner = ConsumerOwner(jetstream.account, jetstream.domain, stream.name, server)
        self._deletions = ConsumerDeletions(jetstream, self._owner, self.handovers.on_deleted)

    # Configuration

    def configure(self, config: StreamConfig) -> None:
        """Start new replicators, remove those no longer configured, leave the others alone."""
        entries = {make_index_name(entry): entry for entry in _iter_entries(config)}
        if not entries and not self._replicators and not self.handovers:
            return
        removed = {
            index: replicator
            for index, replicator in self._replicators.items()
            if index not in entries or replicator.upstream.consumer != entries[index].consumer
        }
        for index, replicator in removed.items():
            del self._replicators[index]
            replicator.stop()
        replaced: set[str] = set()
        for index, entry in entries.items():
            if index not in self._replicators:
                self._add_replicator(index, entry, config, removed, replaced)
        for index, replicator in removed.items():
            if index not in replaced:
                replicator.finish()
                address = replicator.consumer_address if replicator.deletes else None
                if address is not None and replicator.acked_seq >= 0:
                    self.handovers.mark_as_own(address)
                self.handovers.retire(address, replicator.handover)
        self.handovers.retire_unconfigured(entries)

    def _add_replicator(
        self,
        index: str,
        entry: StreamSource,
        config: StreamConfig,
        removed: dict[str, Replicator],
        replaced: set[str],
    ) -> None:
        """Add a replicator; `replaced` are the removed ones that others have taken over already."""
        is_mirror = config.mirror is not None
        sole_entry = sum(other.name == entry.name for other in _iter_entries(config)) == 1
        upstream = Upstream(entry, self._owner, is_mirror=is_mirror, sole_entry=sole_entry)
        predecessors = {key: each for key, each in removed.items() if _may_replace(entry, each.upstream)}
        handover = self.handovers.open(index)
        if predecessors and not is_mirror:
            self._transfer_positions(upstream, list(predecessors.values()), handover)
        to_replace = [each for key, each in predecessors.items() if key not in replaced]
        for old in to_replace:
            handover.take_over(old.handover, old.consumer_address, old.acked_seq, deletes=old.deletes)
        writer = self._make_writer(upstream, handover)
        for old in to_replace:
            writer.take_over(old.writer)
        replaced.update(predecessors)
        replicator = self._replicators[index] = Replicator(self._jetstream, upstream, writer, handover)
        self._deletions.cancel(replicator.consumer_address)
        self.handovers.on_deleted(replicator.consumer_address)
        replicator.start()

    def _delete_consumer(self, consumer: ConsumerAddress, look_first: bool) -> None:
        self._deletions.start(consumer, look_first=look_first)

    def _make_writer(self, upstream: Upstream, handover: Handover) -> CopyWriter:
        stream = self._stream
        if upstream.is_mirror:
            return MirrorWriter(stream, upstream)
        timers = self._jetstream.timers
        pending_batch = PendingBatch(stream, self._metadata, upstream.index_name, timers.now_ns())
        return SourceWriter(stream, upstream, self.positions, pending_batch, handover)

    def _transfer_positions(
        self, upstream: Upstream, predecessors: list[Replicator], handover: Handover
    ) -> None:
        """Continue where the predecessors were, so that no message is stored twice.

        Where the filters differ, messages that a predecessor has copied are skipped one by one.
        """
        ranges: list[CopiedRange] = []
        known = handover.filters  # of a user-managed consumer that the saved position is from
        filters = None if upstream.is_user_managed else upstream.get_filters()
        for each in predecessors:
            if filters is None or filters != each.copied_filters:
                each.finish()  # the new source may get only some members of the batch that is held back
            ranges += each.make_copied_ranges(filters)
        index, saved = upstream.index_name, self.positions.get(upstream.index_name)
        identities = [each.writer.identity for each in predecessors]
        identity = next((each for each in identities if each), saved.identity)
        if saved.identity in ("", identity):
            ranges.append(CopiedRange(upstream.get_filters() if known is None else known, saved.seq))
        covering = [each.seq for each in ranges if each.covers(filters if filters is not None else ())]
        seq = max(covering, default=0)
        if (seq, identity) != (saved.seq, saved.identity):
            self.positions.set(index, seq, identity)
            self._stream.mark_dirty()
        handover.set_copied([each for each in ranges if each.seq > seq])

    def restore_position(self, index: str, seq: int, identity: str) -> None:
        """Set the position of a source from a backup, before the source starts."""
        self.positions.set(index, seq, identity)

    # Life

    def stop(self) -> None:
        """Stop all replicators: the server is closing."""
        self._deletions.stop()
        for replicator in self._replicators.values():
            replicator.stop()

    def close(self) -> None:
        """Remove all replicators: the stream is being deleted, and then their consumers."""
        retired = self.handovers.all_retired()
        for replicator in self._replicators.values():
            replicator.stop()
            replicator.finish()
            if replicator.deletes:
                retired.append(replicator.consumer_address)
        self._deletions.stop()
        self._replicators.clear()
        self._to_delete = retired

    def delete_consumers(self) -> None:
        """Delete the consumers of a stream that is deleted in the open frame."""
        jetstream = self._jetstream
        for consumer in self._to_delete:  # only once: nothing remains that could try again
            if consumer.key not in jetstream.copiers:
                jetstream.group_commit.send_after_commit(consumer.make_subject("DELETE"), b"", b"", b"")

    # Group commit

    def prepare_commit(self) -> None:
        """Persist positions together with their copies, and retry copies if there is space again."""
        self.positions.save()
        message_count, self._message_count = self._message_count, self._log.messages
        if message_count > self._message_count:
            for replicator in self._replicators.values():
                replicator.on_space_available()

    # Status

    def make_mirror_info(self, now_ns: int) -> responses.SourceStatus | None:
        """Return the status of the mirror, for the stream's info."""
        infos = [
            replicator.make_info(now_ns)
            for replicator in self._replicators.values()
            if replicator.upstream.is_mirror
        ]
        return infos[0] if infos else None

    def make_source_infos(self, now_ns: int) -> list[responses.SourceStatus]:
        """Return the status of every source, for the stream's info."""
        return [
            replicator.make_info(now_ns)
            for replicator in self._replicators.values()
            if not replicator.upstream.is_mirror
        ]

    @property
    def is_almost_caught_up(self) -> bool:
        """Whether a mirror has nearly everything that its upstream has."""
        return any(0 <= replicator.num_pending < CAUGHT_UP_LAG for replicator in self._replicators.values())


def _iter_entries(config: StreamConfig) -> Iterator[StreamSource]:
    if config.mirror is not None:
        yield config.mirror
    for entry in config.sources:
        if entry is not None:
            yield entry


def _may_replace(entry: StreamSource, old: Upstream) -> bool:
    """Whether an entry replaces another: it has the same upstream and renames alike, and the same filter.

    A source with a user-managed consumer names no filter: that is in the consumer's configuration.
    """
    one, other = _strip_consumer(entry), _strip_consumer(old.entry)
    consumer = entry.consumer
    if old.is_user_managed or (consumer is not None and not consumer.server_managed):
        for each in (one, other):
            each.filter_subject = ""
            each.subject_transforms = [rename for rename in each.subject_transforms if rename.dest]
    return one == other


def _strip_consumer(entry: StreamSource) -> StreamSource:
    stripped = copy_config(entry)
    stripped.consumer = None
    stripped.opt_start_seq, stripped.opt_start_time = 0, None
    return stripped
