"""Claims for FastStream: a middleware that offloads large payloads and resolves references before a handler runs.

::

    claims = ClaimsMiddleware(ClaimConfig("video", store={"path": "claims"}))
    broker = NatsBroker("nats://127.0.0.1:4222", middlewares=[claims])
    claims.bind(broker)

FastStream is not a dependency of Headrace: install `faststream[nats]`. Owns the `Claims` of the broker's connection,
opened at the first message that needs them. Invariant: a message whose claim cannot be read is returned to the server or
dead-lettered before FastStream's own acknowledgement sees it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any

from nats.aio.client import Client as Connection
from nats.aio.msg import Msg

from headrace.claims.claims import Claims
from headrace.claims.config import ClaimConfig
from headrace.claims.message_resolver import is_reference
from headrace.claims.producer import get_headers_size, get_inline_max

try:
    from faststream import BaseMiddleware
    from faststream.exceptions import SkipMessage
    from faststream.response import PublishType
except ImportError as error:
    raise ImportError(
        "headrace.claims.faststream needs FastStream: pip install 'faststream[nats]'"
    ) from error

__all__ = ["ClaimsMiddleware"]

_RETRY_S = 5.0


class ClaimsMiddleware:
    """Claims of one namespace for one `NatsBroker`; options as for `Claims.open`.

    Give it to the broker as the last of its `middlewares`, then `bind` it. `open` and `close` are for the hooks
    `after_startup` and `after_shutdown` of an application; without them, claims are opened when they are needed.
    """

    def __init__(self, config: ClaimConfig, **options: Any) -> None:
        self.config = config
        self._options = options
        self._broker: Any = None
        self._claims: Claims | None = None
        self._opening = asyncio.Lock()

    def bind(self, broker: Any) -> None:
        """Publish through the connection of this broker."""
        self._broker = broker

    async def open(self) -> Claims:
        """Open the claims on the broker's connection, or return those that are open."""
        return await self.open_on(await self.connect())

    async def close(self) -> None:
        """Close the store."""
        claims, self._claims = self._claims, None
        if claims is not None:
            await claims.close()

    async def connect(self) -> Any:
        """Return the connection of the broker; a test broker without a server has none of nats-py."""
        if self._broker is None:
            raise RuntimeError("the middleware has no broker: call bind(broker) after you create the broker")
        return await self._broker.connect()

    async def open_on(self, connection: Connection) -> Claims:
        """Open the claims on a connection, once; on another one after the broker has connected again."""
        async with self._opening:
            if self._claims is None or self._claims.jetstream.connection is not connection:
                await self.close()
                self._claims = await Claims.open(connection, self.config, **self._options)
            return self._claims

    async def encode(self, command: Any) -> tuple[bytes, dict[str, str]]:
        """Return payload and headers of a message as the broker would send them."""
        producer = self._broker.config.js_producer
        payload, content_type = await producer.codec.encode(command.body, producer.serializer)
        return payload, {"content-type": content_type or "", **command.headers_to_publish(js=True)}

    def __call__(self, msg: Any, /, *, context: Any) -> _ClaimsScope:
        return _ClaimsScope(self, msg, context=context)


class _ClaimsScope(BaseMiddleware):
    """What happens around one message."""

    def __init__(self, middleware: ClaimsMiddleware, msg: Any, /, *, context: Any) -> None:
        super().__init__(msg, context=context)
        self._middleware = middleware
        self._stack = AsyncExitStack()

    async def on_receive(self) -> None:
        messages = self.msg if isinstance(self.msg, list) else [self.msg]
        referring = [each for each in messages if isinstance(each, Msg) and is_reference(each)]
        if not referring:
            return
        try:
            claims = await self._middleware.open_on(vars(referring[0])["_client"])
            await self._stack.enter_async_context(claims.resolver.keep(referring))
            found = await asyncio.gather(*map(claims.resolver.resolve_in_place, referring))
        except BaseException:
            await self._stack.aclose()
            await _return(referring)
            raise
        lost = {id(message) for message, is_found in zip(referring, found, strict=True) if not is_found}
        if isinstance(self.msg, list):
            self.msg[:] = [message for message in self.msg if id(message) not in lost]
        if len(lost) == len(messages):
            await self._stack.aclose()
            raise SkipMessage

    async def after_processed(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> bool:
        await self._stack.aclose()
        return False

    async def publish_scope(self, call_next: Callable[[Any], Awaitable[Any]], cmd: Any) -> Any:
        is_plain = cmd.publish_type is PublishType.PUBLISH and getattr(cmd, "schedule", None) is None
        if not is_plain or cmd.destination.startswith("$"):
            return await call_next(cmd)
        connection = await self._middleware.connect()
        if not isinstance(connection, Connection):
            return await call_next(cmd)
        payload, headers = await self._middleware.encode(cmd)
        if len(payload) + get_headers_size(headers) <= get_inline_max(self._middleware.config, connection):
            return await call_next(cmd)
        claims = await self._middleware.open_on(connection)
        js = claims.wrap(connection.jetstream())
        return await js.publish(cmd.destination, payload, stream=cmd.stream, headers=headers)


async def _return(messages: list[Msg]) -> None:
    """Return messages to the server: FastStream would give them up, and this program's setup is at fault."""
    for message in messages:
        if not message.is_acked and message.reply.startswith("$JS.ACK."):
            await message.nak(delay=_RETRY_S)
