"""What leaves a stream with interest or work-queue retention, also after restarts and updates."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from conformance.client import Client
from conformance.consumer_client import MS, SECOND, Reading, ack_of, eventually, seqs_of
from conformance.servers import Server

Make = Callable[..., Reading]


def updated(stream: Reading, **changes: Any) -> None:
    config = stream.client.api(f"STREAM.INFO.{stream.name}")["config"]
    answer = stream.client.api(f"STREAM.UPDATE.{stream.name}", {**config, **changes})
    assert "error" not in answer, answer


def left(stream: Reading) -> int:
    return int(stream.state()["messages"])


class TestRestarts:
    """A work queue keeps messages without an ack, wherever its consumer's position is."""

    @pytest.fixture
    def queue(self, fresh_server: Server, connect: Callable[..., Client]) -> Reading:
        client = connect(fresh_server)
        config = {"name": "Q", "subjects": ["Q.>"], "retention": "workqueue"}
        assert "error" not in client.api("STREAM.CREATE.Q", config)
        return Reading(client, "Q")

    @pytest.fixture
    def again(
        self, fresh_server: Server, connect: Callable[..., Client], queue: Reading
    ) -> Callable[[], Reading]:
        def restart() -> Reading:
            fresh_server.restart()
            return Reading(connect(fresh_server), "Q")

        return restart

    def test_behind_a_filter_that_became_wider(self, queue: Reading, again: Callable[[], Reading]) -> None:
        queue.made("C", filter_subjects=["Q.a"])
        queue.fill(4, "b", "a")
        for message in queue.fetch("C", 2):
            queue.confirm(message)
        queue.made("C", filter_subjects=["Q.a", "Q.b"])
        eventually(lambda: left(queue) == 2)
        assert left(again()) == 2

    def test_behind_a_consumer_that_was_sent_forward(
        self, queue: Reading, again: Callable[[], Reading]
    ) -> None:
        queue.made("C")
        queue.fill(5)
        assert "error" not in queue.reset("C", {"seq": 4})
        stream = again()
        assert left(stream) == 5
        assert "error" not in stream.reset("C", {"seq": 1})
        assert seqs_of(stream.fetch("C", 5)) == [1, 2, 3, 4, 5]

    def test_given_up_and_sent_back(self, queue: Reading, again: Callable[[], Reading]) -> None:
        queue.made("C", max_deliver=1, ack_wait=100 * MS)
        queue.fill(3)
        queue.fetch("C", 2)
        eventually(lambda: queue.info("C")["num_ack_pending"] == 0)
        assert "error" not in queue.reset("C")
        assert left(again()) == 3


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_a_late_acknowledgement_of_what_was_given_up(reading: Make, retention: str) -> None:
    stream = reading(retention=retention)
    stream.made("C", max_deliver=1, ack_wait=100 * MS)
    stream.fill(2)
    first, _ = stream.fetch("C", 2)
    eventually(lambda: stream.info("C")["num_ack_pending"] == 0)
    assert left(stream) == 2
    stream.confirm(first)
    eventually(lambda: left(stream) == 1)


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_an_acknowledgement_after_the_consumer_was_sent_forward(reading: Make, retention: str) -> None:
    stream = reading(retention=retention)
    stream.made("C")
    stream.fill(4)
    first = stream.fetch("C", 1)[0]
    assert "error" not in stream.reset("C", {"seq": 3})
    before = left(stream)
    stream.confirm(first)
    eventually(lambda: before - left(stream) == (1 if retention == "workqueue" else 0))


def test_an_acknowledgement_of_what_was_refused_before(reading: Make) -> None:
    stream = reading(retention="workqueue")
    stream.made("C")
    stream.fill(2)
    first = stream.fetch("C", 1)[0]
    stream.confirm(first, b'-NAK {"delay": 60000000000}')
    stream.confirm(first)
    eventually(lambda: left(stream) == 1)


def test_an_acknowledgement_of_what_belongs_to_another(reading: Make) -> None:
    """A client that guesses an ack subject removes nothing that other consumers need."""
    stream = reading(retention="workqueue")
    stream.made("A", filter_subject=stream.subject("a"))
    stream.made("B", filter_subject=stream.subject("b"))
    stream.fill(4, "b", "a")
    message = stream.fetch("A", 2)[1]
    words = message.reply.split(".")
    words[-4] = "3"  # a message for B
    stream.client.publish(".".join(words), b"+ACK")
    stream.confirm(message)
    eventually(lambda: left(stream) == 3)
    assert seqs_of(stream.fetch("B", 2)) == [1, 3]


@pytest.mark.parametrize(
    "removed",
    [
        False,
        pytest.param(
            True,
            marks=pytest.mark.ours_only(
                "A work queue removes acknowledged messages when the source that still needed them is removed"
            ),
        ),
    ],
)
def test_a_work_queue_keeps_what_the_consumer_of_a_source_needs(reading: Make, removed: bool) -> None:
    stream = reading(retention="workqueue")
    stream.made("W")
    config = {"name": "SRC", "ack_policy": "none", "max_deliver": 1, "flow_control": True, "direct": True}
    config |= {"sourcing": True, "deliver_subject": f"{stream.name}-copy", "idle_heartbeat": SECOND}
    body = {"stream_name": stream.name, "config": config}
    assert "error" not in stream.client.api(f"CONSUMER.CREATE.{stream.name}", body)
    stream.fill(6)
    for message in stream.fetch("W", 4):
        stream.confirm(message)
    assert left(stream) == 6
    if removed:
        assert stream.client.api(f"CONSUMER.DELETE.{stream.name}.SRC")["success"]
        eventually(lambda: left(stream) == 2)
        assert seqs_of(stream.fetch("W", 2)) == [5, 6]


class TestBecomingInterest:
    def test_what_everybody_is_done_with_goes(self, reading: Make) -> None:
        stream = reading()
        stream.fill(3)
        stream.made("C")
        for message in stream.fetch("C", 2):
            stream.confirm(message)
        updated(stream, retention="interest")
        eventually(lambda: left(stream) == 1)
        assert seqs_of(stream.fetch("C", 1)) == [3]

    def test_without_consumers_everything_goes(self, reading: Make) -> None:
        stream = reading()
        stream.fill(3)
        updated(stream, retention="interest")
        eventually(lambda: left(stream) == 0)


class TestNobodyWantsIt:
    """The message is not stored, but its headers take effect."""

    def test_it_replaces_everything(self, reading: Make) -> None:
        stream = reading(retention="interest", allow_rollup_hdrs=True)
        stream.made("C", filter_subject=stream.subject("a"))
        stream.fill(2, "a")
        assert "error" not in stream.client.store(stream.subject("b"), b"", {"Nats-Rollup": "all"})
        assert left(stream) == 0

    def test_it_replaces_its_subject(self, reading: Make) -> None:
        stream = reading(retention="interest", allow_rollup_hdrs=True)
        stream.made("C", filter_subjects=[stream.subject("a"), stream.subject("b")])
        stream.fill(4, "a", "b")
        stream.made("C", filter_subjects=[stream.subject("a"), stream.subject("c")])
        assert "error" not in stream.client.store(stream.subject("b"), b"", {"Nats-Rollup": "sub"})
        eventually(lambda: left(stream) == 2)

    def test_it_ends_a_schedule(self, reading: Make) -> None:
        stream = reading(retention="interest", allow_msg_schedules=True)
        plan, target = stream.subject("plan"), stream.subject("out")
        stream.made("C", filter_subjects=[plan, target])
        header = {"Nats-Schedule": "@every 1s", "Nats-Schedule-Target": target}
        assert "error" not in stream.client.store(plan, b"", header)
        header = {"Nats-Schedule-Next": "purge", "Nats-Scheduler": plan}
        assert "error" not in stream.client.store(stream.subject("x"), b"", header)
        last = stream.state()["last_seq"]
        time.sleep(1.5)  # it would have fired
        assert stream.state()["last_seq"] == last


def test_a_pin_whose_group_was_taken_away_holds_nobody_up(reading: Make) -> None:
    stream = reading()
    groups = {"priority_policy": "pinned_client", "priority_groups": ["g"], "priority_timeout": 200 * MS}
    stream.made("C", ack_wait=500 * MS, **groups)
    stream.fill(1)
    sid = stream.ask("C", {"batch": 1, "expires": 30 * SECOND, "group": "g"})
    assert ack_of(stream.client.next(sid)).seq == 1
    stream.made("C", ack_wait=500 * MS)
    assert seqs_of(stream.fetch("C", 1)) == [1]


def test_a_sealed_stream_takes_no_marker(reading: Make) -> None:
    stream = reading(allow_msg_ttl=True, subject_delete_marker_ttl=60 * SECOND, max_msgs_per_subject=1)
    config = stream.client.api(f"STREAM.INFO.{stream.name}")["config"]
    stream.client.api(f"STREAM.DELETE.{stream.name}")
    for lifetime_s in (2, 5, 15):  # longer if sealing took so long that the message was gone
        assert "error" not in stream.client.api(f"STREAM.CREATE.{stream.name}", config)
        begun = time.monotonic()
        stream.client.store(stream.subject("a"), b"", {"Nats-TTL": f"{lifetime_s}s"})
        updated(stream, sealed=True)
        if time.monotonic() - begun < lifetime_s - 0.5:
            break
        stream.client.api(f"STREAM.DELETE.{stream.name}")
    time.sleep(lifetime_s + 0.6)  # it would have expired
    state = stream.state()
    assert (state["last_seq"], state["messages"]) == (1, 1)
