"""`Nats-` headers, dedup window, open batches: compiled and pure give the same results."""

from __future__ import annotations

import struct
from typing import Any

import pytest

WINDOW_NS = 1_000


@pytest.fixture(params=["ingest_state", "ingest_state_pure"])
def kernel(request: pytest.FixtureRequest) -> Any:
    return pytest.importorskip(f"headrace._native.{request.param}")


def entry(seq: int, time_ns: int, message_id: bytes) -> bytes:
    return struct.pack("<QQH", seq, time_ns, len(message_id)) + message_id


@pytest.mark.parametrize(
    ("block", "found"),
    [
        (b"", {}),
        (b"NATS/1.0\r\n\r\n", {}),
        (b"NATS/1.0\r\nNats-TTL: 1h\r\n\r\n", {b"Nats-TTL": b"1h"}),
        (b"NATS/1.0\r\nNats-TTL:1h\r\n\r\n", {b"Nats-TTL": b"1h"}),
        (b"NATS/1.0\r\nNats-TTL:    1h  \r\n\r\n", {b"Nats-TTL": b"1h  "}),
        (b"NATS/1.0\r\nNats-TTL: 1\r\nNats-TTL: 2\r\n\r\n", {b"Nats-TTL": b"1"}),
        (b"NATS/1.0\r\nnats-ttl: 1\r\nX: Nats-TTL: 2\r\n\r\n", {}),
        (b"NATS/1.0\r\nNats-Rollup\r\nNats-:\r\n\r\n", {b"Nats-": b""}),
        (b"NATS/1.0\r\nNats-A: 1\nNats-B: 2\r\n\r\n", {b"Nats-A": b"1\nNats-B: 2"}),
        (b"NATS/1.0\r\nNats-A: 1\rx\r\nNats-B: a:b", {b"Nats-A": b"1\rx", b"Nats-B": b"a:b"}),
        (b"NATS/1.0\r\nNats-A: 1\r", {b"Nats-A": b"1\r"}),
        (b"Nats-A: 1\r\n", {}),
        (b"Nats-A: 1\r\nNats-A: 2\r\n", {b"Nats-A": b"2"}),
        (b"NATS/1.0\r\nNats-TTL\r\nNats-TTL: 1s\r\n\r\n", {b"Nats-TTL": b"1s"}),
    ],
)
def test_headers_for_the_server(kernel: Any, block: bytes, found: dict[bytes, bytes]) -> None:
    assert kernel.parse_nats_headers(block) == found


def test_an_id_is_known_until_it_leaves_the_window(kernel: Any) -> None:
    window = kernel.DedupWindow(WINDOW_NS)
    window.add(b"a", 1, 100)
    window.add(b"b", 2, 200)
    assert [window.find(name, 1_099) for name in (b"a", b"b", b"c")] == [1, 2, 0]
    assert [window.find(name, 1_100) for name in (b"a", b"b")] == [0, 2]
    assert len(window) == 1
    window.expire(5_000)
    assert len(window) == 0


def test_an_id_that_came_again_is_forgotten_with_its_last_message(kernel: Any) -> None:
    window = kernel.DedupWindow(WINDOW_NS)
    window.add(b"a", 1, 100)
    window.add(b"a", 2, 900)
    assert window.find(b"a", 1_500) == 2
    assert window.find(b"a", 1_900) == 0


def test_what_is_new_is_taken_once(kernel: Any) -> None:
    window = kernel.DedupWindow(WINDOW_NS)
    window.add(b"a", 1, 100)
    assert window.drain_unsaved() == entry(1, 100, b"a")
    assert window.drain_unsaved() == b""
    window.add(b"", 2, 200)
    window.add(b"x" * 300, 3, 300)
    assert window.drain_unsaved() == entry(2, 200, b"") + entry(3, 300, b"x" * 300)


def test_what_left_the_window_unseen_is_not_taken(kernel: Any) -> None:
    window = kernel.DedupWindow(WINDOW_NS)
    window.add(b"a", 1, 100)
    window.add(b"b", 2, 2_000)
    window.expire(2_000)
    assert window.drain_unsaved() == entry(2, 2_000, b"b")


def test_ids_between_positions_are_encoded(kernel: Any) -> None:
    window = kernel.DedupWindow(WINDOW_NS)
    positions = [window.saved_position]
    for seq, name in enumerate((b"a", b"b", b"a"), 1):
        window.add(name, seq, seq * 100)
        window.drain_unsaved()
        positions.append(window.saved_position)
    window.add(b"new", 4, 400)
    assert window.saved_position == positions[3]
    assert window.encode(positions[0], positions[2]) == entry(1, 100, b"a") + entry(2, 200, b"b")
    window.expire(1_200)
    assert window.first_position == positions[2]
    assert window.encode(positions[0], positions[3]) == entry(3, 300, b"a")
    assert window.encode(positions[0], positions[1]) == b""


def test_many_expired_ids_are_dropped_a_few_at_a_time(kernel: Any) -> None:
    window = kernel.DedupWindow(WINDOW_NS)
    ids = [b"id-%d" % seq for seq in range(1_000)]
    for seq, message_id in enumerate(ids):
        window.add(message_id, seq + 1, seq)
    assert window.find(ids[800], 1_500) == 801
    assert [window.find(each, 1_500) for each in (ids[0], ids[300], ids[500], ids[501], ids[800])] == [
        0,
        0,
        0,
        502,
        801,
    ]
    assert 900 < len(window) < 1_000
    window.add(ids[400], 1_001, 1_500)
    assert window.find(ids[400], 1_500) == 1_001
    for _ in range(200):
        window.find(b"other", 2_600)
    assert len(window) == 0


def test_what_was_written_down_is_known_again(kernel: Any) -> None:
    window = kernel.DedupWindow(WINDOW_NS)
    window.restore(entry(1, 100, b"a") + entry(2, 200, b"b"))
    window.restore(b"")
    window.restore(entry(3, 300, b"c") + b"torn")
    assert [window.find(name, 1_100) for name in (b"a", b"b", b"c")] == [0, 2, 3]
    assert window.drain_unsaved() == b""
    assert window.encode(0, window.saved_position) == entry(2, 200, b"b") + entry(3, 300, b"c")


def test_a_long_life_of_a_window(kernel: Any) -> None:
    window = kernel.DedupWindow(WINDOW_NS)
    taken = b""
    for seq in range(1, 20_001):
        assert window.find(b"id-%d" % seq, seq) == 0
        window.add(b"id-%d" % seq, seq, seq)
        if seq % 700 == 0:
            taken += window.drain_unsaved()
    assert len(window) == WINDOW_NS
    assert taken + window.drain_unsaved() == b"".join(entry(n, n, b"id-%d" % n) for n in range(1, 20_001))
    assert window.encode(0, window.saved_position) == b"".join(
        entry(n, n, b"id-%d" % n) for n in range(19_001, 20_001)
    )


def test_a_window_of_very_many_ids(kernel: Any) -> None:
    count, window = 70_000, kernel.DedupWindow(1_000_000)
    for seq in range(1, count + 1):
        window.add(b"%d" % seq, seq, seq)
    for seq, again in ((5, count + 1), (50_000, count + 2)):
        window.add(b"%d" % seq, again, count)
    assert len(window) == count
    assert [window.find(b"%d" % seq, count) for seq in (1, 5, 32_769, 50_000, count, count + 1)] == [
        1, count + 1, 32_769, count + 2, count, 0
    ]  # fmt: skip
    copy = kernel.DedupWindow(1_000_000)
    copy.restore(window.drain_unsaved())
    assert len(copy) == count
    assert copy.find(b"60000", count) == 60_000
    window.expire(1_000_000 + count - 1, count)
    assert sorted(seq for seq in range(1, count + 1) if window.find(b"%d" % seq, count)) == [5, 50_000, count]
    window.expire(2_000_000, count)
    assert len(window) == 0
    window.add(b"fresh", count + 3, 2_000_000)
    assert window.find(b"fresh", 2_000_000) == count + 3


def test_a_window_that_becomes_longer_again(kernel: Any) -> None:
    window = kernel.DedupWindow(1_000)
    for seq in range(1, 501):
        window.add(b"id-%d" % seq, seq, seq)
    window.window_ns = 10
    assert window.find(b"id-480", 500) == 0
    window.window_ns = 490
    assert [window.find(b"id-%d" % seq, 520) for seq in (30, 31, 480)] == [0, 31, 480]


def test_an_id_too_long_to_write_down_is_refused(kernel: Any) -> None:
    with pytest.raises(ValueError, match="65,535"):
        kernel.DedupWindow(WINDOW_NS).add(b"x" * 65_536, 1, 1)


def test_members_count_for_their_batch_and_for_all(kernel: Any) -> None:
    pool = kernel.ByteBudget(100)
    one, other = (kernel.OpenBatch(name, pool, 10, 5) for name in (b"one", b"other"))
    one.add((b"s", b"", b"abc"), 3)
    other.add((b"s", b"", b"abcd"), 4)
    assert (one.bytes, other.bytes, pool.bytes, pool.bytes_max) == (3, 4, 7, 100)
    assert (one.name, one.members, one.open, one.max_members) == (b"one", [(b"s", b"", b"abc")], True, 10)


def test_a_line_without_a_colon_hides_no_header(kernel: Any) -> None:
    block = b"NATS/1.0\r\nNats-TTL\r\nNats-TTL: 1s\r\n\r\n"
    assert kernel.parse_nats_headers(block) == {b"Nats-TTL": b"1s"}
    assert kernel.parse_nats_headers(b"Nats-TTL: 1s\r\n\r\n") == {}
