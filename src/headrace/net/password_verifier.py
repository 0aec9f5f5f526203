"""Checks passwords against bcrypt hashes, away from the event loop.

A check takes a tenth of a second on purpose. Owns a small pool of threads with low priority, the order of the checks, and
what a peer sent before its password was checked: CONNECT is parsed again when the result is known. Invariant: nothing
that follows CONNECT is processed before.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from headrace.auth.authenticator import SlowPassword, VerifiedPassword, verify_secret

#: Lower priority than the event loop, so that strangers with wrong passwords do not slow down clients.
NICENESS = 10
_CONNECT = b"CONNECT"


class _Check(NamedTuple):
    """A password to check, and what to call with the result."""

    password: SlowPassword
    on_verified: Callable[[VerifiedPassword], None]


class PasswordVerifier:
    """A pool of threads that check passwords; they start with the first check.

    Remote addresses are served in turn, so that many wrong passwords from one do not delay the logins of others.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._threads = max((os.cpu_count() or 1) - 1, 1)
        self._pool: ThreadPoolExecutor | None = None
        #: By remote address; the first address is served next.
        self._waiting: dict[str, deque[_Check]] = {}
        self._running = 0

    def verify(
        self, address: str, password: SlowPassword, on_verified: Callable[[VerifiedPassword], None]
    ) -> None:
        """Check a password that came from a remote address; call `on_verified` on the event loop."""
        self._waiting.setdefault(address, deque()).append(_Check(password, on_verified))
        self._start_checks()

    def _start_checks(self) -> None:
        while self._waiting and self._running < self._threads:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._threads, "password", _lower_priority)
            address = next(iter(self._waiting))
            checks = self._waiting.pop(address)
            self._running += 1
            self._pool.submit(self._run, checks.popleft())
            if checks:
                self._waiting[address] = checks  # after all other addresses

    def _run(self, check: _Check) -> None:
        password = check.password
        try:
            is_correct = verify_secret(password.stored, password.provided)
        except Exception:  # the library rejects the password, or has failed: the thread must serve others
            is_correct = False
        result = VerifiedPassword(password.stored, password.provided, is_correct)
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self._on_checked, check, result)

    def _on_checked(self, check: _Check, result: VerifiedPassword) -> None:
        self._running -= 1
        self._start_checks()
        check.on_verified(result)

    def close(self) -> None:
        """Drop checks that wait."""
        self._waiting.clear()
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

    @property
    def may_be_connect(self) -> bool:
        """Whether the first operation is CONNECT, as far as it was received."""
        return _CONNECT.startswith(bytes(self._received[: len(_CONNECT)]).upper())

    def receive(self, data: bytes | bytearray | memoryview) -> None:
        """Keep received bytes."""
        self._received += data

    def wait_for(self, password: SlowPassword, address: str) -> None:
        """Check a password that came from a remote address; nothing may be parsed meanwhile."""
        self.is_waiting = True
        self._verifier.verify(address, password, self._finish)

    def _finish(self, verified: VerifiedPassword) -> None:
        self.is_waiting = False
        self.verified = verified
        received, self._received = bytes(self._received), bytearray()
        self._on_verified(received)
