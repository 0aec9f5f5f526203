"""Interest streams keep what a consumer needs and nothing else, whatever the number of consumers."""

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
    """An interest stream S over `s.>` in virtual time."""

    def __init__(self) -> None:
        self.clock = SimClock()
        self.box = Box(SimDisk(1), self.clock, StoreOptions())
        self.client: Client = self.box.client()
        self.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], "retention": "interest"})

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

    def publish(self, subject: bytes, count: int = 1) -> None:
        for _ in range(count):
            self.client.publish(subject, b"x")
        self.box.run()

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


def deliver_and_ack(scene: Scene, name: str, rng: random.Random) -> None:
    scene.client.send(b"SUB dlv 7\r\n")
    scene.client.publish(
        b"$JS.API.CONSUMER.MSG.NEXT.S." + name.encode(), b'{"batch":5,"no_wait":true}', b"dlv"
    )
    scene.box.run()
    for delivery in scene.client.take():
        if delivery.reply and rng.random() < 0.7:
            scene.client.publish(delivery.reply, b"+ACK")
    scene.client.send(b"UNSUB 7\r\n")
    scene.box.run()
