"""Turns delivered messages with references into messages with payloads, for programs that never see a reference.

Owns what a program gets in place of a message: a `ResolvedMessage`, whose ack is confirmed and releases the claim, or the
message itself if it carries its payload. A message whose claim cannot be read never reaches the program; it is
redelivered, or dead-lettered and terminated, by the rules of `ClaimConsumer`. Must not know how messages arrive.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import nats.errors
from nats.aio.msg import Msg

from headrace.claims import reference as references
from headrace.claims.consumer import ClaimConsumer, Received
from headrace.claims.errors import ClaimFailure
from headrace.claims.jetstream_client import JetStreamClient, RequestTimeout
from headrace.client.consumed_message import ConsumedMessage
from headrace.errors import RequestError

_LOG = logging.getLogger("headrace.claims")
_ACK_TIMEOUT_S = 5.0
#: The server adds it for consumers that get headers without payloads.
_SIZE_HEADER = "Nats-Msg-Size"
#: Ack policies of consumers whose messages are not acknowledged one by one, or up to one.
NO_ACK_POLICIES = ("none", "flow_control")


class ResolvedMessage(ConsumedMessage):
    """A delivered message with its payload in `data` and the producer's `headers`.

    `ack` waits until the server confirms it, then releases the claim; everything else is as for any message.
    """

    def __init__(self, delivered: Msg, received: Received, consumer: ClaimConsumer) -> None:
        vars(self).update(vars(_with_payload(delivered, received)))
        self._delivered = delivered
        self._consumer = consumer
        self.received = received
        self.value = received.data

    @property
    def is_acked(self) -> bool:
        return self._delivered.is_acked

    @property
    def _ackd(self) -> bool:  # FastStream reads and sets it
        return self._delivered.is_acked

    @_ackd.setter
    def _ackd(self, value: bool) -> None:
        vars(self._delivered)["_ackd"] = value

    async def ack(self) -> None:
        """Acknowledge and release the claim; without a confirmation, expect redelivery."""
        try:
            await self.ack_sync(_ACK_TIMEOUT_S)
        except (nats.errors.TimeoutError, nats.errors.NoRespondersError) as error:
            _LOG.warning("ack of a message on %s was not confirmed: %r", self.subject, error)

    async def ack_sync(self, timeout: float = 1.0) -> Msg:
        """Acknowledge, wait for the confirmation, and release the claim."""
        confirmation = await self._delivered.ack_sync(timeout)
        await self._consumer.release(self._delivered)
        return confirmation

    async def nak(self, delay: float | None = None) -> None:
        await self._delivered.nak(delay)

    async def term(self) -> None:
        await self._delivered.term()

    async def in_progress(self) -> None:
        await self._delivered.in_progress()


class MessageResolver:
    """Resolves the messages of one namespace."""

    def __init__(self, consumer: ClaimConsumer, jetstream: JetStreamClient) -> None:
        self._consumer = consumer
        self._jetstream = jetstream
        #: Whether messages are acknowledged, by stream and consumer.
        self._acknowledged: dict[tuple[str, str], bool] = {}

    async def resolve(self, message: Msg) -> Msg | None:
        """Return the message with its payload; None if it was returned to the server or given up.

        Without acks a message cannot be returned: its error is raised.
        """
        if not is_reference(message):
            return message
        is_acknowledged = await self._is_acknowledged(message)
        try:
            received = await self._consumer.read(message)
        except ClaimFailure as error:
            if not is_acknowledged:
                raise
            await self._consumer.retry_or_give_up(message, error)
            return None
        if not is_acknowledged:
            return _with_payload(message, received)
        return ResolvedMessage(message, received, self._consumer)

    async def resolve_in_place(self, message: Msg) -> bool:
        """Do the same with a message that others hold already; return False if it was returned or given up."""
        delivered = _copy(message)
        resolved = await self.resolve(delivered)
        if resolved is None:
            vars(message).update(vars(delivered))
        elif resolved is not delivered:
            message.__class__ = resolved.__class__
            vars(message).update(vars(resolved))
        return resolved is not None

    @asynccontextmanager
    async def keep(self, messages: Iterable[Msg]) -> AsyncIterator[None]:
        """Ask the server to wait for the acks of messages with references, during a context."""
        async with AsyncExitStack() as stack:
            for message in messages:
                if is_reference(message) and await self._is_acknowledged(message):
                    await stack.enter_async_context(self._consumer.keep(message))
            yield

    async def _is_acknowledged(self, message: Msg) -> bool:
        """Return whether the server expects an ack; True if this program may not ask, which it tries once."""
        try:
            place = message.metadata
        except nats.errors.NotJSMessageError:
            return False
        name = (place.stream, place.consumer)
        if name not in self._acknowledged:
            try:
                info = await self._jetstream.api_request(f"CONSUMER.INFO.{place.stream}.{place.consumer}")
            except (RequestTimeout, RequestError):
                self._acknowledged[name] = True
            else:
                policy = info["config"].get("ack_policy", "none")
                self._acknowledged[name] = policy not in NO_ACK_POLICIES
        return self._acknowledged[name]


def is_reference(message: Msg) -> bool:
    """Return whether a message has a reference in place of its payload; without any payload it has neither."""
    headers: dict[str, Any] = message.headers or {}
    return references.is_claim(headers) and (bool(message.data) or _SIZE_HEADER not in headers)


def _copy(message: Msg) -> Msg:
    copy: Msg = object.__new__(Msg)
    vars(copy).update(vars(message))
    return copy


def _with_payload(message: Msg, received: Received) -> Msg:
    copy = _copy(message)
    copy.data, copy.headers = received.data, received.headers or None
    return copy
