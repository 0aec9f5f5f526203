"""Turns delivered messages with references into messages with payloads, for programs that never see a reference.

Owns what a program gets in place of a message: a `ResolvedMessage`, whose ack is confirmed and releases the claim, or the
message itself if it carries its payload. A message whose claim cannot be read never reaches the program; it is
redelivered, or dead-lettered and terminated, by the rules of `ClaimConsumer`. Must not know how messages arrive.
"""

from __future__ import annotations

import logging
from typing import Any

import nats.errors
from nats.aio.msg import Msg

from headrace.claims import reference as references
from headrace.claims.consumer import ClaimConsumer, Received
from headrace.claims.errors import ClaimFailure

_LOG = logging.getLogger("headrace.claims")
_ACK_TIMEOUT_S = 5.0
#: The server adds it for consumers that get headers without payloads.
_SIZE_HEADER = "Nats-Msg-Size"


class ResolvedMessage(Msg):
    """A delivered message with its payload in `data` and the producer's `headers`.

    `ack` waits until the server confirms it, then releases the claim; everything else is as for any message.
    """

    def __init__(self, delivered: Msg, received: Received, consumer: ClaimConsumer) -> None:
        vars(self).update(vars(_with_payload(delivered, received)))
        self._delivered = delivered
        self._consumer = consumer
        self.received = received

    @property
    def is_acked(self) -> bool:
        return self._delivered.is_acked

    @property
    def _ackd(self) -> bool:  # type: ignore[override]  # read by FastStream
        return self._delivered.is_acked

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

    def __init__(self, consumer: ClaimConsumer) -> None:
        self._consumer = consumer

    async def resolve(self, message: Msg, *, acknowledges: bool = True) -> Msg | None:
        """Return the message with its payload; None if it was returned to the server or given up.

        Without acks a message cannot be returned: its error is raised.
        """
        if not is_reference(message):
            return message
        try:
            received = await self._consumer.read(message)
        except ClaimFailure as error:
            if not acknowledges:
                raise
            await self._consumer.retry_or_give_up(message, error)
            return None
        if not acknowledges:
            return _with_payload(message, received)
        return ResolvedMessage(message, received, self._consumer)

    async def resolve_in_progress(self, message: Msg, *, acknowledges: bool = True) -> Msg | None:
        """Do the same, and ask the server to wait meanwhile."""
        if not acknowledges or not is_reference(message):
            return await self.resolve(message, acknowledges=acknowledges)
        async with self._consumer.keep(message):
            return await self.resolve(message)


def is_reference(message: Msg) -> bool:
    """Return whether a message has a reference in place of its payload; without any payload it has neither."""
    headers: dict[str, Any] = message.headers or {}
    return references.is_claim(headers) and (bool(message.data) or _SIZE_HEADER not in headers)


def _with_payload(message: Msg, received: Received) -> Msg:
    copy: Msg = object.__new__(Msg)
    vars(copy).update(vars(message), data=received.data, headers=received.headers or None)
    return copy
