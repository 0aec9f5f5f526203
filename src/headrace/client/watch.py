"""Watches keys: yields the matching entries, None once when all initial ones were delivered, then every change.

nats-py's ordered consumer delivers; this module turns its messages into entries. Invariants: None comes exactly once,
even if the last initial entry is suppressed or vanishes; no revision comes twice or out of order.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

import nats.errors
from nats.aio.client import Client as NATS
from nats.aio.msg import Msg
from nats.js import api
from nats.js.kv import KeyValue as NatsKeyValue
from nats.js.kv import StopIterSentinel

from headrace.client.codecs import Codec
from headrace.client.durations import SECOND_NS, Duration, parse_optional_ns
from headrace.client.errors import NoAnswer, translate_nats_errors
from headrace.client.kv_entry import DecodedEntry, Entry, Operation, check_pattern, parse_operation

_INACTIVE_THRESHOLD_S = 300.0
_INIT_CHECK_S = 1.0


class WatchApi(Protocol):
    """The part of a JetStream context that watching needs."""

    @property
    def connection(self) -> NATS: ...

    @property
    def subscribe(self) -> Callable[..., Awaitable[Any]]: ...

    async def delete_consumer(self, stream: str, consumer: str, /) -> bool: ...


@dataclass(frozen=True, kw_only=True)
class WatchOptions:
    """What a watcher wants to see.

    - `include_history`: every stored revision, not only the last of each key;
    - `ignore_deletes`: only values: no deletes, purges or expiries;
    - `meta_only`: entries without their values;
    - `updates_only`: only what changes from now on; None comes at once;
    - `resume_from`: everything from this revision on.
    """

    keys: tuple[str, ...] = (">",)
    include_history: bool = False
    ignore_deletes: bool = False
    meta_only: bool = False
    updates_only: bool = False
    resume_from: int | None = None
    inactive_threshold: Duration | None = None

    def __post_init__(self) -> None:
        starts = {
            "include_history": self.include_history,
            "updates_only": self.updates_only,
            "resume_from": self.resume_from is not None,
        }
        chosen = [name for name, given in starts.items() if given]
        if len(chosen) > 1:
            raise ValueError(f"give only one of {' and '.join(chosen)}: each sets where to start")

    def make_consumer_config(self, prefix: str) -> api.ConsumerConfig:
        """Return the configuration of the consumer that delivers the entries."""
        subjects = [prefix + check_pattern(key) for key in self.keys]
        idle_ns = parse_optional_ns(self.inactive_threshold, "inactive_threshold")
        return api.ConsumerConfig(
            deliver_policy=self._get_deliver_policy(),
            opt_start_seq=self.resume_from,
            headers_only=self.meta_only or None,
            filter_subjects=subjects if len(subjects) > 1 else None,
            inactive_threshold=idle_ns / SECOND_NS if idle_ns else _INACTIVE_THRESHOLD_S,
        )

    def _get_deliver_policy(self) -> api.DeliverPolicy:
        if self.resume_from is not None:
            return api.DeliverPolicy.BY_START_SEQUENCE
        if self.updates_only:
            return api.DeliverPolicy.NEW
        return api.DeliverPolicy.ALL if self.include_history else api.DeliverPolicy.LAST_PER_SUBJECT


class Watcher(NatsKeyValue.KeyWatcher):
    """An asynchronous iterator of entries; stop it with `stop()` or by leaving its context.

    ::

        async with await kv.watch("orders.*") as watcher:
            async for entry in watcher:
                if entry is None:
                    print("all that was there has come")
                else:
                    print(entry.operation, entry.key, entry.value)
    """

    def __init__(
        self,
        js: WatchApi,
        bucket: str,
        stream: str,
        prefix: str,
        options: WatchOptions,
        codec: Codec | None = None,
    ) -> None:
        super().__init__(js)  # type: ignore[no-untyped-call]
        self._sub: Any = None
        self._jetstream = js
        self._bucket = bucket
        self._stream = stream
        self._prefix = prefix
        self._options = options
        self._codec = None if options.meta_only else codec
        self._ready = asyncio.Event()
        self._last_seq = 0
        self._received_count = 0
        self._consumer = ""
        self._stopped = False
        self._init_watchdog: asyncio.Task[None] | None = None

    async def start(self) -> Self:
        config = self._options.make_consumer_config(self._prefix)
        with translate_nats_errors(f"watching {self._bucket!r}"):
            self._sub = await self._jetstream.subscribe(
                self._prefix + check_pattern(self._options.keys[0]),
                stream=self._stream,
                cb=self._on_message,
                config=config,
                ordered_consumer=True,
            )
            try:
                await self._start_init()
            except BaseException:
                await self.stop()
                raise
        return self

    async def _start_init(self) -> None:
        info = await self._sub.consumer_info()
        self._consumer = info.name
        if self._options.updates_only:
            if info.delivered.consumer_seq == 0:
                # After a reset, nats-py's ordered consumer would start with earlier messages.
                self._last_seq = info.delivered.stream_seq
            await self._finish_init()
        elif info.num_pending == 0 and info.delivered.consumer_seq == 0:
            await self._finish_init()
        else:
            self._init_watchdog = asyncio.create_task(self._watch_init())
        self._ready.set()

    async def _watch_init(self) -> None:
        """Detect the end of the initial entries if the last ones expired before delivery: no message signals it then."""
        while not self._init_done:
            received_count = self._received_count
            await asyncio.sleep(_INIT_CHECK_S)
            if self._init_done or received_count != self._received_count:
                continue
            with contextlib.suppress(nats.errors.Error):
                info = await self._sub.consumer_info()
                if info.num_pending == 0 and info.delivered.stream_seq <= self._last_seq:
                    await self._finish_init()

    async def _on_message(self, message: Msg) -> None:
        await self._ready.wait()
        meta = message.metadata
        self._received_count += 1
        self._consumer = meta.consumer
        if meta.sequence.stream > self._last_seq:
            self._last_seq = meta.sequence.stream
            if entry := self._make_entry(message):
                await self._updates.put(entry)
        if meta.num_pending == 0:
            await self._finish_init()

    def _make_entry(self, message: Msg) -> Entry | None:
        """Return the entry of a message; None if the options exclude it."""
        operation = parse_operation(message.headers)
        if operation is None or (self._options.ignore_deletes and operation is not Operation.PUT):
            return None
        meta = message.metadata
        entry = Entry(
            bucket=self._bucket,
            key=message.subject.removeprefix(self._prefix),
            value=message.data,
            revision=meta.sequence.stream,
            delta=meta.num_pending,
            created=meta.timestamp,
            operation=operation,
        )
        return entry if self._codec is None else DecodedEntry(entry, self._codec)

    async def _finish_init(self) -> None:
        if not self._init_done:
            self._init_done = True
            await self._updates.put(None)

    async def updates(self, timeout: float = 5.0) -> Entry | None:
        """Return the next entry, or None after the initial ones; raise `NoAnswer` if nothing arrives in time."""
        try:
            update = await asyncio.wait_for(self._updates.get(), timeout)
        except TimeoutError as error:
            raise NoAnswer(f"no update within {timeout:g} s") from error
        if isinstance(update, StopIterSentinel):
            raise NoAnswer("the watcher was stopped")
        return update  # type: ignore[return-value]

    async def initial(self) -> list[Entry]:
        """Return the entries before the None."""
        entries: list[Entry] = []
        async for entry in self:
            if entry is None:
                break
            entries.append(entry)
        return entries

    async def stop(self) -> None:
        """Stop watching; iterators end."""
        if self._stopped:
            return
        self._stopped = True
        if self._init_watchdog:
            self._init_watchdog.cancel()
        with contextlib.suppress(nats.errors.Error):
            await self._sub.unsubscribe()
        while self._updates.full():
            self._updates.get_nowait()
        self._updates.put_nowait(self.STOP_ITER)
        if self._consumer and self._jetstream.connection.is_connected:
            with contextlib.suppress(nats.errors.Error):
                await self._jetstream.delete_consumer(self._stream, self._consumer)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Entry | None:
        update = await self._updates.get()
        if isinstance(update, StopIterSentinel):
            raise StopAsyncIteration
        return update  # type: ignore[return-value]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


def check_patterns(keys: str | Sequence[str]) -> tuple[str, ...]:
    """Check one filter or several."""
    key_list = (keys,) if isinstance(keys, str) else tuple(keys)
    return tuple(check_pattern(key) for key in key_list) or (">",)
