"""Small outputs leave at once, large ones by the slice; who adds to them waits, everybody else does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.net.outflow import LARGE_BYTES, SLICE_S, Outflow

SMALL, LARGE = bytearray(10), bytearray(LARGE_BYTES)


class Loop:
    """A loop whose time passes as sessions are flushed."""

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

    parted = 0

    def __init__(self, scene: Scene, name: str, out: bytearray, takes_s: float = 0.0) -> None:
        self.scene, self.name, self.out, self.takes_s = scene, name, out, takes_s
        self.owner = self
        self.reading = True

    def flush(self) -> None:
        self.scene.loop.now += self.takes_s
        self.scene.sent.append(self.name)
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
        self.outflow = Outflow(self.loop, self.dirty)  # type: ignore[arg-type]

    def has(self, name: str, out: bytearray, takes_s: float = 0.0) -> Receiver:
        receiver = Receiver(self, name, out, takes_s)
        self.dirty.append(receiver)
        return receiver

    def flushed(self) -> list[str]:
        """What leaves in one flush."""
        self.sent.clear()
        self.outflow.flush()
        return self.sent

    def turned(self) -> list[str]:
        """What leaves in one turn of the loop."""
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
    assert not scene.outflow.waiting


def test_large_outputs_leave_by_the_slice_in_their_order(scene: Scene) -> None:
    for number in range(5):
        scene.has(f"{number}", LARGE, SLICE_S / 2)
    assert scene.flushed() == ["0", "1"]
    assert scene.outflow.waiting
    assert scene.turned() == ["2", "3"]
    assert scene.turned() == ["4"]
    assert not scene.outflow.waiting
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
    scene.has("shared", bytearray()).parted = LARGE_BYTES
    assert scene.flushed() == ["large"]


def test_who_is_held_reads_on_when_nothing_waits(scene: Scene) -> None:
    publisher, gone = Receiver(scene, "publisher", SMALL), Receiver(scene, "gone", SMALL)
    for number in range(3):
        scene.has(f"{number}", LARGE, SLICE_S)
    scene.flushed()
    scene.outflow.hold(publisher)  # type: ignore[arg-type]
    scene.outflow.hold(gone)  # type: ignore[arg-type]
    scene.outflow.forget(gone)  # type: ignore[arg-type]
    scene.turned()
    assert not publisher.reading
    scene.turned()
    assert publisher.reading
    assert not gone.reading


def test_one_that_fails_does_not_stop_the_others(scene: Scene) -> None:
    publisher = Receiver(scene, "publisher", SMALL)
    scene.has("first", LARGE, SLICE_S)
    scene.has("broken", LARGE)
    scene.has("last", LARGE)
    scene.flushed()
    scene.outflow.hold(publisher)  # type: ignore[arg-type]
    with pytest.raises(OSError, match="broken"):
        scene.turned()
    assert scene.turned() == ["last"]
    assert publisher.reading
