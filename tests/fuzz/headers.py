"""Fuzz target: arbitrary header blocks. Both cores read the same, and a change can be read back."""

from __future__ import annotations

from headrace._native import ingest_state_pure
from headrace.protocol import headers
from support.native_and_pure import load

from .input_generator import NUMBERS, Maker
from .target import Pair

_NAMES = (
    b"Nats-Msg-Id Nats-TTL Nats-Batch-Id Nats-Batch-Sequence Nats-Expected-Last-Sequence Nats- nats-ttl Nats-Rollup A a "
    b"Nats-Schedule Nats-Incr Nats-Expected-Last-Subject-Sequence Nats-Expected-Last-Subject-Sequence-Subject "
    b"Nats-Expected-Last-Msg-Id Nats-Expected-Stream Nats-Batch-Commit Nats-Schedule-TTL Nats-Schedule-Target "
    b"Nats-Schedule-Source Nats-Schedule-Time-Zone Nats-Marker-Reason Nats-Required-Api-Level Nats-Stream-Source "
    b"Nats-Counter-Sources Nats-Pin-Id Nats-Time-Stamp Nats-Scheduler Nats-Schedule-Next"
).split()
_NAMES.append(b"")
_VALUES = (
    *NUMBERS,
    b"x",
    b" x ",
    b"\tx",
    b"1s",
    b"never",
    b"a: b",
    b"Nats-TTL: 1",
    b"9" * 5000 + b"s",
    b"1" * 30 + b"h",
    b"0.%ss" % (b"9" * 5000),
)
_VALUES += (
    b"@every 1s",
    b"@every 1ns",
    b"@at 2020-01-01T00:00:00Z",
    b"@at x",
    b"* * * * * *",
    b"0 0 0 31 2 *",
    b"*/0 * * * * *",
    b"all",
)
_VALUES += (
    b"sub",
    b"eob",
    b"+1",
    b"-1",
    b"q.a",
    b"UTC",
    b"../../etc/passwd",
    b'{"a":{"b":"1"}}',
    b"[" * 3000,
    b"@daily",
    b"1-99 * * * * *",
)
_SEPARATORS = (b": ", b": ", b": ", b":", b" : ", b"", b":  \t")
_ENDS = (b"\r\n", b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r", b"")
_FIRST = (
    b"NATS/1.0",
    b"NATS/1.0",
    b"NATS/1.0",
    b"NATS/1.0 503",
    b"NATS/1.0 408 Request Timeout",
    b"NATS/1.0 ",
    b"",
)
_WORDS = (*_NAMES, *_FIRST, b"\r\n", b"\r\n\r\n", b":")
_compiled = load("compiled").parse_nats_headers
_pure = ingest_state_pure.parse_nats_headers


def start(maker: Maker) -> Pair:
    return make, check


def make(maker: Maker) -> bytes:
    parts = [maker.pick(_FIRST)]
    if maker.chance(0.1):
        parts += (b" ", maker.pick(NUMBERS))
    parts.append(b"\r\n")
    for _ in range(maker.below(5)):
        parts += (maker.pick(_NAMES), maker.pick(_SEPARATORS), maker.pick(_VALUES), maker.pick(_ENDS))
    parts.append(b"\r\n")
    block = b"".join(parts)
    return maker.damaged(block, _WORDS) if maker.chance(0.5) else block


def check(block: bytes) -> None:
    found = _compiled(block)
    assert found == _pure(block), "the kernels differ"
    pairs = headers.parse_pairs(block)
    for name in (b"Nats-TTL", b"Nats-Msg-Id", b"A"):
        first = headers.get(block, name)
        same = [value for key, value in pairs if key == name]
        assert (first is not None) == bool(same), f"{name!r} is there for one reader only"
        if first is not None:
            assert first.strip(b" \t") == same[0]
        if name.startswith(b"Nats-"):
            assert found.get(name) == first, f"{name!r} is not the same for all readers"
    _change(block)


def _change(block: bytes) -> None:
    bare = headers.strip(block, b"Nats-TTL")
    assert len(bare) <= len(block)
    if block.endswith(b"\r\n"):
        assert headers.get(bare, b"Nats-TTL") is None, "stripped, it is still there"
    longer = headers.append(block, [(b"Nats-Stream", b"S")])
    assert b"Nats-Stream: S\r\n" in longer
    if block.startswith(b"NATS/1.0\r\n") and block.endswith(b"\r\n\r\n"):
        again = headers.replace(block, b"Nats-TTL", b"7")
        set_to = [value for name, value in headers.parse_pairs(again) if name == b"Nats-TTL"]
        assert set_to == [b"7"], "replaced, it is not what it was set to"
        assert _compiled(again)[b"Nats-TTL"] == _pure(again)[b"Nats-TTL"] == b"7"
