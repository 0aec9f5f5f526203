"""Runs a handler for several messages at a time, and acknowledges each message by the handler's outcome."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

import nats.errors

from headrace.client.consumed_message import ConsumedMessage

Handler = Callable[[ConsumedMessage], Awaitable[object]]

log = logging.getLogger(__name__)


class HandlerPool:
    """At most `concurrency` handlers at a time. On exit it waits for all of them; an exception cancels them."""

    def __init__(
        self, handler: Handler, concurrency: int, nak_delay_s: float | None, *, acknowledges: bool
    ) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency={concurrency} is too low: at least one handler must run")
        self._handler = handler
        self._nak_delay_s = nak_delay_s
        self._acknowledges = acknowledges
        self._free = asyncio.Semaphore(concurrency)
        self._messages: dict[asyncio.Task[None], ConsumedMessage] = {}

    async def start(self, message: ConsumedMessage) -> None:
        """Handle a message, as soon as another handler may run."""
        await self._free.acquire()
        task = asyncio.create_task(self._handle(message))
        self._messages[task] = message
        task.add_done_callback(self._on_done)

    def get_messages(self) -> list[ConsumedMessage]:
        """Return the messages that are being handled."""
        return list(self._messages.values())

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._messages.pop(task, None)
        self._free.release()

    async def _handle(self, message: ConsumedMessage) -> None:
        try:
            await self._handler(message)
        except Exception:
            log.exception("the handler of a message on %s failed", message.subject)
            await self._settle(message, failed=True, delay_s=self._nak_delay_s)
        else:
            await self._settle(message, failed=False)

    async def _settle(self, message: ConsumedMessage, *, failed: bool, delay_s: float | None = None) -> None:
        """Acknowledge a message, or return it, unless the handler has done so."""
        if message.is_acked or not self._acknowledges:
            return
        # While disconnected nothing can be sent: the server delivers the message again.
        with contextlib.suppress(nats.errors.Error):
            if failed:
                await message.nak(delay_s)
            else:
                await message.ack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        running = dict(self._messages)
        if error is not None:
            for task in running:
                task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for task, message in running.items():
            if task.cancelled():
                await self._settle(message, failed=True)
