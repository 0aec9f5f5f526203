"""Pairs of sequences survive encoding and decoding."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.broker.consumers import ack_state_codec as codec


@pytest.mark.parametrize("consumer", [[10, 13, 12], [5, 4, 6, 9, 8, 7], [3, 2, 1], [1, 2, 3]])
def test_pairs_in_any_order_are_written_down(consumer: list[int]) -> None:
    stream = list(range(1, len(consumer) + 1))
    packed = codec.pack_pairs(np.array(stream, dtype=np.uint64), np.array(consumer, dtype=np.uint64))
    assert codec.unpack_pairs(*packed) == list(zip(stream, consumer, strict=True))
