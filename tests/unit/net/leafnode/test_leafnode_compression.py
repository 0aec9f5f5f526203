"""Which mode two servers select, and how much is encoded at once."""

from __future__ import annotations

import pytest

from headrace.config.leafnode_options import LeafnodeCompressionOptions
from headrace.errors import ProtocolError
from headrace.net.leafnode.leafnode_compression import COMPRESSED_PER_TURN, LeafnodeCompression, select_mode


def make(mode: str = "s2_auto") -> LeafnodeCompression:
    return LeafnodeCompression(LeafnodeCompressionOptions(mode=mode))


@pytest.mark.parametrize(
    ("own", "other", "selected"),
    [
        ("s2_auto", "", "not supported"),
        ("not supported", "s2_fast", "not supported"),
        ("off", "s2_fast", "off"),
        ("s2_fast", "off", "off"),
        ("accept", "accept", "off"),
        ("accept", "s2_best", "s2_best"),
        ("s2_better", "accept", "s2_better"),
        ("s2_better", "s2_auto", "s2_auto"),
        ("s2_auto", "s2_fast", "s2_auto"),
        ("s2_better", "s2_best", "s2_better"),
    ],
)
def test_modes(own: str, other: str, selected: str) -> None:
    assert select_mode(own, other) == selected


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ProtocolError, match="zstd"):
        select_mode("s2_auto", "zstd")


def test_auto_depends_on_the_round_trip_time() -> None:
    compression = make()
    assert compression.negotiate("s2_auto", 0.001) == "s2_auto"
    found = []
    for rtt_s in (0.001, 0.01, 0.02, 0.06, 0.2):
        compression.update_rtt(rtt_s)
        found.append(compression.mode)
    assert found == ["s2_uncompressed", "s2_uncompressed", "s2_fast", "s2_better", "s2_best"]
    fixed = make("s2_fast")
    assert fixed.negotiate("s2_fast", 0.2) == "s2_fast"
    fixed.update_rtt(1.0)
    assert fixed.mode == "s2_fast"


def test_what_is_sent_is_received_in_slices() -> None:
    sender, receiver = make("s2_fast"), make("s2_fast")
    assert sender.encode(b"plain") == b"plain"
    for side in (sender, receiver):
        side.negotiate("s2_fast", 0.0)
        side.start()
    data = bytes(range(256)) * (COMPRESSED_PER_TURN // 100)
    output = bytes(sender.encode(data))
    assert sender.pending_bytes == len(data) - COMPRESSED_PER_TURN
    while sender.pending_bytes:
        output += sender.encode(b"")
    output += sender.encode(b"end")
    assert sender.encode(b"") == b""
    receiver.feed(output)
    found = b""
    while (part := receiver.next()) is not None:
        found += part
    assert found == data + b"end"
