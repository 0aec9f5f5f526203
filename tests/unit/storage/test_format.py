"""The entries of a frame: finding those of one kind equals decoding all."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from headrace.storage.format import decode_entries, encode_entry, find_entries


def test_entries_of_one_kind_are_those_that_decoding_finds() -> None:
    chance = random.Random(1)
    for count in (0, 1, 2, 30):
        entries = [
            encode_entry(
                chance.randrange(1, 4),
                chance.randrange(1 << 32),
                chance.randbytes(chance.choice((0, 1, 500))),
            )
            for _ in range(count)
        ]
        body = memoryview(b"".join(entries))
        for wanted in (1, 2, 3):
            decoded = [(ident, bytes(data)) for kind, ident, data in decode_entries(body) if kind == wanted]
            assert [(ident, bytes(data)) for ident, data in find_entries(body, wanted)] == decoded


def test_entries_that_do_not_fill_the_frame_are_an_error() -> None:
    entries = [encode_entry(kind, 7, b"abc") for kind in (1, 2)]
    body = b"".join(entries)
    for before, after in pairwise((0, len(entries[0]), len(body))):
        for end in range(before + 1, after):
            for wanted in (1, 2, 3):
                with pytest.raises(ValueError, match="truncated, or longer than the frame"):
                    find_entries(memoryview(body)[:end], wanted)
            with pytest.raises(ValueError, match="an entry of a frame"):
                decode_entries(memoryview(body)[:end])
