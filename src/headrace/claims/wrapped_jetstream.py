"""JetStream context that stores large payloads as claims: `js = claims.wrap(js)`, then `js.publish`, `js.consume`, ...

Owns the decision which calls offload and which resolve. Buckets and object stores do neither: their subjects begin with
`$`, their values are read without acks, and nothing would release a claim. Errors are those of the client for everything
that the server answers, and `ClaimError` for everything that the store answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Unpack

import nats.js.errors
from nats.aio.msg import Msg
from nats.js import JetStreamContext, api

from headrace.claims.consumer import ClaimConsumer
from headrace.claims.errors import PublishFailed, PublishUnknown
from headrace.claims.jetstream_client import NoStreamResponse
from headrace.claims.message_resolver import NO_ACK_POLICIES, MessageResolver, is_reference
from headrace.claims.producer import ClaimProducer, get_headers_size
from headrace.claims.wrapped_publisher import ClaimPublisher
from headrace.claims.wrapped_subscriptions import (
    ClaimMessages,
    ClaimPullSubscription,
    ClaimPushSubscription,
    make_callback,
)
from headrace.client import JetStream, Message
from headrace.client.codecs import Codec, encode_payload
from headrace.client.durations import Duration
from headrace.client.errors import NoAnswer, NoStream, make_error
from headrace.client.outgoing_message import MessageExpectations
from headrace.errors import RequestError

#: Maximum number of payloads that `publish_async` uploads at a time.
_CONCURRENT_UPLOADS = 8


class ClaimJetStream(JetStream):
    """A JetStream context whose messages may have payloads of any size. Made by `Claims.wrap`."""

    def __init__(
        self,
        plain: JetStreamContext,
        producer: ClaimProducer,
        consumer: ClaimConsumer,
        resolver: MessageResolver,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        #: The context that was wrapped.
        self.plain = plain
        self._producer = producer
        self._claim_consumer = consumer
        self._resolver = resolver
        self._upload_slots = asyncio.Semaphore(_CONCURRENT_UPLOADS)
        self._uploads: set[asyncio.Task[api.PubAck]] = set()

    # Publishing

    async def publish(
        self,
        subject: str,
        payload: Any = b"",
        timeout: float | None = None,
        stream: str | None = None,
        headers: Mapping[str, Any] | None = None,
        msg_ttl: Duration | None = None,
        *,
        codec: Codec | None = None,
        **options: Unpack[MessageExpectations],
    ) -> api.PubAck:
        """Publish and wait for the acknowledgement; a payload above the threshold becomes a claim.

        The payload may also be a `Path` or an asynchronous iterator of bytes. A `timeout` includes the upload.
        """
        if codec is not None:
            payload, headers = encode_payload(payload, headers, codec)
        if isinstance(payload, str):
            raise TypeError(f"the payload for {subject!r} is text; publish bytes: text.encode()")
        if isinstance(payload, (bytearray, memoryview)):  # such as the chunks of an object store
            payload = bytes(payload)
        if subject.startswith("$") and not isinstance(payload, bytes):
            raise TypeError(f"messages on {subject!r} never become claims; publish bytes")
        if msg_ttl is not None:
            options.setdefault("ttl", msg_ttl)
        message = Message(subject, b"", headers, stream=stream, **options)
        encoded = message.encode_headers()
        if isinstance(payload, bytes) and not self._is_large(subject, payload, encoded):
            return await super().publish(subject, payload, timeout, headers=encoded)
        with _translate_claim_errors(subject, timeout):
            async with asyncio.timeout(timeout):
                published = await self._producer.publish(subject, payload, headers=encoded)
        return api.PubAck(published.stream, published.seq, duplicate=published.duplicate or None)

    async def publish_async(
        self,
        subject: str,
        payload: bytes = b"",
        wait_stall: float | None = None,
        stream: str | None = None,
        headers: dict[str, Any] | None = None,
        msg_ttl: float | None = None,
    ) -> asyncio.Future[api.PubAck]:
        """Publish and return the future of the acknowledgement; claims may be stored after later small messages."""
        encoded = Message(subject, b"", headers, ttl=msg_ttl, stream=stream).encode_headers()
        if not self._is_large(subject, payload, encoded):
            return await super().publish_async(subject, payload, wait_stall, headers=encoded or None)
        try:
            await asyncio.wait_for(self._upload_slots.acquire(), wait_stall)
        except TimeoutError:
            raise nats.js.errors.TooManyStalledMsgsError from None
        task = asyncio.create_task(self.publish(subject, payload, headers=encoded))
        self._uploads.add(task)
        task.add_done_callback(self._on_uploaded)
        return task

    def _on_uploaded(self, task: asyncio.Task[api.PubAck]) -> None:
        self._uploads.discard(task)
        self._upload_slots.release()

    def publish_async_pending(self) -> int:
        """Return how many acknowledgements of `publish_async` are missing."""
        return super().publish_async_pending() + len(self._uploads)

    async def publish_async_completed(self) -> None:
        """Wait until no acknowledgement of `publish_async` is missing."""
        while self._uploads:
            await asyncio.wait(list(self._uploads))
        await super().publish_async_completed()

    def _is_large(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> bool:
        if subject.startswith("$"):
            return False
        return len(payload) + get_headers_size(headers) > self._producer.inline_max

    def publisher(self, stream: str | None = None, **options: Any) -> ClaimPublisher:
        """Return a publisher for many messages, as a context; options as for `JetStream.publisher`.

        Messages are stored in order. One with a payload above the threshold is uploaded and published when all before it
        are settled, so many small payloads are much faster than large ones.
        """
        inner = super().publisher(stream, **options)
        return ClaimPublisher.adopt(inner, self.publish, lambda: self._producer.inline_max)

    # Consuming

    def consume(self, /, stream: str, durable: str | None = None, **options: Any) -> ClaimMessages:
        """Return the messages of a pull consumer, with their payloads, as a context; options as for `JetStream.consume`."""
        return ClaimMessages.adopt(super().consume(stream, durable, **options), self._resolver)

    async def pull_subscribe_bind(self, *args: Any, **options: Any) -> ClaimPullSubscription:
        """Return a pull subscription with payloads; arguments as in nats-py. `pull_subscribe` ends here, too."""
        subscription: Any = await super().pull_subscribe_bind(*args, **options)
        subscription.__class__ = ClaimPullSubscription
        vars(subscription).update(_resolver=self._resolver)
        found: ClaimPullSubscription = subscription
        return found

    async def subscribe_bind(
        self,
        stream: str,
        config: api.ConsumerConfig,
        consumer: str,
        cb: Callable[[Msg], Awaitable[None]] | None = None,
        manual_ack: bool = False,
        *args: Any,
        **options: Any,
    ) -> JetStreamContext.PushSubscription:
        """Return a push subscription with payloads; arguments as in nats-py. `subscribe` ends here, too."""
        if cb is not None:
            auto_ack = not manual_ack and config.ack_policy not in NO_ACK_POLICIES
            cb = make_callback(cb, self._resolver, auto_ack=auto_ack)
            return await super().subscribe_bind(stream, config, consumer, cb, True, *args, **options)
        subscription: Any = await super().subscribe_bind(
            stream, config, consumer, None, manual_ack, *args, **options
        )
        # nats-py keeps a reference to this very object, and changes it when it resets an ordered consumer.
        subscription.__class__ = ClaimPushSubscription
        vars(subscription).update(_resolver=self._resolver)
        found: ClaimPushSubscription = subscription
        return found

    async def get_msg(self, *args: Any, **options: Any) -> api.RawStreamMsg:
        """Return a message of a stream, with its payload; arguments as in nats-py. Raises `ClaimNotFound`, `Expired`, ..."""
        found = await super().get_msg(*args, **options)
        message = Msg(self._nc, found.subject or "", "", found.data or b"", found.headers)
        if is_reference(message):
            received = await self._claim_consumer.read(message)
            found.data, found.headers = received.data, received.headers or None
        return found


@contextmanager
def _translate_claim_errors(subject: str, timeout_s: float | None) -> Iterator[None]:
    """Raise what the server answers as the errors of the client, as for a small message."""
    try:
        yield
    except PublishFailed as error:
        cause = error.__cause__
        if isinstance(cause, NoStreamResponse):
            raise NoStream(subject) from error
        if isinstance(cause, RequestError):
            names = ("code", "err_code", "description")
            raise make_error({name: getattr(cause, name) for name in names}) from error
        raise
    except PublishUnknown as error:
        raise NoAnswer(str(error)) from error
    except TimeoutError as error:
        if timeout_s is None:
            raise
        text = f"not acknowledged on {subject!r} within {timeout_s:g} s, including the upload"
        raise NoAnswer(f"{text}; the message may be stored") from error
