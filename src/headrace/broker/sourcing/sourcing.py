"""The mirror and sources of one stream: which replicators run, and their positions.

Owns the comparison of a configuration with what runs: unchanged entries continue undisturbed, new ones start where their
index name was before, changed consumers take over the position.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace.broker.sourcing.consumer_ownership import ConsumerOwner
from headrace.broker.sourcing.copy_writer import CopyWriter
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

    __slots__ = ("_jetstream", "_log", "_message_count", "_metadata", "_replicators", "_stream", "positions")

    def __init__(self, stream: StreamContext, metadata: MetadataStore | None) -> None:
        self._stream = stream
        self._jetstream = stream.jetstream
        self._log = stream.log
        self._metadata = metadata
        self._replicators: dict[str, Replicator] = {}
        self._message_count = 0  # as of the last commit
        self.positions = SourcePositions(metadata, stream.log.ident)

    # Configuration

    def configure(self, config: StreamConfig) -> None:
        """Start new replicators, remove those no longer configured, leave the others alone."""
        entries = {make_index_name(entry): entry for entry in _iter_entries(config)}
        if not entries and not self._replicators:
            return
        removed = {
            index: replicator
            for index, replicator in self._replicators.items()
            if index not in entries or replicator.upstream.consumer != entries[index].consumer
        }
        for index in removed:
            del self._replicators[index]
        for index, entry in entries.items():
            if index not in self._replicators:
                self._add_replicator(index, entry, config, removed)
        for replicator in removed.values():
            replicator.remove()

    def _add_replicator(
        self, index: str, entry: StreamSource, config: StreamConfig, removed: dict[str, Replicator]
    ) -> None:
        is_mirror = config.mirror is not None
        sole_entry = sum(other.name == entry.name for other in _iter_entries(config)) == 1
        predecessor = self._find_predecessor(entry, removed)
        if predecessor is not None and not is_mirror:
            self._transfer_position(index, predecessor)
        upstream = Upstream(entry, self._make_owner(), is_mirror=is_mirror, sole_entry=sole_entry)
        replicator = Replicator(self._jetstream, upstream, self._make_writer(upstream))
        self._replicators[index] = replicator
        if predecessor is not None:
            replicator.take_over(predecessor)
        replicator.start()

    def _make_owner(self) -> ConsumerOwner:
        jetstream = self._jetstream
        server = short_hash(str(jetstream.store.store_id))
        return ConsumerOwner(jetstream.account, jetstream.domain, self._stream.name, server)

    def _make_writer(self, upstream: Upstream) -> CopyWriter:
        stream = self._stream
        if upstream.is_mirror:
            return MirrorWriter(stream, upstream)
        timers = self._jetstream.timers
        pending_batch = PendingBatch(stream, self._metadata, upstream.index_name, timers.now_ns())
        return SourceWriter(stream, upstream, self.positions, pending_batch)

    def _find_predecessor(self, entry: StreamSource, removed: dict[str, Replicator]) -> Replicator | None:
        """Find a removed replicator that differs from the entry only in its consumer."""
        for index, replicator in removed.items():
            if _strip_consumer(replicator.upstream.entry) == _strip_consumer(entry):
                return removed.pop(index)
        return None

    def _transfer_position(self, index: str, predecessor: Replicator) -> None:
        """Continue at the predecessor's position, so that no message is stored twice."""
        writer, saved = predecessor.writer, self.positions.get(index)
        if writer.stored_seq > saved.seq or writer.identity != saved.identity:
            self.positions.set(index, writer.stored_seq, writer.identity)
            self._stream.mark_dirty()

    def restore_position(self, index: str, seq: int, identity: str) -> None:
        """Set the position of a source from a backup, before the source starts."""
        self.positions.set(index, seq, identity)

    # Life

    def stop(self) -> None:
        """Stop all replicators: the server is closing."""
        for replicator in self._replicators.values():
            replicator.stop()

    def close(self) -> None:
        """Remove all replicators: the stream is being deleted."""
        for replicator in self._replicators.values():
            replicator.remove()
        self._replicators.clear()

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


def _strip_consumer(entry: StreamSource) -> StreamSource:
    stripped = copy_config(entry)
    stripped.consumer = None
    stripped.opt_start_seq, stripped.opt_start_time = 0, None
    return stripped
