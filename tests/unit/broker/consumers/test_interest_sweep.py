"""Interest streams keep what a consumer needs and nothing else, whatever the number of consumers; work queues keep what
nobody has acknowledged.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from headrace.broker.consumers import interest_sweep
from headrace.sim import SimClock
from headrace.sim.disk.sim_disk import SimDisk
from headrace.storage import StoreOptions
from sim.broker_harness import Box, Client

SECOND = 1_000_000_000
CONSUMERS = 30  # more than FEW_CONSUMERS: only those whose filters match are asked


class Scene:
    """A stream S over `s.>` in virtual time."""

    def __init__(self, retention: str = "interest") -> None:
        self.clock = SimClock()
        self.box = Box(SimDisk(1), self.clock, StoreOptions())
        self.client: Client = self.box.client()
        self.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], "retention": retention})

    def restart(self) -> None:
        self.box = Box(self.box.disk.kill(), self.clock, StoreOptions())
        self.client = self.box.client()

    def api(self, call: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        answer = self.client.api(call, body or {})
        assert "error" not in answer, answer
        return answer

    def create(self, name: str, **config: Any) -> None:
        full = {"durable_name": name, "ack_policy": "explicit", **config}
        self.api(f"CONSUMER.CREATE.S.{name}", {"stream_name": "S", "config": full})

    def create_for_copy(self, filter_subject: str = "s.>", **more: Any) -> None:
        """Create the consumer of a source, or change its filter. Nothing subscribes to it, so it stays behind."""
        config = {"name": "COPY", "ack_policy": "none", "deliver_subject": "copy", "flow_control": True}
        config |= {"idle_heartbeat": SECOND, "max_deliver": 1, "direct": True, "sourcing": True}
        config |= {"filter_subject": filter_subject, **more}
        self.api(f"CONSUMER.CREATE.S.COPY.{filter_subject}", {"stream_name": "S", "config": config})

    def publish(self, subject: bytes, count: int = 1) -> None:
        for _ in range(count):
            self.client.publish(subject, b"x")
        self.box.run()

    def publish_to_copy(self, subject: bytes, count: int) -> None:
        """Publish the first messages, and acknowledge them for the copy."""
        self.client.send(b"SUB copy 9\r\n")
        self.publish(subject, count)
        self.box.advance(2 * SECOND)
        request = next(each for each in self.client.take() if each.reply.startswith(b"$JS.FC."))
        header = b"NATS/1.0\r\nNats-Last-Consumer: %d\r\nNats-Last-Stream: %d\r\n\r\n" % (count, count)
        self.client.send(b"HPUB %s %d %d\r\n%s\r\n" % (request.reply, len(header), len(header), header))
        self.box.run()

    def fetch(self, name: str, count: int = 9) -> list[bytes]:
        """Return the ack subjects of the messages that a consumer delivers now."""
        self.client.send(b"SUB fetched 7\r\n")
        body = b'{"batch": %d, "no_wait": true}' % count
        self.client.publish(b"$JS.API.CONSUMER.MSG.NEXT.S." + name.encode(), body, b"fetched")
        self.box.run()
        self.client.send(b"UNSUB 7\r\n")
        return [each.reply for each in self.client.take() if each.reply]

    def count(self) -> int:
        state: dict[str, int] = self.api("STREAM.INFO.S")["state"]
        return state["messages"]


def test_deleting_consumers_one_by_one_removes_what_only_they_needed() -> None:
    scene = Scene()
    for number in range(CONSUMERS):
        scene.create(f"c{number}", filter_subject=f"s.{number % 10}")
    for number in range(10):
        scene.publish(b"s.%d" % number, 5)
    for number in range(CONSUMERS):
        assert scene.count() == 50 - 5 * max(0, number - (CONSUMERS - 10))
        scene.api(f"CONSUMER.DELETE.S.c{number}")
    assert scene.count() == 0


def test_acks_of_a_consumer_that_is_deleted_in_the_same_turn_are_not_those_of_others() -> None:
    scene = Scene()
    scene.create("A")
    scene.create("B")
    scene.publish(b"s.a", 3)
    for reply in scene.fetch("A"):
        scene.client.publish(reply, b"+ACK")
    scene.client.publish(b"$JS.API.CONSUMER.DELETE.S.A", b"")
    scene.box.run()
    assert scene.count() == len(scene.fetch("B")) == 3


def test_acks_of_a_worker_that_is_deleted_in_the_same_turn_are_not_those_of_the_copy() -> None:
    scene = Scene("workqueue")
    scene.create("W")
    scene.create_for_copy()
    scene.publish(b"s.a", 3)
    for reply in scene.fetch("W"):
        scene.client.publish(reply, b"+ACK")
    scene.client.publish(b"$JS.API.CONSUMER.DELETE.S.W", b"")
    scene.box.run()
    assert scene.count() == 3


def test_a_copy_that_reconnects_leaves_its_messages_to_a_worker_that_is_replaced() -> None:
    scene = Scene("workqueue")
    scene.create("W", filter_subject="s.a")
    scene.create("W2", filter_subject="s.b")
    scene.create_for_copy("s.a")
    scene.publish_to_copy(b"s.a", 4)
    scene.api("CONSUMER.DELETE.S.W")
    scene.create_for_copy("s.a")
    scene.create("W", filter_subject="s.a")
    assert len(scene.fetch("W")) == 4


def test_messages_that_were_never_last_stay_in_a_work_queue() -> None:
    scene = Scene("workqueue")
    scene.create("W", filter_subject="s.b.>")
    scene.publish(b"s.x")
    scene.publish(b"s.a", 3)
    for filter_subject in ("s.>", "s.*"):
        scene.create_for_copy(filter_subject, deliver_policy="last_per_subject")
        assert scene.count() == 4


def test_changed_filters_release_messages() -> None:
    scene = Scene()
    for number in range(CONSUMERS):
        scene.create(f"c{number}", filter_subject="s.a" if number else "s.b")
    scene.publish(b"s.a", 3)
    scene.publish(b"s.b", 4)
    scene.create("c0", filter_subject="s.c")
    assert scene.count() == 3


@pytest.mark.parametrize("restart", [False, True])
def test_a_backlog_of_many_slices_is_removed_in_the_end(
    monkeypatch: pytest.MonkeyPatch, restart: bool
) -> None:
    monkeypatch.setattr(interest_sweep, "_SLICE_SEQS", 4)
    scene = Scene()
    scene.create("keeper", filter_subject="s.keep")
    scene.create("leaver", filter_subject="s.>")
    for _ in range(20):
        scene.publish(b"s.keep")
        scene.publish(b"s.drop")
    scene.api("CONSUMER.DELETE.S.leaver")
    if restart:
        scene.restart()  # perhaps in the middle of the backlog
    scene.box.run()
    assert scene.count() == 20


@pytest.mark.parametrize("seed", range(8))
def test_many_consumers_decide_as_few_do(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """The same story with consumers that are asked one by one, and with those that are found by subject."""
    counts = []
    for few in (0, 1000):
        monkeypatch.setattr(interest_sweep, "FEW_CONSUMERS", few)
        counts.append(play(random.Random(seed)))
    assert counts[0] == counts[1]


def play(rng: random.Random) -> list[int]:
    scene, present, counts = Scene(), list[str](), list[int]()
    filters = ["s.>", "s.a", "s.*", "s.a.*", "s.b.>", ""]
    for number in range(60):
        action = rng.random()
        if action < 0.2:
            name, chosen = f"c{number}", rng.choice(filters)
            scene.create(name, **({"filter_subject": chosen} if chosen else {}))
            present.append(name)
        elif action < 0.3 and present:
            scene.api(f"CONSUMER.DELETE.S.{present.pop(rng.randrange(len(present)))}")
        elif action < 0.6 and present:
            deliver_and_ack(scene, rng.choice(present), rng)
        else:
            scene.publish(rng.choice([b"s.a", b"s.b", b"s.a.x", b"s.b.y"]), rng.randint(1, 4))
        counts.append(scene.count())
    return counts


def deliver_and_ack(scene: Scene, name: str, rng: random.Random, ack_share: float = 0.7) -> None:
    scene.client.send(b"SUB dlv 7\r\n")
    scene.client.publish(
        b"$JS.API.CONSUMER.MSG.NEXT.S." + name.encode(), b'{"batch":5,"no_wait":true}', b"dlv"
    )
    scene.box.run()
    for delivery in scene.client.take():
        if delivery.reply and rng.random() < ack_share:
            scene.client.publish(delivery.reply, b"+ACK")
    scene.client.send(b"UNSUB 7\r\n")
    scene.box.run()


class TestWorkQueue:
    """The consumers of sources are the only ones that share messages of a work queue with others."""

    @pytest.fixture
    def scene(self) -> Scene:
        """Eight messages: the worker has acknowledged five, the copy none."""
        scene = Scene("workqueue")
        scene.create("W")
        scene.create_for_copy()
        scene.publish(b"s.a", 4)
        scene.publish(b"s.b", 4)
        deliver_and_ack(scene, "W", random.Random(1), ack_share=1)
        assert scene.count() == 8
        return scene

    @pytest.mark.parametrize("restart", [False, True])
    def test_what_was_acknowledged_goes_with_the_other_consumer(self, scene: Scene, restart: bool) -> None:
        if restart:
            scene.restart()
        scene.api("CONSUMER.DELETE.S.COPY")
        assert scene.count() == 3

    def test_in_many_slices(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(interest_sweep, "_SLICE_SEQS", 2)
        scene.api("CONSUMER.DELETE.S.COPY")
        scene.restart()  # perhaps in the middle
        scene.box.run()
        assert scene.count() == 3

    def test_when_the_other_consumer_skips_it(self, scene: Scene) -> None:
        scene.api("CONSUMER.RESET.S.COPY", {"seq": 4})
        assert scene.count() == 5

    def test_when_the_other_consumer_filters_it_out(self) -> None:
        scene = Scene("workqueue")
        scene.create("W", filter_subject="s.a")
        scene.create_for_copy()
        scene.publish(b"s.a", 8)
        deliver_and_ack(scene, "W", random.Random(1), ack_share=1)
        scene.create_for_copy("s.b")
        assert scene.count() == 3

    def test_also_after_the_worker_was_reset_to_its_ack_floor(self, scene: Scene) -> None:
        scene.api("CONSUMER.RESET.S.W")
        scene.restart()
        scene.api("CONSUMER.DELETE.S.COPY")
        assert scene.count() == 3

    def test_what_nobody_acknowledged_stays(self, scene: Scene) -> None:
        scene.api("CONSUMER.DELETE.S.W")
        scene.api("CONSUMER.DELETE.S.COPY")
        scene.restart()
        assert scene.count() == 8

    def test_a_worker_that_is_replaced_gets_what_the_copy_has_acknowledged(self) -> None:
        scene = Scene("workqueue")
        scene.create("W")
        scene.create_for_copy()
        scene.publish_to_copy(b"s.a", 4)
        assert scene.api("CONSUMER.INFO.S.COPY")["ack_floor"]["stream_seq"] == 4
        scene.api("CONSUMER.DELETE.S.W")
        assert scene.count() == 4

    @pytest.mark.parametrize("skipped", ["reset", "filter", "given up", "start"])
    @pytest.mark.parametrize("restart", [False, True])
    def test_what_a_worker_skipped_stays(self, skipped: str, restart: bool) -> None:
        scene = Scene("workqueue")
        if skipped == "start":
            scene.publish(b"s.a", 4)
            scene.create_for_copy()
            scene.api("CONSUMER.RESET.S.COPY", {"seq": 3})
            scene.create("W")
            scene.api("CONSUMER.RESET.S.W", {"seq": 3})
            deliver_and_ack(scene, "W", random.Random(1), ack_share=1)
        else:
            narrow = {"filter_subject": "s.b"} if skipped == "filter" else {}
            scene.create("W", max_deliver=1, ack_wait=SECOND, **narrow)
            scene.create_for_copy()
            scene.publish(b"s.a", 2)
            if skipped == "given up":
                deliver_and_ack(scene, "W", random.Random(1), ack_share=0)
                scene.box.advance(2 * SECOND)
                scene.api("CONSUMER.RESET.S.W")
            elif skipped == "reset":
                scene.api("CONSUMER.RESET.S.W", {"seq": 3})
            scene.publish(b"s.b", 2)
            deliver_and_ack(scene, "W", random.Random(1), ack_share=1)
            if skipped == "filter":
                scene.create("W", max_deliver=1, ack_wait=SECOND, filter_subject="s.>")
        if restart:
            scene.restart()
        scene.api("CONSUMER.DELETE.S.COPY")
        # After a change of filters it is no longer known what was acknowledged.
        assert scene.count() == (4 if skipped == "filter" else 2)
