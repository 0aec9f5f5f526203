"""Random inputs by seed: words of a grammar, combined, then damaged.

Owns the randomness, so that a seed and an index always name the same input. Must not know the targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TypeVar

T = TypeVar("T")

#: Numbers that break parsers of numbers.
NUMBERS = (
    b"0 1 2 7 9 10 11 12 13 20 40 41 63 64 65 -1 -0 +1 00 002 0x1 1e3 1.5 x 126 127 128 255 256 65535 65536 999999999 "
    b"1000000000 2147483647 2147483648 4294967296 9223372036854775807 9223372036854775808 18446744073709551616 NaN"
).split()
NUMBERS += [b"9" * 40, b"9" * 5000, b"", "٣".encode(), "²".encode()]
#: Bytes that break parsers of text.
TRAPS = (
    b"\x00 \r \n \r\n \r\r\n \n\n \t \x0b \x7f \xff \xfe\xff \xc0\x80 \xed\xa0\x80 \xf4\x90\x80\x80 \xe2\x80\xa8 . .. ... "
    b"* > .> *. $ ' \" \\ / ../ : ; , { } [ ] ( ) # // @ | + - %s %00 ${a} \xc2\xa0 \xef\xbb\xbf"
).split(b" ")
TRAPS.append(b" ")


class Maker:
    """A fast source of random choices."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self._random = self.rng.random

    def chance(self, probability: float) -> bool:
        return self._random() < probability

    def below(self, most: int) -> int:
        """Return a number from 0 to most - 1."""
        return int(self._random() * most)

    def pick(self, choices: Sequence[T]) -> T:
        return choices[int(self._random() * len(choices))]

    def bytes(self, most: int) -> bytes:
        return self.rng.randbytes(self.below(most + 1))

    def damaged(self, data: bytes, words: Sequence[bytes], times: int = 3) -> bytes:
        """Damage a few places: bytes, words, and pieces that are removed, repeated or moved."""
        for _ in range(1 + self.below(times)):
            at, kind = self.below(len(data) + 1), self.below(7)
            until = min(len(data), at + 1 + self.below(8))
            if kind == 0:
                data = data[:at] + bytes((self.below(256),)) + data[at + 1 :]
            elif kind == 1:
                data = data[:at] + self.pick(words) + data[at:]
            elif kind == 2:
                data = data[:at] + data[until:]
            elif kind == 3:
                data = data[:until] + data[at:]
            elif kind == 4:
                data = data[:at] + self.pick(TRAPS) + data[until:]
            elif kind == 5:
                data = data[:at] + self.pick(NUMBERS) + data[until:]
            else:
                data = data[:at]
        return data

    def pieces(self, data: bytes) -> list[bytes]:
        """Cut into a few pieces, or into single bytes."""
        if len(data) < 200 and self.chance(0.3):
            return [data[at : at + 1] for at in range(len(data))]
        cuts = sorted(self.below(len(data) + 1) for _ in range(1 + self.below(4)))
        return [data[at:to] for at, to in zip([0, *cuts], [*cuts, len(data)], strict=True)]
