"""Continuous consumption: keeps pull requests open for one consumer and yields its messages.

::

    async with js.consume("ORDERS", "worker") as messages:
        async for message in messages:
            await handle(message.data)
            await message.ack()

Owns the demand: how many messages are requested, and when to request more. Invariants: no more than `prefetch` messages
are requested or buffered; a message that was received is yielded, or returned to the server, and never dropped; after a
reconnect, a restart or a new leader the requests are sent again. Handlers that run concurrently are in
`handler_pool`, the extension of ack deadlines in `keep_alive`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Protocol, Self, cast

import nats.errors
from nats.aio.client import Client as NATS
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js import api

from headrace.client.configs import ConsumerConfig, ConsumerInfo
from headrace.client.consume_options import ConsumeOptions
from headrace.client.consumed_message import ConsumedMessage, MessageDecoder
from headrace.client.errors import (
    BadRequest,
    ConsumerNotFound,
    JetStreamError,
    NoAnswer,
    NotFound,
    translate_nats_errors,
)
from headrace.client.handler_pool import Handler, HandlerPool
from headrace.client.keep_alive import KeepAlive
from headrace.client.pull_status import PullEnd, PullStatus, parse_status

#: How long to wait before a request is repeated that the server could not accept, at first and at most.
_RETRY_S, _RETRY_MAX_S = 0.1, 2.0
#: Stands for the time of a message that came after the last check: asking for the time for each would take longer.
_SINCE_LAST_CHECK_S = float("inf")
#: How long the last messages may take to arrive when consumption ends.
_DRAIN_TIMEOUT_S = 5.0


class ConsumerApi(Protocol):
    """The part of a JetStream context that consumption needs."""

    @property
    def connection(self) -> NATS: ...

    @property
    def api_prefix(self) -> str: ...

    async def consumer_info(self, stream: str, consumer: str, /) -> ConsumerInfo: ...

    async def add_consumer(
        self,
        /,
        stream: str,
        config: api.ConsumerConfig | None = None,
        timeout: float | None = None,
        **params: Any,
    ) -> ConsumerInfo: ...


class Messages:
    """The messages of one consumer: an asynchronous iterator in a context. Created by `JetStream.consume`."""

    def __init__(
        self,
        js: ConsumerApi,
        stream: str,
        consumer: str | None,
        config: dict[str, Any],
        options: ConsumeOptions,
        decoder: MessageDecoder,
    ) -> None:
        self._js = js
        self._nc = js.connection
        self._stream = stream
        self._consumer = consumer
        self._config = config
        self._options = options
        self._decoder = decoder
        self._buffer: deque[Msg] = deque()
        self._requested = 0
        self._current: Msg | None = None
        self._arrived = asyncio.Event()
        self._error: Exception | None = None
        self._draining = False
        self._subscription: Subscription | None = None
        self._inbox = ""
        self._keep_alive: KeepAlive | None = None
        self._acknowledges = True
        self._tasks: list[asyncio.Task[None]] = []
        self._wake_puller = asyncio.Event()
        self._heard_s = self._checked_s = self._requested_s = 0.0
        self._reconnects = 0
        self._retry_s = 0.0
        self._is_request_answered = True

    @property
    def stream(self) -> str:
        return self._stream

    @property
    def consumer(self) -> str:
        """The consumer's name; an ephemeral one has it once the context is entered."""
        return self._consumer or ""

    # Start and end

    async def __aenter__(self) -> Self:
        if self._subscription is not None:
            raise RuntimeError("a consumption can be entered once; call consume() again")
        self._apply(await self._find_or_create_consumer())
        self._inbox = self._nc.new_inbox()
        self._subscription = await self._nc.subscribe(
            self._inbox, cb=self._on_message, pending_msgs_limit=-1, pending_bytes_limit=-1
        )
        self._heard_s = self._checked_s = asyncio.get_running_loop().time()
        self._reconnects = self._nc.stats["reconnects"]
        self._tasks.append(asyncio.create_task(self._pull_forever()))
        if self._keep_alive is not None:
            self._tasks.append(asyncio.create_task(self._keep_alive.run(self._iter_held)))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._nc.is_closed:
            return
        await self._unsubscribe()
        returned = list(self._buffer)
        self._buffer.clear()
        if error is not None and self._current is not None:
            returned.append(self._current)
        if self._acknowledges:
            await self._return(returned)

    async def _unsubscribe(self) -> None:
        """End the subscription, after what the server has already sent has arrived."""
        assert self._subscription is not None
        self._draining = True
        with contextlib.suppress(nats.errors.Error, TimeoutError):
            async with asyncio.timeout(_DRAIN_TIMEOUT_S):
                await self._subscription.drain()  # type: ignore[no-untyped-call]

    async def _return(self, messages: list[Msg]) -> None:
        """Let the server deliver messages again at once, to this or another client."""
        with contextlib.suppress(nats.errors.Error):
            for message in messages:
                if not message.is_acked:
                    await message.nak()
            if self._nc.is_connected:
                await self._nc.flush()

    def drain(self) -> None:
        """Request no more messages: the iteration ends after those that have been received."""
        self._draining = True
        self._arrived.set()

    # The consumer

    async def _find_or_create_consumer(self) -> ConsumerInfo:
        if self._consumer and not self._config:
            with contextlib.suppress(ConsumerNotFound):
                return await self._js.consumer_info(self._stream, self._consumer)
        config: dict[str, Any] = {"ack_policy": api.AckPolicy.EXPLICIT, **self._config}
        if self._consumer:
            config["durable_name"] = self._consumer
        return await self._js.add_consumer(self._stream, **config)

    def _apply(self, info: ConsumerInfo) -> None:
        """Respect the limits of the consumer."""
        config = cast("ConsumerConfig", info.config)
        self._consumer = info.name
        if config.deliver_subject:
            raise BadRequest.refuse(
                f"consumer {info.name!r} is a push consumer; consume() needs a pull consumer"
            )
        self._options = self._options.limit(config.max_batch, config.max_expires)
        self._acknowledges = config.ack_policy != api.AckPolicy.NONE
        if self._acknowledges and self._options.keep_alive:
            waits_s = [config.ack_wait or 30.0, *(config.backoff or ())]
            self._keep_alive = KeepAlive(min(waits_s))

    # Iteration

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumedMessage:
        if self._subscription is None:
            raise RuntimeError("use `async with js.consume(...) as messages`")
        while True:
            # Most messages have arrived before they are asked for: no further coroutines for them.
            message: Any = self._take_arrived() if self._buffer else await self._take()
            if self._decoder.is_plain:  # as the decoder does it
                message.__class__ = ConsumedMessage
                message.value = message.data
                plain: ConsumedMessage = message
                return plain
            decoded = self._current = await self._decoder.decode(message, acknowledges=self._acknowledges)
            if decoded is not None:
                return decoded

    async def _take(self) -> Msg:
        """Return the next message, as soon as there is one."""
        self._current = None
        while not self._buffer:
            if self._error is not None:
                raise self._error
            if self._nc.is_closed:
                raise nats.errors.ConnectionClosedError
            if self._draining:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        return self._take_arrived()

    def _take_arrived(self) -> Msg:
        buffer = self._buffer
        message = self._current = buffer.popleft()
        if 2 * (self._requested + len(buffer)) <= self._options.prefetch:
            self._wake_puller.set()
        return message

    def _iter_held(self) -> Iterator[Msg]:
        """Yield the messages in the buffer and the one that was yielded last."""
        if self._current is not None:
            yield self._current
        yield from self._buffer

    async def process(
        self, handler: Handler, *, concurrency: int = 1, nak_delay: float | None = None
    ) -> None:
        """Call `handler(message)` for each message, for up to `concurrency` of them at a time.

        A message is acknowledged when its handler returns, unless the handler has done that. If it raises, the message
        is returned to the server, which delivers it again, after `nak_delay` seconds if given; the error is logged.
        Returns after `drain`, when all handlers have returned.
        """
        pool = HandlerPool(handler, concurrency, nak_delay, acknowledges=self._acknowledges)
        if self._keep_alive is not None:
            self._keep_alive.add_source(pool.get_messages)
        async with pool:
            async for message in self:
                await pool.start(message)
                self._current = None

    # Requests

    async def _pull_forever(self) -> None:
        """Keep requests open until the end of the context."""
        try:
            while self._error is None:
                if self._nc.is_closed:
                    raise nats.errors.ConnectionClosedError
                await self._renew_requests()
                await self._send_request()
                self._wake_puller.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._options.heartbeat_s / 2):
                        await self._wake_puller.wait()
                if self._retry_s:
                    await self._check_consumer()
                    await asyncio.sleep(self._retry_s)
        except (JetStreamError, nats.errors.Error) as error:
            self._fail(error)

    async def _renew_requests(self) -> None:
        """Forget the open requests if the server has: after a reconnect, or if heartbeats are missing."""
        now_s, heartbeat_s = asyncio.get_running_loop().time(), self._options.heartbeat_s
        is_busy = now_s - self._checked_s > heartbeat_s  # what has arrived is not read yet
        if is_busy or self._heard_s == _SINCE_LAST_CHECK_S:
            self._heard_s = now_s
        self._checked_s = now_s
        is_silent = self._requested > 0 and now_s - self._heard_s > 2 * heartbeat_s
        if is_silent and self._nc.is_connected:
            await self._check_consumer()
        if is_silent or self._nc.stats["reconnects"] != self._reconnects:
            self._reconnects = self._nc.stats["reconnects"]
            self._requested = 0
            self._heard_s = self._checked_s = asyncio.get_running_loop().time()

    async def _send_request(self) -> None:
        wanted = self._options.prefetch - self._requested - len(self._buffer)
        if self._draining or not self._nc.is_connected or 2 * wanted < self._options.prefetch:
            return
        body: dict[str, int] = {
            "batch": wanted,
            "expires": int(self._options.expires_s * 1e9),
            "idle_heartbeat": int(self._options.heartbeat_s * 1e9),
        }
        if self._options.max_bytes:
            body["max_bytes"] = self._options.max_bytes
        self._requested += wanted
        self._requested_s, self._is_request_answered = asyncio.get_running_loop().time(), False
        subject = f"{self._js.api_prefix}.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}"
        try:
            await self._nc.publish(subject, json.dumps(body).encode(), reply=self._inbox)
        except nats.errors.ConnectionClosedError:
            raise
        except nats.errors.Error:  # being disconnected: requested again after the reconnect
            self._requested = 0

    async def _check_consumer(self) -> None:
        """After a request that nobody answered: wait for the server, or raise if consumer or stream do not exist."""
        try:
            with translate_nats_errors(self._stream):
                await self._js.consumer_info(self._stream, self.consumer)
        except NotFound:
            raise
        except (NoAnswer, JetStreamError, nats.errors.TimeoutError, nats.errors.NoRespondersError):
            return

    # Received messages

    async def _on_message(self, message: Msg) -> None:
        self._heard_s = _SINCE_LAST_CHECK_S
        if not message.reply and (status := parse_status(message)) is not None:
            self._on_status(status)
            return
        if self._requested:
            self._requested -= 1
        self._retry_s = 0.0
        self._is_request_answered = True
        if not self._buffer:  # otherwise nobody waits
            self._arrived.set()
        self._buffer.append(message)

    def _on_status(self, status: PullStatus) -> None:
        if status.end is PullEnd.NONE:
            self._retry_s = 0.0
            return
        is_empty = not self._is_request_answered
        if status.end is PullEnd.FATAL or (status.end is PullEnd.TOO_LARGE and is_empty):
            self._fail(status.make_error(self._stream, self.consumer))
            return
        missing = self._requested if status.missing is None else status.missing
        self._requested = max(self._requested - missing, 0)
        is_sudden = is_empty and asyncio.get_running_loop().time() - self._requested_s < _RETRY_S
        if status.end is PullEnd.RETRY or is_sudden:
            self._retry_s = min(max(2 * self._retry_s, _RETRY_S), _RETRY_MAX_S)
        else:
            self._retry_s = 0.0
        self._wake_puller.set()

    def _fail(self, error: Exception) -> None:
        """Let the iteration raise the error, after the messages that have been received."""
        self._error = error
        self._arrived.set()
        self._wake_puller.set()
