"""Messages of a publisher that were not stored, and how its user learns of them: a callback, or an exception.

Invariant: each failure is reported once.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable

from headrace.client.message_errors import FailedMessage, MessagesNotStored, describe
from headrace.client.publish_record import Record

log = logging.getLogger(__name__)


OnError = Callable[[FailedMessage], Awaitable[object] | object]


class PublishFailures:
    """The failures of one publisher."""

    def __init__(self, on_error: OnError | None) -> None:
        self._on_error = on_error
        self._failures: list[FailedMessage] = []
        self._tasks: set[asyncio.Future[object]] = set()

    def add(self, record: Record, error: Exception) -> None:
        failure = FailedMessage(record.to_message(), error)
        if self._on_error is None:
            self._failures.append(failure)
            return
        try:
            result = self._on_error(failure)
        except Exception:
            log.exception("on_error failed for a message on %s", failure.message.subject)
            return
        if inspect.isawaitable(result):
            task = asyncio.ensure_future(result)
            self._tasks.add(task)
            task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Future[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("on_error failed", exc_info=error)

    @property
    def has_unreported(self) -> bool:
        return bool(self._failures)

    def check(self) -> None:
        """Raise the failures that were not reported yet."""
        if self._failures:
            failures, self._failures = tuple(self._failures), []
            raise MessagesNotStored(failures)

    def log_unreported(self) -> None:
        """Log failures that no exception reports, because another one ends the context."""
        failures, self._failures = self._failures, []
        for failure in failures:
            log.error("not stored: a message on %s: %s", failure.message.subject, describe(failure.error))

    async def close(self) -> None:
        """Wait for callbacks that have not returned."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
