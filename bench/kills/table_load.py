"""Publishes numbered messages to a stream without a pause, and knows which of them the broker acknowledged."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Sequence

from headrace.client import connect

_PAUSE_S = 0.3
_BATCH_MAX = 15
_TIMEOUT_S = 5.0
#: Sizes of payloads; with those of queues, a few seconds of messages need several commits of the smallest size.
SIZES, QUEUE_SIZES = (0, 100, 5000), (100, 5000, 200_000)


class TableLoad:
    """A publisher on a thread."""

    def __init__(self, url: str, stream: str, seed: int, sizes: Sequence[int] = SIZES) -> None:
        self._url, self._stream = url, stream
        self._chance = random.Random(seed)
        self._sizes = sizes
        self._number = 0
        #: Numbers of the messages by sequence.
        self.acknowledged: dict[int, int] = {}
        self._stop = threading.Event()
        self._run = threading.Event()
        self._idle = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def start(self) -> None:
        self._run.set()
        self._thread.start()

    def pause(self) -> None:
        """Stop publishing, if it was not stopped before; return when nothing is on its way."""
        if self._run.is_set():
            self._idle.clear()
            self._run.clear()
        self._idle.wait()

    def resume(self) -> None:
        self._run.set()

    def close(self) -> None:
        self._stop.set()
        self._run.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._stop.is_set():
            if not self._run.is_set():
                self._idle.set()
                self._run.wait()
                continue
            with contextlib.suppress(Exception):
                asyncio.run(self._publish())
            self._stop.wait(_PAUSE_S)

    async def _publish(self) -> None:
        async with await connect(self._url) as connection:
            js = connection.jetstream(timeout=_TIMEOUT_S)
            while self._run.is_set() and not self._stop.is_set():
                for _ in range(self._chance.randint(1, _BATCH_MAX)):
                    self._number += 1
                    size = self._chance.choice(self._sizes)
                    reply = await js.publish("ledger", b"%d %s" % (self._number, b"x" * size))
                    self.acknowledged[reply.seq] = self._number
                await asyncio.sleep(_PAUSE_S)
