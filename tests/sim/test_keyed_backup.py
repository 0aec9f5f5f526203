"""Order per key in backups: a restored consumer continues where it was, also on a server that knows no order per key."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headrace.broker.handlers.backup_reader import _encode_consumer

from .broker_harness import Box, Client
from .test_backup_restore import SECOND, answers, back_up, begin, pieces, start


class Worker:
    """Pulls and acknowledges the messages of consumer C of stream S."""

    def __init__(self, box: Box, **config: Any) -> None:
        self.box, self.client = box, box.client()
        self.client.send(b"SUB _W.> 7\r\n")
        self.replies: dict[int, bytes] = {}
        if config:
            config = {"durable_name": "C", "ack_policy": "explicit", **config}
            answer = self.client.api("CONSUMER.CREATE.S.C", {"stream_name": "S", "config": config})
            assert "error" not in answer, answer

    def pull(self) -> list[int]:
        """Return the sequences of what is available."""
        self.client.publish(b"$JS.API.CONSUMER.MSG.NEXT.S.C", b'{"batch": 100, "no_wait": true}', b"_W.m")
        self.box.run()
        replies = [each.reply for each in answers(self.client) if each.reply]
        found = {int(reply.split(b".")[5]): reply for reply in replies}
        self.replies.update(found)
        return list(found)

    def answer(self, seq: int, payload: bytes = b"") -> None:
        self.client.publish(self.replies[seq], payload)
        self.box.run()


def make_stream(box: Box, *subjects: bytes) -> Client:
    client = box.client()
    client.send(b"SUB _B.> 7\r\n")
    assert "error" not in client.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.*"]})
    for subject in subjects:
        client.publish(subject, b"x")
    box.run()
    return client


def restore(box: Box, client: Client, data: bytes) -> Any:
    """Delete the stream and restore it; return the consumer."""
    client.api("STREAM.DELETE.S", {})
    subject = begin(client, "S", subjects=["s.*"])
    for piece in [*pieces(data, 1000), b""]:
        client.publish(subject, piece, b"_B.r")
        box.run()
    answers(client)
    return box.jetstream.streams["S"].consumers["C"]


@pytest.mark.parametrize("key_tokens", ["", "2"])
def test_a_restored_consumer_has_what_was_passed_over_and_pending(key_tokens: str) -> None:
    box = start()
    client = make_stream(box, b"s.a", b"s.b", b"s.a", b"s.c", b"s.b", b"s.a")
    worker = Worker(box, max_ack_pending_per_subject=1, key_tokens=key_tokens, ack_wait=SECOND)
    assert worker.pull() == [1, 2, 4]
    worker.answer(2)
    worker.answer(4)
    box.advance(2 * SECOND)
    assert worker.pull() == [1, 5]  # the second delivery of 1
    before = box.jetstream.streams["S"].consumers["C"].ack_state
    blocked, passed = before.key_order.blocked, before.key_order.passed
    assert (blocked > 0, passed) == (True, 2)
    expected = before.pending, before.delivery_counts, before.next_seq, before.get_ack_floor()
    consumer = restore(box, client, back_up(box, client))
    after = consumer.ack_state
    assert (after.pending, after.delivery_counts, after.next_seq, after.get_ack_floor()) == expected
    assert (after.key_order.blocked, after.key_order.passed) == (blocked, passed)
    box = start(box.disk.kill(), box.clock)
    assert box.jetstream.streams["S"].consumers["C"].ack_state.key_order.passed == passed
    again = Worker(box)
    again.replies = worker.replies
    assert again.pull() == []
    again.answer(1)
    assert again.pull() == [3]


def test_the_floor_after_a_restore_stays_below_what_was_delivered_late() -> None:
    """Pending messages were sorted by stream sequence, so that naks of those delivered earlier were ignored."""
    box = start()
    client = make_stream(box, b"s.a", b"s.a", b"s.b")
    worker = Worker(box, max_ack_pending_per_subject=1, ack_wait=3600 * SECOND)
    assert worker.pull() == [1, 3]
    worker.answer(1)
    assert worker.pull() == [2]
    consumer = restore(box, client, back_up(box, client))
    assert list(consumer.ack_state.pending) == [3, 2]
    assert consumer.ack_state.get_ack_floor() == (1, 1)
    again = Worker(box)
    again.replies = worker.replies
    again.answer(3, b"-NAK")
    assert again.pull() == [3]


def test_without_order_per_key_delivery_starts_again_after_the_ack_floor() -> None:
    """What nats-server reads of a backup, if messages were passed over."""
    box = start()
    make_stream(box, b"s.a", b"s.a", b"s.b", b"s.a")
    worker = Worker(box, max_ack_pending_per_subject=1)
    assert worker.pull() == [1, 3]
    worker.answer(1)
    assert worker.pull() == [2]
    consumer = box.jetstream.streams["S"].consumers["C"]
    state = msgspec.json.decode(_encode_consumer(consumer, 4))["state"]
    floor = {"consumer_seq": 1, "stream_seq": 1}
    assert {key: value for key, value in state.items() if key != "headrace"} == {
        "delivered": floor,
        "ack_floor": floor,
    }
