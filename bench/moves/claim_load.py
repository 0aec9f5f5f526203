"""A claim namespace under load: claims are published before, during and after moves, and all must resolve.

A viewer reads and releases each claim as it comes; an archive reads all of them at the end, so no claim may be deleted
before. The program connects to the place of the streams, as the documentation says; while they are closed it gets errors
and publishes the claim again.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from pathlib import Path
from typing import Any

from headrace.claims import ClaimConfig, Claims, Received
from headrace.client import connect
from moves.load import CONNECT, TEMPORARY

STREAM, NAMESPACE = "MEDIA", "media"
#: What a claim namespace consists of, besides its objects.
STREAMS = (STREAM, "CLAIMS", "CLAIMS_AUDIT")
VIEWER, ARCHIVE = "viewer", "archive"
_SIZE, _THRESHOLD = 64 * 1024, 4096
_PAUSE_S = 0.1
_TIMEOUT_S = 3.0
_DRAIN_S = 60.0


def make_payload(name: str) -> bytes:
    """Return a payload that can be checked by its name."""
    return name.encode() + b":" + hashlib.sha256(name.encode()).digest() * (_SIZE // 32)


class ClaimLoad:
    """A publisher and a viewer of claims, in one thread; `published` has the names of all claims that were stored."""

    def __init__(self, url: str, folder: Path) -> None:
        self.published: list[str] = []
        self.resolved: set[str] = set()
        self.problems: list[str] = []
        self.longest_wait_s = 0.0
        self._config = ClaimConfig(
            NAMESPACE, threshold=_THRESHOLD, store={"path": str(folder)}, dead_letter=f"{NAMESPACE}.dead"
        )
        self._place = url
        self._ends = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def start(self) -> None:
        asyncio.run(self._set_up())
        self._thread.start()

    def stop(self) -> None:
        self._ends.set()
        self._thread.join()

    def follow(self, place: str) -> None:
        self._place = place

    async def _set_up(self) -> None:
        async with await connect(self._place) as connection:
            js = connection.jetstream()
            await js.add_stream(name=STREAM, subjects=[f"{NAMESPACE}.>"], allow_msg_ttl=True)
            for consumer in (VIEWER, ARCHIVE):
                await js.add_consumer(STREAM, durable_name=consumer, filter_subject=f"{NAMESPACE}.take")

    async def _run(self) -> None:
        while not self._ends.is_set():
            place = self._place
            try:
                async with (
                    await connect(place.split(","), **CONNECT) as connection,
                    await self._open(connection) as claims,
                ):
                    await asyncio.gather(self._publish(claims, place), self._view(claims, place))
            except TEMPORARY:
                await asyncio.sleep(0.05)

    async def _open(self, connection: Any) -> Claims:
        return await Claims.open(connection, self._config, timeout_s=_TIMEOUT_S)

    def _stays(self, place: str) -> bool:
        return place == self._place and not self._ends.is_set()

    async def _publish(self, claims: Claims, place: str) -> None:
        last_s = time.monotonic()
        while self._stays(place):
            name = f"take-{len(self.published) + 1}"
            try:
                await claims.producer.publish(f"{NAMESPACE}.take", make_payload(name))
            except TEMPORARY:
                await asyncio.sleep(0.05)
                continue
            self.published.append(name)
            self.longest_wait_s = max(self.longest_wait_s, time.monotonic() - last_s)
            last_s = time.monotonic()
            await asyncio.sleep(_PAUSE_S)

    async def _view(self, claims: Claims, place: str) -> None:
        worker = await claims.jetstream.connection.jetstream().pull_subscribe_bind(VIEWER, stream=STREAM)
        while self._stays(place):
            try:
                for message in await worker.fetch(10, timeout=0.5):
                    await claims.consumer.handle(message, self._check)
            except TEMPORARY:
                await asyncio.sleep(0.05)

    async def _check(self, received: Received) -> None:
        data = bytes(received.data)
        name = data.partition(b":")[0].decode(errors="replace")
        if data != make_payload(name):
            self.problems.append(f"a claim has another payload: {name!r}")
        self.resolved.add(name)

    async def find_problems(self) -> list[str]:
        """Wait until the viewer has every claim; return those that it never got."""
        published, deadline_s = list(self.published), time.monotonic() + _DRAIN_S
        while (missing := [name for name in published if name not in self.resolved]) and (
            time.monotonic() < deadline_s
        ):
            await asyncio.sleep(0.1)
        lost = [f"{len(missing)} claims were never resolved, for example {missing[0]}"] if missing else []
        return lost + self.problems

    async def find_deleted(self) -> list[str]:
        """Run a collector and read every claim as the archive; return what does not resolve."""
        self.resolved.clear()
        async with await connect(self._place.split(","), **CONNECT) as connection:
            js = connection.jetstream()
            async with await self._open(connection) as claims:
                await claims.collector.collect()
                archive = await js.pull_subscribe_bind(ARCHIVE, stream=STREAM)
                remaining = (await js.consumer_info(STREAM, ARCHIVE)).num_pending
                while remaining > 0:
                    for message in await archive.fetch(min(10, remaining), timeout=5):
                        remaining -= 1
                        await claims.consumer.handle(message, self._check)
            dead = await js.stream_info(STREAM, subjects_filter=f"{NAMESPACE}.dead")
        if dead.state.subjects:
            self.problems.append(f"claims went to the dead letters: {dead.state.subjects}")
        return await self.find_problems()
