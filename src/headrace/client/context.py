"""JetStream context: nats-py's own, with batches, buckets with TTL, resets and full configurations.

Everything in nats-py's `JetStreamContext` is available under its name; overridden methods accept more arguments and
raise the same errors as more specific subclasses. The work is done in the other modules of this package.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import datetime
from typing import Any, Unpack

import nats.errors
from nats.aio.client import Client as NATS
from nats.js import JetStreamContext, api

from headrace.client import kv_config, sourcing_consumer
from headrace.client.batch import Batch, BatchAck
from headrace.client.codecs import Codec, encode_payload
from headrace.client.configs import ConsumerConfig, ConsumerInfo, StreamInfo
from headrace.client.consume import Messages
from headrace.client.consume_options import make_options
from headrace.client.consumed_message import MessageDecoder, OnDecodeError
from headrace.client.consumer_reset import ConsumerReset, reset_consumer
from headrace.client.durations import Duration
from headrace.client.errors import (
    BadBucket,
    BucketExists,
    BucketNotFound,
    LimitMarkersUnsupported,
    StreamExists,
    StreamNotFound,
    translate_error,
    translate_nats_errors,
)
from headrace.client.key_value import KeyValue
from headrace.client.key_value_reader import KeyValueReader, find_read_prefix
from headrace.client.keyed_support import request_consumer
from headrace.client.kv_config import BucketConfig, BucketStatus
from headrace.client.kv_entry import check_bucket
from headrace.client.outgoing_message import Message, MessageExpectations, to_messages
from headrace.client.publish_failures import OnError
from headrace.client.publisher import Publisher
from headrace.client.publisher_options import PublisherOptions
from headrace.client.response_mux import ReplyInbox


class JetStream(JetStreamContext):
    """A JetStream context; `nats-py` documents what is not described here.

    ::

        nc = await headrace.client.connect("nats://127.0.0.1:4222")
        js = nc.jetstream()
    """

    def __init__(self, conn: NATS, **options: Any) -> None:
        super().__init__(conn, **options)
        self.reply_inbox = ReplyInbox(conn)
        self._api_level: int | None = None

    @staticmethod
    def get_options(context: JetStreamContext) -> dict[str, Any]:
        """Return the arguments that make another context of the same kind, also for one of nats-py."""
        return {"conn": context._nc, "prefix": context._prefix, "timeout": context._timeout}  # noqa: SLF001

    @property
    def connection(self) -> NATS:
        return self._nc

    @property
    def api_prefix(self) -> str:
        """The beginning of API subjects, `$JS.API` or that of a domain."""
        return self._prefix

    @property
    def timeout(self) -> float:
        """How long requests wait for their replies, in seconds."""
        return self._timeout

    async def api_request(
        self, call: str, body: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> dict[str, Any]:
        """Call the JetStream API (`"STREAM.INFO.ORDERS"`); return the response, or raise its error as a named class."""
        data = json.dumps(body).encode() if body else b""
        seconds = self._timeout if timeout is None else timeout
        return await self._api_request(f"{self._prefix}.{call}", data, timeout=seconds)

    async def _api_request(self, req_subject: str, req: bytes = b"", timeout: float = 5) -> dict[str, Any]:
        """Called by all of nats-py's methods, so that their errors are named classes too."""
        with translate_nats_errors(req_subject):
            return await super()._api_request(req_subject, req, timeout)

    async def api_level(self) -> int | None:
        """Return the server's JetStream API level; None if the server does not report it."""
        if self._api_level is None:
            try:
                self._api_level = (await self.account_info()).api.level or 0
            except nats.errors.Error:
                return None
        return self._api_level

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
        """Publish and wait for the acknowledgement; the options are those of `Message`.

        The payload is bytes, or any value that the `codec` can encode.
        """
        if msg_ttl is not None:
            options.setdefault("ttl", msg_ttl)
        payload, headers = encode_payload(payload, headers, codec)
        message = Message(subject, payload, headers, stream=stream, **options)
        with translate_nats_errors(subject):
            return await super().publish(subject, payload, timeout, headers=message.encode_headers() or None)

    def batch(self, **options: Any) -> Batch:
        """Return an atomic batch, as a context: `async with js.batch() as batch: await batch.publish(...)`.

        Options: `ack_every` (request a reply every n messages, which bounds the number in flight), `timeout` in
        seconds, `limit` (the maximum number of messages in a batch), `codec` (for payloads that are not bytes).
        """
        return Batch(self, **options)

    async def publish_batch(
        self, /, messages: Iterable[Message | tuple[Any, ...]], **options: Any
    ) -> BatchAck:
        """Store messages as one atomic batch; tuples are (subject, payload) or (subject, payload, headers).

        Options as for `batch`. Too many messages for one batch are rejected before anything is sent.
        """
        return await Batch(self, **options).send_all(to_messages(messages))

    def publisher(
        self,
        stream: str | None = None,
        *,
        max_pending: int = 4096,
        max_bytes: int = 8 * 1024 * 1024,
        timeout: float = 10.0,
        retry_for: float | None = None,
        on_error: OnError | None = None,
        codec: Codec | None = None,
    ) -> Publisher:
        """Return a publisher for many messages, as a context: `async with js.publisher("ORDERS") as publisher:`.

        With the name of a stream that has `allow_batched`, one reply acknowledges many messages, which is much faster.
        `on_error(failure)` is called for each message that is not stored, with `failure.message` and `failure.error`;
        without it `MessagesNotStored` is raised. The rest is described in `PublisherOptions`.
        """
        options = PublisherOptions(
            max_pending=max_pending, max_bytes=max_bytes, timeout_s=timeout, retry_for_s=retry_for
        )
        return Publisher(self, stream, options, on_error, codec)

    # Consuming

    def consume(
        self,
        /,
        stream: str,
        durable: str | None = None,
        *,
        prefetch: int = 500,
        max_bytes: int | None = None,
        expires: Duration = 30,
        heartbeat: Duration = 5,
        keep_alive: bool = True,
        codec: Codec | None = None,
        on_decode_error: OnDecodeError | None = None,
        ordered_by_key: bool = False,
        **config: Any,
    ) -> Messages:
        """Return the messages of a pull consumer, as a context: `async with js.consume("ORDERS", "worker") as messages:`.

        `durable` names the consumer; without it there is one for this context only. A consumer that does not exist is
        created, with explicit acks; further options are those of `ConsumerConfig`, and update an existing one. With a
        `codec` messages have a decoded `value`. One that does not decode is logged and terminated; before that
        `on_decode_error(message, error)` is called, and may acknowledge it. With `ordered_by_key` a message is delivered
        only after the previous one of its subject was acknowledged, to whichever client; `key_tokens="2"` uses the
        second token of subjects instead. The rest is described in `ConsumeOptions`.
        """
        if ordered_by_key:
            config.setdefault("max_ack_pending_per_subject", 1)
        options = make_options(prefetch, max_bytes, expires, heartbeat, keep_alive=keep_alive)
        return Messages(self, stream, durable, config, options, MessageDecoder(codec, on_decode_error))

    # Buckets

    async def create_key_value(
        self,
        config: BucketConfig | api.KeyValueConfig | None = None,
        *,
        codec: Codec | None = None,
        **params: Any,
    ) -> KeyValue:
        """Create a bucket; the options are those of `BucketConfig`. With a `codec` values need not be bytes.

        An existing one with the same configuration is returned.
        """
        bucket = kv_config.make_config(config, params)
        stream = bucket.to_stream_config()
        if bucket.limit_markers:
            await self._require_limit_markers()
        try:
            info = await self.api_request(f"STREAM.CREATE.{stream['name']}", stream)
        except StreamExists as error:
            raise BucketExists(
                error.code, error.err_code, f"bucket {bucket.bucket!r} exists with a different configuration"
            ) from error
        return await self._open_key_value(bucket.bucket, StreamInfo.from_response(info), codec)

    async def key_value(self, bucket: str, *, codec: Codec | None = None) -> KeyValue:
        """Return an existing bucket; raise `BucketNotFound` if there is none. With a `codec` values need not be bytes."""
        return await self._open_key_value(bucket, await self._get_bucket_info(bucket), codec)

    async def key_value_reader(self, bucket: str, *, codec: Codec | None = None) -> KeyValueReader:
        """Return an existing bucket to read from; this user needs no permission to write to it."""
        info = await self._get_bucket_info(bucket)
        return KeyValueReader(self, bucket, info, await find_read_prefix(self, bucket, info), codec)

    async def _open_key_value(self, bucket: str, info: StreamInfo, codec: Codec | None) -> KeyValue:
        return KeyValue(self, bucket, info, await find_read_prefix(self, bucket, info), codec)

    async def _get_bucket_info(self, bucket: str) -> StreamInfo:
        try:
            info = await self.stream_info(kv_config.stream_name_for(check_bucket(bucket)))
        except StreamNotFound as error:
            raise BucketNotFound.refuse(f"there is no bucket {bucket!r}") from error
        if info.config.max_msgs_per_subject < 1:
            raise BadBucket.refuse(
                f"stream {info.config.name!r} is not a bucket: max_msgs_per_subject is not set"
            )
        return info

    async def update_key_value(self, bucket: str, **changes: Any) -> KeyValue:
        """Change some options of a bucket: `update_key_value("b", limit_markers="1h")`.

        Limit markers can be enabled and changed, but not disabled.
        """
        name = kv_config.stream_name_for(check_bucket(bucket))
        try:
            current_config = (await self.api_request(f"STREAM.INFO.{name}"))["config"]
        except StreamNotFound as error:
            raise translate_error(error, BucketNotFound) from error
        config = kv_config.apply_changes(current_config, changes)
        if changes.get("limit_markers"):
            await self._require_limit_markers()
        info = await self.api_request(f"STREAM.UPDATE.{name}", config)
        return await self._open_key_value(bucket, StreamInfo.from_response(info), None)

    async def delete_key_value(self, bucket: str) -> bool:
        """Delete a bucket with everything in it."""
        try:
            response = await self.api_request(
                f"STREAM.DELETE.{kv_config.stream_name_for(check_bucket(bucket))}"
            )
        except StreamNotFound as error:
            raise translate_error(error, BucketNotFound) from error
        return bool(response["success"])

    async def key_value_names(self) -> list[str]:
        """Return the names of all buckets."""
        names = [name async for name in self._iter_listing("STREAM.NAMES", "streams")]
        return [bucket for name in names if (bucket := kv_config.parse_bucket_name(name)) is not None]

    async def key_value_statuses(self) -> list[BucketStatus]:
        """Return the status of every bucket."""
        infos = await self.streams_info()
        named_infos = [(info, kv_config.parse_bucket_name(str(info.config.name))) for info in infos]
        return [BucketStatus(info, bucket) for info, bucket in named_infos if bucket is not None]

    async def _require_limit_markers(self) -> None:
        level = (await self.account_info()).api.level or 0
        if level < kv_config.LIMIT_MARKERS_API_LEVEL:
            text = f"limit markers need API level {kv_config.LIMIT_MARKERS_API_LEVEL}, the server has {level}"
            raise LimitMarkersUnsupported.refuse(text)

    # Streams and consumers

    async def add_stream(self, /, config: api.StreamConfig | None = None, **params: Any) -> StreamInfo:
        """Create a stream."""
        return await self._create_or_update_stream("CREATE", config, params)

    async def update_stream(self, /, config: api.StreamConfig | None = None, **params: Any) -> StreamInfo:
        """Replace a stream's configuration with this one."""
        return await self._create_or_update_stream("UPDATE", config, params)

    async def _create_or_update_stream(
        self, verb: str, config: api.StreamConfig | None, params: dict[str, Any]
    ) -> StreamInfo:
        config = (config or api.StreamConfig()).evolve(**params)
        if not config.name:
            raise ValueError("a stream needs a name")
        return StreamInfo.from_response(
            await self.api_request(f"STREAM.{verb}.{config.name}", config.as_dict())
        )

    async def stream_info(self, name: str, subjects_filter: str | None = None) -> StreamInfo:
        """Return a stream's configuration and state."""
        body = {"subjects_filter": subjects_filter} if subjects_filter else None
        return StreamInfo.from_response(await self.api_request(f"STREAM.INFO.{name}", body))

    async def streams_info(self, offset: int = 0) -> list[StreamInfo]:  # type: ignore[override]
        """Return all streams, from an offset on."""
        listing = self._iter_listing("STREAM.LIST", "streams", offset)
        return [StreamInfo.from_response(info) async for info in listing]

    async def add_consumer(
        self,
        /,
        stream: str,
        config: api.ConsumerConfig | None = None,
        timeout: float | None = None,
        **params: Any,
    ) -> ConsumerInfo:
        """Create a consumer, or update an existing one."""
        config = (config or ConsumerConfig()).evolve(**params)
        call = f"CONSUMER.CREATE.{stream}"
        if name := config.name or config.durable_name:
            call += f".{name}"
            if config.filter_subject and config.filter_subject != ">":
                call += f".{config.filter_subject}"
        body = {"stream_name": stream, "config": {**config.as_dict(), **({"name": name} if name else {})}}
        return ConsumerInfo.from_response(await request_consumer(self, call, config, body, timeout))

    async def consumer_info(self, stream: str, consumer: str, timeout: float | None = None) -> ConsumerInfo:
        """Return a consumer's configuration and state."""
        response = await self.api_request(f"CONSUMER.INFO.{stream}.{consumer}", timeout=timeout)
        return ConsumerInfo.from_response(response)

    async def reset_consumer(
        self, stream: str, consumer: str, seq: int | None = None, timeout: float | None = None
    ) -> ConsumerReset:
        """Reset a consumer to deliver again from its ack floor, or from a sequence of the stream.

        Its delivery count starts again with 1. Raises `InvalidReset` if its deliver policy does not allow the sequence.
        """
        return await reset_consumer(self, stream, consumer, seq, timeout)

    async def create_sourcing_consumer(
        self,
        /,
        stream: str,
        name: str,
        deliver_subject: str,
        *,
        filter_subjects: Iterable[str] = (),
        start_seq: int | None = None,
        start_time: datetime | None = None,
        **options: Any,
    ) -> ConsumerInfo:
        """Create the durable consumer through which a mirror or source on another stream reads `stream`.

        More options: `deliver_policy`, `replay_policy`, `max_ack_pending`, `description`, `metadata`.
        `sourcing_consumer.source_through(info)` makes the entry for the sourcing stream's configuration.
        """
        return await sourcing_consumer.create_sourcing_consumer(
            self,
            stream,
            name,
            deliver_subject,
            filter_subjects=tuple(filter_subjects),
            start_seq=start_seq,
            start_time=start_time,
            **options,
        )

    async def _iter_listing(self, call: str, part: str, offset: int = 0) -> AsyncIterator[Any]:
        """Yield the items of a listing, page by page."""
        while True:
            page = await self.api_request(call, {"offset": offset})
            items = page.get(part) or []
            for item in items:
                yield item
            offset += len(items)
            if not items or offset >= page["total"]:
                return
