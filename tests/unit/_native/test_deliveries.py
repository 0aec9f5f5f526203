"""The encoder of deliveries: compiled and pure give the same bytes."""

from __future__ import annotations

import importlib
import struct
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from headrace.protocol.leafnode import encode_msg

ACK = b"$JS.ACK.S.C.1."
TIME_NS = 1_700_000_000_000_000_000


@pytest.fixture(params=["deliveries", "deliveries_pure"])
def kernel(request: pytest.FixtureRequest) -> Any:
    return pytest.importorskip(f"headrace._native.{request.param}")


def record(seq: int, subject: bytes = b"s.a", header: bytes = b"", payload: bytes = b"hi") -> bytes:
    size = 32 + len(subject) + len(header) + len(payload)
    head = struct.pack("<IHHIIQQ", size, len(subject), 0, len(header), 0, seq, TIME_NS + seq)
    return head + subject + header + payload


def receiver(sid: bytes = b"9", *, headers: bool = True) -> Any:
    client = SimpleNamespace(buffer=bytearray(), headers=headers, out_msgs=0, out_bytes=0, touched=0)
    client.mark_dirty = lambda: setattr(client, "touched", client.touched + 1)
    return SimpleNamespace(client=client, sid=sid, delivered=0)


def run(kernel: Any, targets: list[list[Any]], records: list[bytes], seqs: list[int], **over: Any) -> Any:
    options = {"at": 0, "most": 100, "cseq": 1, "pending": 10, "base": -1, "bytes_max": -1, "strict": True}
    options |= over
    wanted = np.array(seqs, dtype=np.uint64)
    view = memoryview(b"".join(records))
    rest = [options[key] for key in ("cseq", "pending", "base", "bytes_max", "strict")]
    return kernel.encode_deliveries(targets, view, wanted, options["at"], options["most"], ACK, *rest)


def line(seq: int, cseq: int, pending: int, body: bytes = b"hi", sid: bytes = b"9") -> bytes:
    ack = b"%s%d.%d.%d.%d" % (ACK, seq, cseq, TIME_NS + seq, pending)
    return b"MSG s.a %s %s %d\r\n%s\r\n" % (sid, ack, len(body), body)


def test_a_run_shows_the_stored_subject_and_counts_down(kernel: Any) -> None:
    one = receiver()
    sent = run(kernel, [[one]], [record(1), record(2)], [1, 2])
    assert one.client.buffer == line(1, 1, 9) + line(2, 2, 8)
    assert sent == (2, sum(len(b"s.a" + b"hi") + len(ACK) + len(b"1.1..9") + 19 for _ in (1, 2)))
    assert (one.delivered, one.client.out_msgs, one.client.out_bytes, one.client.touched > 0) == (
        2,
        2,
        4,
        True,
    )


def test_records_not_asked_for_are_passed_over(kernel: Any) -> None:
    one = receiver()
    assert run(kernel, [[one]], [record(n) for n in range(1, 6)], [2, 5])[0] == 2
    assert one.client.buffer == line(2, 1, 9) + line(5, 2, 8)


def test_what_lies_elsewhere_is_left(kernel: Any) -> None:
    one = receiver()
    assert run(kernel, [[one]], [record(1), record(2)], [1, 2, 3])[0] == 2
    assert run(kernel, [[one]], [record(4)], [3])[0] == 0


def test_headers_go_to_clients_that_want_them(kernel: Any) -> None:
    wants, plain = receiver(), receiver(b"7", headers=False)
    block = b"NATS/1.0\r\nA: b\r\n\r\n"
    run(kernel, [[wants, plain]], [record(1, header=block)], [1])
    ack = b"%s1.1.%d.9" % (ACK, TIME_NS + 1)
    assert wants.client.buffer == b"HMSG s.a 9 %s %d %d\r\n%shi\r\n" % (
        ack,
        len(block),
        len(block) + 2,
        block,
    )
    assert plain.client.buffer == line(1, 1, 9, sid=b"7")


def test_targets_take_turns(kernel: Any) -> None:
    one, two = receiver(), receiver(b"7")
    assert run(kernel, [[one], [two]], [record(n) for n in range(1, 4)], [1, 2, 3])[0] == 3
    assert one.client.buffer == line(1, 1, 9) + line(3, 3, 7)
    assert two.client.buffer == line(2, 2, 8, sid=b"7")


def test_targets_may_share_an_output(kernel: Any) -> None:
    one = receiver()
    run(kernel, [[one], [one]], [record(1), record(2)], [1, 2])
    assert one.client.buffer == line(1, 1, 9) + line(2, 2, 8)


@pytest.mark.parametrize(
    ("strict", "limit", "count"), [(True, 99, 2), (True, 87, 1), (False, 87, 2), (False, 88, 3)]
)
def test_bytes_end_a_run(kernel: Any, strict: bool, limit: int, count: int) -> None:
    one = receiver()
    size = len(ACK) + len(b"1.1..9") + 19 + 5
    assert size == 44
    assert run(
        kernel, [[one]], [record(n) for n in range(1, 5)], [1, 2, 3, 4], bytes_max=limit, strict=strict
    ) == (
        count,
        count * size,
    )


def test_most_and_at_choose_a_part(kernel: Any) -> None:
    one = receiver()
    assert run(kernel, [[one]], [record(2), record(3)], [1, 2, 3], at=1, most=1)[0] == 1
    assert one.client.buffer == line(2, 1, 9)


def test_a_torn_record_ends_the_run(kernel: Any) -> None:
    one = receiver()
    assert run(kernel, [[one]], [record(1), record(2)[:-1]], [1, 2])[0] == 1
    assert run(kernel, [[one]], [], [1])[0] == 0


@pytest.mark.parametrize(
    ("subject", "parts"),
    [
        (b"$JS.ACK.S.C.1.22.333.1700000000000000000.4", (b"S.C", 1, 22, 333)),
        (b"$JS.ACK._.hash.S.C.1.22.333.17.4", (b"_.hash.S.C", 1, 22, 333)),
        (b"$JS.ACK._.hash.S.C.1.22.333.17.4.more.and", (b"_.hash.S.C", 1, 22, 333)),
        (b"$JS.ACK.S.C.1.22.333.17", None),
        (b"$JS.ACK.S.C.1.22.333.17.4.5", None),
        (b"$JS.ACK.S.C.x.-2.333.17.4", (b"S.C", -1, -1, 333)),
        (b"$JS.ACK.S.C.1..3.17.4", (b"S.C", 1, -1, 3)),
        (b"$JS.FC.S.C.1.22.333.17.4", None),
        (b"", None),
    ],
)
def test_the_subject_of_an_acknowledgement(kernel: Any, subject: bytes, parts: Any) -> None:
    assert kernel.split_ack_subject(subject) == parts


def test_subjects_of_a_run(kernel: Any) -> None:
    records = [record(1, b"a"), record(2, b"b"), record(3, b"a"), record(7, b"c")]
    found: set[bytes] = set()
    assert kernel.collect_subjects(memoryview(b"".join(records)), 9, found) == 8
    assert found == {b"a", b"b", b"c"}
    found = set()
    assert kernel.collect_subjects(memoryview(b"".join(records)), 3, found) == 4
    assert found == {b"a", b"b"}


# For another server


def leafnode_run(kernel: Any, records: list[bytes], seqs: list[int], **over: Any) -> Any:
    options = {"at": 0, "most": 100, "cseq": 1, "pending": 10, "bytes_max": -1} | over
    wanted = np.array(seqs, dtype=np.uint64)
    rest = [options[key] for key in ("cseq", "pending", "bytes_max")]
    view = memoryview(b"".join(records))
    return kernel.encode_leafnode_run(b"to", view, wanted, options["at"], options["most"], ACK, *rest)


def leafnode_line(seq: int, cseq: int, pending: int, header: bytes = b"") -> bytes:
    reply = b"%s%d.%d.%d.%d" % (ACK, seq, cseq, TIME_NS + seq, pending)
    return encode_msg(b"to", reply + b"@s.a", (), header, b"hi")


def test_a_run_for_another_server_names_the_stored_subjects(kernel: Any) -> None:
    header = b"NATS/1.0\r\n\r\n"
    data, count, size = leafnode_run(kernel, [record(1), record(2, header=header), record(7)], [1, 2, 7])
    assert data == leafnode_line(1, 1, 9) + leafnode_line(2, 2, 8, header) + leafnode_line(7, 3, 7)
    assert (count, size) == (3, 3 * len(b"to" + ACK + b"1.1.." + b"8" + b"hi") + 3 * 19 + len(header))


def test_a_run_for_another_server_is_a_part_of_the_records(kernel: Any) -> None:
    records = [record(n) for n in range(1, 6)]
    assert leafnode_run(kernel, records, [2, 5])[0] == leafnode_line(2, 1, 9) + leafnode_line(5, 2, 8)
    assert leafnode_run(kernel, records, [1, 2, 3], at=1, most=1)[0] == leafnode_line(2, 1, 9)
    assert leafnode_run(kernel, records, [1, 2, 3], bytes_max=0)[1] == 1
    assert leafnode_run(kernel, records, [1, 2], pending=0)[0].count(b".0@") == 2
    assert leafnode_run(kernel, records, [0, 1]) == (b"", 0, 0)
    assert leafnode_run(kernel, records, []) == (b"", 0, 0)
    assert leafnode_run(kernel, [], [1]) == (b"", 0, 0)
    assert leafnode_run(kernel, [record(1), record(2)[:-1]], [1, 2])[1] == 1
    with pytest.raises(IndexError):
        leafnode_run(kernel, records, [1], at=-1)


def test_both_twins_are_there() -> None:
    names = {"encode_deliveries", "split_ack_subject", "collect_subjects"}
    assert names <= set(dir(importlib.import_module("headrace._native.deliveries_pure")))
