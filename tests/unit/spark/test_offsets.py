"""Offsets of streaming queries survive their JSON."""

from __future__ import annotations

import pytest

from headrace.reader import options as o
from headrace.spark.offsets import Offset, restore_initial_offset

OPTIONS = o.parse_read_options({"stream": "S"})


def test_an_offset_survives_its_json() -> None:
    offset = Offset("S", "17", 5, "pin", start_seq=2)
    assert Offset.from_json(offset.to_json(), OPTIONS) == offset
    older = {name: value for name, value in offset.to_json().items() if name != "began"}
    assert Offset.from_json(older, OPTIONS).start_seq == 5, "nobody knows what the query had read before"
    with pytest.raises(Exception, match="the checkpoint belongs to stream 'T'"):
        Offset.from_json({**offset.to_json(), "stream": "T"}, OPTIONS)


def test_a_first_batch_that_is_repeated_starts_where_it_was_planned() -> None:
    """Spark asks for the initial offset again, which is later by then."""
    planned = Offset("S", "17", 16, start_seq=11)
    assert restore_initial_offset(Offset("S", "17", 21, start_seq=21), planned) == Offset(
        "S", "17", 11, start_seq=11
    )
    following = Offset("S", "17", 16, start_seq=11)
    assert restore_initial_offset(following, Offset("S", "17", 20, start_seq=11)) == following
    newest = Offset("S", "17", 21, last_per_subject_seq=20, start_seq=1)
    assert restore_initial_offset(newest, Offset("S", "17", 11, start_seq=1)).last_per_subject_seq == 10
    other = Offset("S", "18", 21, start_seq=21)
    assert restore_initial_offset(other, planned) == other, "the stream was created again"
