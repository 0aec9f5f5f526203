"""A wrapper around any object store that fails on request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any


class Faulty:
    """Forwards and records calls; raises the errors that a test has set."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._errors: dict[str, tuple[Exception, int]] = {}
        self.calls: list[str] = []
        #: Operations that wait until a test lets them continue.
        self._gates: dict[str, asyncio.Event] = {}

    def fail(self, operation: str, error: Exception, times: int = 1_000_000) -> None:
        self._errors[operation] = (error, times)

    def heal(self) -> None:
        self._errors.clear()

    def block(self, operation: str) -> asyncio.Event:
        """Let calls wait until `unblock`; return an event that is set when the first one waits."""
        self._gates[operation] = asyncio.Event()
        self._reached = asyncio.Event()
        return self._reached

    def unblock(self, operation: str) -> None:
        self._gates.pop(operation).set()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name == "list":
            return self._listing(found)
        if not callable(found):
            return found

        async def call(*arguments: Any, **keywords: Any) -> Any:
            self._count(name)
            if name in self._gates:
                self._reached.set()
                await self._gates[name].wait()
            return await found(*arguments, **keywords)

        return call

    def _listing(self, found: Any) -> Any:
        async def pages(*arguments: Any) -> AsyncIterator[Any]:
            self._count("list")
            async for page in found(*arguments):
                yield page

        return pages

    def _count(self, name: str) -> None:
        self.calls.append(name)
        error, left = self._errors.get(name, (None, 0))
        if error is not None and left > 0:
            self._errors[name] = (error, left - 1)
            raise error
