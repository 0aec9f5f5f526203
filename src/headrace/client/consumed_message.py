"""A message of a consumer with its value, and what happens to one whose payload does not decode.

Invariant: a message that does not decode is settled (by a callback or terminated) and never yielded, so that it does not
stop the consumer and does not come again.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any, cast

import nats.errors
from nats.aio.msg import Msg

from headrace.client.codecs import Codec, check_codec, decode_value
from headrace.client.message_errors import DecodeFailed

log = logging.getLogger(__name__)


class ConsumedMessage(Msg):
    """A message of a consumer: nats-py's, with its decoded `value`. Without a codec that is `data`."""

    value: Any

    @classmethod
    def from_message(cls, message: Msg, value: Any) -> ConsumedMessage:
        """Return the message with a value; one that has its own way to acknowledge, such as a claim, stays what it is."""
        if not isinstance(message, ConsumedMessage):
            message.__class__ = cls  # a copy would take twice as long
        consumed = cast("ConsumedMessage", message)
        consumed.value = value
        return consumed


OnDecodeError = Callable[[ConsumedMessage, DecodeFailed], Awaitable[object] | object]


class MessageDecoder:
    """Decodes the messages of one consumption."""

    def __init__(self, codec: Codec | None, on_error: OnDecodeError | None) -> None:
        self._codec = check_codec(codec)
        self._on_error = on_error
        #: Whether values are the payloads as they are.
        self.is_plain = self._codec is None

    async def decode(self, message: Msg, *, acknowledges: bool) -> ConsumedMessage | None:
        """Return the message with its value; settle it and return None if it does not decode."""
        if self._codec is None:
            return ConsumedMessage.from_message(message, message.data)
        try:
            value = decode_value(message.data, self._codec, f"the message on {message.subject!r}")
        except DecodeFailed as error:
            await self._settle(ConsumedMessage.from_message(message, None), error, acknowledges=acknowledges)
            return None
        return ConsumedMessage.from_message(message, value)

    async def _settle(self, message: ConsumedMessage, error: DecodeFailed, *, acknowledges: bool) -> None:
        if self._on_error is None:
            log.error("%s%s", error, "; the message is terminated" if acknowledges else "")
        else:
            result = self._on_error(message, error)
            if inspect.isawaitable(result):
                await result
        # While disconnected nothing can be sent: the server delivers the message again.
        with contextlib.suppress(nats.errors.Error):
            if acknowledges and not message.is_acked:
                await message.term()
