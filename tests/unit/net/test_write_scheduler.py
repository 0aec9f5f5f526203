"""Small outputs are sent at once, large ones in slices; only clients that add to large outputs are paused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.net import write_scheduler
from headrace.net.write_scheduler import LARGE_BYTES, SLICE_S, SMALL_FANOUT_BYTES, WriteScheduler

SMALL, LARGE = bytearray(10), bytearray(LARGE_BYTES)
MOST = 10 * LARGE_BYTES


class Loop:
    """A loop whose time advances as sessions are flushed."""

    def __init__(self) -> None:
        self.now = 0.0
        self.soon: list[Callable[[], None]] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, act: Callable[[], None]) -> None:
        self.soon.append(act)

    def turn(self) -> None:
        due, self.soon = self.soon, []
        for act in due:
            act()


class Receiver:
    """A session, its owner, and a connection in one."""

    chunk_bytes = 0

    def __init__(self, scene: Scene, name: str, out: bytearray, takes_s: float = 0.0) -> None:
        self.scene, self.name, self.buffer, self.takes_s = scene, name, out, takes_s
        self.transport = self
        self.reading = True

    def flush(self) -> None:
        self.scene.loop.now += self.takes_s
        self.scene.sent.append(self.name)
        self.buffer = bytearray()
        if self.name == "broken":
            raise OSError("broken")

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Scene:
    def __init__(self) -> None:
        self.loop = Loop()
        self.sent: list[str] = []
        self.dirty: list[Any] = []
        self.failed: list[str] = []
        self.outflow = WriteScheduler(
            self.loop,  # type: ignore[arg-type]
            self.dirty,
            lambda: MOST,
            lambda session, error: self.failed.append(session.name),
        )

    def has(self, name: str, out: bytearray, takes_s: float = 0.0) -> Receiver:
        receiver = Receiver(self, name, out, takes_s)
        self.dirty.append(receiver)
        return receiver

    def flushed(self) -> list[str]:
        """Return what is sent in one flush."""
        self.sent.clear()
        self.outflow.flush()
        return self.sent

    def turned(self) -> list[str]:
        """Return what is sent in one turn of the loop."""
        self.sent.clear()
        self.loop.turn()
        return self.sent


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_small_outputs_leave_before_large_ones(scene: Scene) -> None:
    scene.has("flood", LARGE)
    scene.has("answer", SMALL)
    assert scene.flushed() == ["answer", "flood"]
    assert not scene.dirty
    assert not scene.outflow.has_queued_output


def test_large_outputs_leave_by_the_slice_in_their_order(scene: Scene) -> None:
    for number in range(5):
        scene.has(f"{number}", LARGE, SLICE_S / 2)
    assert scene.flushed() == ["0", "1"]
    assert scene.outflow.has_queued_output
    assert scene.turned() == ["2", "3"]
    assert scene.turned() == ["4"]
    assert not scene.outflow.has_queued_output
    assert not scene.loop.soon


def test_an_answer_goes_between_slices(scene: Scene) -> None:
    for number in range(3):
        scene.has(f"{number}", LARGE, SLICE_S)
    scene.flushed()
    scene.has("answer", SMALL)
    scene.has("more", LARGE, SLICE_S)
    assert scene.flushed() == ["answer"]
    assert [scene.turned()[:] for _ in range(3)] == [["1"], ["2"], ["more"]]


def test_shared_payloads_count(scene: Scene) -> None:
    scene.has("large", LARGE, SLICE_S)
    scene.has("shared", bytearray()).chunk_bytes = LARGE_BYTES
    assert scene.flushed() == ["large"]


def test_who_is_held_reads_on_when_what_waited_is_gone(scene: Scene) -> None:
    publisher, gone = Receiver(scene, "publisher", SMALL), Receiver(scene, "gone", SMALL)
    for number in range(3):
        scene.has(f"{number}", LARGE, SLICE_S)
    scene.flushed()
    scene.outflow.pause_reader(publisher)
    scene.outflow.pause_reader(gone)
    scene.outflow.remove_reader(gone)
    scene.has("more", LARGE, SLICE_S)
    scene.flushed()
    scene.turned()
    assert not publisher.reading
    scene.turned()
    assert publisher.reading, "what came later is not waited for"
    assert scene.outflow.has_queued_output
    assert not gone.reading


def test_who_brings_little_is_not_held(scene: Scene) -> None:
    asks, floods, receives = [Receiver(scene, name, SMALL) for name in ("asks", "floods", "receives")]
    receives.buffer = LARGE
    for number in range(2):
        scene.has(f"{number}", LARGE, SLICE_S)
    scene.flushed()
    for client, brought, held in (
        (asks, SMALL_FANOUT_BYTES, False),
        (floods, SMALL_FANOUT_BYTES + 1, True),
        (receives, 0, True),
    ):
        assert scene.outflow.is_congested_by(client, brought) is held  # type: ignore[arg-type]
    while scene.outflow.has_queued_output:
        scene.turned()
    assert not scene.outflow.is_congested_by(floods, SMALL_FANOUT_BYTES + 1), "nothing waits"  # type: ignore[arg-type]


def test_the_queue_has_its_share_of_long_turns(scene: Scene) -> None:
    for number in range(30):
        scene.has(f"{number}", LARGE, SLICE_S)
    scene.flushed()
    scene.loop.now += 20 * SLICE_S
    assert len(scene.turned()) == 10


def test_what_waits_is_bounded(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_scheduler, "QUEUED_BYTES_MAX", 3 * LARGE_BYTES + 100)
    for number in range(6):
        scene.has(f"{number}", LARGE, SLICE_S)
    assert scene.flushed() == ["0", "1", "2"]
    scene.has("near its limit", bytearray(MOST + 1))
    scene.has("shared", SMALL).chunk_bytes = MOST - 100
    scene.flushed()
    scene.outflow.pause_reader(Receiver(scene, "publisher", SMALL))
    assert scene.sent == ["near its limit"]


def test_one_that_stands_in_the_queue_twice_is_sent_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_scheduler, "QUEUED_BYTES_MAX", LARGE_BYTES // 2)
    scene.has("first", LARGE, SLICE_S)
    urgent = scene.has("urgent", bytearray(MOST + 1))
    publisher = Receiver(scene, "publisher", SMALL)
    assert scene.flushed() == ["first", "urgent"], "near its limit, so out of turn"
    urgent.buffer = bytearray(LARGE_BYTES)
    scene.dirty.append(urgent)
    scene.outflow.flush()
    scene.outflow.pause_reader(publisher)
    while scene.outflow.has_queued_output or scene.loop.soon:
        scene.turned()
    assert publisher.reading


def test_one_that_fails_does_not_stop_the_others(scene: Scene) -> None:
    publisher = Receiver(scene, "publisher", SMALL)
    scene.has("first", LARGE, SLICE_S)
    scene.has("broken", LARGE)
    scene.has("last", LARGE)
    scene.has("broken", SMALL)
    scene.has("small", SMALL)
    assert scene.flushed() == ["broken", "small", "first"]
    scene.outflow.pause_reader(publisher)
    assert scene.turned() == ["broken", "last"]
    assert scene.failed == ["broken", "broken"]
    assert publisher.reading
