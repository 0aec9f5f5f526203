"""Receives replies to numbered messages on one subscription.

nats-py's `request` waits for its reply; a batch keeps sending and looks at replies later, in any order. A message is
sent before `send` returns, so the order of calls is the order in which messages reach the server.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Mapping
from typing import Any

import nats.errors
from nats.aio.client import Client as NATS
from nats.aio.msg import Msg

from headrace.client.errors import NoAnswer, NoStream, make_error

_NO_RESPONDERS = "503"


class PendingAck:
    """The reply to one message, when it arrives."""

    def __init__(self, reply_id: str, subject: str) -> None:
        self.reply_id = reply_id
        self._subject = subject
        self._reply: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()

    @property
    def done(self) -> bool:
        return self._reply.done()

    def on_reply(self, message: Msg) -> None:
        if not self._reply.done():
            self._reply.set_result(message)

    async def wait(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the JSON of the reply, None for an empty one; raise the error in it."""
        try:
            message = await asyncio.wait_for(asyncio.shield(self._reply), timeout_s)
        except TimeoutError as error:
            raise NoAnswer(f"no reply to a message on {self._subject!r} within {timeout_s:g} s") from error
        if message.headers and message.headers.get("Status") == _NO_RESPONDERS:
            raise NoStream(self._subject)
        if not message.data:
            return None
        response: dict[str, Any] = json.loads(message.data)
        if "error" in response:
            raise make_error(response["error"])
        return response


class ReplyInbox:
    """The reply subjects of one connection."""

    def __init__(self, connection: NATS) -> None:
        self._connection = connection
        self._prefix = f"{connection.new_inbox()}."
        self._reply_ids = itertools.count(1)
        self._pending: dict[str, PendingAck] = {}
        self._subscribing: asyncio.Task[Any] | None = None

    async def send(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> PendingAck:
        """Publish a message that requests a reply."""
        await self._ensure_subscribed()
        reply_id = str(next(self._reply_ids))
        ack = self._pending[reply_id] = PendingAck(reply_id, subject)
        try:
            await self._connection.publish(
                subject, payload, reply=self._prefix + reply_id, headers=dict(headers)
            )
        except BaseException:
            self.discard(ack)
            raise
        return ack

    def discard(self, *acks: PendingAck) -> None:
        """Discard replies that nobody will read."""
        for ack in acks:
            self._pending.pop(ack.reply_id, None)

    async def _ensure_subscribed(self) -> None:
        if self._connection.is_closed:
            raise nats.errors.ConnectionClosedError
        if self._subscribing is None:
            subscription = self._connection.subscribe(f"{self._prefix}*", cb=self._on_reply)
            self._subscribing = asyncio.ensure_future(subscription)
        await self._subscribing

    async def _on_reply(self, message: Msg) -> None:
        ack = self._pending.pop(message.subject.removeprefix(self._prefix), None)
        if ack:
            ack.on_reply(message)
