"""Pairs of sequences survive encoding and decoding."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from headrace.broker.consumers import ack_state_codec as codec


@pytest.mark.parametrize("consumer", [[10, 13, 12], [5, 4, 6, 9, 8, 7], [3, 2, 1], [1, 2, 3]])
def test_pairs_in_any_order_are_written_down(consumer: list[int]) -> None:
    stream = list(range(1, len(consumer) + 1))
    packed = codec.pack_pairs(np.array(stream, dtype=np.uint64), np.array(consumer, dtype=np.uint64))
    assert codec.unpack_pairs(*packed) == list(zip(stream, consumer, strict=True))


def test_passed_keys_are_appended_to_an_encoded_delta() -> None:
    delta = codec.AckStateDelta(1, 2, 3, 4, 5, is_snapshot=True)
    pairs = [(b"key.%d" % number, number + 1) for number in range(20)]
    encoded = [b"".join(map(msgspec.msgpack.encode, part)) for part in (pairs[:7], pairs[7:])]
    found = codec.decode_delta(codec.append_passed_keys(codec.encode_delta(delta), len(pairs), encoded))
    assert found == msgspec.structs.replace(delta, passed_keys=pairs)
    assert codec.decode_delta(codec.append_passed_keys(codec.encode_delta(delta), 0, [])) == delta
    with pytest.raises(ValueError, match="has passed keys"):
        codec.append_passed_keys(codec.encode_delta(found), 0, [])
