"""Keeps a message from being redelivered while its handler runs: sends in-progress acks before `ack_wait` is over.

The first one is due only after a moment, so that short handlers cost nothing. It ends after `limit_s`, so that a handler
that hangs does not hold its message forever. Must not know what the handler does.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from headrace.claims.clock import SECOND_NS
from headrace.claims.jetstream_client import JetStreamClient, RequestTimeout
from headrace.errors import RequestError

_FIRST_S = 0.5
_DEFAULT_WAIT_S = 30.0
_SHARE = 3


class AckKeepAlive:
    """Sends in-progress acks of one connection's messages."""

    def __init__(self, jetstream: JetStreamClient, limit_s: float) -> None:
        self._jetstream = jetstream
        self._limit_s = limit_s
        #: Shortest time until a redelivery, by stream and consumer.
        self._waits_s: dict[tuple[str, str], float] = {}

    @contextlib.asynccontextmanager
    async def keep(self, message: Msg) -> AsyncIterator[None]:
        """Keep a message in progress during the body."""
        task = asyncio.create_task(self._run(message))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self, message: Msg) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + self._limit_s
        await asyncio.sleep(_FIRST_S)
        with contextlib.suppress(NatsError):
            pause_s = await self._get_wait_s(message) / _SHARE
            while loop.time() < end and not message.is_acked:
                await message.in_progress()
                await asyncio.sleep(pause_s)

    async def _get_wait_s(self, message: Msg) -> float:
        """Return how long the server waits for an ack; the server's default if this program may not ask."""
        place = message.metadata
        consumer = (place.stream, place.consumer)
        if consumer not in self._waits_s:
            try:
                info = await self._jetstream.api_request(f"CONSUMER.INFO.{place.stream}.{place.consumer}")
                config = info["config"]
                wait_ns = min([*(config.get("backoff") or ()), config.get("ack_wait") or 30 * SECOND_NS])
                self._waits_s[consumer] = wait_ns / SECOND_NS
            except (RequestTimeout, RequestError):
                self._waits_s[consumer] = _DEFAULT_WAIT_S
        return self._waits_s[consumer]
