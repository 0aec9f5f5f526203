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
from headrace.client import connection, context, key_value, watch
from headrace.client.batch import BatchAck
from headrace.client.errors import NoAnswer
from headrace.client.kv_entry import Entry
from headrace.deprecation import renamed_parameter
from headrace.errors import HeadraceError

__all__ = ["Batch", "Client", "KeyValue", "Watcher", "WrongProcess", "connect"]

_CONNECT_TIMEOUT_S = 10.0
_CALL_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 2.0

T = TypeVar("T")
P = ParamSpec("P")
Inner = TypeVar("Inner")


class WrongProcess(HeadraceError):
    """A client is used in a process that was forked from the one that connected it."""


class EventLoopThread:
    """The thread that runs the event loop."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="headrace-client", daemon=True)
        self.thread.start()

    def run(self, work: Awaitable[T], timeout_s: float | None) -> T:
        """Run the work on that thread, and wait for the result."""
        result = asyncio.run_coroutine_threadsafe(_to_coroutine(work), self.loop)
        try:
            return result.result(timeout_s)
        except BaseException as error:
            # Also when the caller is interrupted: work that nobody waits for should not continue.
            if not result.done() and result.cancel() and isinstance(error, TimeoutError):
                raise NoAnswer(
                    f"not finished within {timeout_s:g} s; check that the server is reachable"
                ) from None
            raise

    def stop(self) -> None:
        async def cancel_all() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(cancel_all(), self.loop).result(_STOP_TIMEOUT_S)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(_STOP_TIMEOUT_S)


async def _to_coroutine(work: Awaitable[T]) -> T:
    return await work


class _ProcessEventLoop:
    """The background event loop of this process, created on first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop_thread: EventLoopThread | None = None
        self._parent_loop_threads: list[EventLoopThread | None] = []

    def get_loop_thread(self) -> EventLoopThread:
        with self._lock:
            if self._loop_thread is None:
                self._loop_thread = EventLoopThread()
                atexit.register(self._stop, os.getpid())
            return self._loop_thread

    def on_fork(self) -> None:
        """In the child: the parent's thread does not exist here.

        Its loop is kept, because closing it would affect the parent.
        """
        self._parent_loop_threads.append(self._loop_thread)
        self._loop_thread = None
        self._lock = threading.Lock()

    def _stop(self, pid: int) -> None:
        if pid == os.getpid() and self._loop_thread is not None:
            self._loop_thread.stop()


_process_loop = _ProcessEventLoop()
os.register_at_fork(after_in_child=_process_loop.on_fork)


class _SyncProxy(Generic[Inner]):
    """Blocking wrapper of an asynchronous object, `inner`."""

    def __init__(self, inner: Inner, timeout_s: float) -> None:
        self.inner = inner
        self._timeout_s = timeout_s
        self._loop_thread = _process_loop.get_loop_thread()
        self._pid = os.getpid()

    def run(self, work: Awaitable[T], timeout: float | None = None) -> T:
        """Wait for an awaitable, for operations without a method here: `client.run(client.js.purge_stream("S"))`."""
        return self._wait(work, self._timeout_s if timeout is None else timeout)

    def _wait(self, work: Awaitable[T], timeout_s: float | None) -> T:
        try:
            self._check_caller()
        except BaseException:
            if asyncio.iscoroutine(work):
                work.close()
            raise
        return self._loop_thread.run(work, timeout_s)

    def _check_caller(self) -> None:
        if self._pid != os.getpid():
            text = (
                f"connected in process {self._pid}, used in {os.getpid()}: call sync.connect() after the fork"
            )
            raise WrongProcess(text)
        if threading.current_thread() is self._loop_thread.thread:
            raise RuntimeError(
                "the blocking client cannot be used in a callback of its event loop: use the asynchronous client there"
            )


def _make_blocking(
    method: Callable[Concatenate[Inner, P], Awaitable[T]],
) -> Callable[Concatenate[_SyncProxy[Inner], P], T]:
    @functools.wraps(method)
    def call(proxy: _SyncProxy[Inner], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return proxy.run(method(proxy.inner, *args, **kwargs))

    return call


class Batch(_SyncProxy[asynchronous_batch.Batch]):
    """An atomic batch, the blocking form of `client.batch.Batch`: committed at the end of its context, abandoned on an
    exception.
    """

    publish = _make_blocking(asynchronous_batch.Batch.publish)
    add = _make_blocking(asynchronous_batch.Batch.add)
    commit = _make_blocking(asynchronous_batch.Batch.commit)
    abandon = _make_blocking(asynchronous_batch.Batch.abandon)

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


class Watcher(_SyncProxy[watch.Watcher]):
    """The blocking form of `client.watch.Watcher`: an iterator of entries, with None after the initial ones.

    It waits for the next entry as long as necessary.
    """

    updates = _make_blocking(watch.Watcher.updates)
    initial = _make_blocking(watch.Watcher.initial)
    stop = _make_blocking(watch.Watcher.stop)

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


class KeyValue(_SyncProxy[key_value.KeyValue]):
    """The blocking form of `client.key_value.KeyValue`: a bucket."""

    get = _make_blocking(key_value.KeyValue.get)
    put = _make_blocking(key_value.KeyValue.put)
    create = _make_blocking(key_value.KeyValue.create)
    update = _make_blocking(key_value.KeyValue.update)
    delete = _make_blocking(key_value.KeyValue.delete)
    purge = _make_blocking(key_value.KeyValue.purge)
    put_many = _make_blocking(key_value.KeyValue.put_many)
    update_many = _make_blocking(key_value.KeyValue.update_many)
    create_many = _make_blocking(key_value.KeyValue.create_many)
    history = _make_blocking(key_value.KeyValue.history)
    keys = _make_blocking(key_value.KeyValue.keys)
    purge_deletes = _make_blocking(key_value.KeyValue.purge_deletes)
    status = _make_blocking(key_value.KeyValue.status)

    @property
    def bucket(self) -> str:
        return self.inner.bucket

    def watch(self, keys: str | Sequence[str] = ">", **options: Any) -> Watcher:
        """Watch keys; options as for the asynchronous `watch`."""
        return Watcher(self.run(self.inner.watch(keys, **options)), self._timeout_s)


class Client(_SyncProxy[context.JetStream]):
    """The blocking form of `client.connection.Client`: a connection with its JetStream context.

    `js` and `nc` are the asynchronous ones, for `run`.
    """

    publish = _make_blocking(context.JetStream.publish)
    publish_batch = _make_blocking(context.JetStream.publish_batch)
    add_stream = _make_blocking(context.JetStream.add_stream)
    update_stream = _make_blocking(context.JetStream.update_stream)
    delete_stream = _make_blocking(context.JetStream.delete_stream)
    stream_info = _make_blocking(context.JetStream.stream_info)
    get_msg = _make_blocking(context.JetStream.get_msg)
    add_consumer = _make_blocking(context.JetStream.add_consumer)
    consumer_info = _make_blocking(context.JetStream.consumer_info)
    delete_consumer = _make_blocking(context.JetStream.delete_consumer)
    reset_consumer = _make_blocking(context.JetStream.reset_consumer)
    create_sourcing_consumer = _make_blocking(context.JetStream.create_sourcing_consumer)
    delete_kv = _make_blocking(context.JetStream.delete_key_value)
    kv_names = _make_blocking(context.JetStream.key_value_names)

    @property
    def js(self) -> context.JetStream:
        return self.inner

    @property
    def nc(self) -> nats.aio.client.Client:
        return self.inner.connection

    def batch(self, **options: Any) -> Batch:
        """Return an atomic batch: `with client.batch() as batch: batch.publish(...)`."""
        return Batch(self.inner.batch(**options), self._timeout_s)

    def kv(self, bucket: str) -> KeyValue:
        """Return an existing bucket."""
        return KeyValue(self.run(self.inner.key_value(bucket)), self._timeout_s)

    def create_kv(self, bucket: str, **options: Any) -> KeyValue:
        """Create a bucket; options are those of `BucketConfig`."""
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
        js = _process_loop.get_loop_thread().run(open_context(), connect_timeout)
    except NoAnswer as error:
        raise NoAnswer(f"not connected to {server_urls} within {connect_timeout:g} s") from error
    return Client(js, call_timeout)
