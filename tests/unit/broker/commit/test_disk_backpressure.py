"""Backpressure of several stores: one that is behind is enough."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from headrace.broker import Timers
from headrace.broker.commit.disk_backpressure import (
    FAST_FRAME_NS,
    FRAME_BYTES_MAX,
    LARGE_FRAME_BYTES_MAX,
    LARGE_FRAME_BYTES_MIN,
    NO_DISKS,
    PENDING_BYTES_MAX,
    SLOW_FRAME_NS,
    DiskBackpressure,
    combine_backpressure,
)
from headrace.sim import SimClock


def make_store() -> Any:
    context = SimpleNamespace(frame_bytes=0, journal_bytes=0)
    return SimpleNamespace(pending_bytes=0, full=False, in_flight=False, log_context=context)


class Disks:
    """Two stores with nothing pending."""

    def __init__(self) -> None:
        self.clock = SimClock()
        self.timers = Timers(self.clock)
        self.stores: list[Any] = [make_store() for _ in range(2)]
        self.parts = [DiskBackpressure(store, self.timers) for store in self.stores]

    def pass_time(self) -> None:
        self.clock.advance(1_000_000_000)
        self.timers.run_due()


def count_calls() -> tuple[list[int], Callable[[], None]]:
    calls: list[int] = []
    return calls, lambda: calls.append(1)


def test_one_store_that_is_behind_makes_the_whole_high() -> None:
    disks = Disks()
    combined = combine_backpressure(disks.parts)
    assert not combined.is_high()
    disks.stores[1].pending_bytes = PENDING_BYTES_MAX + 1
    assert combined.is_high()


def test_publishers_resume_when_the_store_has_caught_up() -> None:
    disks = Disks()
    combined = combine_backpressure(disks.parts)
    calls, on_low = count_calls()
    combined.on_low(on_low)
    disks.stores[1].pending_bytes = PENDING_BYTES_MAX + 1
    assert combined.is_high()
    disks.pass_time()
    assert not calls
    disks.stores[1].pending_bytes = 0
    disks.pass_time()
    assert calls == [1]


def test_an_open_frame_is_limited_while_another_one_is_written() -> None:
    """Otherwise a flood makes the next frame so large that everybody waits long for it."""
    disks = Disks()
    [store, _], [part, _] = disks.stores, disks.parts
    calls, on_low = count_calls()
    part.on_low(on_low)
    store.pending_bytes = store.log_context.journal_bytes = FRAME_BYTES_MAX + 1
    assert not part.is_high(), "it is written next"
    store.in_flight = True
    assert part.is_high()
    disks.pass_time()
    assert not calls
    store.log_context.journal_bytes = 0  # it is written now
    disks.pass_time()
    assert calls == [1]
    assert not part.is_high()


class LargeFrames:
    """A store that a publisher of large messages keeps busy."""

    def __init__(self) -> None:
        disks = Disks()
        self.clock, self.part, self.store = disks.clock, disks.parts[0], disks.stores[0]
        self.store.in_flight = True

    def find_limit(self) -> int:
        """Return the size above which publishers are paused."""
        context = self.store.log_context
        for size in range(LARGE_FRAME_BYTES_MIN, LARGE_FRAME_BYTES_MAX + 1, LARGE_FRAME_BYTES_MIN):
            self.store.pending_bytes = context.frame_bytes = size + 1
            if self.part.is_high():
                return size
        raise AssertionError("never paused")

    def write_frame(self, duration_ns: int) -> None:
        """End a frame; the next one was full before, and is written now."""
        self.find_limit()
        self.clock.advance(duration_ns)
        self.store.log_context.frame_bytes = 0
        self.part.on_committed()


def test_a_frame_may_hold_more_of_large_messages_if_the_disk_is_fast() -> None:
    frames = LargeFrames()
    assert frames.find_limit() == LARGE_FRAME_BYTES_MIN
    frames.write_frame(FAST_FRAME_NS // 2)  # when it started is not known
    assert frames.find_limit() == LARGE_FRAME_BYTES_MIN
    for _ in range(5):
        frames.write_frame(FAST_FRAME_NS - 1)
    assert frames.find_limit() == LARGE_FRAME_BYTES_MAX
    frames.write_frame(SLOW_FRAME_NS)
    assert frames.find_limit() == LARGE_FRAME_BYTES_MAX
    frames.write_frame(SLOW_FRAME_NS + 1)
    assert frames.find_limit() == LARGE_FRAME_BYTES_MAX // 2
    for _ in range(5):
        frames.write_frame(SLOW_FRAME_NS + 1)
    assert frames.find_limit() == LARGE_FRAME_BYTES_MIN


def test_frames_that_did_not_fill_up_say_nothing_about_the_disk() -> None:
    frames = LargeFrames()
    frames.write_frame(1)
    frames.part.on_committed()  # nobody was paused
    frames.write_frame(FAST_FRAME_NS - 1)
    assert frames.find_limit() == LARGE_FRAME_BYTES_MIN


def test_what_goes_to_the_journal_is_limited_on_any_disk() -> None:
    frames = LargeFrames()
    for _ in range(5):
        frames.write_frame(1)
    frames.store.pending_bytes = frames.store.log_context.frame_bytes = FRAME_BYTES_MAX + 1
    assert not frames.part.is_high()
    frames.store.log_context.journal_bytes = FRAME_BYTES_MAX + 1
    assert frames.part.is_high()


def test_publishers_resume_with_the_frame_and_not_only_by_the_timer() -> None:
    disks = Disks()
    disk, store = disks.parts[0], disks.stores[0]
    calls, on_low = count_calls()
    disk.on_low(on_low)
    disk.on_committed()
    assert not calls  # nobody waits
    store.pending_bytes = store.log_context.journal_bytes = FRAME_BYTES_MAX + 1
    store.in_flight = True
    assert disk.is_high()
    disk.on_committed()
    assert not calls  # the next frame is large, too
    store.log_context.journal_bytes = 0
    disk.on_committed()
    assert calls == [1]
    disks.pass_time()
    assert calls == [1]


def test_a_single_store_is_asked_directly() -> None:
    [part, _] = Disks().parts
    assert combine_backpressure([part]) is part


def test_without_a_store_it_is_never_high() -> None:
    assert not NO_DISKS.is_high()
    assert not combine_backpressure([]).is_high()
