"""The client without `await`, for scripts, notebooks and Spark workers.

One thread a process runs the event loop of all clients; calls hand their work to it and wait. Invariants: no call waits
for ever unless it is asked to (iterating over a watcher), and a client is never used by another process than the one
that connected it. The methods are those of the asynchronous objects, with the same arguments and results.

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

import asyncio
import atexit
import functools
import os
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

import nats.errors

from headrace.client import batch as asynchronous_batch
from headrace.client import connection, context, kv, watch
from headrace.client.batch import BatchAck
from headrace.client.errors import NoAnswer
from headrace.client.kv_entry import Entry
from headrace.errors import HeadraceError

__all__ = ["Batch", "Client", "KeyValue", "Watcher", "WrongProcess", "connect"]

_CONNECT_S = 10.0
_PATIENCE_S = 60.0
_FAREWELL_S = 2.0

T = TypeVar("T")
P = ParamSpec("P")
Inner = TypeVar("Inner")


class WrongProcess(HeadraceError):
    """A client is used in a process that was forked from the one that connected it."""


class Background:
    """The thread that runs the event loop."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="headrace-client", daemon=True)
        self.thread.start()

    def run(self, work: Awaitable[T], patience_s: float | None) -> T:
        """Have it done there, and wait for the result."""
        result = asyncio.run_coroutine_threadsafe(_awaited(work), self.loop)
        try:
            return result.result(patience_s)
        except BaseException as error:
            # Also when the caller is interrupted: what nobody waits for should not go on.
            if not result.done() and result.cancel() and isinstance(error, TimeoutError):
                raise NoAnswer(f"not done within {patience_s:g} s; is the server reachable?") from None
            raise

    def stop(self) -> None:
        async def end_all() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end_all(), self.loop).result(_FAREWELL_S)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(_FAREWELL_S)


async def _awaited(work: Awaitable[T]) -> T:
    return await work


class _Process:
    """The background of this process, made when it is first needed."""

    def __init__(self) -> None:
        self._starting = threading.Lock()
        self._background: Background | None = None
        self._inherited: list[Background | None] = []

    def background(self) -> Background:
        with self._starting:
            if self._background is None:
                self._background = Background()
                atexit.register(self._stop, os.getpid())
            return self._background

    def forked(self) -> None:
        """In the child: the parent's thread is not here. Its loop is kept, since closing it would reach the parent."""
        self._inherited.append(self._background)
        self._background = None
        self._starting = threading.Lock()

    def _stop(self, pid: int) -> None:
        if pid == os.getpid() and self._background is not None:
            self._background.stop()


_process = _Process()
os.register_at_fork(after_in_child=_process.forked)


class _Face(Generic[Inner]):
    """The blocking face of an asynchronous object, which is its `inner`."""

    def __init__(self, inner: Inner, patience_s: float) -> None:
        self.inner = inner
        self._patience_s = patience_s
        self._background = _process.background()
        self._pid = os.getpid()

    def run(self, work: Awaitable[T], timeout: float | None = None) -> T:
        """Wait for something asynchronous, for what has no method here: `client.run(client.js.purge_stream("S"))`."""
        return self._wait(work, self._patience_s if timeout is None else timeout)

    def _wait(self, work: Awaitable[T], patience_s: float | None) -> T:
        try:
            self._check_caller()
        except BaseException:
            if asyncio.iscoroutine(work):
                work.close()
            raise
        return self._background.run(work, patience_s)

    def _check_caller(self) -> None:
        if self._pid != os.getpid():
            text = (
                f"connected in process {self._pid}, used in {os.getpid()}: call sync.connect() after the fork"
            )
            raise WrongProcess(text)
        if threading.current_thread() is self._background.thread:
            raise RuntimeError(
                "a callback of the event loop cannot wait for it: use the asynchronous client there"
            )


def _blocking(
    method: Callable[Concatenate[Inner, P], Awaitable[T]],
) -> Callable[Concatenate[_Face[Inner], P], T]:
    @functools.wraps(method)
    def call(face: _Face[Inner], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return face.run(method(face.inner, *args, **kwargs))

    return call


class Batch(_Face[asynchronous_batch.Batch]):
    """An atomic batch: committed at the end of its context, abandoned on an exception."""

    publish = _blocking(asynchronous_batch.Batch.publish)
    add = _blocking(asynchronous_batch.Batch.add)
    commit = _blocking(asynchronous_batch.Batch.commit)
    abandon = _blocking(asynchronous_batch.Batch.abandon)

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


class Watcher(_Face[watch.Watcher]):
    """An iterator of entries, with None where the initial ones end; waits for the next as long as it takes."""

    updates = _blocking(watch.Watcher.updates)
    initial = _blocking(watch.Watcher.initial)
    stop = _blocking(watch.Watcher.stop)

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


class KeyValue(_Face[kv.KeyValue]):
    """A bucket."""

    get = _blocking(kv.KeyValue.get)
    put = _blocking(kv.KeyValue.put)
    create = _blocking(kv.KeyValue.create)
    update = _blocking(kv.KeyValue.update)
    delete = _blocking(kv.KeyValue.delete)
    purge = _blocking(kv.KeyValue.purge)
    put_many = _blocking(kv.KeyValue.put_many)
    update_many = _blocking(kv.KeyValue.update_many)
    create_many = _blocking(kv.KeyValue.create_many)
    history = _blocking(kv.KeyValue.history)
    keys = _blocking(kv.KeyValue.keys)
    purge_deletes = _blocking(kv.KeyValue.purge_deletes)
    status = _blocking(kv.KeyValue.status)

    @property
    def bucket(self) -> str:
        return self.inner.bucket

    def watch(self, keys: str | Sequence[str] = ">", **options: Any) -> Watcher:
        """Watch keys; options as for the asynchronous `watch`."""
        return Watcher(self.run(self.inner.watch(keys, **options)), self._patience_s)


class Client(_Face[context.JetStream]):
    """A connection with its JetStream context; `js` and `nc` are the asynchronous ones, for `run`."""

    publish = _blocking(context.JetStream.publish)
    publish_batch = _blocking(context.JetStream.publish_batch)
    add_stream = _blocking(context.JetStream.add_stream)
    update_stream = _blocking(context.JetStream.update_stream)
    delete_stream = _blocking(context.JetStream.delete_stream)
    stream_info = _blocking(context.JetStream.stream_info)
    get_msg = _blocking(context.JetStream.get_msg)
    add_consumer = _blocking(context.JetStream.add_consumer)
    consumer_info = _blocking(context.JetStream.consumer_info)
    delete_consumer = _blocking(context.JetStream.delete_consumer)
    reset_consumer = _blocking(context.JetStream.reset_consumer)
    create_sourcing_consumer = _blocking(context.JetStream.create_sourcing_consumer)
    delete_kv = _blocking(context.JetStream.delete_key_value)
    kv_names = _blocking(context.JetStream.key_value_names)

    @property
    def js(self) -> context.JetStream:
        return self.inner

    @property
    def nc(self) -> nats.aio.client.Client:
        return self.inner.connection

    def batch(self, **options: Any) -> Batch:
        """An atomic batch: `with client.batch() as batch: batch.publish(...)`."""
        return Batch(self.inner.batch(**options), self._patience_s)

    def kv(self, bucket: str) -> KeyValue:
        """An existing bucket."""
        return KeyValue(self.run(self.inner.key_value(bucket)), self._patience_s)

    def create_kv(self, bucket: str, **options: Any) -> KeyValue:
        """Create a bucket; options are those of `BucketConfig`."""
        return KeyValue(self.run(self.inner.create_key_value(bucket=bucket, **options)), self._patience_s)

    def update_kv(self, bucket: str, **changes: Any) -> KeyValue:
        """Change options of a bucket."""
        return KeyValue(self.run(self.inner.update_key_value(bucket, **changes)), self._patience_s)

    def request(self, subject: str, payload: bytes = b"", timeout: float = 5.0) -> bytes:
        """Ask whoever answers on a subject; the payload of the first answer."""
        return bytes(self.run(self.nc.request(subject, payload, timeout=timeout)).data)

    def close(self) -> None:
        """Send what is buffered and end the connection."""
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


def connect(
    servers: str | Iterable[str] = "nats://127.0.0.1:4222",
    *,
    timeout: float = 5.0,
    connect_timeout: float = _CONNECT_S,
    patience: float = _PATIENCE_S,
    domain: str | None = None,
    **options: Any,
) -> Client:
    """Connect to one of the servers; use it as a context, or `close()` it.

    All in seconds: `connect_timeout` until it is connected, `timeout` for a single request, `patience` for a whole call.
    Further options are those of `nats.connect`.
    """
    chosen = servers if isinstance(servers, str) else list(servers)

    async def opened() -> context.JetStream:
        client = await connection.connect(chosen, **options)
        return client.jetstream(timeout=timeout, **({"domain": domain} if domain else {}))

    try:
        js = _process.background().run(opened(), connect_timeout)
    except NoAnswer as error:
        raise NoAnswer(f"not connected to {chosen} within {connect_timeout:g} s") from error
    return Client(js, patience)
