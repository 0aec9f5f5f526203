"""Subscriptions and consumptions of a wrapped JetStream context: those of the clients, with payloads for references.

Each takes over an object that the client has made and resolves what it returns. Invariant: a message that was received
is returned to the program or to the server; none is dropped, also if the program cancels while a payload is fetched.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Self

import nats.errors
from nats.aio.msg import Msg
from nats.js import JetStreamContext

from headrace.claims.message_resolver import MessageResolver
from headrace.client import Messages
from headrace.client.consumed_message import ConsumedMessage
from headrace.client.handler_pool import Handler

_LOG = logging.getLogger("headrace.claims")
#: Maximum number of payloads of one `fetch` that are read at a time.
_CONCURRENT_READS = 4


class ClaimMessages(Messages):
    """The messages of one consumer, with their payloads. Created by `consume` of a wrapped context."""

    _resolver: MessageResolver
    _is_processing = False

    @classmethod
    def adopt(cls, messages: Messages, resolver: MessageResolver) -> Self:
        """Return the same consumption, not entered yet, with payloads."""
        adopted = object.__new__(cls)
        vars(adopted).update(vars(messages), _resolver=resolver)
        return adopted

    async def __anext__(self) -> ConsumedMessage:
        while True:
            message = await (self._take() if self._is_processing else self._take_resolved())
            if self._is_processing:
                return ConsumedMessage.from_message(message, message.data)
            decoded = self._current = await self._decoder.decode(message, acknowledges=self._acknowledges)
            if decoded is not None:
                return decoded

    async def _take_resolved(self) -> Msg:
        """Return the next message that has a payload, before it is decoded."""
        if self._subscription is None:
            raise RuntimeError("use `async with js.consume(...) as messages`")
        while True:
            message = await self._take()
            try:
                resolved = await self._resolver.resolve(message)
            except asyncio.CancelledError:
                if not message.is_acked:
                    self._buffer.appendleft(message)
                raise
            if resolved is not None:
                return resolved

    async def process(
        self, handler: Handler, *, concurrency: int = 1, nak_delay: float | None = None
    ) -> None:
        """Call `handler(message)` for each message, as `Messages.process` does; payloads are read concurrently, too."""

        async def handle(message: ConsumedMessage) -> None:
            resolved = await self._resolver.resolve(message)
            if resolved is None:
                return
            decoded = await self._decoder.decode(resolved, acknowledges=self._acknowledges)
            if decoded is None:
                return
            await handler(decoded)
            if self._acknowledges and not decoded.is_acked:
                await decoded.ack()

        self._is_processing = True
        try:
            await super().process(handle, concurrency=concurrency, nak_delay=nak_delay)
        finally:
            self._is_processing = False


class ClaimPullSubscription(JetStreamContext.PullSubscription):
    """A pull subscription whose `fetch` returns messages with their payloads."""

    _resolver: MessageResolver

    async def fetch(
        self, batch: int = 1, timeout: float | None = 5, heartbeat: float | None = None
    ) -> list[Msg]:
        """Fetch up to `batch` messages and their payloads, which must fit into memory together.

        `timeout` limits the wait for messages. Meanwhile, and until the last payload is read, the server waits for acks.
        If this is cancelled while payloads are read, the server delivers the messages again at once.
        """
        end_s = None if timeout is None else asyncio.get_running_loop().time() + timeout
        while True:
            messages = await super().fetch(batch, timeout, heartbeat)
            if resolved := await self._resolve_all(messages):
                return resolved
            if end_s is not None:
                timeout = end_s - asyncio.get_running_loop().time()
                if timeout <= 0:
                    raise nats.errors.TimeoutError

    async def _resolve_all(self, messages: list[Msg]) -> list[Msg]:
        slots = asyncio.Semaphore(_CONCURRENT_READS)

        async def resolve(message: Msg) -> Msg | None:
            async with slots:
                return await self._resolver.resolve(message)

        try:
            async with self._resolver.keep(messages):
                found = await asyncio.gather(*map(resolve, messages), return_exceptions=True)
        except asyncio.CancelledError:
            await _return_to_server(messages)
            raise
        resolved = [message for message in found if isinstance(message, Msg)]
        errors = [error for error in found if isinstance(error, BaseException)]
        if errors and not resolved:
            raise errors[0]
        for error in errors:  # without acks: the others must not be lost with it
            _LOG.warning("a message without acks was dropped: %s", error)
        return resolved


class ClaimPushSubscription(JetStreamContext.PushSubscription):
    """A push subscription whose `next_msg` and `messages` return messages with their payloads."""

    _resolver: MessageResolver

    async def next_msg(self, timeout: float | None = 1.0) -> Msg:
        """Return the next message; `timeout` limits the wait for it, not the time to read its payload."""
        while True:
            resolved = await self._resolve(await super().next_msg(timeout))
            if resolved is not None:
                return resolved

    @property
    def messages(self) -> AsyncIterator[Msg]:
        return self._iter_resolved(super().messages)

    async def _iter_resolved(self, delivered: AsyncIterator[Msg]) -> AsyncIterator[Msg]:
        async for message in delivered:
            resolved = await self._resolve(message)
            if resolved is not None:
                yield resolved

    async def _resolve(self, message: Msg) -> Msg | None:
        try:
            async with self._resolver.keep([message]):
                return await self._resolver.resolve(message)
        except asyncio.CancelledError:
            await _return_to_server([message])
            raise


async def _return_to_server(messages: list[Msg]) -> None:
    """Let the server deliver messages again at once; it ignores that for consumers without acks."""
    with contextlib.suppress(nats.errors.Error):
        for message in messages:
            if message.reply and not message.is_acked:
                await message.nak()


def make_callback(
    callback: Callable[[Msg], Awaitable[None]], resolver: MessageResolver, *, auto_ack: bool
) -> Callable[[Msg], Awaitable[None]]:
    """Return a callback for delivered messages that calls `callback` with their payloads."""

    async def on_message(message: Msg) -> None:
        async with resolver.keep([message]):
            resolved = await resolver.resolve(message)
            if resolved is None:
                return
            await callback(resolved)
            if auto_ack and not resolved.is_acked:
                await resolved.ack()

    return on_message
