"""Replies to direct gets: compiled and pure give the same bytes."""

from __future__ import annotations

import importlib
import struct
from typing import Any

import numpy as np
import pytest

from headrace.jetstream_api import times

FIXED = b"Nats-Stream: S\r\nNats-Subject: "
TIME_NS = 1_700_000_000_123_456_000


@pytest.fixture(params=["direct_get", "direct_get_pure"])
def kernel(request: pytest.FixtureRequest) -> Any:
    return pytest.importorskip(f"headrace._native.{request.param}")


def record(seq: int, header: bytes = b"", payload: bytes = b"hi", time_ns: int = TIME_NS) -> bytes:
    size = 32 + 3 + len(header) + len(payload)
    return struct.pack("<IHHIIQQ", size, 3, 0, len(header), 0, seq, time_ns) + b"s.a" + header + payload


def where(seq: int, time_ns: int = TIME_NS) -> bytes:
    return FIXED + b"s.a\r\nNats-Sequence: %d\r\nNats-Time-Stamp: %b\r\n" % (
        seq,
        times.format_time(time_ns).encode(),
    )


def batch(pending: int, last: int) -> bytes:
    return b"Nats-Num-Pending: %d\r\nNats-Last-Sequence: %d\r\n" % (pending, last)


def run(kernel: Any, records: list[bytes], seqs: list[int], **over: Any) -> tuple[list[Any], tuple[int, int]]:
    options = {"at": 0, "most": 100, "bytes_max": 1_000, "fixed": FIXED, "pending": 10, "last": 0} | over
    parcels: list[Any] = []
    wanted = np.array(seqs, dtype=np.uint64)
    view = memoryview(b"".join(records))
    first = [options[key] for key in ("at", "most", "bytes_max")]
    rest = [options[key] for key in ("fixed", "pending", "last")]
    return parcels, kernel.encode_replies(parcels, view, wanted, *first, b"r", *rest)


def test_one_answer_says_where_the_message_is(kernel: Any) -> None:
    data = b"junk" + record(7) + record(8, b"NATS/1.0\r\nA: 1\r\n\r\n", b"")
    assert kernel.encode_reply(data, 4, FIXED) == (b"NATS/1.0\r\n" + where(7) + b"\r\n", b"hi")
    at = 4 + len(record(7))
    for view in (data, bytearray(data), memoryview(data)):
        assert kernel.encode_reply(view, at, FIXED) == (b"NATS/1.0\r\nA: 1\r\n" + where(8) + b"\r\n", b"")


@pytest.mark.parametrize(
    "time_ns",
    [
        0,
        1,
        999_999_999,
        TIME_NS,
        951_782_399_000_000_000,  # the day before a leap day
        951_782_400_100_000_000,  # 2000-02-29
        951_868_800_000_000_000,
        4_107_542_400_000_000_000,  # 2100-03-01, not in a leap year
        1_704_067_199_999_999_990,  # the end of a year
        1_704_067_200_000_000_000,
        (1 << 63) - 1,
    ],
)
def test_times_are_those_of_the_api(kernel: Any, time_ns: int) -> None:
    block, _ = kernel.encode_reply(record(1, time_ns=time_ns), 0, FIXED)
    assert block == b"NATS/1.0\r\n" + where(1, time_ns) + b"\r\n"


@pytest.mark.parametrize("at", [-1, 1, 40, 1_000])
def test_no_answer_where_no_record_is(kernel: Any, at: int) -> None:
    with pytest.raises(ValueError, match="no record"):
        kernel.encode_reply(record(1), at, FIXED)


def test_a_run_counts_down_and_points_back(kernel: Any) -> None:
    parcels, sent = run(kernel, [record(n) for n in (1, 2, 3, 4, 5)], [2, 5])
    assert sent == (2, 2 * len(b"s.ahi"))
    assert parcels == [
        (b"r", b"", b"NATS/1.0\r\n" + where(2) + batch(9, 0) + b"\r\n", b"hi"),
        (b"r", b"", b"NATS/1.0\r\n" + where(5) + batch(8, 2) + b"\r\n", b"hi"),
    ]


def test_a_run_continues_where_the_last_one_ended(kernel: Any) -> None:
    parcels, sent = run(kernel, [record(5)], [2, 5], at=1, pending=0, last=2)
    assert sent[0] == 1
    assert parcels[0][2].endswith(batch(0, 2) + b"\r\n")


def test_replies_without_headers_are_payloads_alone(kernel: Any) -> None:
    header = b"NATS/1.0\r\nA: 1\r\n\r\n"
    parcels, sent = run(kernel, [record(1, header)], [1], fixed=None)
    assert parcels == [(b"r", b"", b"", b"hi")]
    assert sent == (1, len(b"s.a") + len(header) + len(b"hi"))


@pytest.mark.parametrize(
    ("over", "count"),
    [({"most": 2}, 2), ({"most": 0}, 0), ({"bytes_max": 6}, 2), ({"bytes_max": 5}, 1), ({"bytes_max": 0}, 0)],
)
def test_a_run_ends_when_it_is_large_enough(kernel: Any, over: dict[str, int], count: int) -> None:
    parcels, sent = run(kernel, [record(n) for n in (1, 2, 3)], [1, 2, 3], **over)
    assert len(parcels) == sent[0] == count


def test_what_is_not_in_the_view_ends_the_run(kernel: Any) -> None:
    assert run(kernel, [record(3)], [1, 3])[1] == (0, 0)
    assert run(kernel, [record(1)], [1, 3])[1][0] == 1
    assert run(kernel, [record(1), record(2)[:-1]], [1, 2])[1][0] == 1
    assert run(kernel, [], [1])[1] == (0, 0)
    assert run(kernel, [record(1)], [])[1] == (0, 0)


class TestNewest:
    """Through a log, with the bytes and rows of the same version."""

    @pytest.fixture
    def log(self, kernel: Any) -> Any:
        records = importlib.import_module(kernel.__name__.replace("direct_get", "records"))

        class Log(records.LogWriter):  # type: ignore[misc,name-defined]
            def read_active_block(self, offset: int) -> tuple[Any, int]:
                block = next(each for each in reversed(self.blocks) if each.offset <= offset)
                return block.data, block.offset + 32

        return Log(records.OpenFrame(), 1, records.SubjectIndex(), 4096, 1 << 20, False)

    def ask(self, kernel: Any, log: Any, subject: bytes) -> Any:
        return kernel.encode_last_by_subject(log, b"ask." + subject, 4, FIXED)

    def test_wherever_it_lies(self, kernel: Any, log: Any) -> None:
        for text in (b"one", b"two"):
            log.append(b"s.b", b"", b"other", TIME_NS)
            log.append(b"s.a", b"", text, TIME_NS)
            assert self.ask(kernel, log, b"s.a") == (b"NATS/1.0\r\n" + where(log.last_seq) + b"\r\n", text)
        before = self.ask(kernel, log, b"s.a")
        log.finish_block()
        log.append(b"s.b", b"", b"other", TIME_NS)
        assert self.ask(kernel, log, b"s.a") == before

    @pytest.mark.parametrize("subject", [b"", b"s.c", b"s.*", b">", b"s.>"])
    def test_what_has_to_be_looked_for(self, kernel: Any, log: Any, subject: bytes) -> None:
        log.append(b"s.a", b"", b"one", TIME_NS)
        assert self.ask(kernel, log, subject) is None

    def test_what_was_removed_has_to_be_looked_for(self, kernel: Any, log: Any) -> None:
        for text in (b"one", b"two", b"three"):
            log.append(b"s.a", b"", text, TIME_NS)
        log.subtract_rows(log.columns, 2, 3)
        assert log.cached_last_seq(b"s.a") == -1
        assert self.ask(kernel, log, b"s.a") is None
        log.subtract_rows(log.columns, 0, 2)
        assert self.ask(kernel, log, b"s.a") is None
