"""Publishes many messages: in order, with a bounded number in flight, through reconnects and restarts of the server.

::

    async with js.publisher("ORDERS") as publisher:
        for order in orders:
            await publisher.publish("orders.new", order)

Owns the limits, the task that writes, and the failures. A stream with `allow_batched` gets fast-ingest batches
(`fast_ingest`), others single messages (`publish_sender`). Invariants: what was accepted is stored or reported as
failed, once; messages are sent in the order of acceptance, also when they are sent again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Protocol, Self, Unpack

import nats.errors
from nats.aio.client import Client as NATS
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from headrace.client import connection_events
from headrace.client.codecs import Codec, encode_payload
from headrace.client.command_writer import CommandWriter
from headrace.client.configs import StreamInfo
from headrace.client.errors import NoAnswer
from headrace.client.fast_ingest import SUFFIX, FastIngestSender, choose_flow, supports_fast_ingest
from headrace.client.outgoing_message import Message, MessageOptions, to_messages
from headrace.client.publish_failures import OnError, PublishFailures
from headrace.client.publish_record import Record
from headrace.client.publish_retry import Refusals
from headrace.client.publish_sender import Sender, SingleSender
from headrace.client.publish_timeout import ReplyTimeout
from headrace.client.publish_window import PublishWindow
from headrace.client.publisher_options import PublisherOptions

#: How long to wait until the writer has stopped before it is cancelled again, and for the end of the subscription.
_CANCEL_AGAIN_S, _UNSUBSCRIBE_S = 0.1, 0.5
#: Maximum number of messages that are written at a time, and accepted without giving other tasks a turn.
_WRITE_MESSAGES = 256

_CLOSED = "the publisher was closed before the server acknowledged the message"


class StreamApi(Protocol):
    """The part of a JetStream context that publishing needs."""

    @property
    def connection(self) -> NATS: ...

    async def stream_info(self, name: str, /) -> StreamInfo: ...


class Publisher:
    """Publishes many messages, as an asynchronous context. Created by `JetStream.publisher`."""

    def __init__(
        self,
        js: StreamApi,
        stream: str | None,
        options: PublisherOptions,
        on_error: OnError | None,
        codec: Codec | None,
    ) -> None:
        self._js = js
        self._nc = js.connection
        self._stream = stream
        self._options = options
        self._codec = codec
        self._failures = PublishFailures(on_error)
        self._window = PublishWindow(self._failures.add)
        self._refusals = Refusals(self._window, options.actual_retry_for_s, stream)
        self._inbox = f"{self._nc.new_inbox()}."
        self._sender: Sender = SingleSender(self._window, self._refusals, self._inbox)
        self._subscription: Subscription | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._error: Exception | None = None  # of the writer: nothing can be sent any more
        self._wake = asyncio.Event()
        self._progress: asyncio.Future[None] | None = None
        self._commands = CommandWriter(self._nc)
        self._is_interrupted = False
        self._timeout = ReplyTimeout(self._window, options.timeout_s)
        self._flushing = 0
        self._closed = False

    @property
    def stream(self) -> str | None:
        return self._stream

    @property
    def is_open(self) -> bool:
        """Whether messages can be published now."""
        return self._subscription is not None and not self._closed and self._find_fatal_error() is None

    def _find_fatal_error(self) -> Exception | None:
        return nats.errors.ConnectionClosedError() if self._nc.is_closed else self._error

    @property
    def uses_fast_ingest(self) -> bool:
        """Whether the server acknowledges many messages with one reply."""
        return isinstance(self._sender, FastIngestSender)

    @property
    def pending(self) -> int:
        """How many messages were accepted and are neither stored nor failed."""
        return len(self._window)

    @property
    def stored(self) -> int:
        """How many messages the server has acknowledged; a duplicate counts, too."""
        return self._window.stored_count

    @property
    def failed(self) -> int:
        """How many messages have failed."""
        return self._window.failed_count

    # Start and end

    async def __aenter__(self) -> Self:
        if self._subscription is not None or self._closed:
            raise RuntimeError("a publisher can be entered once; call publisher() again")
        if self._stream is not None:
            info = await self._js.stream_info(self._stream)
            if supports_fast_ingest(info.config):
                flow = choose_flow(self._options.max_pending)
                self._sender = FastIngestSender(self._window, self._refusals, self._inbox, flow, self._stream)
        self._subscription = await self._nc.subscribe(
            f"{self._inbox}>", cb=self._on_reply, pending_msgs_limit=-1, pending_bytes_limit=-1
        )
        connection_events.add_listener(self._nc, self)
        self._timeout.restart()
        self._tasks = [asyncio.create_task(each) for each in (self._write_forever(), self._check_forever())]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        try:
            await self._end(None if error is None else self._options.timeout_s)
            await self._failures.close()
            if error is None:
                self._failures.check()
        finally:
            self._failures.log_unreported()

    async def _end(self, timeout_s: float | None) -> None:
        try:
            with contextlib.suppress(TimeoutError):
                # After an exception, do not wait for a server that is away.
                async with asyncio.timeout(timeout_s):
                    await self._wait_until_settled(self._window.last, end_batch=True)
        finally:
            self._window.fail_all(NoAnswer(_CLOSED))
            await self._stop()

    async def _stop(self) -> None:
        connection_events.remove_listener(self._nc, self)
        running = set(self._tasks)
        while running:  # nats-py ignores a cancellation while it waits for a write
            for task in running:
                task.cancel()
            _, running = await asyncio.wait(running, timeout=_CANCEL_AGAIN_S)
        self._tasks = []
        if self._subscription is not None and not self._nc.is_closed:
            with contextlib.suppress(nats.errors.Error, TimeoutError):
                async with asyncio.timeout(_UNSUBSCRIBE_S):  # it waits for the server to read
                    await self._subscription.unsubscribe()

    # Publishing

    async def publish(
        self,
        subject: str,
        payload: Any = b"",
        headers: Mapping[str, Any] | None = None,
        **options: Unpack[MessageOptions],
    ) -> None:
        """Accept a message; wait while `max_pending` messages or `max_bytes` bytes are on their way.

        When this returns the message is not stored yet: see `flush`. More options are those of `Message`: `msg_id`, `ttl`,
        `expect_last_sequence` and others. Raises `MessagesNotStored` for earlier messages, unless there is an `on_error`.
        """
        await self.add(self.make_record(subject, payload, headers, **options))

    async def publish_many(self, messages: Iterable[Message | tuple[Any, ...]]) -> None:
        """Accept messages; tuples are (subject, payload) or (subject, payload, headers)."""
        for message in messages:
            await self.add(self.to_record(message))

    def make_record(
        self,
        subject: str,
        payload: Any = b"",
        headers: Mapping[str, Any] | None = None,
        **options: Unpack[MessageOptions],
    ) -> Record:
        """Return a message that `add` accepts; raise for one that cannot be sent. Safe to call from any thread."""
        payload, headers = encode_payload(payload, headers, self._codec)
        if options:
            headers = Message(subject, payload, headers, **options).encode_headers()
        return self._check_size(Record(subject, payload, headers))

    def to_record(self, message: Message | tuple[Any, ...]) -> Record:
        """Return a message that `add` accepts."""
        (message,) = to_messages([message])
        payload, headers = encode_payload(message.payload, message.encode_headers(), self._codec)
        return self._check_size(Record(message.subject, payload, headers))

    def _check_size(self, record: Record) -> Record:
        if record.size > self._nc.max_payload:
            raise nats.errors.MaxPayloadError
        return record

    async def add(self, record: Record) -> None:
        """Accept a message, as soon as there is room for it."""
        self.check_open()
        if self.is_full:
            await self.wait_for_room()
        self.add_nowait(record)
        if self._window.last % _WRITE_MESSAGES == 0:
            await asyncio.sleep(0)

    def needs_wait(self, record: Record) -> bool:
        """Whether only `add` accepts this message. Safe to call from any thread."""
        return False

    def add_nowait(self, record: Record) -> None:
        """Accept a message, even if there is no room for it."""
        self._window.add(record)
        self._wake.set()
        if not self._tasks:  # another thread published while this publisher was closed
            self._window.fail_all(NoAnswer(_CLOSED))
            self._failures.log_unreported()

    @property
    def is_full(self) -> bool:
        return self.is_full_with(0, 0)

    def is_full_with(self, count: int, size: int) -> bool:
        """Whether there is no room for a message after so many more, of `size` bytes. Safe to call from any thread."""
        window, options = self._window, self._options
        return len(window) + count >= options.max_pending or window.bytes + size >= options.max_bytes

    async def wait_for_room(self) -> None:
        """Wait until another message may be accepted."""
        self.check_open()
        while self.is_full:
            await self._wait_for_progress()
            self.check_open()

    @property
    def has_failures(self) -> bool:
        """Whether there are failures that the next call raises."""
        return self._failures.has_unreported

    def check_open(self) -> None:
        """Raise if nothing can be published, or messages have failed."""
        if self._subscription is None:
            raise RuntimeError("use `async with js.publisher(...) as publisher`")
        if self._closed:
            raise RuntimeError("the publisher is closed; call js.publisher() again")
        if (error := self._find_fatal_error()) is not None:
            raise error
        self._failures.check()

    async def flush(self) -> None:
        """Wait until every message that was accepted is stored or has failed.

        Raises `MessagesNotStored` for those that failed, unless there is an `on_error`.
        """
        self.check_open()
        await self._wait_until_settled(self._window.last)
        self._failures.check()

    async def _wait_until_settled(self, last: int, *, end_batch: bool = False) -> None:
        self._flushing += 1
        self._wake.set()
        try:
            while self._window.first <= last or (
                end_batch and self._sender.is_open and not self._nc.is_closed
            ):
                if (error := self._find_fatal_error()) is not None:
                    self._fail_all(error)
                    break
                await self._wait_for_progress()
        finally:
            self._flushing -= 1

    async def _wait_for_progress(self) -> None:
        self._wake.set()
        if self._progress is None or self._progress.done():
            self._progress = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._progress)

    def _on_progress(self) -> None:
        self._wake.set()
        if self._progress is not None and not self._progress.done():
            self._progress.set_result(None)

    # Writing

    @property
    def _is_connected(self) -> bool:
        """Whether messages can be sent. nats-py is connected a moment before it calls `on_reconnect`, and until then
        messages that were sent before the reconnect come first.
        """
        return self._nc.is_connected and not self._is_interrupted

    async def _write_forever(self) -> None:
        try:
            while True:
                is_idle = await self._wait_for_work()
                self._refusals.resume()
                if self._is_connected and not self._refusals.is_paused:
                    await self._write_all(is_idle=is_idle)
        except Exception as error:
            self._error = error
            self._fail_all(error)

    async def _check_forever(self) -> None:
        while True:
            await asyncio.sleep(self._timeout.interval_s)
            if not self._is_connected:
                self._timeout.restart()
            elif self._timeout.check(self._sender, is_writing=self._commands.is_writing):
                self._on_progress()

    async def _wait_for_work(self) -> bool:
        """Wait until there is something to do; return whether nothing happened for a while."""
        timeout_s = self._options.linger_s if self._sender.is_open else None
        if (wait_s := self._refusals.wait_s) is not None:
            timeout_s = wait_s
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        except TimeoutError:
            return True
        self._wake.clear()
        return False

    async def _write_all(self, *, is_idle: bool) -> None:
        if not self._window.in_flight and not self._sender.is_paused:
            self._timeout.on_reply()  # until now there was nothing to reply to
        while self._is_connected and not self._sender.is_paused:
            now_s = asyncio.get_running_loop().time()
            must_wait = self._refusals.must_wait if self._refusals.are_waiting else None
            unsent = itertools.islice(self._window.iter_unsent(now_s, must_wait), _WRITE_MESSAGES)
            chunk = b"".join([self._sender.encode(number, record) for number, record in unsent])
            if not chunk:
                break
            await self._commands.write(chunk)
        is_wanted = is_idle or self._flushing > 0 or self.is_full
        request = self._sender.encode_ack_request(is_wanted=is_wanted)
        if request and self._is_connected:  # otherwise sent again after the reconnect
            await self._commands.write(request)
        self._replace_refused_sender()

    # Events

    async def _on_reply(self, message: Msg) -> None:
        self._timeout.on_reply()
        token = message.subject.removeprefix(self._inbox)
        if token.endswith(SUFFIX) == self.uses_fast_ingest:
            self._sender.on_reply(token, message)
        self._replace_refused_sender()
        self._on_progress()

    def _replace_refused_sender(self) -> None:
        if self._sender.is_refused:
            self._sender = SingleSender(self._window, self._refusals, self._inbox)
            self._window.rewind()
            self._wake.set()

    def on_disconnect(self) -> None:
        """Keep nats-py from sending messages later that this publisher sends again, in order."""
        self._is_interrupted = True
        self._commands.discard()

    def on_reconnect(self) -> None:
        self._is_interrupted = False
        self._timeout.restart()
        self._sender.on_reconnect()
        self._wake.set()

    def on_close(self) -> None:
        self._fail_all(nats.errors.ConnectionClosedError())

    def _fail_all(self, error: Exception) -> None:
        self._window.fail_all(error)
        self._sender.on_timeout()
        self._on_progress()
