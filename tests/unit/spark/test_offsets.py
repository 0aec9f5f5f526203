"""Offsets of streaming queries survive their JSON."""

from __future__ import annotations

import json

import pytest

from headrace.errors import HeadraceError
from headrace.reader.fingerprint import Fingerprint
from headrace.spark.offsets import Offset, restore_initial_offset


def test_an_offset_survives_its_json() -> None:
    offset = Offset("S", "17", 5, "pin", start_seq=2, anchors=(Fingerprint(4, 10**18, "0a"),))
    assert Offset.from_json(json.loads(json.dumps(offset.to_json()))) == offset
    older = {"v": 1, "stream": "S", "identity": "17", "next_seq": 5, "pin": "pin"}
    assert Offset.from_json(older) == Offset("S", "17", 5, "pin", start_seq=5)
    with pytest.raises(HeadraceError, match="an offset in another format"):
        Offset.from_json({**older, "v": 9})


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
