"""The client without `await`, for scripts, notebooks and Spark workers.

One thread per process runs the event loop of all clients; calls pass their work to it and wait. Invariants: no call
waits forever unless it is meant to (iterating over a watcher), and a client is never used by a process other than the
one that connected it. The methods are those of the asynchronous objects, with the same arguments and results.

::

    from headrace.client import sync

    with sync.connect("nats://127.0.0.1:4222") as client:
        client.add_stream(name="ORDERS", subjects=["orders.>"], allow_atomic=True)
        client.publish("orders.1", b"3 pears")
        with client.batch() as batch:
            batch.publish("orders.2", b"1 plum")
            batch.publish("orders.3", b"2 figs")
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import nats.aio.client
import nats.aio.msg

from headrace.client import batch as asynchronous_batch
from headrace.client import connection, consume, context, key_value, key_value_reader, watch
from headrace.client.batch import BatchAck
from headrace.client.codecs import Codec
from headrace.client.consumed_message import ConsumedMessage
from headrace.client.errors import NoAnswer
from headrace.client.kv_entry import Entry
from headrace.client.sync_proxy import SyncProxy, WrongProcess, make_blocking, process_loop
from headrace.client.sync_publisher import Publisher
from headrace.deprecation import renamed_parameter

__all__ = [
    "Batch",
    "Client",
    "KeyValue",
    "KeyValueReader",
    "Messages",
    "Publisher",
    "ReceivedMessage",
    "Watcher",
    "WrongProcess",
    "connect",
]

_CONNECT_TIMEOUT_S = 10.0
_CALL_TIMEOUT_S = 60.0


class Batch(SyncProxy[asynchronous_batch.Batch]):
    """An atomic batch, the blocking form of `client.batch.Batch`: committed at the end of its context, abandoned on an
    exception.
    """

    publish = make_blocking(asynchronous_batch.Batch.publish)
    add = make_blocking(asynchronous_batch.Batch.add)
    commit = make_blocking(asynchronous_batch.Batch.commit)
    abandon = make_blocking(asynchronous_batch.Batch.abandon)

    @property
    def ack(self) -> BatchAck | None:
        return self.inner.ack

    def __len__(self) -> int:
        return len(self.inner)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.run(self.inner.__aexit__(kind, error, trace))


class Watcher(SyncProxy[watch.Watcher]):
    """The blocking form of `client.watch.Watcher`: an iterator of entries, with None after the initial ones.

    It waits for the next entry as long as necessary.
    """

    updates = make_blocking(watch.Watcher.updates)
    initial = make_blocking(watch.Watcher.initial)
    stop = make_blocking(watch.Watcher.stop)

    def __iter__(self) -> Iterator[Entry | None]:
        return self

    def __next__(self) -> Entry | None:
        try:
            return self._wait(self.inner.__anext__(), None)
        except StopAsyncIteration:
            raise StopIteration from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class ReceivedMessage(SyncProxy[ConsumedMessage]):
    """A message of a consumer; acknowledge it with one of the methods."""

    ack = make_blocking(nats.aio.msg.Msg.ack)
    ack_sync = make_blocking(nats.aio.msg.Msg.ack_sync)
    nak = make_blocking(nats.aio.msg.Msg.nak)
    term = make_blocking(nats.aio.msg.Msg.term)
    in_progress = make_blocking(nats.aio.msg.Msg.in_progress)

    @property
    def subject(self) -> str:
        return self.inner.subject

    @property
    def data(self) -> bytes:
        return self.inner.data

    @property
    def value(self) -> Any:
        """The decoded payload, if `consume` was given a codec."""
        return self.inner.value

    @property
    def headers(self) -> dict[str, str] | None:
        return self.inner.headers

    @property
    def metadata(self) -> nats.aio.msg.Msg.Metadata:
        return self.inner.metadata


class Messages(SyncProxy[consume.Messages]):
    """The blocking form of `client.consume.Messages`: an iterator of messages in a context.

    It waits for the next message as long as necessary.
    """

    @property
    def consumer(self) -> str:
        return self.inner.consumer

    def drain(self) -> None:
        """Request no more messages: the iteration ends after those that have been received."""
        self._loop_thread.loop.call_soon_threadsafe(self.inner.drain)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return self

    def __next__(self) -> ReceivedMessage:
        try:
            return ReceivedMessage(self._wait(anext(self.inner), None), self._timeout_s)
        except StopAsyncIteration:
            raise StopIteration from None

    def __enter__(self) -> Self:
        self.run(self.inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.run(self.inner.__aexit__(kind, error, trace))


Reader = TypeVar("Reader", bound=key_value_reader.KeyValueReader)


class KeyValueReader(SyncProxy[Reader]):
    """The blocking form of `client.key_value_reader.KeyValueReader`: a bucket to read from."""

    get = make_blocking(key_value_reader.KeyValueReader.get)
    history = make_blocking(key_value_reader.KeyValueReader.history)
    keys = make_blocking(key_value_reader.KeyValueReader.keys)
    status = make_blocking(key_value_reader.KeyValueReader.status)

    @property
    def bucket(self) -> str:
        return self.inner.bucket

    def watch(self, keys: str | Sequence[str] = ">", **options: Any) -> Watcher:
        """Watch keys; options as for the asynchronous `watch`."""
        return Watcher(self.run(self.inner.watch(keys, **options)), self._timeout_s)


class KeyValue(KeyValueReader[key_value.KeyValue]):
    """The blocking form of `client.key_value.KeyValue`: a bucket."""

    put = make_blocking(key_value.KeyValue.put)
    create = make_blocking(key_value.KeyValue.create)
    update = make_blocking(key_value.KeyValue.update)
    delete = make_blocking(key_value.KeyValue.delete)
    purge = make_blocking(key_value.KeyValue.purge)
    put_many = make_blocking(key_value.KeyValue.put_many)
    update_many = make_blocking(key_value.KeyValue.update_many)
    create_many = make_blocking(key_value.KeyValue.create_many)
    purge_deletes = make_blocking(key_value.KeyValue.purge_deletes)


class Client(SyncProxy[context.JetStream]):
    """The blocking form of `client.connection.Client`: a connection with its JetStream context.

    `js` and `nc` are the asynchronous ones, for `run`.
    """

    publish = make_blocking(context.JetStream.publish)
    publish_batch = make_blocking(context.JetStream.publish_batch)
    add_stream = make_blocking(context.JetStream.add_stream)
    update_stream = make_blocking(context.JetStream.update_stream)
    delete_stream = make_blocking(context.JetStream.delete_stream)
    stream_info = make_blocking(context.JetStream.stream_info)
    get_msg = make_blocking(context.JetStream.get_msg)
    add_consumer = make_blocking(context.JetStream.add_consumer)
    consumer_info = make_blocking(context.JetStream.consumer_info)
    delete_consumer = make_blocking(context.JetStream.delete_consumer)
    reset_consumer = make_blocking(context.JetStream.reset_consumer)
    create_sourcing_consumer = make_blocking(context.JetStream.create_sourcing_consumer)
    delete_kv = make_blocking(context.JetStream.delete_key_value)
    kv_names = make_blocking(context.JetStream.key_value_names)

    @property
    def js(self) -> context.JetStream:
        return self.inner

    @property
    def nc(self) -> nats.aio.client.Client:
        return self.inner.connection

    def replace_context(self, js: context.JetStream) -> Client:
        """Return a client that uses another context of the same connection; closing either closes the connection."""
        return Client(js, self._timeout_s)

    def batch(self, **options: Any) -> Batch:
        """Return an atomic batch: `with client.batch() as batch: batch.publish(...)`."""
        return Batch(self.inner.batch(**options), self._timeout_s)

    def consume(self, stream: str, durable: str | None = None, **options: Any) -> Messages:
        """Return the messages of a pull consumer: `with client.consume("ORDERS", "worker") as messages:`.

        Options as for the asynchronous `consume`.
        """
        return Messages(self.inner.consume(stream, durable, **options), self._timeout_s)

    def publisher(self, stream: str | None = None, **options: Any) -> Publisher:
        """Return a publisher for many messages: `with client.publisher("ORDERS") as publisher:`.

        Options as for the asynchronous `publisher`. `on_error` runs on the thread of the event loop.
        """
        return self.run(self._make_publisher(stream, options))

    async def _make_publisher(self, stream: str | None, options: dict[str, Any]) -> Publisher:
        return Publisher(self.inner.publisher(stream, **options), self._timeout_s)

    def kv(self, bucket: str, *, codec: Codec | None = None) -> KeyValue:
        """Return an existing bucket."""
        return KeyValue(self.run(self.inner.key_value(bucket, codec=codec)), self._timeout_s)

    def kv_reader(self, bucket: str, *, codec: Codec | None = None) -> KeyValueReader[Any]:
        """Return an existing bucket to read from; this user needs no permission to write to it."""
        return KeyValueReader(self.run(self.inner.key_value_reader(bucket, codec=codec)), self._timeout_s)

    def create_kv(self, bucket: str, **options: Any) -> KeyValue:
        """Create a bucket; options are those of `BucketConfig`, and `codec`."""
        return KeyValue(self.run(self.inner.create_key_value(bucket=bucket, **options)), self._timeout_s)

    def update_kv(self, bucket: str, **changes: Any) -> KeyValue:
        """Change options of a bucket."""
        return KeyValue(self.run(self.inner.update_key_value(bucket, **changes)), self._timeout_s)

    def request(self, subject: str, payload: bytes = b"", timeout: float = 5.0) -> bytes:
        """Send a request; return the payload of the first reply."""
        return bytes(self.run(self.nc.request(subject, payload, timeout=timeout)).data)

    def close(self) -> None:
        """Flush buffered data and close the connection."""
        if not self.nc.is_closed:
            self.run(_close(self.nc))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def _close(client: nats.aio.client.Client) -> None:
    try:
        if client.is_connected:
            await client.flush()
    finally:
        await client.close()


@renamed_parameter("patience", "call_timeout")
def connect(
    servers: str | Iterable[str] = "nats://127.0.0.1:4222",
    *,
    timeout: float = 5.0,
    connect_timeout: float = _CONNECT_TIMEOUT_S,
    call_timeout: float = _CALL_TIMEOUT_S,
    domain: str | None = None,
    **options: Any,
) -> Client:
    """Connect to one of the servers; use it as a context, or `close()` it.

    All in seconds: `connect_timeout` until connected, `timeout` for a single request, `call_timeout` for a whole call.
    Further options are those of `nats.connect`.
    """
    server_urls = servers if isinstance(servers, str) else list(servers)

    async def open_context() -> context.JetStream:
        client = await connection.connect(server_urls, **options)
        return client.jetstream(timeout=timeout, **({"domain": domain} if domain else {}))

    try:
        js = process_loop.get_loop_thread().run(open_context(), connect_timeout)
    except NoAnswer as error:
        raise NoAnswer(f"not connected to {server_urls} within {connect_timeout:g} s") from error
    return Client(js, call_timeout)
