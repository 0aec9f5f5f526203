"""Repeats a request without an answer: a lost connection must not block the requests after it for minutes.

Owns the timeout. Invariant: each attempt sends the same request, so that it does not matter which of them takes effect.
Must not know targets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

REQUEST_TIMEOUT_S = 10.0
REQUEST_TIMEOUT_MAX_S = 300.0
#: The timeout is at least this many times that of the newest answer.
ANSWERS_MIN = 4

Result = TypeVar("Result")


class RequestRepeater:
    """The requests of one run.

    The timeout doubles up to a maximum, and follows the time of answers: a slow network needs more.
    """

    def __init__(self) -> None:
        self._timeout_s = REQUEST_TIMEOUT_S

    async def run(self, request: Callable[[], Awaitable[Result]]) -> Result:
        """Send a request until it is answered; raise TimeoutError after the longest timeout."""
        loop = asyncio.get_running_loop()
        while True:
            timeout_s, started_s = self._timeout_s, loop.time()
            try:
                async with asyncio.timeout(timeout_s):
                    result = await request()
                answer_s = loop.time() - started_s
                self._timeout_s = max(REQUEST_TIMEOUT_S, min(timeout_s, ANSWERS_MIN * answer_s))
                return result
            except TimeoutError:
                if timeout_s >= REQUEST_TIMEOUT_MAX_S:
                    raise
                self._timeout_s = max(self._timeout_s, min(2 * timeout_s, REQUEST_TIMEOUT_MAX_S))
