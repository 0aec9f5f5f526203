"""Consumers inside a whole broker, in virtual time: deliveries over time, and their cost."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import Mock

import pytest

from headrace.broker.consumers.delivery_scheduler import DeliveryScheduler
from headrace.sim import SimClock
from headrace.sim.disk.sim_disk import SimDisk
from sim.broker_harness import Box, Client, Delivery
from support.small_store import SMALL_JOURNAL

MS = 1_000_000
SECOND = 1_000_000_000
NEXT = b"$JS.API.CONSUMER.MSG.NEXT.S.C"


class Scene:
    """A stream S over `s.>`, a consumer C, and one client that subscribes to `dlv`."""

    def __init__(self) -> None:
        self.clock = SimClock()
        self.start(SimDisk(1))
        assert "error" not in self.client.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})

    def start(self, disk: SimDisk) -> None:
        self.box = Box(disk, self.clock, SMALL_JOURNAL)
        self.client: Client = self.box.client()
        self.client.send(b"SUB dlv 7\r\n")
        self.events: list[tuple[int, Delivery]] = []

    def restart(self) -> None:
        """Kill the process and start it again."""
        self.start(self.box.disk.kill())

    def create(self, **config: Any) -> dict[str, Any]:
        full = {"durable_name": "C", "ack_policy": "explicit", **config}
        answer = self.client.api("CONSUMER.CREATE.S.C", {"stream_name": "S", "config": full})
        assert "error" not in answer, answer
        return answer

    def store(self, count: int, subject: bytes = b"s.a") -> None:
        for _ in range(count):
            self.client.publish(subject, b"x")
        self.box.run()

    def pull(self, **body: Any) -> None:
        self.client.publish(
            NEXT, json.dumps({"batch": 100, "expires": 600 * SECOND, **body}).encode(), b"dlv"
        )
        self.box.run()

    def take(self) -> list[Delivery]:
        return [each for each in self.client.take() if each.sid == b"7"]

    def seqs(self) -> list[int]:
        return [numbers(each)[1] for each in self.take() if each.reply]

    def watch(self, total_ns: int, step_ns: int = MS) -> list[tuple[int, Delivery]]:
        """Advance in steps; return what arrived when, in nanoseconds from now."""
        start, found = self.clock.now_ns(), []
        while self.clock.now_ns() - start < total_ns:
            self.box.advance(step_ns)
            found += [(self.clock.now_ns() - start, each) for each in self.take()]
        return found

    def info(self) -> dict[str, Any]:
        return self.client.api("CONSUMER.INFO.S.C")


def numbers(message: Delivery) -> tuple[int, int, int]:
    """Return deliveries, stream sequence, consumer sequence."""
    count, seq, cseq = message.reply.split(b".")[-5:-2]
    return int(count), int(seq), int(cseq)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_backoff_is_kept_to_the_millisecond(scene: Scene) -> None:
    scene.create(backoff=[200 * MS, 400 * MS, 800 * MS], max_deliver=4)
    scene.store(1)
    scene.pull()
    assert [numbers(m) for m in scene.take()] == [(1, 1, 1)]
    times = [(when // MS, numbers(message)[0]) for when, message in scene.watch(3 * SECOND)]
    assert times == [(200, 2), (600, 3), (1400, 4)]
    info = scene.info()
    assert (info["num_ack_pending"], info["num_redelivered"]) == (0, 1)


def test_a_delay_with_backoff_is_the_delay(scene: Scene) -> None:
    """nats-server skews it by the difference to the first wait."""
    scene.create(backoff=[300 * MS, 2 * SECOND])
    scene.store(1)
    scene.pull()
    scene.box.advance(300 * MS)
    second = scene.take()[-1]
    assert numbers(second)[0] == 2
    scene.client.publish(second.reply, b"-NAK 600ms")
    assert [when // MS for when, _ in scene.watch(SECOND)] == [600]


def test_heartbeats_and_the_end_of_a_request(scene: Scene) -> None:
    scene.create()
    scene.pull(expires=450 * MS, idle_heartbeat=100 * MS)
    came = [(when // MS, message.header.split(b"\r\n")[0]) for when, message in scene.watch(SECOND)]
    beats = [(at, b"NATS/1.0 100 Idle Heartbeat") for at in (100, 200, 300, 400)]
    assert came == [*beats, (450, b"NATS/1.0 408 Request Timeout")]


def test_unacknowledged_messages_come_again_after_a_restart(scene: Scene) -> None:
    scene.create(ack_wait=2 * SECOND)
    scene.store(4)
    scene.pull()
    for message in scene.take()[:2]:
        scene.client.publish(message.reply, b"+ACK")
    scene.box.advance(SECOND)
    scene.restart()
    info = scene.info()
    assert (info["num_ack_pending"], info["ack_floor"]["stream_seq"], info["delivered"]["stream_seq"]) == (
        2,
        2,
        4,
    )
    scene.pull()
    assert scene.seqs() == []
    scene.box.advance(2 * SECOND)
    assert [numbers(m)[:2] for m in scene.take()] == [(2, 3), (2, 4)]


def test_flow_control_acknowledgement_never_delivers_again_by_itself(scene: Scene) -> None:
    scene.create(ack_policy="flow_control", deliver_subject="dlv")
    scene.store(3)
    assert scene.seqs() == [1, 2, 3]
    scene.box.advance(SECOND)
    scene.restart()
    scene.box.run()
    assert scene.seqs() == []
    assert scene.info()["num_ack_pending"] == 3
    scene.client.api("CONSUMER.RESET.S.C")
    assert scene.seqs() == [1, 2, 3]


def test_what_lives_in_memory_is_gone_after_a_restart(scene: Scene) -> None:
    scene.create(mem_storage=True)
    scene.restart()
    assert scene.info()["error"]["err_code"] == 10014


def test_a_confirmed_acknowledgement_is_durable_when_it_is_answered(scene: Scene) -> None:
    scene.create()
    scene.store(2)
    scene.pull()
    first, _ = scene.take()
    scene.client.ask(first.reply, b"+ACK")
    assert scene.client.take() == []
    scene.box.run()
    assert len(scene.client.take()) == 1
    scene.restart()
    assert scene.info()["ack_floor"]["stream_seq"] == 1


def test_unconfirmed_progress_is_written_down_ten_times_a_second_at_most(scene: Scene) -> None:
    scene.create(max_ack_pending=-1)
    scene.store(1000)
    before = scene.box.store.committed_frame
    for _ in range(10):
        scene.pull(batch=100)
        for message in scene.take():
            if message.reply:
                scene.client.publish(message.reply, b"+ACK")
        scene.box.advance(20 * MS)
    scene.box.advance(SECOND)
    assert scene.box.store.committed_frame - before <= 6  # including the store's own marks


def test_idle_consumers_with_filters_are_not_looked_at(scene: Scene) -> None:
    for number in range(50):
        config = {
            "durable_name": f"I{number}",
            "ack_policy": "explicit",
            "filter_subject": f"s.idle.{number}",
        }
        scene.client.api(f"CONSUMER.CREATE.S.I{number}", {"stream_name": "S", "config": config})
        subject = b"$JS.API.CONSUMER.MSG.NEXT.S.I%d" % number
        scene.client.publish(subject, b'{"batch":1,"expires":60000000000}', b"dlv")
    scene.box.run()
    readers = scene.box.jetstream.streams["S"].consumer_set
    served: list[str] = []
    for consumer in readers:
        consumer.stop_reason = None  # type: ignore[assignment]
    scene.store(3, b"s.idle.7")
    served = [consumer.name for consumer in readers if consumer.stop_reason is not None]
    assert served == ["I7"]


def test_the_number_pending_is_exact_whatever_happens(scene: Scene) -> None:
    scene.create(filter_subject="s.a")
    for _ in range(20):
        scene.store(1, b"s.a")
        scene.store(1, b"s.b")
    assert scene.info()["num_pending"] == 20
    scene.pull(batch=5)
    assert scene.info()["num_pending"] == 15
    for seq in (1, 11, 12, 13):
        scene.client.api("STREAM.MSG.DELETE.S", {"seq": seq})
    assert scene.info()["num_pending"] == 13
    scene.store(4, b"s.a")
    assert scene.info()["num_pending"] == 17
    scene.client.api("STREAM.PURGE.S", {"filter": "s.a", "keep": 3})
    assert scene.info()["num_pending"] == 3


def test_delivery_speaks_only_of_what_is_durable(scene: Scene) -> None:
    scene.create(deliver_subject="dlv", ack_policy="none")
    scene.box.run()
    for _ in range(3):
        scene.client.publish(b"s.a", b"x")
    while scene.box.later:
        scene.box.later.popleft()()
    assert scene.take() == []
    scene.box.run()
    assert scene.seqs() == [1, 2, 3]


def test_an_inactive_consumer_goes(scene: Scene) -> None:
    scene.create(durable_name=None, name="C", inactive_threshold=2 * SECOND, deliver_subject="nobody")
    scene.box.advance(1999 * MS)
    assert "error" not in scene.info()
    scene.box.advance(2 * MS)
    assert scene.info()["error"]["err_code"] == 10014


def test_a_crowded_connection_is_waited_for(scene: Scene) -> None:
    session: Any = scene.client.session
    session.blocked = True
    scene.create(deliver_subject="dlv", ack_policy="none")
    scene.store(3)
    assert scene.seqs() == []
    session.notify_writable()
    scene.box.run()
    assert scene.seqs() == [1, 2, 3]


def test_one_that_fails_takes_nobody_elses_turn() -> None:
    turns: list[Any] = []
    scheduler = DeliveryScheduler(turns.append)
    served: list[str] = []
    broken, sound = Mock(), Mock()
    broken.deliver.side_effect = RuntimeError
    sound.deliver.side_effect = lambda: served.append("sound")
    scheduler.schedule(broken)
    scheduler.schedule(sound)
    with pytest.raises(RuntimeError):
        turns[0]()
    assert served == ["sound"]
