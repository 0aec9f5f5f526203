"""Checks passwords against bcrypt hashes, away from the event loop.

A check takes a tenth of a second on purpose. Owns a small pool of threads with low priority, and what a peer sent before
its password was checked: CONNECT is parsed again when the result is known. Invariant: nothing that follows CONNECT is
processed before.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from headrace.auth.authenticator import SlowPassword, VerifiedPassword, verify_secret

#: Lower priority than the event loop, so that strangers with wrong passwords do not slow down clients.
NICENESS = 10


class PasswordVerifier:
    """A pool of threads that check passwords; they start with the first check."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pool: ThreadPoolExecutor | None = None

    def verify(self, password: SlowPassword, on_verified: Callable[[VerifiedPassword], None]) -> None:
        """Check a password; call `on_verified` on the event loop."""
        if self._pool is None:
            threads = max((os.cpu_count() or 1) - 1, 1)
            self._pool = ThreadPoolExecutor(threads, "password", _lower_priority)
        self._pool.submit(self._run, password, on_verified)

    def _run(self, password: SlowPassword, on_verified: Callable[[VerifiedPassword], None]) -> None:
        is_correct = verify_secret(password.stored, password.provided)
        result = VerifiedPassword(password.stored, password.provided, is_correct)
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(on_verified, result)

    def close(self) -> None:
        """Drop checks that wait."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


def _lower_priority() -> None:
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


class Greeting:
    """The bytes that a peer sent before it was authenticated."""

    __slots__ = ("_on_verified", "_received", "_verifier", "is_waiting", "verified")

    def __init__(self, verifier: PasswordVerifier, on_verified: Callable[[bytes], None]) -> None:
        """`on_verified` gets all bytes received so far, to be parsed again."""
        self._verifier = verifier
        self._on_verified = on_verified
        self._received = bytearray()
        self.is_waiting = False
        self.verified: VerifiedPassword | None = None

    def receive(self, data: bytes | bytearray | memoryview) -> None:
        """Keep received bytes."""
        self._received += data

    def wait_for(self, password: SlowPassword) -> None:
        """Check a password; nothing may be parsed meanwhile."""
        self.is_waiting = True
        self._verifier.verify(password, self._finish)

    def _finish(self, verified: VerifiedPassword) -> None:
        self.is_waiting = False
        self.verified = verified
        received, self._received = bytes(self._received), bytearray()
        self._on_verified(received)
