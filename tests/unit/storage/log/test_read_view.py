"""A view has only complete records, also if a block ended early because a record did not fit."""

import struct

import pytest

from support.small_store import commit, opened


def sequences(view):
    found, at = [], 0
    while at < len(view):
        size, seq = struct.unpack_from("<I12xQ", view, at)
        assert size >= 32
        found.append(seq)
        at += size
    return found


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("committed", [False, True])
def test_views_end_with_their_block(tmp_path, memory, committed):
    with opened(tmp_path) as store:
        log = store.create("S", memory=memory)
        for number in range(60):
            log.append(b"a", b"", bytes(700 if number % 5 == 4 else 40), 1)
        if committed:
            commit(store)
        seq, seen = 1, []
        while seq <= 60:
            view, count = log.read_view(seq, 1 << 30)
            assert len(sequences(view)) == count
            seen += sequences(view)
            seq += count
        assert seen == list(range(1, 61))
        commit(store)
