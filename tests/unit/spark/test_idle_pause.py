"""An idle query sends few requests, and a busy one does not wait."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from headrace.spark import idle_pause
from headrace.spark.idle_pause import IdlePause


class Clock:
    """Virtual time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr(
            idle_pause, "time", SimpleNamespace(monotonic=lambda: self.now_s, sleep=self._sleep)
        )

    def _sleep(self, seconds: float) -> None:
        self.now_s += seconds


def count_requests(clock: Clock, pause: IdlePause, duration_s: float, requests: int = 1) -> int:
    """Return how many requests an idle query sends, which Spark asks again every 10 ms."""
    count, end_s = 0, clock.now_s + duration_s
    while clock.now_s < end_s:
        if pause.wait(0.2):
            count += requests
            pause.on_nothing(requests)
        else:
            clock.now_s += 0.01
    return count


@pytest.mark.parametrize("streams", [1, 10])
def test_an_idle_query_sends_five_requests_a_second(monkeypatch: pytest.MonkeyPatch, streams: int) -> None:
    clock = Clock(monkeypatch)
    pause = IdlePause()
    count_requests(clock, pause, 10.0, streams)
    assert count_requests(clock, pause, 60.0, streams) <= 60 * 5 + streams


def test_a_message_after_a_short_pause_is_noticed_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    pause = IdlePause()
    count_requests(clock, pause, 60.0)
    pause.on_data()
    began_s = clock.now_s
    assert pause.wait(0.2)
    assert clock.now_s == began_s, "at once"
    for _ in range(10):
        pause.on_nothing()
        before_s = clock.now_s
        assert pause.wait(0.2)
        assert clock.now_s - before_s <= max(0.02, (before_s - began_s) * 0.1) + 1e-9


def test_a_query_of_many_streams_does_not_pause_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    pause = IdlePause()
    clock.now_s += 60
    pause.on_nothing(200)
    assert pause.wait(2.0)
    assert clock.now_s <= 1062.0
