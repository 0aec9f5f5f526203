"""Compacts the metadata that streams and consumers write as deltas: a checkpoint stores their present state instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.consumers.consumer_storage import ACK_STATE_KEY
from headrace.broker.sourcing.source_positions import KEY as SOURCE_POSITIONS_KEY
from headrace.broker.streams.dedup import DEDUP_KEY

if TYPE_CHECKING:
    from headrace.broker.stream import Stream
    from headrace.broker.timers import Timers
    from headrace.storage import MetadataStore
    from headrace.storage.metadata_store import ValueSteps


class MetadataCompaction:
    """Encodes the present state of the streams of one account."""

    __slots__ = ("_metadata", "_streams", "_timers")

    def __init__(self, metadata: MetadataStore, streams: dict[str, Stream], timers: Timers) -> None:
        self._metadata = metadata
        self._streams = streams
        self._timers = timers

    def register_before_recovery(self) -> None:
        """Register what recovery itself may have to compact."""
        self._metadata.register_compactor(DEDUP_KEY, self._compact_dedup)

    def register_after_recovery(self) -> None:
        """Register what recovery reads as deltas."""
        self._metadata.register_compactor(ACK_STATE_KEY, self._compact_ack_state)
        self._metadata.register_compactor(SOURCE_POSITIONS_KEY, self._compact_source_positions)

    def _find_stream(self, ident: bytes) -> Stream | None:
        return next((s for s in self._streams.values() if s.log.ident == int(ident)), None)

    def _compact_dedup(self, key: bytes) -> bytes:
        stream = self._find_stream(key[len(DEDUP_KEY) :].partition(b"/")[0])
        return stream.dedup.encode_block(key) if stream is not None and stream.dedup is not None else b""

    def _compact_ack_state(self, key: bytes) -> bytes | ValueSteps:
        ident, _, name = key[len(ACK_STATE_KEY) :].partition(b"/")
        stream = self._find_stream(ident)
        consumer = stream.consumer_set.find(name.decode()) if stream is not None else None
        if consumer is None:
            return b""
        return consumer.ack_state.start_snapshot(self._timers.clock_offset_ns)

    def _compact_source_positions(self, key: bytes) -> bytes:
        stream = self._find_stream(key[len(SOURCE_POSITIONS_KEY) :])
        if stream is None:
            return b""
        positions = stream.sourcing.positions
        return positions.encode_snapshot()
