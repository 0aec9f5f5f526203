from __future__ import annotations

from collections.abc import Iterator

from headrace.spark.write.encode_rows import make_message_columns
from headrace.spark.write.progress_log import EpochRecord, Position, StagedAttempt
from headrace.spark.write.row_blocks import RowBlock, encode_block
from headrace.spark.write.stored_rows import StoredRows, parse_place
from headrace.spark.write.window_plan import iter_blocks


class Blocks:
    """A staging area whose blocks have ten rows each."""

    def read_blocks(self, attempt: StagedAttempt, first: int) -> Iterator[bytes]:
        for (number,) in attempt.blocks[first:]:
            messages = [(b"s", b"", b"%d" % (number * 10 + row)) for row in range(10)]
            yield encode_block(RowBlock(make_message_columns(messages)))


RECORD = EpochRecord(
    0, "committed", "c", attempts=[StagedAttempt(0, "a", [[0], [1]], 20), StagedAttempt(3, "b", [[2]], 10)]
)


def plan(position: Position, stored: StoredRows, size: int) -> list[tuple[int, int, list[int]]]:
    found = []
    for block in iter_blocks(Blocks(), RECORD, position):  # type: ignore[arg-type]
        for window in block.iter_windows(stored, size):
            payloads = [int(each.as_py()) for each in window.columns.payloads]
            found.append((window.block, window.row, payloads))
    return found


def test_all_rows_are_planned_in_order() -> None:
    found = plan(Position(), StoredRows(), 4)
    assert [(block, row) for block, row, _ in found] == [
        (block, row) for block in range(3) for row in (0, 4, 8)
    ]
    assert [number for *_, payloads in found for number in payloads] == list(range(30))


def test_rows_before_the_position_and_stored_ones_are_left_out() -> None:
    stored = StoredRows()
    for seq, (block, row) in enumerate([(1, 2), (1, 7), (2, 0), (2, 9)], 99):
        stored.add(block, row, 1, seq)
    found = plan(Position("c", 1, 5), stored, 100)
    assert found == [(1, 5, [15, 16]), (1, 8, [18, 19]), (2, 1, list(range(21, 29)))]


def test_nothing_is_left_after_the_last_row() -> None:
    assert plan(Position("c", 2, 10), StoredRows(), 4) == []


def test_one_row_of_a_batch_shows_all_of_them() -> None:
    header = b"NATS/1.0\r\nNats-Batch-Id: c-2-5-4-n\r\nNats-Batch-Sequence: 3\r\nNats-Msg-Id: c-2-5-4\r\n\r\n"
    assert parse_place(header, "c") == (2, 7, 5, 4)
    assert parse_place(b"NATS/1.0\r\nNats-Msg-Id: c-2-5\r\n\r\n", "c") == (2, 5, 5, 0)
    assert parse_place(b"NATS/1.0\r\nNats-Msg-Id: d-2-5\r\n\r\n", "c") is None


def test_rows_of_a_block_with_single_messages_are_sent_like_them() -> None:
    stored = StoredRows()
    stored.add(1, 3, 1, 7)
    stored.single_blocks.add(1)
    windows = [
        window
        for block in iter_blocks(Blocks(), RECORD, Position())  # type: ignore[arg-type]
        for window in block.iter_windows(stored, 100)
    ]
    assert [(each.block, each.as_single) for each in windows] == [
        (0, False),
        (1, True),
        (1, True),
        (2, False),
    ]


def test_stored_rows_know_where_the_search_for_later_rows_begins() -> None:
    stored = StoredRows(end_seq=50)
    for block, row, length, seq in (
        (0, 4, 3, 30),
        (0, 7, 2, 33),
        (1, 0, 5, 10),
        (2, 2, 4, 41),
        (1, 8, 1, 45),
    ):
        stored.add(block, row, length, seq)
    assert list(stored.iter_missing(0, 0, 20)) == [(0, 4), (9, 20)]
    assert list(stored.iter_missing(1, 0, 9)) == [(5, 8)]
    assert list(stored.iter_missing(1, 8, 9)) == []
    assert list(stored.iter_missing(3, 0, 2)) == [(0, 2)]
    assert stored.find_seqs(0, [3, 4, 8, 9]) == {4: 30, 8: 34}
    floors = {
        (0, 0): 9,
        (0, 9): 9,
        (1, 0): 9,
        (1, 3): 12,
        (1, 5): 40,
        (1, 9): 40,
        (2, 0): 40,
        (2, 4): 42,
        (2, 6): 50,
    }
    assert {place: stored.find_floor(*place) for place in floors} == floors


def test_planning_does_not_read_all_stored_rows_for_each_block() -> None:
    stored = StoredRows()
    for row in range(3_000_000):
        stored.add(row // 3000, row % 3000, 1, row + 1)
    assert sum(len(list(stored.iter_missing(block, 0, 3001))) for block in range(1000)) == 1000
    assert sum(map(len, stored._ranges.values())) == 3000, "consecutive rows share a range"
