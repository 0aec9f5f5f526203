"""The leafnode parser, compiled and pure: the same operations for any chunks, and only ProtocolError for invalid input."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from headrace._native.deliveries_pure import iter_records
from headrace.errors import ProtocolError
from headrace.protocol.leafnode import encode_msg

PAYLOAD_MAX = 1000


class Recorder:
    authenticated = True
    takes_runs = False
    taken_max = 1 << 30

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []
        self.asked: list[bytes] = []
        self.runs: list[tuple[Any, ...]] = []

    def on_info(self, body: bytes) -> None:
        self.heard.append(("info", body))

    def on_connect(self, body: bytes) -> None:
        self.heard.append(("connect", body))

    def on_ping(self) -> None:
        self.heard.append(("ping",))

    def on_pong(self) -> None:
        self.heard.append(("pong",))

    def on_error(self, text: str) -> None:
        self.heard.append(("error", text))

    def on_interest(self, subject: bytes, queue: bytes | None, weight: int) -> None:
        self.heard.append(("LS+", subject, queue, weight))

    def on_no_interest(self, subject: bytes, queue: bytes | None) -> None:
        self.heard.append(("LS-", subject, queue))

    def takes_deliveries(self, subject: bytes) -> bool:
        self.asked.append(subject)
        return self.takes_runs

    def on_deliveries(
        self,
        subject: bytes,
        ack_prefix: bytes,
        records: bytearray,
        seqs: Any,
        consumer_seq: int,
        num_pending: int,
    ) -> int:
        """Record the run, and as many of its messages as are taken."""
        stored = list(iter_records(memoryview(records)))
        assert [each[0] for each in stored] == seqs.tolist()
        taken = min(len(stored), self.taken_max)
        self.runs.append((subject, ack_prefix, len(stored), consumer_seq, num_pending))
        for place, (seq, time_ns, shown, header, payload) in enumerate(stored[:taken]):
            reply = b"%s%d.%d.%d.*@%s" % (ack_prefix, seq, consumer_seq + place, time_ns, shown)
            self.heard.append(("delivery", subject, reply, header, payload))
        return taken

    def on_message(
        self, subject: bytes, reply: bytes, queues: Sequence[bytes], header: bytes, payload: bytes
    ) -> None:
        self.heard.append(("message", subject, reply, tuple(queues), header, payload))


@pytest.fixture(params=["leafnode_parser", "leafnode_parser_pure"])
def kernel(request: pytest.FixtureRequest) -> Any:
    return pytest.importorskip(f"headrace._native.{request.param}")


def heard(kernel: Any, *chunks: bytes) -> list[tuple[Any, ...]]:
    recorder = Recorder()
    parser = kernel.LeafnodeParser(recorder, PAYLOAD_MAX)
    for chunk in chunks:
        parser.feed(chunk)
    assert parser.buffered_bytes == 0
    return recorder.heard


OPERATIONS: list[tuple[bytes, tuple[Any, ...]]] = [
    (b'INFO {"a":1} \r\n', ("info", b'{"a":1}')),
    (b"CONNECT {}\r\n", ("connect", b"{}")),
    (b"PING\r\n", ("ping",)),
    (b"pong\r\n", ("pong",)),
    (b"-ERR 'no way'\r\n", ("error", "no way")),
    (b"LS+ a.b\r\n", ("LS+", b"a.b", None, 1)),
    (b"LS+ a.> q 12\r\n", ("LS+", b"a.>", b"q", 12)),
    (b"LS- a.b\r\n", ("LS-", b"a.b", None)),
    (b"LS- a.> q\r\n", ("LS-", b"a.>", b"q")),
    (b"LMSG a 0\r\n\r\n", ("message", b"a", b"", (), b"", b"")),
    (b"LMSG a r 3\r\nx\r\n\r\n", ("message", b"a", b"r", (), b"", b"x\r\n")),
    (b"LMSG a + r q p 1\r\nx\r\n", ("message", b"a", b"r", (b"q", b"p"), b"", b"x")),
    (b"LMSG a | q 1\r\nx\r\n", ("message", b"a", b"", (b"q",), b"", b"x")),
    (b"HMSG a 12 13\r\nNATS/1.0\r\n\r\nx\r\n", ("message", b"a", b"", (), b"NATS/1.0\r\n\r\n", b"x")),
    (b"HMSG a r 12 12\r\nNATS/1.0\r\n\r\n\r\n", ("message", b"a", b"r", (), b"NATS/1.0\r\n\r\n", b"")),
    (
        b"HMSG a + r q 12 13\r\nNATS/1.0\r\n\r\nx\r\n",
        ("message", b"a", b"r", (b"q",), b"NATS/1.0\r\n\r\n", b"x"),
    ),
]


@pytest.mark.parametrize(("data", "operation"), OPERATIONS, ids=lambda each: repr(each)[:30])
def test_each_operation_is_parsed_however_it_is_cut(
    kernel: Any, data: bytes, operation: tuple[Any, ...]
) -> None:
    assert heard(kernel, data) == [operation]
    assert heard(kernel, *(data[at : at + 1] for at in range(len(data)))) == [operation]


def test_a_stranger_s_messages_are_not_even_read(kernel: Any) -> None:
    recorder = Recorder()
    recorder.authenticated = False
    parser = kernel.LeafnodeParser(recorder, PAYLOAD_MAX)
    with pytest.raises(ProtocolError, match="Authorization Violation"):
        parser.feed(b"LMSG a 1000\r\n")
    assert parser.buffered_bytes == 0


def test_ok_means_nothing(kernel: Any) -> None:
    assert heard(kernel, b"+OK\r\n") == []


@pytest.mark.parametrize("seed", range(20))
def test_however_it_is_cut(kernel: Any, seed: int) -> None:
    rng = Random(seed)
    chosen = [rng.choice(OPERATIONS) for _ in range(40)]
    data = b"".join(each[0] for each in chosen)
    cuts = sorted(rng.randrange(len(data)) for _ in range(rng.randrange(30)))
    chunks = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    assert heard(kernel, *chunks) == [each[1] for each in chosen]


@pytest.mark.parametrize(
    "data",
    [
        b"NONSENSE\r\n",
        b"\r\n",
        b"LMSG\r\n",
        b"LMSG \r\n",
        b"LMSG a\r\n",
        b"LMSG a x\r\n",
        b"LMSG a -1\r\n",
        b"LMSG a 1001\r\n",
        b"LMSG a 9999999999\r\n",
        b"LMSG a ? r q 1\r\nx\r\n",
        b"LMSG a 1\r\nxyz",
        b"HMSG a 1\r\n",
        b"HMSG a 9 5\r\n",
        b"LS+\r\n",
        b"LS+ a b\r\n",
        b"LS+ a b x\r\n",
        b"LS+ a b 1 2\r\n",
        b"LS-\r\n",
        b"LS- a b c\r\n",
        b"A" * 70_000,
    ],
    ids=lambda data: repr(data)[:24],
)
def test_invalid_operations_are_refused(kernel: Any, data: bytes) -> None:
    with pytest.raises(ProtocolError):
        heard(kernel, data)


@pytest.mark.parametrize("seed", range(30))
def test_mutations_are_understood_or_refused(kernel: Any, seed: int) -> None:
    """Bounded memory, and no other error."""
    rng = Random(seed)
    for _ in range(200):
        data = bytearray(b"".join(rng.choice(OPERATIONS)[0] for _ in range(5)))
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.choice(b"\r\n +|0129LMSGHx\x00\xff")
        parser = kernel.LeafnodeParser(Recorder(), PAYLOAD_MAX)
        try:
            for at in range(0, len(data), 7):
                parser.feed(bytes(data[at : at + 7]))
        except ProtocolError:
            continue
        assert parser.buffered_bytes <= len(data)


# Runs of deliveries

ACK = b"$JS.ACK.S.C.1."
HEADER = b"NATS/1.0\r\nA: b\r\n\r\n"


def delivery(
    seq: int, cseq: int, *, to: bytes = b"$JS.M.x", prefix: bytes = ACK, shown: bytes = b"a.b", **over: Any
) -> bytes:
    """Encode a delivery whose payload is its sequence."""
    reply = b"%s%d.%d.%d.%d@%s" % (prefix, seq, cseq, 1000 + seq, over.get("pending", 7), shown)
    header, payload = over.get("header", b""), over.get("payload", b"%d" % seq)
    return encode_msg(to, reply, over.get("queues", ()), header, payload)


def run_of(kernel: Any, *chunks: bytes, **over: Any) -> Recorder:
    recorder = Recorder()
    recorder.takes_runs = True
    vars(recorder).update(over)
    parser = kernel.LeafnodeParser(recorder, 100_000)
    for chunk in chunks:
        parser.feed(chunk)
    return recorder


def taken(seq: int, cseq: int, header: bytes = b"", shown: bytes = b"a.b") -> tuple[Any, ...]:
    reply = b"%s%d.%d.%d.*@%s" % (ACK, seq, cseq, 1000 + seq, shown)
    return ("delivery", b"$JS.M.x", reply, header, b"%d" % seq)


def test_consecutive_deliveries_are_one_run(kernel: Any) -> None:
    data = delivery(5, 1) + delivery(6, 2, header=HEADER) + delivery(9, 3, shown=b"c", pending=4)
    recorder = run_of(kernel, data)
    assert recorder.runs == [(b"$JS.M.x", ACK, 3, 1, 4)]
    assert recorder.heard == [taken(5, 1), taken(6, 2, HEADER), taken(9, 3, shown=b"c")]
    assert recorder.asked == [b"$JS.M.x"]


def test_a_run_ends_before_anything_else(kernel: Any) -> None:
    data = delivery(1, 1) + b"PING\r\n" + delivery(2, 2) + b"LMSG a 1\r\nx\r\n" + delivery(3, 3)
    kinds = [each[0] for each in run_of(kernel, data).heard]
    assert kinds == ["delivery", "ping", "delivery", "message", "delivery"]


def test_a_run_is_handed_over_before_an_error(kernel: Any) -> None:
    recorder = Recorder()
    recorder.takes_runs = True
    with pytest.raises(ProtocolError):
        kernel.LeafnodeParser(recorder, PAYLOAD_MAX).feed(delivery(1, 1) + delivery(2, 2) + b"NONSENSE\r\n")
    assert recorder.heard == [taken(1, 1), taken(2, 2)]


@pytest.mark.parametrize(
    "second",
    [
        delivery(2, 3),  # a gap
        delivery(1, 2),  # the same again
        delivery(2, 2, to=b"$JS.M.y"),
        delivery(2, 2, prefix=b"$JS.ACK.S.D.1."),
    ],
)
def test_another_run_starts_where_one_does_not_continue(kernel: Any, second: bytes) -> None:
    recorder = run_of(kernel, delivery(1, 1) + second)
    assert [each[2] for each in recorder.runs] == [1, 1]


@pytest.mark.parametrize(
    "single",
    [
        delivery(2, 2, queues=(b"q",)),
        delivery(0, 2),
        delivery(2, 2, prefix=b"$JS.ACK.S.C."),
        delivery(2, 2, prefix=b"$JS.ACK.D.A.S.C.1."),
        delivery(2, 2, prefix=b"_INBOX.S.C.C.1."),
        delivery(2, 2, shown=b"a..b"),
        delivery(2, 2, shown=b""),
        delivery(2, 2, header=b"NATS/1.0 100 Idle\r\n\r\n"),
        delivery(2, 2, header=b"NATS/1.0\r\nNats-Trace-Dest: x\r\n\r\n"),
        delivery(2, 2, payload=b"x" * 40_000),
        delivery(1 << 63, 2),
        delivery(2, 2, pending=10**20),
        encode_msg(b"$JS.M.x", ACK + b"2.2.1002.7", (), b"", b"x"),
        encode_msg(b"$JS.M.x", ACK + b"-2.2.1002.7@a", (), b"", b"x"),
        encode_msg(b"$JS.M.x", ACK + b"2.2.1002.@a", (), b"", b"x"),
        encode_msg(b"$JS.M.x", ACK + b"2..1002.7@a", (), b"", b"x"),
    ],
    ids=lambda data: repr(data)[:70],
)
def test_other_messages_are_handled_alone(kernel: Any, single: bytes) -> None:
    recorder = run_of(kernel, delivery(1, 1) + single)
    assert [each[0] for each in recorder.heard] == ["delivery", "message"]
    assert recorder.runs == [(b"$JS.M.x", ACK, 1, 1, 7)]


@pytest.mark.parametrize("taken_max", [0, 1, 2])
def test_what_is_not_taken_is_handled_alone(kernel: Any, taken_max: int) -> None:
    data = b"".join(delivery(seq, seq) for seq in range(1, 6))
    recorder = run_of(kernel, data, taken_max=taken_max)
    assert [each[0] for each in recorder.heard] == ["delivery"] * taken_max + ["message"] * (5 - taken_max)
    assert [each[-1] for each in recorder.heard] == [b"%d" % seq for seq in range(1, 6)]


def test_a_subject_without_receiver_is_asked_for_once_in_a_chunk(kernel: Any) -> None:
    data = b"".join(delivery(seq, seq) for seq in range(1, 6))
    recorder = run_of(kernel, data, data, takes_runs=False)
    assert recorder.asked == [b"$JS.M.x"] * 2
    assert [each[0] for each in recorder.heard] == ["message"] * 10


def test_a_run_has_a_limit(kernel: Any) -> None:
    recorder = run_of(kernel, b"".join(delivery(seq, seq) for seq in range(1, 2001)))
    assert [each[2:4] for each in recorder.runs] == [(1024, 1), (976, 1025)]
    large = run_of(kernel, b"".join(delivery(seq, seq, payload=b"x" * 30_000) for seq in range(1, 12)))
    assert [each[2] for each in large.runs] == [9, 2]


def test_runs_are_cut_at_every_byte(kernel: Any) -> None:
    data = (
        b"".join(delivery(seq, seq, header=HEADER if seq == 2 else b"") for seq in range(1, 5)) + b"PING\r\n"
    )
    whole = run_of(kernel, data).heard
    for cut in range(len(data)):
        assert run_of(kernel, data[:cut], data[cut:]).heard == whole
    assert run_of(kernel, *(data[at : at + 1] for at in range(len(data)))).heard == whole


@pytest.mark.parametrize(
    "size", [b"-1", b"1000000000", b"9999999999999999999999", b"0x1", b"1.", b"+1", b"100001"]
)
@pytest.mark.parametrize("verb", [b"LMSG", b"HMSG"])
def test_a_malformed_size_after_a_run_is_refused(kernel: Any, verb: bytes, size: bytes) -> None:
    reply = ACK + b"2.2.1002.7@a.b"
    for sizes in (size, b"1 " + size, size + b" 1"):
        line = b"%s $JS.M.x %s %s\r\nx\r\n" % (verb, reply, sizes)
        with pytest.raises(ProtocolError):
            run_of(kernel, delivery(1, 1) + line)
