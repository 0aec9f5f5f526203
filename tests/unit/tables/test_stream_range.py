"""What is read next of a stream: gaps, other streams, and streams that cannot become tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import DataLoss, StreamGap, StreamReplaced
from headrace.reader.direct_get_decode import StoredMessage
from headrace.reader.stream_admin import StreamError, StreamInfo
from headrace.tables import stream_range
from headrace.tables.position import LastMessage, TablePosition
from headrace.tables.stream_range import StreamRangeReader
from support.tables import make_config, make_rows

INFO = StreamInfo("ORDERS", "77", 1, 11, 10, 1000, {"retention": "limits"})
POSITION = TablePosition(4, "ORDERS", "77", "c")


class FakeSource:
    """A stream whose state is set by the test."""

    def __init__(self) -> None:
        self.infos = [INFO]
        self.pin_name = ""
        self.unpinned: list[str] = []
        self.error: Exception | None = None
        self.message: StoredMessage | None = None
        self.message_error: Exception | None = None

    def get_info(self) -> StreamInfo:
        return self.infos.pop(0) if len(self.infos) > 1 else self.infos[0]

    def find_message(self, seq: int) -> StoredMessage | None:
        if self.message_error:
            raise self.message_error
        return self.message

    def pin(self) -> str:
        return self.pin_name

    def unpin(self, pin: str) -> None:
        self.unpinned.append(pin)

    def plan(self, seq_range: Any, pin: str) -> list[range]:
        return [range(seq_range.start, seq_range.end)]

    def read(self, partition: range, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        if self.error:
            raise self.error
        yield make_rows(partition)


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> FakeSource:
    fake = FakeSource()
    monkeypatch.setattr(stream_range, "open_source", lambda options: fake)
    return fake


@pytest.fixture
def reader(source: FakeSource, tmp_path: Path) -> StreamRangeReader:
    return StreamRangeReader(make_config(tmp_path), {"servers": "nats://127.0.0.1:1"}, "ORDERS")


@pytest.fixture
def lenient(source: FakeSource, tmp_path: Path) -> StreamRangeReader:
    config = make_config(tmp_path, on_gap="continue")
    return StreamRangeReader(config, {"servers": "nats://127.0.0.1:1"}, "ORDERS")


def test_the_first_range_is_the_whole_stream(reader: StreamRangeReader, source: FakeSource) -> None:
    source.infos = [replace(INFO, first_seq=5)]
    planned = reader.plan(None)
    assert (planned.start, planned.end, planned.gap) == (5, 11, (0, 0))
    assert [batch["seq"].to_pylist() for batch in reader.read(planned)] == [list(range(5, 11))]


def test_a_range_continues_after_the_position(reader: StreamRangeReader) -> None:
    planned = reader.plan(POSITION)
    assert (planned.start, planned.end, planned.is_empty) == (5, 11, False)
    at_end = reader.plan(replace(POSITION, seq=10))
    assert at_end.is_empty
    assert list(reader.read(at_end)) == []


def test_a_gap_stops(reader: StreamRangeReader, source: FakeSource) -> None:
    source.infos = [replace(INFO, first_seq=8)]
    with pytest.raises(StreamGap, match=r"has lost messages: 5 to 7 were removed .*on_gap: continue"):
        reader.plan(POSITION)


def test_a_gap_is_recorded_if_that_is_configured(lenient: StreamRangeReader, source: FakeSource) -> None:
    source.infos = [replace(INFO, first_seq=8)]
    planned = lenient.plan(POSITION)
    assert (planned.start, planned.end, planned.gap) == (8, 11, (5, 7))


def test_a_gap_without_rows_is_not_empty(lenient: StreamRangeReader, source: FakeSource) -> None:
    source.infos = [replace(INFO, first_seq=11)]
    planned = lenient.plan(POSITION)
    assert (planned.gap, planned.is_empty) == ((5, 10), False)


def test_what_a_bucket_replaced_is_a_gap_that_does_not_stop(source: FakeSource, tmp_path: Path) -> None:
    config = make_config(tmp_path, bucket="ORDERS")
    reader = StreamRangeReader(config, {"servers": "nats://127.0.0.1:1"}, "ORDERS")
    source.infos = [replace(INFO, name="KV_ORDERS", first_seq=8)]
    planned = reader.plan(replace(POSITION, stream="KV_ORDERS"))
    assert (planned.start, planned.end, planned.gap) == (8, 11, (5, 7))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"max_msgs_per_subject": 1}, "keeps 1 of each subject, so they may have been replaced. To continue"),
        ({"allow_msg_ttl": True}, "a TTL for each message, so they may have expired. To continue"),
        ({"max_msgs_per_subject": -1}, "written to the table. To continue"),
    ],
)
def test_a_gap_says_how_the_stream_may_have_removed_messages(
    reader: StreamRangeReader, source: FakeSource, config: dict[str, Any], message: str
) -> None:
    source.infos = [replace(INFO, first_seq=8, config={"retention": "limits", **config})]
    with pytest.raises(StreamGap, match=message):
        reader.plan(POSITION)


def test_a_range_that_was_read_without_rows_is_no_gap(reader: StreamRangeReader, source: FakeSource) -> None:
    source.infos = [replace(INFO, next_seq=21)]
    planned = reader.plan(POSITION, reached=10)
    assert (planned.start, planned.end, planned.is_passed) == (11, 21, False)
    source.infos = [replace(INFO, first_seq=11)]
    planned = reader.plan(POSITION, reached=10)
    assert (planned.start, planned.end, planned.gap) == (11, 11, (0, 0))
    # The position is written, so that a restart does not see a gap.
    assert (planned.is_passed, planned.is_empty) == (True, False)
    source.infos = [replace(INFO, first_seq=13, next_seq=21)]
    with pytest.raises(StreamGap, match="11 to 12 were removed"):
        reader.plan(POSITION, reached=10)


def test_a_range_that_the_stream_lost_is_read_again(reader: StreamRangeReader, source: FakeSource) -> None:
    source.infos = [replace(INFO, next_seq=10)]
    assert reader.plan(POSITION, reached=10).start == 5


def test_messages_that_are_removed_while_they_are_read_are_a_gap(
    reader: StreamRangeReader, source: FakeSource
) -> None:
    source.error = DataLoss("gone. To continue without them, set option failOnDataLoss=false")
    with pytest.raises(StreamGap, match="set option on_gap: continue"):
        list(reader.read(reader.plan(POSITION)))


def test_messages_that_are_removed_before_a_pin_are_a_gap(
    reader: StreamRangeReader, source: FakeSource
) -> None:
    source.pin_name = "p1"
    planned = reader.plan(POSITION)
    source.infos = [replace(INFO, first_seq=7)]
    with pytest.raises(StreamGap, match="5 to 6 were removed"):
        list(reader.read(planned))
    assert source.unpinned == ["p1"]


def test_a_pin_is_released_when_reading_ends_early(reader: StreamRangeReader, source: FakeSource) -> None:
    source.pin_name = "p1"
    batches = reader.read(reader.plan(POSITION))
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert source.unpinned == ["p1"]


def test_a_stream_that_was_created_again_is_refused(reader: StreamRangeReader, source: FakeSource) -> None:
    source.infos = [replace(INFO, identity="78")]
    with pytest.raises(StreamReplaced, match="deleted and created again"):
        reader.plan(POSITION)
    planned = reader.plan(POSITION, accept_new_stream=True)
    assert (planned.start, planned.end) == (1, 11)


@pytest.mark.parametrize(
    ("last", "found", "is_refused"),
    [
        (LastMessage(4, 1_000), StoredMessage(4, 1_000_999, b"s", b"", b""), False),
        (LastMessage(4, 1_000), StoredMessage(4, 2_000_000, b"s", b"", b""), True),
        # It was deleted: the next message is found.
        (LastMessage(4, 1_000), StoredMessage(5, 2_000_000, b"s", b"", b""), False),
        (LastMessage(4, 1_000), None, False),
        # An earlier version wrote the position.
        (None, StoredMessage(4, 2_000_000, b"s", b"", b""), False),
    ],
)
def test_the_stream_has_the_last_message_of_the_table(
    reader: StreamRangeReader,
    source: FakeSource,
    last: LastMessage | None,
    found: StoredMessage | None,
    is_refused: bool,
) -> None:
    source.message = found
    position = replace(POSITION, last_message=last)
    if not is_refused:
        assert reader.plan(position).start == 5
        return
    with pytest.raises(StreamReplaced, match="another message with sequence 4"):
        reader.plan(position)


def test_a_last_message_before_the_first_sequence_is_not_requested(
    reader: StreamRangeReader, source: FakeSource
) -> None:
    source.infos = [replace(INFO, first_seq=5)]
    source.message_error = AssertionError("requested")
    assert reader.plan(replace(POSITION, last_message=LastMessage(4, 1))).start == 5


@pytest.mark.parametrize("has_path", [False, True])
def test_only_rows_from_files_need_no_permission_to_read_messages(
    source: FakeSource, tmp_path: Path, has_path: bool
) -> None:
    config = make_config(tmp_path, path=str(tmp_path) if has_path else "")
    reader = StreamRangeReader(config, {"servers": "nats://127.0.0.1:1"}, "ORDERS")
    source.message_error = StreamError("not allowed")
    position = replace(POSITION, last_message=LastMessage(4, 1))
    if has_path:
        assert reader.plan(position).start == 5
        return
    with pytest.raises(StreamError):
        reader.plan(position)


def test_accepting_a_new_stream_does_not_reset_the_same_one(reader: StreamRangeReader) -> None:
    assert reader.plan(POSITION, accept_new_stream=True).start == 5


@pytest.mark.parametrize(
    ("position", "message"),
    [
        (replace(POSITION, stream="OTHER"), "has messages of stream 'OTHER'"),
        (replace(POSITION, seq=11), "ends at sequence 10, but the table has 11"),
    ],
)
def test_another_stream_is_refused(reader: StreamRangeReader, position: TablePosition, message: str) -> None:
    with pytest.raises(StreamReplaced, match=message):
        reader.plan(position)
