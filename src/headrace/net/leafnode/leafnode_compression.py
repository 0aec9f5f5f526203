"""Compression of one leafnode connection: which mode two servers agree on, and the S2 stream in both directions.

Owns the mode. Each side selects it from its own setting and that of the other side in INFO, as nats-server does. With
`s2_auto` it depends on the round-trip time and may change at any time, because each chunk says how it is encoded. Must
not know sockets or sessions.
"""

from __future__ import annotations

from bisect import bisect_left

from headrace.config.leafnode_options import LeafnodeCompressionOptions
from headrace.errors import ProtocolError
from headrace.protocol.s2_stream import DATA_MAX, S2Reader, S2Writer

NOT_SUPPORTED, OFF, ACCEPT, AUTO, UNCOMPRESSED = (
    "not supported",
    "off",
    "accept",
    "s2_auto",
    "s2_uncompressed",
)
#: The modes of `s2_auto`, by round-trip time.
AUTO_MODES = (UNCOMPRESSED, "s2_fast", "s2_better", "s2_best")
#: The most that is compressed in one turn of the loop; it takes about 2 ms.
COMPRESSED_PER_TURN = 1024 * 1024
_MODES = (OFF, ACCEPT, AUTO, *AUTO_MODES)


def select_mode(own: str, other: str) -> str:
    """Return the mode for two settings, `s2_auto` if it depends on the round-trip time.

    Raises ProtocolError if the other side's is unknown.
    """
    if other in ("", NOT_SUPPORTED) or own == NOT_SUPPORTED:
        return NOT_SUPPORTED
    if other not in _MODES:
        raise ProtocolError(f"unsupported route compression mode {other!r}")
    if OFF in (own, other) or (own, other) == (ACCEPT, ACCEPT):
        return OFF
    if own == ACCEPT:
        return other
    return AUTO if other == AUTO else own


class LeafnodeCompression:
    """The compression of one connection; until `start`, bytes are sent and received as they are."""

    def __init__(self, options: LeafnodeCompressionOptions) -> None:
        self._options = options
        self._is_auto = False
        self._reader: S2Reader | None = None
        self._writer: S2Writer | None = None
        self._pending = bytearray()
        self.mode = NOT_SUPPORTED

    @property
    def offer(self) -> str:
        """The mode in the first INFO of the side that was dialed; empty to look like a server without compression."""
        return "" if self._options.mode == NOT_SUPPORTED else self._options.mode

    @property
    def is_active(self) -> bool:
        return self._writer is not None

    @property
    def is_auto(self) -> bool:
        """Whether the mode depends on the round-trip time."""
        return self._is_auto

    def negotiate(self, other: str, rtt_s: float) -> str:
        """Select the mode; return the one to announce to the other side, or "" if the connection is not compressed."""
        self.mode = select_mode(self._options.mode, other)
        self._is_auto = self.mode == AUTO
        self.update_rtt(rtt_s)
        if self.mode in (OFF, NOT_SUPPORTED):
            return ""
        return AUTO if self._options.mode == AUTO else self.mode

    def start(self) -> None:
        """Expect and send an S2 stream from now on."""
        self._reader, self._writer = S2Reader(), S2Writer()

    def close(self) -> None:
        """Drop what was received and what is pending."""
        self._reader = self._writer = None
        self._pending = bytearray()

    def update_rtt(self, rtt_s: float) -> None:
        """Adapt the mode to the round-trip time, if it depends on it."""
        if self._is_auto:
            thresholds = self._options.rtt_thresholds_s
            self.mode = AUTO_MODES[min(bisect_left(thresholds, rtt_s), len(AUTO_MODES) - 1)]

    def encode(self, data: bytes | bytearray) -> bytes | bytearray:
        """Return the bytes to send; at most COMPRESSED_PER_TURN of the data, the rest is `pending_bytes`."""
        if self._writer is None:
            return data
        if not self._pending and len(data) <= COMPRESSED_PER_TURN:
            return self._writer.encode(data, compress=self.mode != UNCOMPRESSED) if data else b""
        self._pending += data
        data = self._pending[:COMPRESSED_PER_TURN]
        del self._pending[:COMPRESSED_PER_TURN]
        return self._writer.encode(data, compress=self.mode != UNCOMPRESSED)

    @property
    def pending_bytes(self) -> int:
        """What the next calls of `encode` return."""
        return len(self._pending)

    def feed(self, data: bytes) -> None:
        """Add received bytes of the S2 stream."""
        assert self._reader is not None
        self._reader.feed(data)

    @property
    def received_bytes(self) -> int:
        """Bytes that `next` has not returned yet; they may be a part of a chunk."""
        return self._reader.buffered_bytes if self._reader is not None else 0

    def next(self, data_max: int = DATA_MAX) -> bytes | None:
        """Return the next part of what was received; None if more bytes are needed.

        Raises ProtocolError, also if the part is larger than `data_max`.
        """
        assert self._reader is not None
        return self._reader.next(data_max)
