"""The publish fast path, compiled and pure: what it stores, and what it passes on unchanged."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.errors import StoreError

NOW_NS = 1_700_000_000_000_000_000
PLAIN = b"NATS/1.0\r\nX: 1\r\n\r\n"


class Stream:
    """Everything that a fast path needs; records the calls."""

    def __init__(self, twin: str) -> None:
        pytest.importorskip(f"headrace._native.publish_fastpath{twin}")
        lanes = importlib.import_module(f"headrace._native.publish_fastpath{twin}")
        self.arrivals = importlib.import_module(f"headrace._native.ingest_state{twin}")
        self.stored: list[tuple[Any, ...]] = []
        self.slow: list[tuple[Any, ...]] = []
        self.fast: list[tuple[Any, ...]] = []
        self.said: list[tuple[Any, ...]] = []
        self.full = False
        self.ttl_shift = 0
        self.outbox = lanes.PendingReplies()
        self.lane = lane = lanes.PublishFastPath(self, self, self, self, self.outbox)
        lane.enabled = lane.sends_acks = True
        lane.ack_prefix = b'{"stream":"S","seq":'
        lane.dedup = self.arrivals.DedupWindow(10**9)

    def now_ns(self) -> int:
        return NOW_NS + len(self.stored)

    def on_publish(self, *args: Any) -> None:
        self.slow.append(args)

    def on_fast_ingest(self, *args: Any) -> None:
        self.fast.append(args)

    def on_store_error(self, reply: bytes, failure: StoreError) -> None:
        self.said.append(("refuse", reply))

    def on_first_change(self) -> None:
        self.said.append(("touch",))

    def after_append(self, *args: Any) -> None:
        self.said.append(("after", *args))

    def track_expiry(self, *args: Any) -> None:
        self.said.append(("note", *args))

    def expire_slice(self, now_ns: int) -> None:
        self.said.append(("expire", now_ns))

    def append(self, subject: bytes, header: bytes, payload: bytes, time_ns: int, ttl_s: int = 0) -> int:
        if self.full:
            raise StoreError("full")
        self.stored.append((subject, header, payload, time_ns, ttl_s))
        return len(self.stored)

    def parse_ttl(self, text: bytes) -> int:
        self.said.append(("lifetime", text))
        return int(text) + self.ttl_shift if text.isdigit() else -1

    def offer(self, header: bytes = b"", reply: bytes = b"r", payload: bytes = b"hi") -> None:
        self.lane.on_message(SimpleNamespace(), b"s.a", reply, header, payload)

    @property
    def answers(self) -> list[bytes]:
        return [parcel[3] for parcel in self.outbox.messages]


@pytest.fixture(params=["", "_pure"])
def stream(request: pytest.FixtureRequest) -> Stream:
    return Stream(request.param)


def block(**fields: object) -> bytes:
    lines = [f"Nats-{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items()]
    return f"NATS/1.0\r\n{''.join(lines)}\r\n".encode()


def test_a_plain_message_is_stored_and_answered(stream: Stream) -> None:
    stream.offer()
    stream.offer(PLAIN)
    stream.offer(b"NATS/1.0\r\nX: Nats-TTL: 5\r\n\r\n")
    assert [each[3:] for each in stream.stored] == [(NOW_NS, 0), (NOW_NS + 1, 0), (NOW_NS + 2, 0)]
    assert stream.answers == [b'{"stream":"S","seq":%d}' % n for n in (1, 2, 3)]
    assert stream.outbox.messages[0] == (b"r", b"", b"", b'{"stream":"S","seq":1}')
    assert stream.said == [("touch",)]


def test_no_answer_where_none_is_wanted(stream: Stream) -> None:
    stream.offer(reply=b"")
    stream.lane.sends_acks = False
    stream.offer()
    assert len(stream.stored) == 2
    assert stream.answers == []


def test_a_closed_lane_hands_everything_on(stream: Stream) -> None:
    stream.lane.enabled = False
    stream.offer()
    stream.offer(PLAIN)
    assert (len(stream.slow), stream.stored) == (2, [])


@pytest.mark.parametrize(
    "header",
    [
        b"NATS/1.0 100\r\n\r\n",
        b"NATS/1.0 503 No\r\nX: 1\r\n\r\n",
        b"NATS/1.0\r\nX: " + b"y" * 65_535 + b"\r\n\r\n",
        b"junk",
        block(Expected_Last_Sequence=1),
        block(Rollup="sub", Msg_Id="a"),
        block(TTL=""),
        block(TTL="soon"),
        block(Batch_Id="b", Batch_Sequence=1),
        block(Batch_Id="b"),
        b"NATS/1.0\r\nNats-Msg-Id : a\r\n\r\n",
    ],
)
def test_what_needs_a_decision_is_handed_on_untouched(stream: Stream, header: bytes) -> None:
    stream.offer(header)
    (request,) = stream.slow
    assert request[1:] == (b"s.a", b"r", header, b"hi")
    assert stream.stored == []
    assert stream.answers == []


def test_fast_batches_are_known_by_their_reply(stream: Stream) -> None:
    stream.offer(reply=b"inbox.1.$FI")
    assert len(stream.fast) == 1
    assert stream.stored == []


def test_an_id_is_remembered_and_a_second_one_needs_a_decision(stream: Stream) -> None:
    stream.offer(block(Msg_Id="a"))
    assert stream.lane.last_message_id == b"a"
    assert stream.lane.dedup.find(b"a", NOW_NS) == 1
    stream.offer(block(Msg_Id="a"))
    assert (len(stream.stored), len(stream.slow)) == (1, 1)
    stream.offer()
    assert stream.lane.last_message_id == b""


def test_the_first_of_two_ids_counts(stream: Stream) -> None:
    stream.offer(b"NATS/1.0\r\nNats-Msg-Id:  a\r\nNats-Msg-Id: b\r\n\r\n")
    assert stream.lane.last_message_id == b"a"


def test_without_a_window_every_id_is_new(stream: Stream) -> None:
    stream.lane.dedup = None
    stream.offer(block(Msg_Id="a"))
    stream.offer(block(Msg_Id="a"))
    assert len(stream.stored) == 2
    assert stream.lane.last_message_id == b"a"


def test_an_empty_id_is_none(stream: Stream) -> None:
    stream.offer(block(Msg_Id=""))
    stream.offer(block(Msg_Id=""))
    assert len(stream.stored) == 2
    assert len(stream.lane.dedup) == 0


def test_a_lifetime_is_stored_and_noted(stream: Stream) -> None:
    stream.offer(block(TTL=5, Msg_Id="a"))
    assert stream.stored[0][4] == 5
    assert stream.said == [("lifetime", b"5"), ("expire", NOW_NS), ("note", 1, NOW_NS, 5), ("touch",)]


def test_the_meaning_of_a_lifetime_may_change(stream: Stream) -> None:
    stream.offer(block(TTL=5))
    stream.ttl_shift = 2
    stream.lane.reset_ttl_cache()
    stream.offer(block(TTL=5))
    assert [each[4] for each in stream.stored] == [5, 7]


def test_what_follows_a_message_knows_its_lifetime(stream: Stream) -> None:
    stream.lane.calls_after_append = True
    stream.offer(block(TTL=5))
    stream.offer()
    follows = [each for each in stream.said if each[0] == "after"]
    assert follows == [("after", b"s.a", 1, NOW_NS, 5), ("after", b"s.a", 2, NOW_NS + 1, 0)]


def test_a_store_that_takes_nothing_is_told_to_the_publisher(stream: Stream) -> None:
    stream.full = True
    stream.offer(block(Msg_Id="a"))
    assert stream.said == [("refuse", b"r")]
    assert stream.answers == []
    assert len(stream.lane.dedup) == 0


class TestBatches:
    @pytest.fixture
    def batch(self, stream: Stream) -> Any:
        batch = stream.arrivals.OpenBatch(b"b", stream.arrivals.ByteBudget(200), 3, 1_000)
        batch.add((b"s.a", b"", b"first"), 5)
        stream.lane.open_batch = batch
        return batch

    def test_the_next_member_is_staged(self, stream: Stream, batch: Any) -> None:
        header = block(Batch_Id="b", Batch_Sequence=2)
        stream.offer(header, reply=b"")
        assert batch.members[1] == (b"s.a", header, b"hi")
        assert batch.bytes == batch.budget.bytes == 5 + len(header) + 2
        assert batch.deadline_ns == NOW_NS + 1_000
        assert (stream.stored, stream.slow, stream.said, stream.answers) == ([], [], [], [])

    def test_a_member_that_asks_gets_an_empty_answer(self, stream: Stream, batch: Any) -> None:
        stream.offer(block(Batch_ID="b", Batch_Seq=2))
        assert len(batch.members) == 2
        assert stream.answers == [b""]
        assert stream.said == [("touch",)]

    @pytest.mark.parametrize(
        "fields",
        [
            {"Batch_Id": "b", "Batch_Sequence": 3},
            {"Batch_Id": "b", "Batch_Sequence": 1},
            {"Batch_Id": "B", "Batch_Sequence": 2},
            {"Batch_Id": "bb", "Batch_Sequence": 2},
            {"Batch_Id": "b", "Batch_Sequence": "2x"},
            {"Batch_Id": "b", "Batch_Sequence": ""},
            {"Batch_Id": "b", "Batch_Sequence": "0000000002"},
            {"Batch_Id": "b", "Batch_Sequence": 2, "Batch_Commit": 1},
            {"Batch_Id": "b", "Batch_Sequence": 2, "Msg_Id": "a"},
            {"Batch_Id": "b", "Batch_ID": "b", "Batch_Sequence": 2},
            {"Batch_Id": "b", "Batch_Sequence": 2, "Batch_Seq": 2},
            {"Batch_Sequence": 2},
        ],
    )
    def test_anything_else_needs_a_decision(
        self, stream: Stream, batch: Any, fields: dict[str, object]
    ) -> None:
        stream.offer(block(**fields))
        assert (len(batch.members), len(stream.slow)) == (1, 1)

    def test_too_many_too_much_or_over(self, stream: Stream, batch: Any) -> None:
        stream.offer(block(Batch_Id="b", Batch_Sequence=2), payload=b"x" * 200)
        batch.open = False
        stream.offer(block(Batch_Id="b", Batch_Sequence=2))
        batch.open, batch.max_members = True, 1
        stream.offer(block(Batch_Id="b", Batch_Sequence=2))
        assert (len(batch.members), len(stream.slow)) == (1, 3)
