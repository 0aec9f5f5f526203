"""A publisher of a stream and its workers, in one thread, and the check that everything is there.

Workers follow the stream, and so does the publisher unless it stays: then the leafnode connection carries its messages while
the stream is at the cluster. Invariant: a payload is given to the server once, and again only if it was certainly stored
nowhere ("no responders"), so a stream that has it twice is an error.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Any

import nats.errors

from headrace.client import FailedMessage, connect
from headrace.client.errors import NoStream
from headrace.errors import HeadraceError
from moves.deliveries import Delivery, DeliveryLog

CONNECT: dict[str, Any] = {"max_reconnect_attempts": -1, "reconnect_time_wait": 0.1, "connect_timeout": 5}
TEMPORARY = (nats.errors.Error, HeadraceError, OSError, TimeoutError)
WORKER = "worker"
_PUBLISH_TIMEOUT_S = 2.0
_REFUSED_PAUSE_S = 0.01
_DRAIN_S = 60.0
_FETCH = 50
#: Share of acks that a worker leaves out: these messages are delivered again.
_UNACKED = 0.02


class PublishMode(StrEnum):
    """How messages are published: `js.publish`, or `js.publisher` without or with fast ingest."""

    EACH = "publish"
    MANY = "publisher"
    FAST = "fast ingest"


class StreamLoad:
    """The load of one stream. `acked` has the sequences of acknowledged payloads, where the client knows them."""

    def __init__(
        self,
        stream: str,
        subject: str,
        url: str,
        *,
        mode: PublishMode = PublishMode.EACH,
        consumers: Sequence[str] = (WORKER,),
        pause_s: float = 0.005,
        stays: bool = True,
    ) -> None:
        self.stream, self.subject, self.mode = stream, subject, mode
        self.acked: dict[str, int] = {}
        #: Payloads that were given up, with the error: they may be stored.
        self.errors: dict[str, str] = {}
        #: How many of them are stored, as of the last check.
        self.given_up_stored = 0
        self.longest_wait_s = 0.0
        self.deliveries = {consumer: DeliveryLog() for consumer in consumers}
        self._pause_s, self._stays = pause_s, stays
        self._place, self._moves = url, 0
        #: The numbers of the next payload and of the publisher's first one, and when there was an ack last.
        self._next, self._first, self._last_ack_s = 1, 1, 0.0
        self._publisher: Any = None
        self._ends = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ends.set()
        self._thread.join()

    def follow(self, place: str) -> None:
        """Let the workers continue at the place to which the stream moved."""
        self._place, self._moves = place, self._moves + 1

    def list_stored(self) -> list[str]:
        """Return payloads that the server has acknowledged; of a publisher those before the first that is pending."""
        if self.mode is PublishMode.EACH:
            return list(self.acked)
        first_pending = self._first + self._publisher._window.first - 1 if self._publisher is not None else 1
        payloads = [self._make_payload(number) for number in range(1, first_pending)]
        return [payload for payload in payloads if payload not in self.errors]

    async def _run(self) -> None:
        workers = (self._work(consumer) for consumer in self.deliveries)
        await asyncio.gather(self._publish(), *workers)

    # Publishing

    def _make_payload(self, number: int) -> str:
        return f"{self.stream}-{number}"

    async def _publish(self) -> None:
        self._last_ack_s = time.monotonic()
        while not self._ends.is_set():
            place = self._place
            async with await connect(place.split(","), **CONNECT) as connection:
                js = connection.jetstream()
                if self.mode is PublishMode.EACH:
                    await self._publish_each(js, place)
                else:
                    await self._publish_many(js, place)

    def _is_here(self, place: str) -> bool:
        return not self._ends.is_set() and (self._stays or place == self._place)

    async def _publish_each(self, js: Any, place: str) -> None:
        while self._is_here(place):
            payload = self._make_payload(self._next)
            try:
                ack = await js.publish(self.subject, payload.encode(), timeout=_PUBLISH_TIMEOUT_S)
            except NoStream:
                await asyncio.sleep(_REFUSED_PAUSE_S)
                continue
            except TEMPORARY as error:
                # It may be stored: the next one is another message.
                self.errors[payload] = repr(error)
                self._next += 1
                await asyncio.sleep(_REFUSED_PAUSE_S)
                continue
            self.acked[payload] = ack.seq
            self._next += 1
            self._on_ack()
            await asyncio.sleep(self._pause_s)

    async def _publish_many(self, js: Any, place: str) -> None:
        async with js.publisher(self.stream, on_error=self._on_error) as publisher:
            self._publisher, self._first, stored = publisher, self._next, 0
            while self._is_here(place):
                await publisher.publish(self.subject, self._make_payload(self._next).encode())
                self._next += 1
                if publisher.stored > stored:
                    stored = publisher.stored
                    self._on_ack()
                await asyncio.sleep(self._pause_s)

    def _on_ack(self) -> None:
        now_s = time.monotonic()
        self.longest_wait_s = max(self.longest_wait_s, now_s - self._last_ack_s)
        self._last_ack_s = now_s

    def _on_error(self, failure: FailedMessage) -> None:
        self.errors[bytes(failure.message.payload).decode()] = repr(failure.error)

    # Working

    async def _work(self, consumer: str) -> None:
        place, moves = self._place, self._moves
        connection = await connect(place.split(","), **CONNECT)
        while not self._ends.is_set():
            try:
                if place != self._place:
                    await connection.close()
                    place, moves = self._place, self._moves
                    connection = await connect(place.split(","), **CONNECT)
                await self._fetch(connection.jetstream(), consumer, moves)
            except TEMPORARY:
                await asyncio.sleep(0.05)
        await connection.close()

    async def _fetch(self, js: Any, consumer: str, moves: int) -> None:
        worker = await js.pull_subscribe_bind(consumer, stream=self.stream)
        for message in await worker.fetch(_FETCH, timeout=0.5):
            data = message.metadata
            delivery = Delivery(data.sequence.stream, data.num_delivered, moves)
            self.deliveries[consumer].add(message.data.decode(), delivery)
            if random.random() > _UNACKED:
                await message.ack()
        await worker.unsubscribe()

    # Checking

    async def find_problems(self, js: Any) -> list[str]:
        """Wait until the workers have everything that is stored; return what is missing, repeated or out of order."""
        stored = self.list_stored()
        last_seq = (await js.stream_info(self.stream)).state.last_seq
        found = await read_all(js, self.stream, self.subject, last_seq)
        self.given_up_stored = len(set(self.errors) & set(found.values()))
        return find_stream_problems(self, stored, found) + await self.find_undelivered(stored)

    async def find_undelivered(self, stored: Sequence[str] | None = None) -> list[str]:
        """Wait until the workers have everything that is stored; return what they never got."""
        problems = []
        for consumer in self.deliveries:
            if missing := await self._await_received(consumer, stored or self.list_stored()):
                problems.append(
                    f"{self.stream}: {len(missing)} messages never reached {consumer}, for example {missing[0]}"
                )
        return problems

    async def _await_received(self, consumer: str, stored: Sequence[str]) -> list[str]:
        deadline_s = time.monotonic() + _DRAIN_S
        received = self.deliveries[consumer]
        while missing := [payload for payload in stored if payload not in received]:
            if time.monotonic() > deadline_s:
                return missing
            await asyncio.sleep(0.1)
        return []


def find_stream_problems(load: StreamLoad, stored: Sequence[str], found: dict[int, str]) -> list[str]:
    """Compare what is stored with what a stream has by sequence: everything once, in the order of publishing."""
    problems = []
    payloads = [found[seq] for seq in sorted(found)]
    if missing := set(stored) - set(payloads):
        problems.append(f"{len(missing)} acknowledged messages are missing, for example {min(missing)}")
    acked = {text: seq for text in stored if (seq := load.acked.get(text))}
    if wrong := [text for text, seq in acked.items() if found.get(seq) != text]:
        problems.append(f"{len(wrong)} messages have another sequence, for example {wrong[0]}")
    if len(set(payloads)) < len(payloads):
        problems.append(f"{len(payloads) - len(set(payloads))} messages are stored twice")
    numbers = [int(payload.rpartition("-")[2]) for payload in payloads]
    if numbers != sorted(numbers):
        problems.append("messages are not in the order of publishing")
    return [f"{load.stream} ({load.mode}): {problem}" for problem in problems]


async def read_all(js: Any, stream: str, subject: str, last_seq: int) -> dict[int, str]:
    """Return the payloads of a subject by sequence, up to a sequence of the stream."""
    deadline_s = time.monotonic() + _DRAIN_S
    while True:
        found: dict[int, str] = {}
        with suppress(*TEMPORARY):
            info = await js.stream_info(stream, subjects_filter=subject)
            reader = await js.pull_subscribe(subject, stream=stream)
            remaining = (await reader.consumer_info()).num_pending
            if remaining < (info.state.subjects or {}).get(subject, 0):
                # The consumer counts what one replica has, which may lack what the stream's leader has.
                raise TimeoutError
            while remaining > 0:
                for message in await reader.fetch(min(500, remaining), timeout=5):
                    remaining -= 1
                    await message.ack()
                    if (seq := message.metadata.sequence.stream) <= last_seq:
                        found[seq] = message.data.decode()
            await reader.unsubscribe()
            return found
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{stream} could not be read")
        await asyncio.sleep(0.1)
