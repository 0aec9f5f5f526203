"""The publisher without `await`: collects messages of the calling threads and passes them on together.

Passing each message to the event loop's thread would take longer than publishing it. Invariants: messages are passed on
in the order of the calls, at once if the loop is idle, and a caller waits while too many are on their way.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self, Unpack

from headrace.client import publisher
from headrace.client.outgoing_message import Message, MessageOptions
from headrace.client.publish_record import Record
from headrace.client.sync_proxy import SyncProxy

#: Maximum number of messages that are collected before the caller waits until they have been passed on.
_COLLECTED_MAX = 256


class Publisher(SyncProxy[publisher.Publisher]):
    """The blocking form of `client.publisher.Publisher`: many messages, in order, as a context. Threads may share it."""

    def __init__(self, inner: publisher.Publisher, timeout_s: float) -> None:
        super().__init__(inner, timeout_s)
        self._lock = threading.Lock()
        self._collected: list[Record] = []
        self._collected_bytes = 0

    @property
    def uses_fast_ingest(self) -> bool:
        return self.inner.uses_fast_ingest

    @property
    def pending(self) -> int:
        """How many messages were accepted and are neither stored nor failed."""
        return self.inner.pending + len(self._collected)

    @property
    def stored(self) -> int:
        return self.inner.stored

    @property
    def failed(self) -> int:
        return self.inner.failed

    def publish(
        self,
        subject: str,
        payload: Any = b"",
        headers: Mapping[str, Any] | None = None,
        **options: Unpack[MessageOptions],
    ) -> None:
        """Accept a message; wait while too many are on their way. Options and errors as for the asynchronous form."""
        self._add(self.inner.make_record(subject, payload, headers, **options))

    def publish_many(self, messages: Iterable[Message | tuple[Any, ...]]) -> None:
        """Accept messages; tuples are (subject, payload) or (subject, payload, headers)."""
        for message in messages:
            self._add(self.inner.to_record(message))

    def flush(self) -> None:
        """Wait until every message that was accepted is stored or has failed."""
        self._wait(self._flush(), None)

    def _add(self, record: Record) -> None:
        self._check_caller()
        if self.inner.needs_wait(record):
            self._wait(self._add_and_wait(record), None)
            return
        if self._must_wait():  # raises before the message is accepted
            self._wait(self._wait_for_room(), None)
        with self._lock:
            self._collected.append(record)
            self._collected_bytes += record.size
            count = len(self._collected)
        if count == 1:
            self._loop_thread.loop.call_soon_threadsafe(self._pass_on)

    def _must_wait(self) -> bool:
        inner, count = self.inner, len(self._collected)
        return (
            count >= _COLLECTED_MAX
            or not inner.is_open
            or inner.has_failures
            or inner.is_full_with(count, self._collected_bytes)
        )

    def _pass_on(self) -> None:
        """Pass on the collected messages, on the thread of the event loop."""
        with self._lock:
            records, self._collected, self._collected_bytes = self._collected, [], 0
        for record in records:
            self.inner.add_nowait(record)

    async def _add_and_wait(self, record: Record) -> None:
        self._pass_on()
        await self.inner.add(record)

    async def _wait_for_room(self) -> None:
        self._pass_on()
        await self.inner.wait_for_room()

    async def _flush(self) -> None:
        self._pass_on()
        await self.inner.flush()

    def __enter__(self) -> Self:
        self.run(self.inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wait(self._close(kind, error, trace), None)

    async def _close(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pass_on()
        await self.inner.__aexit__(kind, error, trace)
