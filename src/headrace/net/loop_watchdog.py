"""Watches the event loop: finds turns that kept all clients waiting, and names the operation that caused them.

One thread serves everyone, so an operation that holds it for 50 ms adds 50 ms to the latency of every client. A timer of
the loop notices how late it runs; the entry points of the broker (scheduled calls, completions of the disk, timers, API
requests, pages of the monitor, garbage collection) report calls that take long. See ADR 19.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from headrace.net.logs import Logger

#: Calls that hold the event loop for longer than this may be named as the cause of a stall.
SLOW_S = 0.010
#: A turn longer than this is counted and logged.
STALL_S = 0.050
#: How often the loop's lateness is measured while the server works, and while it is idle.
BEAT_S = 0.020
IDLE_BEAT_S = 0.200
#: Less CPU time than this since the last measurement: the server is idle.
IDLE_CPU_S = 0.001
#: At most one line per interval is logged.
LOG_INTERVAL_S = 1.0
#: Maximum number of slow calls kept between two measurements.
_SLOW_CALLS_MAX = 32
UNKNOWN_OPERATION = "client messages"
#: Linux counts for each thread, other systems for the process.
_RUSAGE_SCOPE = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)


@dataclass(frozen=True, slots=True)
class LoopStalls:
    """What the watchdog has found since the start."""

    count: int = 0
    total_s: float = 0.0
    longest_s: float = 0.0
    longest_cpu_s: float = 0.0
    last_operation: str = ""


class SlowCall(NamedTuple):
    """A call that held the event loop, and the CPU time that it used meanwhile: the rest waited for a processor."""

    operation: str
    held_s: float
    cpu_s: float


class SystemUsage(NamedTuple):
    """What the kernel has done for the thread of the event loop: it tells a slow operation from a slow machine."""

    cpu_s: float
    page_faults: int
    preemptions: int

    @classmethod
    def read(cls) -> SystemUsage:
        found = resource.getrusage(_RUSAGE_SCOPE)
        return cls(found.ru_stime, found.ru_minflt + found.ru_majflt, found.ru_nivcsw)

    def describe_since(self, earlier: SystemUsage) -> str:
        kernel_ms = (self.cpu_s - earlier.cpu_s) * 1000
        faults, preemptions = self.page_faults - earlier.page_faults, self.preemptions - earlier.preemptions
        return f"{kernel_ms:.0f} ms in the kernel, {faults} page faults, {preemptions} preemptions"


class LoopWatchdog:
    """Measures how long turns of the event loop take."""

    def __init__(self, log: Logger) -> None:
        self.stalls = LoopStalls()
        self._log = log
        self._loop: asyncio.AbstractEventLoop | None = None
        self._handle: asyncio.TimerHandle | None = None
        self._thread_id = 0
        self._due_s = self._delay_s = self._cpu_s = 0.0
        self._system_usage = SystemUsage(0.0, 0, 0)
        self._slow_calls: list[SlowCall] = []
        self._gc_started_s = self._gc_cpu_s = 0.0
        self._next_log_s = 0.0
        self._unlogged = 0

    def start(self) -> None:
        """Begin to measure the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._slow_calls.clear()
        self._cpu_s, self._system_usage = time.thread_time(), SystemUsage.read()
        gc.callbacks.append(self._on_gc)
        self._arm(BEAT_S)

    def stop(self) -> None:
        """Stop measuring; no effect if it was not started."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
            gc.callbacks.remove(self._on_gc)

    def watch(self, schedule: Callable[..., object]) -> Callable[[Callable[[], None]], object]:
        """Return a function that schedules calls, such as `loop.call_soon`, and measures each of them."""
        return partial(schedule, self.run)

    def run(self, call: Callable[[], None]) -> None:
        """Make a call, and record it if it takes long."""
        started_s, cpu_s = time.perf_counter(), time.thread_time()
        try:
            call()
        finally:
            if time.perf_counter() - started_s > SLOW_S:
                self._record(_describe_call(call), started_s, cpu_s)

    def run_operation(self, name: bytes, call: Callable[[], None]) -> None:
        """Make a call of the broker, and record it under the name of its operation if it takes long."""
        started_s, cpu_s = time.perf_counter(), time.thread_time()
        try:
            call()
        finally:
            if time.perf_counter() - started_s > SLOW_S:
                self._record(name.decode("utf-8", "replace"), started_s, cpu_s)

    @contextmanager
    def measure(self, operation: str) -> Iterator[None]:
        """Record the block as the operation if it takes long; it must not await."""
        started_s, cpu_s = time.perf_counter(), time.thread_time()
        try:
            yield
        finally:
            if time.perf_counter() - started_s > SLOW_S:
                self._record(operation, started_s, cpu_s)

    def _record(self, operation: str, started_s: float, cpu_s: float) -> None:
        """Remember a slow call. Inner operations are recorded before the calls that contain them."""
        if len(self._slow_calls) < _SLOW_CALLS_MAX:
            held_s, used_s = time.perf_counter() - started_s, time.thread_time() - cpu_s
            self._slow_calls.append(SlowCall(operation, held_s, used_s))

    def _arm(self, delay_s: float) -> None:
        assert self._loop is not None
        self._delay_s = delay_s
        self._due_s = self._loop.time() + delay_s
        self._handle = self._loop.call_later(delay_s, self._on_beat)

    def _on_beat(self) -> None:
        assert self._loop is not None
        cpu_s = time.thread_time()
        used_s, self._cpu_s = cpu_s - self._cpu_s, cpu_s
        held_s = self._loop.time() - self._due_s
        slow_calls, self._slow_calls = self._slow_calls, []
        held_s = max([held_s, *(each.held_s for each in slow_calls)])
        before, self._system_usage = self._system_usage, SystemUsage.read()
        if held_s >= STALL_S:
            cause = find_cause(slow_calls, held_s, used_s, self._delay_s)
            self._on_stall(cause, self._system_usage.describe_since(before))
        self._arm(BEAT_S if used_s > IDLE_CPU_S else IDLE_BEAT_S)

    def _on_stall(self, cause: SlowCall, system_usage: str) -> None:
        assert self._loop is not None
        operation, held_s, cpu_s = cause
        before = self.stalls
        self.stalls = LoopStalls(
            before.count + 1,
            before.total_s + held_s,
            max(before.longest_s, held_s),
            max(before.longest_cpu_s, cpu_s),
            operation,
        )
        now_s = self._loop.time()
        if now_s < self._next_log_s:
            self._unlogged += 1
            return
        self._next_log_s = now_s + LOG_INTERVAL_S
        others = f"; {self._unlogged} more since the last report" if self._unlogged else ""
        self._unlogged = 0
        self._log.warn(
            f"All clients waited {held_s * 1000:.0f} ms ({cpu_s * 1000:.0f} ms of CPU; since the last measurement: "
            f"{system_usage}) for: {operation}{others}"
        )

    def _on_gc(self, phase: str, _info: dict[str, Any]) -> None:
        if threading.get_ident() != self._thread_id:
            return
        if phase == "start":
            self._gc_started_s, self._gc_cpu_s = time.perf_counter(), time.thread_time()
        elif time.perf_counter() - self._gc_started_s > SLOW_S:
            self._record("garbage collection", self._gc_started_s, self._gc_cpu_s)


def find_cause(slow_calls: list[SlowCall], held_s: float, used_s: float, delay_s: float) -> SlowCall:
    """Return what explains a stall: the first slow call that took at least half of it, an inner one before its callers.

    Otherwise all slow calls are named. `used_s` is the CPU time since the last measurement, also of earlier turns, which
    had up to `delay_s` of it; the result has only the CPU time that this turn used for certain.
    """
    turn_cpu_s = used_s - delay_s
    for each in slow_calls:
        if each.held_s >= held_s / 2:
            most_s = each.cpu_s + held_s - each.held_s
            return SlowCall(each.operation, held_s, max(each.cpu_s, min(most_s, turn_cpu_s)))
    operations = ", ".join(dict.fromkeys(each.operation for each in slow_calls)) or UNKNOWN_OPERATION
    return SlowCall(operations, held_s, min(held_s, max(turn_cpu_s, sum(each.cpu_s for each in slow_calls))))


def _describe_call(call: Callable[..., object]) -> str:
    while isinstance(call, partial):
        call = call.func
    owner = getattr(call, "__self__", None)
    name = getattr(call, "__name__", type(call).__name__)
    return f"{type(owner).__name__}.{name}" if owner is not None else getattr(call, "__qualname__", name)
