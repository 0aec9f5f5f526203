"""Direct-get replies and encoded publishes of a client: compiled and pure agree."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace._native import reply_scanner_pure

TWINS = ["reply_scanner", "reply_scanner_pure"]
NS = 1_000_000_000


@pytest.fixture(params=TWINS)
def kernel(request: pytest.FixtureRequest) -> ModuleType:
    if request.param == "reply_scanner":
        return pytest.importorskip("headrace._native.reply_scanner")
    return importlib.import_module(f"headrace._native.{request.param}")


def message(
    own: bytes = b"",
    subject: bytes = b"a.b",
    seq: int = 7,
    time: bytes = b"1970-01-01T00:00:01.5Z",
    previous: int = 0,
) -> bytes:
    header = (
        b"NATS/1.0\r\n%sNats-Stream: S\r\nNats-Subject: %s\r\nNats-Sequence: %d\r\nNats-Time-Stamp: %s\r\n"
        b"Nats-Num-Pending: 1\r\nNats-Last-Sequence: %d\r\n\r\n" % (own, subject, seq, time, previous)
    )
    return b"HMSG I 1 %d %d\r\n%shello\r\n" % (len(header), len(header) + 5, header)


def rows(kernel: ModuleType, data: bytes) -> list[list[int]]:
    frames = kernel.ReplyScanner(b"I")
    frames.scan(bytearray(data))
    table: list[list[int]] = (
        np.frombuffer(frames.packed_rows(), np.int64).reshape(-1, kernel.FIELDS_PER_MESSAGE).tolist()
    )
    return table


def test_a_message_becomes_numbers(kernel: ModuleType) -> None:
    data = message(b"A: 1\r\n") + message(seq=8)
    first, second = rows(kernel, data)
    start, head, total, seq, time_ns, subject, length, own = first
    assert data[start : start + 10] == b"NATS/1.0\r\n"
    assert data[start + head : start + total] == b"hello"
    assert (seq, time_ns, data[subject : subject + length]) == (7, NS * 3 // 2, b"a.b")
    assert data[start:own] == b"NATS/1.0\r\nA: 1\r\n"
    assert (second[3], second[7] - second[0]) == (8, 10)


@pytest.mark.parametrize(
    ("pairs", "is_complete"),
    [
        ([], True),
        ([(7, 0)], True),
        ([(7, 0), (9, 7), (10, 9)], True),
        ([(9, 7)], False),
        ([(7, 0), (10, 9)], False),
        ([(7, 0), (10, 9), (11, 10)], False),
    ],
)
def test_a_missing_reply_is_noticed(
    kernel: ModuleType, pairs: list[tuple[int, int]], is_complete: bool
) -> None:
    """Each reply names the message that was sent before it."""
    frames = kernel.ReplyScanner(b"I")
    frames.scan(bytearray(b"".join(message(seq=seq, previous=previous) for seq, previous in pairs)))
    assert (frames.count, frames.is_complete) == (len(pairs), is_complete)


@pytest.mark.parametrize(
    ("text", "time_ns"),
    [
        (b"1970-01-01T00:00:00Z", 0),
        (b"2024-02-29T23:59:59.123456789Z", 1709251199 * NS + 123456789),
        (b"2026-03-01T00:00:00.000000001Z", 1772323200 * NS + 1),
        (b"2100-12-31T12:00:00.5Z", 4133937600 * NS + NS // 2),
    ],
)
def test_times_are_kept_to_the_nanosecond(kernel: ModuleType, text: bytes, time_ns: int) -> None:
    assert rows(kernel, message(time=text))[0][4] == time_ns


@pytest.mark.parametrize(
    "data",
    [
        message().replace(b"Nats-Subject: ", b"Some-Subject: "),
        message().replace(b"Nats-Sequence: 7", b"Nats-Sequence: x"),
        message(time=b"yesterday, at noon UTC"),
        b"HMSG I 1 5\r\nhello\r\n",
        b"HMSG I 1 30 20\r\n",
    ],
)
def test_another_shape_is_refused(kernel: ModuleType, data: bytes) -> None:
    with pytest.raises(ValueError):
        rows(kernel, data)


def test_it_stops_before_what_is_not_whole_or_not_its_own(kernel: ModuleType) -> None:
    whole = message()
    for cut in range(len(whole)):
        frames = kernel.ReplyScanner(b"I")
        assert not frames.scan(bytearray(whole[:cut]))
        assert (frames.position, frames.count) == (0, 0)
    frames = kernel.ReplyScanner(b"I")
    assert not frames.scan(bytearray(whole + b"PING\r\n"))
    assert (frames.position, frames.count) == (len(whole), 1)
    assert frames.scan(bytearray(whole + b"HMSG I 1 19 19\r\nNATS/1.0 204 EOB\r\n\r\n\r\n")) is True
    assert frames.status.startswith(b"NATS/1.0 204")


def column(values: list[bytes]) -> tuple[object, object]:
    ends = np.cumsum([0, *map(len, values)]).astype(np.int32)
    return ends, np.frombuffer(b"".join(values), np.uint8)


def outcome(kernel: ModuleType, arguments: tuple[Any, ...]) -> bytearray | str:
    try:
        return bytearray(kernel.encode_publishes(*arguments))
    except ValueError as error:
        return str(error)


MESSAGES = st.lists(
    st.tuples(st.binary(min_size=1, max_size=5), st.binary(max_size=9), st.binary(max_size=20))
)


@given(MESSAGES, st.sampled_from([b"", b"R"]), st.sampled_from([b"", b"N: "]), st.integers(0, 10**9))
def test_both_write_the_same_publishes(
    messages: list[tuple[bytes, bytes, bytes]], reply: bytes, mark: bytes, first: int
) -> None:
    kernel = pytest.importorskip("headrace._native.reply_scanner")
    columns = [column([each[place] for each in messages]) for place in range(3)]
    for lines in ((), columns[1]):
        arguments = (columns[0], lines, columns[2], reply, mark, first)
        assert outcome(kernel, arguments) == outcome(reply_scanner_pure, arguments)


def test_a_publish_is_what_a_server_reads(kernel: ModuleType) -> None:
    made = kernel.encode_publishes(
        column([b"a.b", b"c"]), column([b"", b"X: y\r\n"]), column([b"", b"hi"]), b"R", b"N: ", 9
    )
    assert made == (
        b"HPUB a.b R 18 18\r\nNATS/1.0\r\nN: 9\r\n\r\n\r\n"
        b"HPUB c R 25 27\r\nNATS/1.0\r\nX: y\r\nN: 10\r\n\r\nhi\r\n"
    )
    for subject in (b"", b"a b", b"a\r\nPUB x 0"):
        with pytest.raises(ValueError):
            kernel.encode_publishes(column([subject]), (), column([b""]), b"", b"", 1)
