"""Runs asynchronous calls on one background thread per process, and waits for their results.

Owns the thread and its event loop. Invariants: a call that its caller no longer waits for is cancelled, and an object is
never used by a process other than the one that created it. `sync` has the blocking forms of the client's classes.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import os
import threading
from collections.abc import Awaitable, Callable
from typing import Concatenate, Generic, ParamSpec, TypeVar

from headrace.client.errors import NoAnswer
from headrace.errors import HeadraceError

_STOP_TIMEOUT_S = 2.0

T = TypeVar("T")
P = ParamSpec("P")
Inner = TypeVar("Inner")


class WrongProcess(HeadraceError):
    """A client is used in a process that was forked from the one that connected it."""


class EventLoopThread:
    """The thread that runs the event loop."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="headrace-client", daemon=True)
        self.thread.start()

    def run(self, work: Awaitable[T], timeout_s: float | None) -> T:
        """Run the work on that thread, and wait for the result."""
        result = asyncio.run_coroutine_threadsafe(_to_coroutine(work), self.loop)
        try:
            return result.result(timeout_s)
        except BaseException as error:
            # Also when the caller is interrupted: work that nobody waits for should not continue.
            if not result.done() and result.cancel() and isinstance(error, TimeoutError):
                raise NoAnswer(
                    f"not finished within {timeout_s:g} s; check that the server is reachable"
                ) from None
            raise

    def stop(self) -> None:
        async def cancel_all() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(cancel_all(), self.loop).result(_STOP_TIMEOUT_S)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(_STOP_TIMEOUT_S)


async def _to_coroutine(work: Awaitable[T]) -> T:
    return await work


class ProcessEventLoop:
    """The background event loop of this process, created on first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop_thread: EventLoopThread | None = None
        self._parent_loop_threads: list[EventLoopThread | None] = []

    def get_loop_thread(self) -> EventLoopThread:
        with self._lock:
            if self._loop_thread is None:
                self._loop_thread = EventLoopThread()
                atexit.register(self._stop, os.getpid())
            return self._loop_thread

    def on_fork(self) -> None:
        """In the child: the parent's thread does not exist here.

        Its loop is kept, because closing it would affect the parent.
        """
        self._parent_loop_threads.append(self._loop_thread)
        self._loop_thread = None
        self._lock = threading.Lock()

    def _stop(self, pid: int) -> None:
        if pid == os.getpid() and self._loop_thread is not None:
            self._loop_thread.stop()


process_loop = ProcessEventLoop()
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=process_loop.on_fork)


class SyncProxy(Generic[Inner]):
    """Blocking wrapper of an asynchronous object, `inner`."""

    def __init__(self, inner: Inner, timeout_s: float) -> None:
        self.inner = inner
        self._timeout_s = timeout_s
        self._loop_thread = process_loop.get_loop_thread()
        self._pid = os.getpid()

    def run(self, work: Awaitable[T], timeout: float | None = None) -> T:
        """Wait for an awaitable, for operations without a method here: `client.run(client.js.purge_stream("S"))`."""
        return self._wait(work, self._timeout_s if timeout is None else timeout)

    def _wait(self, work: Awaitable[T], timeout_s: float | None) -> T:
        try:
            self._check_caller()
        except BaseException:
            if asyncio.iscoroutine(work):
                work.close()
            raise
        return self._loop_thread.run(work, timeout_s)

    def _check_caller(self) -> None:
        if self._pid != os.getpid():
            text = (
                f"connected in process {self._pid}, used in {os.getpid()}: call sync.connect() after the fork"
            )
            raise WrongProcess(text)
        if threading.current_thread() is self._loop_thread.thread:
            raise RuntimeError(
                "the blocking client cannot be used in a callback of its event loop: use the asynchronous client there"
            )


def make_blocking(
    method: Callable[Concatenate[Inner, P], Awaitable[T]],
) -> Callable[Concatenate[SyncProxy[Inner], P], T]:
    """Return the blocking form of a method; a subclass of the asynchronous object may override it."""
    name = method.__name__

    @functools.wraps(method)
    def call(proxy: SyncProxy[Inner], /, *args: P.args, **kwargs: P.kwargs) -> T:
        work: Awaitable[T] = getattr(proxy.inner, name)(*args, **kwargs)
        return proxy.run(work)

    return call
