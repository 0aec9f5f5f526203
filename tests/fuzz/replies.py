"""Fuzz target: direct-get replies of a hostile server: rows or a ValueError, the same from both cores."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from headrace._native import load_native, reply_scanner_pure

from .input_generator import NUMBERS, Maker
from .target import Pair

_kernel = load_native("reply_scanner")
_LINES = (
    b"Nats-Stream: ", b"Nats-Subject: ", b"Nats-Sequence: ", b"Nats-Time-Stamp: ", b"Nats-Num-Pending: ",
    b"Nats-Last-Sequence: ",
)  # fmt: skip
_TIMES = (
    b"1970-01-01T00:00:01.5Z", b"2026-11-15T09:44:03.503476112Z", b"2262-04-11T23:47:16.854775807Z", b"Z",
    b"9999-12-31T23:59:59Z", b"2024-02-30T00:00:00Z", b"2026-11-15T09:44:03", b"-292-01-01T00:00:00Z",
)  # fmt: skip
_WORDS = (
    *_LINES,
    *_TIMES,
    b"HMSG I 1 ",
    b"\r\n",
    b"\n",
    b" ",
    b"NATS/1.0\r\n",
    b"NATS/1.0 204\r\n\r\n",
    b"\r\n\r\n",
)


class Case(NamedTuple):
    data: bytes
    pieces: list[bytes]


def start(maker: Maker) -> Pair:
    return make, check


def make(maker: Maker) -> Case:
    data = b"".join([_frame(maker) for _ in range(1 + maker.below(4))])
    if maker.chance(0.4):
        data = maker.damaged(data, _WORDS)
    return Case(data, maker.pieces(data))


def _frame(maker: Maker) -> bytes:
    seq = maker.pick(NUMBERS) if maker.chance(0.1) else b"%d" % maker.below(1 << 40)
    time = maker.pick(_TIMES) if maker.chance(0.2) else _TIMES[maker.below(3)]
    values = (b"S", b"a.%d" % maker.below(9), seq, time, b"1", b"0")
    lines = [name + value + b"\r\n" for name, value in zip(_LINES, values, strict=True)]
    if maker.chance(0.1):
        lines.pop(maker.below(len(lines)))
    own = b"A: b\r\n" if maker.chance(0.3) else b""
    header = b"NATS/1.0\r\n" + own + b"".join(lines) + b"\r\n"
    if maker.chance(0.1):
        header = b"NATS/1.0 204 EOB\r\n\r\n"
    payload = maker.bytes(12)
    head, total = b"%d" % len(header), b"%d" % (len(header) + len(payload))
    if maker.chance(0.1):
        head, total = maker.pick((head, maker.pick(NUMBERS))), maker.pick((total, maker.pick(NUMBERS)))
    end = b"\r\n" if maker.chance(0.97) else maker.pick((b"\n", b"\r", b""))
    return b"HMSG I 1 %s %s%s%s%s\r\n" % (head, total, end, header, payload)


def check(case: Case) -> None:
    found = _read(_kernel, case.pieces)
    assert found == _read(reply_scanner_pure, case.pieces), "the kernels differ"
    rows, at = found[0], found[2]
    for begin, head, total, seq, time_ns, subject, length, own in rows:
        assert 0 <= begin <= own <= begin + head <= begin + total <= at
        assert begin <= subject <= subject + length <= begin + head
        assert seq >= 0
        assert time_ns >= 0


def _read(kernel: Any, pieces: list[bytes]) -> tuple[list[list[int]], bytes, int, str]:
    """Return rows, status, position and error when the replies arrive in pieces."""
    frames, buffer, failure = kernel.ReplyScanner(b"I"), bytearray(), ""
    for piece in pieces:
        buffer += piece
        try:
            if frames.scan(buffer):
                break
        except ValueError as error:
            failure = str(error)
            break
    rows = np.frombuffer(frames.packed_rows(), np.int64).reshape(-1, kernel.FIELDS_PER_MESSAGE).tolist()
    return rows, frames.status, frames.position, failure
