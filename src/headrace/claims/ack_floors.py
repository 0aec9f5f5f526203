"""Determines whether a message is still needed: ack floors of a stream's consumers, and floors of registered readers.

A consumer needs a message while its filter matches and it has neither acknowledged the message nor started after it; it
counts as having read a message only if it can have received it. Readers that never ack (Spark, replays) register a
floor under a lease. A set of floors is one reading of the server's state: it is made for a batch of decisions and then
discarded.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from headrace.claims.clock import parse_rfc3339_ns
from headrace.claims.jetstream_client import STREAM_NOT_FOUND, JetStreamClient, RequestTimeout
from headrace.claims.records import MalformedRecord, OnRejected, RejectedRecord, decode_lease, log_rejected
from headrace.claims.registry import NO_MARKER_HEADERS, STREAM
from headrace.claims.stream_messages import StreamMessage
from headrace.deprecation import renamed_parameter
from headrace.errors import RequestError

_ATTEMPTS = 5
_STREAMS_AT_ONCE = 16
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Floor:
    """How far one consumer has come."""

    name: str
    filters: tuple[str, ...]
    ack_floor: int
    #: Everything up to here was delivered, and none of it awaits an ack.
    delivered_floor: int
    #: The first sequence that it can have received; None if unknown.
    start_seq: int | None = None
    #: Earliest storage time of a message that it can have received.
    start_time_ns: int = 0
    #: Whether it acknowledges: if not, a delivery does not show that the payload was read.
    acks: bool = True

    def needs(self, subject: str, seq: int) -> bool:
        return seq > max(self.ack_floor, self.delivered_floor) and self.matches_filter(subject)

    def matches_filter(self, subject: str) -> bool:
        return not self.filters or any(matches(pattern, subject) for pattern in self.filters)

    def has_read(self, subject: str, seq: int, stored_ns: int) -> bool:
        """Return whether it received the message and no longer needs it; a consumer that began later has not read it."""
        could_have_read = (
            self.start_seq is not None and seq >= self.start_seq and stored_ns >= self.start_time_ns
        )
        is_matching = self.acks and self.matches_filter(subject)
        return could_have_read and is_matching and not self.needs(subject, seq)


class Floors:
    """Floors of streams, each read once."""

    def __init__(self, jetstream: JetStreamClient, on_rejected: OnRejected = log_rejected) -> None:
        self._jetstream = jetstream
        self._on_rejected = on_rejected
        self._by_stream: dict[str, list[Floor] | None] = {}
        #: First and last sequence of streams; None if messages between them are missing.
        self._stored: dict[str, tuple[int, int] | None] = {}
        #: Streams that could not be queried: one request each is enough.
        self._failed: dict[str, RequestTimeout | RequestError] = {}

    async def get(self, stream: str) -> list[Floor] | None:
        """Return the floors of a stream; None if the stream is gone."""
        if stream not in self._by_stream:
            self._by_stream[stream] = await self._query_once(stream, self._load(stream))
        return self._by_stream[stream]

    async def preload(self, streams: Iterable[str]) -> None:
        """Read the floors of streams, several at once, and which messages they have.

        Then decisions about many claims need no request each. Errors are raised when the floors are needed.
        """
        limit = asyncio.Semaphore(_STREAMS_AT_ONCE)

        async def load(stream: str) -> None:
            async with limit:
                with suppress(RequestTimeout, RequestError):
                    if await self.get(stream) is not None:
                        self._stored[stream] = await self._load_stored(stream)

        await asyncio.gather(*(load(stream) for stream in dict.fromkeys(streams)))

    async def find_blocking_consumer(self, stream: str, subject: str, seq: int, excluding: str = "") -> str:
        """Return the name of a consumer or reader that still needs the message.

        Returns "" if there is none or the message is gone. `excluding` is a consumer whose ack of this very message was
        confirmed, although its floor may lag.
        """
        blocker = await self.find_unread(stream, subject, seq, excluding)
        return "" if blocker and await self.is_gone(stream, seq) else blocker

    async def find_unread(self, stream: str, subject: str, seq: int, excluding: str = "") -> str:
        """Return the name of a consumer or reader that has not read the message, whether or not it is still stored."""
        floors = await self.get(stream) or ()
        return next((item.name for item in floors if item.name != excluding and item.needs(subject, seq)), "")

    async def is_fully_read(self, stream: str, subject: str, seq: int, stored_ns: int) -> bool:
        """Return whether a message, stored at `stored_ns` or later, was read and is no longer needed, or is gone."""
        floors = await self.get(stream) or ()
        is_needed = any(item.needs(subject, seq) for item in floors)
        if not is_needed and any(item.has_read(subject, seq, stored_ns) for item in floors):
            return True
        return await self.is_gone(stream, seq)

    async def is_gone(self, stream: str, seq: int) -> bool:
        """Return whether a message has left its stream."""
        stored = self._stored.get(stream)
        if stored is not None and seq <= stored[1]:
            return seq < stored[0]
        return await self._query_once(stream, self._jetstream.get_message(stream, seq)) is None

    async def _query_once(self, stream: str, asking: Coroutine[Any, Any, _T]) -> _T:
        """Query a stream; a failed query is not repeated, since each attempt may take seconds."""
        if stream in self._failed:
            asking.close()
            raise self._failed[stream]
        try:
            return await asking
        except (RequestTimeout, RequestError) as error:
            self._failed[stream] = error
            raise

    async def _load_stored(self, stream: str) -> tuple[int, int] | None:
        """Return the sequences between which a stream has every message; None if some are missing, or if that is unknown.

        A program that may not ask is not answered: it asks once, and then for each message, which it may.
        """
        if stream in self._jetstream.streams_without_info:
            return None
        try:
            state = (await self._jetstream.api_request(f"STREAM.INFO.{stream}"))["state"]
        except RequestTimeout:
            self._jetstream.streams_without_info.add(stream)
            return None
        return None if state.get("num_deleted") else (state["first_seq"], state["last_seq"])

    async def _load(self, stream: str) -> list[Floor] | None:
        consumers, leases = await asyncio.gather(
            self._list_consumer_floors(stream), list_reader_leases(self._jetstream, stream, self._on_rejected)
        )
        return None if consumers is None else consumers + leases

    async def _list_consumer_floors(self, stream: str) -> list[Floor] | None:
        try:
            for _ in range(_ATTEMPTS):
                floors = await self._list_all_pages(stream)
                if floors is not None:
                    return floors
        except RequestError as error:
            if error.err_code == STREAM_NOT_FOUND:
                return None
            raise
        raise RequestTimeout(f"the consumers of {stream!r} changed while they were listed")

    async def _list_all_pages(self, stream: str) -> list[Floor] | None:
        """Return all pages of the consumer list, which is ordered by name; None if it changed between two pages.

        Each page but the first begins with the last name of the previous one: if not, a consumer was added or deleted
        meanwhile, and others may have been skipped.
        """
        floors: dict[str, Floor] = {}
        total = 1
        while len(floors) < total:
            page = await self._jetstream.api_request(
                f"CONSUMER.LIST.{stream}", {"offset": max(len(floors) - 1, 0)}
            )
            found, total = _parse_page(page), page.get("total", 0)
            is_contiguous = not floors or max(floors) == min(found, default="")
            merged = {**floors, **found}
            if not is_contiguous or len(floors) == len(merged) < total:
                return None
            floors = merged
        return list(floors.values())


def _parse_page(page: dict[str, Any]) -> dict[str, Floor]:
    """Return the floors of a page, by name; consumers that did not answer, or are offline, may need everything."""
    unresponsive = [*(page.get("missing") or ()), *(page.get("offline") or ())]
    found = [parse_floor(info) for info in page.get("consumers") or ()]
    return {floor.name: floor for floor in (*found, *(Floor(name, (), 0, 0) for name in unresponsive))}


def parse_floor(info: dict[str, Any]) -> Floor:
    config = info["config"]
    filters = config.get("filter_subjects") or [config.get("filter_subject") or ""]
    delivered = info["delivered"]["stream_seq"]
    return Floor(
        info["name"],
        tuple(pattern for pattern in filters if pattern),
        info["ack_floor"]["stream_seq"],
        delivered if not info.get("num_ack_pending") else 0,
        config.get("opt_start_seq", 0),
        _get_start_time_ns(info),
        config.get("ack_policy") != "none",
    )


def _get_start_time_ns(info: dict[str, Any]) -> int:
    """Return the storage time from which a consumer can have received messages; its creation if it began with new ones."""
    config = info["config"]
    if config.get("deliver_policy", "all") in ("all", "by_start_sequence"):
        return 0
    return parse_rfc3339_ns(config.get("opt_start_time") or info["created"])


@renamed_parameter("wire", "jetstream")
async def register_reader(
    jetstream: JetStreamClient,
    stream: str,
    reader: str,
    acked: int,
    lease_s: int = 3600,
    *,
    start: int | None = None,
    filters: Sequence[str] = (),
) -> None:
    """Protect what a reader that does not ack still has to read: everything above `acked`, while the lease lasts.

    Messages from `start` to `acked` count as read, once nobody else needs them; without `start` none do. With `filters`
    it reads these subjects only.
    """
    lease_body: dict[str, object] = {"acked": acked}
    if start is not None:
        lease_body["start"] = start
    if filters:
        lease_body["filters"] = list(filters)
    body = json.dumps(lease_body).encode()
    await jetstream.publish(
        f"$CLAIMS.reader.{stream}.{reader}", body, {**NO_MARKER_HEADERS, "Nats-TTL": f"{lease_s}s"}
    )


async def list_reader_leases(
    jetstream: JetStreamClient, stream: str, on_rejected: OnRejected = log_rejected
) -> list[Floor]:
    """Return the leases of a stream; markers of expired leases are ignored.

    None is missing. A lease that has just been removed may be in the list, which only keeps claims a little longer.
    """
    leases = await jetstream.get_all(STREAM, f"$CLAIMS.reader.{stream}.*")
    return [await _parse_lease(item, on_rejected) for item in leases if item.data]


async def _parse_lease(item: StreamMessage, on_rejected: OnRejected) -> Floor:
    """Return the floor of a lease. A reader whose lease is unreadable may need everything, and has read nothing."""
    name = f"reader {item.subject.rpartition('.')[2]}"
    try:
        lease = decode_lease(item.subject, item.data)
    except MalformedRecord as error:
        await on_rejected(RejectedRecord("lease", item.subject, item.seq, str(error)))
        return Floor(name, (), 0, 0)
    return Floor(name, lease.filters, lease.acked, 0, lease.start)


def matches(pattern: str, subject: str) -> bool:
    """Return whether a filter matches a subject."""
    return _matches(pattern.split("."), subject.split("."))


def _matches(pattern: Sequence[str], subject: Sequence[str]) -> bool:
    for index, token in enumerate(pattern):
        if token == ">":
            return index < len(subject)
        if index >= len(subject) or token not in ("*", subject[index]):
            return False
    return len(pattern) == len(subject)
