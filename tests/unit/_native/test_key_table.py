"""The keys of a consumer that keeps order per key: compiled and pure give the same results."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest


@pytest.fixture(params=["key_table", "key_table_pure"])
def core(request: pytest.FixtureRequest) -> Any:
    return pytest.importorskip(f"headrace._native.{request.param}")


def admit(table: Any, pairs: list[tuple[int, int]], most: int = 100) -> tuple[list[int], int]:
    """Admit (sequence, key) pairs; return the chosen sequences and where it stopped."""
    seqs, keys = to_arrays(pairs)
    out = np.zeros(100, np.uint64)
    count, stop = table.admit(seqs, keys, 0, most, out)
    return out[:count].tolist(), stop


def to_arrays(pairs: list[tuple[int, int]]) -> tuple[Any, Any]:
    return (
        np.array([seq for seq, _ in pairs], np.uint64),
        np.array([key for _, key in pairs], np.uint32),
    )


def test_passes_over_messages_of_a_key_with_pending_ones(core: Any) -> None:
    table = core.KeyTable(1)
    assert admit(table, [(1, 7), (2, 7), (3, 8), (4, 7)]) == ([1, 3], 4)
    assert (table.passed, table.blocked, table.get_first(7), table.get_first(8)) == (2, 1, 2, 0)
    assert table.next_ready() == -1
    assert table.release(1)
    assert table.next_ready() == 7
    assert not table.release(3)
    assert not table.release(3)


def test_a_ready_key_delivers_what_was_passed_over_first(core: Any) -> None:
    table = core.KeyTable(1)
    admit(table, [(1, 7), (2, 7)])
    table.release(1)
    assert admit(table, [(3, 7)]) == ([], 1)
    assert table.get_first(7) == 2


def test_stops_at_the_given_number(core: Any) -> None:
    table = core.KeyTable(2)
    assert admit(table, [(1, 1), (2, 1), (3, 1), (4, 2), (5, 3)], most=3) == ([1, 2, 4], 4)
    assert table.get_count(3) == 0


def test_undo_leaves_no_trace(core: Any) -> None:
    table = core.KeyTable(1)
    admit(table, [(1, 7)])
    pairs = [(2, 7), (3, 8), (4, 8), (5, 7)]
    admit(table, pairs)
    table.undo(*to_arrays(pairs), 1, 4)
    assert (table.passed, table.blocked, table.get_count(8), table.get_first(7)) == (1, 1, 0, 2)
    table.undo(*to_arrays(pairs), 0, 1)
    assert (table.passed, table.blocked) == (0, 0)


def test_keys_are_ready_in_the_order_in_which_they_became_free(core: Any) -> None:
    table = core.KeyTable(1)
    admit(table, [(1, 5), (2, 6), (3, 7), (4, 5), (5, 6), (6, 7)])
    for seq in (2, 3, 1):
        table.release(seq)
    found = []
    while (key := table.next_ready()) >= 0:
        found.append(key)
        table.take_ready()
    assert found == [6, 7, 5]


def test_ready_keys_are_taken_and_delivered_as_a_run(core: Any) -> None:
    table = core.KeyTable(1)
    admit(table, [(1, 7), (2, 8), (3, 9), (4, 8), (5, 7), (6, 9), (7, 8)])
    for seq in (2, 1, 3):
        table.release(seq)
    seqs, keys = np.zeros(2, np.uint64), np.zeros(2, np.uint32)
    assert table.take_ready_run(5, seqs, keys) == 2
    assert (seqs.tolist(), keys.tolist()) == ([4, 5], [8, 7])
    table.add_late(seqs, keys, np.array([7, 5], np.uint64))
    assert (table.passed, table.blocked) == (2, 2)
    assert (table.get_first(8), table.get_first(7)) == (5, 0)
    assert (table.get_count(8), table.get_count(7)) == (1, 1)
    assert table.take_ready_run(5, seqs, keys) == 1
    assert (int(seqs[0]), int(keys[0])) == (6, 9)
    assert table.next_ready() == -1
    assert table.release(4)
    assert table.next_ready() == 8
    with pytest.raises(IndexError):
        table.add_late(seqs, keys[:1], seqs)


def test_a_changed_key_counts_once(core: Any) -> None:
    table = core.KeyTable(1)
    admit(table, [(1, 5), (2, 5), (3, 6), (4, 6)])
    table.set_first(5, 7)
    table.set_first(6, 0)
    assert table.changed_count == 2
    assert table.take_changed() == {5, 6}
    table.set_first(5, 8)
    assert (table.changed_count, table.take_changed(), table.changed_count) == (1, {5}, 0)


def test_a_higher_limit_frees_keys(core: Any) -> None:
    table = core.KeyTable(1)
    admit(table, [(1, 5), (2, 5)])
    table.limit = 2
    assert table.next_ready() == -1
    table.queue_ready(np.array([5, 6], np.uint32))
    assert table.next_ready() == 5


def to_keys(*keys: int) -> Any:
    return np.array(keys, np.uint32)


def to_seqs(*seqs: int) -> Any:
    return np.array(seqs, np.uint64)


def list_ready(table: Any) -> list[int]:
    """Take all ready keys."""
    found = []
    while (key := table.next_ready()) >= 0:
        found.append(key)
        table.take_ready()
    return found


def test_keys_that_are_put_back_are_the_first_ones_again(core: Any) -> None:
    table = core.KeyTable(1)
    admit(table, [(1, 5), (2, 6), (3, 7), (4, 8), (5, 5), (6, 6), (7, 7), (8, 8)])
    for seq in (1, 2, 3, 4):
        table.release(seq)
    seqs, keys = np.zeros(3, np.uint64), np.zeros(3, np.uint32)
    assert table.take_ready_run(3, seqs, keys) == 3
    table.put_back(seqs[1:], keys[1:])
    table.put_back(seqs[1:], keys[1:])  # in the queue already
    table.set_first(5, 9)
    assert list_ready(table) == [6, 7, 8, 5]


def test_a_key_that_is_searched_is_not_ready_until_that_ends(core: Any) -> None:
    table = core.KeyTable(2)
    admit(table, [(1, 5), (2, 5), (3, 5), (4, 6), (5, 6), (6, 6)])
    table.release(1)
    table.release(4)
    table.take_ready()
    table.start_search(to_keys(5, 9))
    table.set_first(5, 4)
    assert not table.release(2)
    table.queue_ready(to_keys(5))
    assert admit(table, [(7, 5)]) == ([], 1)
    assert list_ready(table) == [6]
    table.end_search(to_keys(5, 6, 9), to_seqs(7, 8, 9))
    assert (table.get_first(5), table.get_first(6), table.get_first(9)) == (7, 6, 0)
    assert list_ready(table) == [5]
    table.start_search(to_keys(5))
    table.end_search(to_keys(5), to_seqs(0))
    assert (table.blocked, table.get_count(5)) == (1, 0)
    assert list_ready(table) == []
    assert admit(table, [(10, 5)]) == ([10], 1)


def test_all_passed_over_messages_are_forgotten_at_once(core: Any) -> None:
    table = core.KeyTable(1)
    admit(table, [(1, 5), (2, 5), (3, 6), (4, 6), (5, 7)])
    table.release(1)
    table.clear_firsts()
    assert (table.blocked, table.passed, table.min_first(), table.changed_count) == (0, 0, 0, 0)
    assert table.next_ready() == -1
    assert admit(table, [(6, 5), (7, 6), (8, 7)]) == ([6], 3)
    assert table.release(3)
    assert table.next_ready() == 6


def test_adds_many_pending_messages(core: Any) -> None:
    table = core.KeyTable(1)
    table.add_many(to_seqs(1, 2, 2, 3), to_keys(5, 6, 6, 5))
    assert (table.get_count(5), table.get_count(6)) == (2, 1)
    with pytest.raises(IndexError):
        table.add_many(to_seqs(1, 2), to_keys(5))


def test_finds_the_first_row_of_each_wanted_key(core: Any) -> None:
    keys, out = to_keys(4, 5, 4, 6, 5, 4), np.zeros(4, np.intp)
    wanted, starts = to_keys(4, 5, 6, 7), np.array([1, 0, 4, 0], np.intp)
    core.find_first_rows(keys, None, wanted, starts, out)
    assert out.tolist() == [2, 1, -1, -1]
    live = np.array([1, 0, 0, 1, 1, 1], np.uint8)
    core.find_first_rows(keys, live, wanted, starts, out)
    assert out.tolist() == [5, 4, -1, -1]
    for arguments in (
        (keys, live[:5], wanted, starts, out),
        (keys, None, wanted, starts[:3], out),
        (keys, None, wanted, starts, out[:3]),
    ):
        with pytest.raises(IndexError):
            core.find_first_rows(*arguments)


@pytest.mark.parametrize("seed", range(20))
def test_compiled_and_pure_find_the_same_rows(seed: int) -> None:
    compiled = pytest.importorskip("headrace._native.key_table")
    from headrace._native import key_table_pure

    rng = np.random.default_rng(seed)
    for rows in (0, 1, 50, 400):
        for number in (0, 1, 30, 100):
            keys = rng.integers(0, 120, rows).astype(np.uint32)
            wanted = rng.permutation(120)[:number].astype(np.uint32)
            starts = rng.integers(0, rows + 5, number).astype(np.intp)
            live = rng.integers(0, 2, rows).astype(np.uint8) if seed % 2 else None
            results = [np.zeros(number, np.intp), np.zeros(number, np.intp)]
            for module, out in zip((compiled, key_table_pure), results, strict=True):
                module.find_first_rows(keys, live, wanted, starts, out)
            assert results[0].tolist() == results[1].tolist()


def test_remap_follows_new_numbers(core: Any) -> None:
    table = core.KeyTable(1)
    admit(table, [(1, 0), (2, 3), (3, 3), (4, 0)])
    table.release(2)
    table.remap(np.array([9, 0, 0, 1], np.uint32), np.array([0, 0, 0, 1], np.uint8))
    assert table.list_firsts() == [(1, 3)]
    assert table.next_ready() == 1
    assert not table.release(1)
    assert (table.blocked, table.get_count(9)) == (1, 0)


def test_arguments_out_of_range_are_refused(core: Any) -> None:
    table = core.KeyTable(1)
    seqs, keys = to_arrays([(1, 1), (2, 2)])
    with pytest.raises(IndexError):
        table.admit(seqs, keys, -1, 1, np.zeros(4, np.uint64))
    with pytest.raises(IndexError):
        table.admit(seqs, keys[:1], 0, 1, np.zeros(4, np.uint64))
    with pytest.raises(IndexError):
        table.undo(seqs, keys, 0, 3)
    with pytest.raises(IndexError):
        table.get_firsts(keys, np.zeros(1, np.uint64))


@pytest.mark.parametrize("seed", range(20))
def test_compiled_and_pure_agree(seed: int) -> None:
    compiled = pytest.importorskip("headrace._native.key_table")
    from headrace._native import key_table_pure

    rng = random.Random(seed)
    tables = [compiled.KeyTable(1), key_table_pure.KeyTable(1)]
    pending: list[int] = []
    next_seq = 1
    for _ in range(300):
        if rng.random() < 0.5:
            pairs = [(next_seq + at, rng.randrange(40)) for at in range(rng.randrange(1, 60))]
            next_seq += len(pairs)
            most = rng.randrange(1, 60)
            one, other = (admit(table, pairs, most) for table in tables)
            assert one == other
            end = rng.randrange(one[1] + 1)
            for table in tables:
                table.undo(*to_arrays(pairs), end, one[1])
            pending += [seq for seq in one[0] if seq < pairs[0][0] + end]
        elif pending:
            seq = pending.pop(rng.randrange(len(pending)))
            assert len({table.release(seq) for table in tables}) == 1
        else:
            limit = rng.randrange(1, 4)
            for table in tables:
                table.limit = limit
                table.queue_ready(np.array(sorted(key for key, _ in table.list_firsts()), np.uint32))
        key, other_key = (table.next_ready() for table in tables)
        assert key == other_key
        if key >= 0 and rng.random() < 0.7:
            following = rng.choice((0, next_seq))
            for table in tables:
                table.take_ready()
                table.set_first(key, following)
        assert len({(table.passed, table.blocked, table.min_first()) for table in tables}) == 1
        assert sorted(tables[0].list_firsts()) == sorted(tables[1].list_firsts())
    assert tables[0].take_changed() == tables[1].take_changed()


def take_run(tables: list[Any], most: int) -> list[int]:
    """Deliver a run of ready keys from each table, all with the same result; return the sequences."""
    results = []
    for table in tables:
        seqs, keys = np.zeros(10, np.uint64), np.zeros(10, np.uint32)
        count = table.take_ready_run(most, seqs, keys)
        table.add_late(seqs[:count], keys[:count], np.zeros(count, np.uint64))
        results.append((seqs.tolist(), keys.tolist()))
    assert results[0] == results[1]
    return [seq for seq in results[0][0] if seq]


def search_or_put_back(tables: list[Any], rng: random.Random) -> None:
    """Take ready keys from each table; put some back, and search some."""
    number, puts_back, drops = rng.randrange(1, 5), rng.random() < 0.5, rng.random() < 0.5
    for table in tables:
        seqs, keys = np.zeros(number, np.uint64), np.zeros(number, np.uint32)
        count = table.take_ready_run(number, seqs, keys)
        if puts_back:
            table.put_back(seqs[:count], keys[:count])
        else:
            table.start_search(keys[:count])
            assert table.next_ready() not in keys[:count].tolist()
            table.end_search(keys[:count], np.zeros(count, np.uint64) if drops else seqs[:count])


@pytest.mark.parametrize("seed", range(20))
def test_compiled_and_pure_deliver_the_same_runs(seed: int) -> None:
    compiled = pytest.importorskip("headrace._native.key_table")
    from headrace._native import key_table_pure

    rng = random.Random(seed)
    tables = [compiled.KeyTable(1), key_table_pure.KeyTable(1)]
    pending: list[int] = []
    next_seq = 1
    for _ in range(300):
        choice = rng.random()
        if choice < 0.5:
            pairs = [(next_seq + at, rng.randrange(10)) for at in range(rng.randrange(1, 8))]
            next_seq += len(pairs)
            one, other = (admit(table, pairs) for table in tables)
            assert one == other
            pending += one[0]
        elif choice < 0.8 and pending:
            seq = pending.pop(rng.randrange(len(pending)))
            assert len({table.release(seq) for table in tables}) == 1
        elif choice < 0.9:
            pending += take_run(tables, rng.randrange(1, 10))
        elif choice < 0.98:
            search_or_put_back(tables, rng)
        else:
            for table in tables:
                table.clear_firsts()
        assert len({(table.passed, table.blocked, table.next_ready()) for table in tables}) == 1


def test_a_blocked_key_takes_at_most_40_bytes() -> None:
    compiled = pytest.importorskip("headrace._native.key_table")
    for keys in (100_000, 120_000, 150_000):
        table = compiled.KeyTable(1)
        seqs = np.arange(1, 2 * keys + 1, dtype=np.uint64)
        out = np.zeros(2 * keys, np.uint64)
        table.admit(seqs, np.tile(np.arange(keys, dtype=np.uint32), 2), 0, 2 * keys, out)
        assert table.blocked == keys
        assert table.nbytes <= 40 * keys
