"""A process that reads pins and compares each with the content that the writer expects.

Lines on standard input: `pin position count digest`; lines on standard output: `ok pin` or what is wrong.
Each pin is read twice: a retry must give the same rows.
"""

from __future__ import annotations

import sys

import numpy as np

import headrace

STREAM = "LOAD"
_MIX = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def payload_of(seq: int) -> bytes:
    """Return the payload of message `seq`: length and bytes follow from the number. Some are large."""
    repeats = 2500 if seq % 499 == 0 else 1 + seq * 7 % 40
    return (seq * _MIX & _MASK).to_bytes(8, "little") * repeats


def subject_of(seq: int) -> bytes:
    return b"load.%d" % (seq % 11)


def digest(seq: int) -> int:
    """Return a digest; its sum over a set of sequences (modulo 2**64) identifies the set."""
    mixed = seq * _MIX & _MASK
    return (mixed ^ mixed >> 29) * 0xBF58476D1CE4E5B9 & _MASK


def digest_all(seqs: np.ndarray) -> int:
    with np.errstate(over="ignore"):
        mixed = seqs * np.uint64(_MIX)
        mixed = (mixed ^ mixed >> np.uint64(29)) * np.uint64(0xBF58476D1CE4E5B9)
        return int(mixed.sum(dtype=np.uint64))


def inspect(root: str, pin: str, position: int, count: int, expected: int) -> str:
    """Return what is wrong with a pin; empty if nothing is."""
    found, total, before = 0, 0, 0
    with headrace.read(root, STREAM, pin=pin, columns=["seq", "subject", "data"], batch_rows=5000) as reading:
        if reading.position != position:
            return f"position {reading.position} instead of {position}"
        for batch in reading:
            seqs = batch["seq"].to_numpy()
            if (np.diff(seqs) <= 0).any() or seqs[0] <= before or seqs[-1] > position:
                return f"sequences out of order near {seqs[0]}"
            before = int(seqs[-1])
            found += len(seqs)
            total = total + digest_all(seqs) & _MASK
            for seq, subject, data in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                if data != payload_of(seq) or subject.encode() != subject_of(seq):
                    return f"message {seq} is not what was written"
    if (found, total) != (count, expected):
        return f"{found} rows instead of {count}, or the wrong ones"
    return ""


def main(root: str) -> None:
    for line in sys.stdin:
        pin, *numbers = line.split()
        position, count, expected = map(int, numbers)
        wrong = inspect(root, pin, position, count, expected) or inspect(root, pin, position, count, expected)
        print(f"bad {pin}: {wrong}" if wrong else f"ok {pin}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
