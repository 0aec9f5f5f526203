"""The publisher of a wrapped JetStream context: payloads above the threshold become claims.

Invariants: messages are stored in the order of acceptance, claims too; what was accepted is stored or reported as failed,
once. A claim is uploaded and published alone, when all messages before it are settled: its record needs the message's
sequence, which the acknowledgement of a fast-ingest batch does not contain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Self

import nats.errors

from headrace.claims.errors import PublishFailed, PublishUnknown
from headrace.claims.jetstream_client import RequestTimeout
from headrace.claims.reference import MSG_ID
from headrace.client.errors import NoAnswer
from headrace.client.publish_record import Record
from headrace.client.publisher import Publisher

#: How often to look whether the connection is back.
_POLL_S = 0.05

#: `ClaimJetStream.publish`.
Publish = Callable[..., Awaitable[object]]
#: Returns the maximum bytes, headers included, of a message that is sent as it is.
GetInlineMax = Callable[[], int]


class ClaimPublisher(Publisher):
    """Publishes many messages, with payloads of any size. Created by `publisher` of a wrapped context."""

    _publish_claim: Publish
    _get_inline_max: GetInlineMax

    @classmethod
    def adopt(cls, publisher: Publisher, publish: Publish, get_inline_max: GetInlineMax) -> Self:
        """Return the same publisher, not entered yet, with claims."""
        adopted = object.__new__(cls)
        vars(adopted).update(vars(publisher), _publish_claim=publish, _get_inline_max=get_inline_max)
        return adopted

    def needs_wait(self, record: Record) -> bool:
        return record.size > self._get_inline_max() and not record.subject.startswith("$")

    def _check_size(self, record: Record) -> Record:
        if record.size > self._nc.max_payload and not self.needs_wait(record):
            raise nats.errors.MaxPayloadError
        return record

    async def add(self, record: Record) -> None:
        """Accept a message; if it becomes a claim, wait until it is stored or has failed."""
        if not self.needs_wait(record):
            await super().add(record)
            return
        self.check_open()
        await self._wait_until_settled(self._window.last)
        self.check_open()
        try:
            await self._send_claim(record)
        except Exception as error:
            self._window.settle_separate(record, error)
        else:
            self._window.settle_separate(record, None)
        self._failures.check()

    async def _send_claim(self, record: Record) -> None:
        """Upload and publish; repeat it if the connection was lost meanwhile. The message id keeps it from being stored
        twice.
        """
        headers = dict(record.headers or {})
        while True:
            reconnects = self._nc.stats["reconnects"]
            try:
                await self._publish_claim(record.subject, record.payload, headers=headers)
                return
            except (NoAnswer, PublishFailed) as error:
                cause = error.__cause__
                is_lost = not self._nc.is_connected or self._nc.stats["reconnects"] != reconnects
                if not is_lost or not isinstance(cause, PublishUnknown | RequestTimeout):
                    raise
                if isinstance(cause, PublishUnknown):  # it may be stored, with the id of its claim
                    headers.setdefault(MSG_ID, cause.claim_id)
            await self._wait_until_connected()

    async def _wait_until_connected(self) -> None:
        while not self._nc.is_connected:
            if self._nc.is_closed:
                raise nats.errors.ConnectionClosedError
            await asyncio.sleep(_POLL_S)
