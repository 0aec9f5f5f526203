"""Offsets of streaming queries survive their JSON."""

from __future__ import annotations

import pytest

from headrace.reader import options as o
from headrace.spark.offsets import Offset

OPTIONS = o.parse_read_options({"stream": "S"})


def test_an_offset_survives_its_json() -> None:
    offset = Offset("S", "17", 5, "pin", start_seq=2)
    assert Offset.from_json(offset.to_json(), OPTIONS) == offset
    older = {name: value for name, value in offset.to_json().items() if name != "began"}
    assert Offset.from_json(older, OPTIONS).start_seq == 5, "nobody knows what the query had read before"
    with pytest.raises(Exception, match="the checkpoint belongs to stream 'T'"):
        Offset.from_json({**offset.to_json(), "stream": "T"}, OPTIONS)
