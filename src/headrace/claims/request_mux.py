"""Sends requests on a nats-py connection; one subscription receives the replies to all of them.

nats-py's own `request` waits for each reply; here many requests can be under way, and one can have many replies. Raises
nats-py's errors and `TimeoutError`. Must not know what is requested.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from nats.aio.client import Client as Connection
from nats.aio.msg import Msg
from nats.errors import Error as NatsError


class RequestMux:
    """The requests of one connection that wait for replies."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._reply_prefix = connection.new_inbox()
        self._reply_ids = itertools.count(1)
        self._reply_handlers: dict[str, Callable[[Msg], None]] = {}
        self._subscription: Any = None

    async def open(self) -> None:
        """Subscribe to replies, once; before the first request."""
        if self._subscription is None:
            self._subscription = await self._connection.subscribe(
                f"{self._reply_prefix}.*", cb=self._on_reply
            )

    async def close(self) -> None:
        if self._subscription is not None and not self._connection.is_closed:
            await self._subscription.unsubscribe()
            self._subscription = None

    async def request(
        self, subject: str, data: bytes, headers: Mapping[str, str] | None = None
    ) -> asyncio.Future[Msg]:
        """Send a request; return the future of its reply."""
        reply_future: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()

        def on_reply(message: Msg) -> None:
            del self._reply_handlers[reply]
            if not reply_future.done():
                reply_future.set_result(message)

        reply = self._new_reply_subject(on_reply)
        reply_future.add_done_callback(lambda _: self._reply_handlers.pop(reply, None))
        await self._connection.publish(subject, data, reply=reply, headers=dict(headers) if headers else None)
        return reply_future

    async def request_all(
        self, requests: Iterable[tuple[str, bytes, dict[str, str]]], timeout_s: float
    ) -> list[Msg | None]:
        """Send many requests; return the reply to each, None for those without one in time. Raises nothing."""
        batch = list(requests)
        replies: list[Msg | None] = [None] * len(batch)
        positions: dict[str, int] = {}
        remaining = len(batch)
        finished = asyncio.Event()

        def on_reply(message: Msg) -> None:
            nonlocal remaining
            del self._reply_handlers[message.subject]
            replies[positions.pop(message.subject)] = message
            remaining -= 1
            if remaining == 0:
                finished.set()

        publish = self._connection.publish
        try:
            for number, (subject, data, headers) in enumerate(batch):
                reply = self._new_reply_subject(on_reply)
                positions[reply] = number
                await publish(subject, data, reply=reply, headers=headers or None)
            if remaining:
                await asyncio.wait_for(finished.wait(), timeout_s)
        except (TimeoutError, NatsError):
            pass  # those without a reply are None
        finally:
            for reply in positions:
                self._reply_handlers.pop(reply, None)
        return replies

    async def request_until(
        self, subject: str, data: bytes, is_end: Callable[[Msg], object], timeout_s: float
    ) -> tuple[list[Msg], Msg]:
        """Send a request with many replies; return them, and the one that ended them."""
        received: list[Msg] = []
        finished: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()

        def on_reply(message: Msg) -> None:
            if not is_end(message):
                received.append(message)
            elif not finished.done():
                finished.set_result(message)

        reply = self._new_reply_subject(on_reply)
        try:
            await self._connection.publish(subject, data, reply=reply)
            end = await asyncio.wait_for(finished, timeout_s)
        finally:
            self._reply_handlers.pop(reply, None)
        return received, end

    def _new_reply_subject(self, on_reply: Callable[[Msg], None]) -> str:
        reply = f"{self._reply_prefix}.{next(self._reply_ids)}"
        self._reply_handlers[reply] = on_reply
        return reply

    async def _on_reply(self, message: Msg) -> None:
        handler = self._reply_handlers.get(message.subject)
        if handler is not None:
            handler(message)
