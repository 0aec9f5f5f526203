"""Soak test: all features at once, for hours, at half of the peak rate.

Memory and file descriptors must not grow, and nothing may be lost.

    python bench/soak.py [--minutes 120] [--figures out/soak.json]

A work queue is published, consumed and acknowledged at half of the rate that was reached in the first seconds; at the
same time there are messages with a TTL, atomic batches with a mirror of their stream, a bucket and claims. At the end
everything that was acknowledged is checked. Memory, descriptors and the size on disk are sampled during the run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from soak_wire import Wire  # noqa: E402

from headrace.claims import ClaimConfig, Claims  # noqa: E402
from headrace.client import connect  # noqa: E402
from support.loop_stalls import find_stalls  # noqa: E402
from support.processes import serving  # noqa: E402

PEAK_S = 10.0
TTL_S = 5
SAMPLE_S = 2.0
PAYLOAD = b"x" * 112
STEP_S = 0.02
#: Timeout of a request; generous, because the disk may be shared.
TIMEOUT_S = 60.0
#: The publisher waits when the reader is this many messages behind.
BACKLOG_MAX = 10_000
CHUNK = 500
PULL = 2_000
FRAME = b"PUB work answers.%d %d\r\n%010d %b\r\n"


class Soak:
    """One run: the workers, their counters, and what they found to be lost."""

    def __init__(self, url: str, pid: int, folder: Path) -> None:
        self.url, self.pid, self.folder = url, pid, folder
        self.going = True
        self.rate = self.peak = 0.0
        self.done: dict[str, int] = dict.fromkeys(
            ("published", "acknowledged", "consumed", "ttl", "batches", "kv", "claims"), 0
        )
        self.lost: list[str] = []
        self.waits: list[float] = []
        self.samples: list[tuple[float, int, int, int]] = []
        self._numbers: set[int] = set()  # acknowledged, not yet consumed
        self._early: set[int] = set()  # consumed, not yet acknowledged

    async def run(self, minutes: float) -> None:
        self.begun = time.monotonic()
        await self._set_up()
        workers = (self._work, self._consume, self._ttl, self._batches, self._kv, self._claims, self._sample)
        tasks = [asyncio.ensure_future(worker()) for worker in workers]
        try:
            done, _ = await asyncio.wait(tasks, timeout=minutes * 60, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
            self.going = False
            await asyncio.wait(tasks, timeout=120)
            for worker, task in zip(workers, tasks, strict=True):
                if task.done():
                    task.result()
                else:
                    self.lost.append(f"{worker.__name__} did not finish")
        finally:
            for task in tasks:
                task.cancel()
        await self._account()

    async def _set_up(self) -> None:
        js = (await connect(self.url)).jetstream(timeout=TIMEOUT_S)
        self.js = js
        streams: tuple[dict[str, Any], ...] = (
            {"name": "WORK", "subjects": ["work"], "retention": "workqueue"},
            {
                "name": "SHORT",
                "subjects": ["short.*"],
                "allow_msg_ttl": True,
                "subject_delete_marker_ttl": 10**9,
            },
            {"name": "BATCHES", "subjects": ["batches"], "allow_atomic": True, "max_msgs": 5000},
            {"name": "COPY", "mirror": {"name": "BATCHES"}, "max_msgs": 5000},
            {"name": "CLAIMED", "subjects": ["claimed"], "allow_msg_ttl": True, "max_msgs": 1000},
        )
        for stream in streams:
            await js.api_request(f"STREAM.CREATE.{stream['name']}", stream)
        self.bucket = await js.create_key_value(bucket="soak", history=3)

    async def _work(self) -> None:
        """Publish numbers, each with its own reply subject; first as fast as they are consumed, then half as fast."""
        self._wire = wire = await Wire.connect(self.url, self._answered)
        wire.send(b"SUB answers.* 1\r\n")
        begun, sent, first = time.monotonic(), 0, 0
        while self.going:
            now = time.monotonic()
            if not self.rate and now - begun > PEAK_S:
                self.peak = self.done["consumed"] / (now - begun)
                self.rate, begun, first = self.peak / 2, now, sent
            due = first + int((now - begun) * self.rate) if self.rate else sent + CHUNK
            wire.send(
                b"".join(
                    FRAME % (n, len(PAYLOAD) + 11, n, PAYLOAD) for n in range(sent, min(due, sent + CHUNK))
                )
            )
            sent = max(sent, min(due, sent + CHUNK))
            self.done["published"] = sent
            await asyncio.sleep(0 if due > sent else STEP_S if self.rate else 0)
            while sent - self.done["acknowledged"] > 5000 or len(self._numbers) > BACKLOG_MAX:
                await asyncio.sleep(0.001)
        while self.done["acknowledged"] < sent:
            await asyncio.sleep(0.01)
        wire.close()
        self.lost += wire.errors

    def _answered(self, words: list[bytes], data: bytes) -> None:
        number = int(words[1][8:])
        if b'"seq"' not in data:
            self.lost.append(f"message {number} was rejected: {data!r}")
        self.done["acknowledged"] += 1
        if number in self._early:
            self._early.discard(number)
        else:
            self._numbers.add(number)

    async def _consume(self) -> None:
        """Pull, check and acknowledge what was published; one pull request is always open."""
        config = {"durable_name": "WORKER", "ack_policy": "explicit", "max_ack_pending": 20_000}
        await self.js.api_request(
            "CONSUMER.DURABLE.CREATE.WORK.WORKER", {"stream_name": "WORK", "config": config}
        )
        self._acks: list[bytes] = []
        wire = await Wire.connect(self.url, self._got)
        wire.send(b"SUB pulled 1\r\n")
        asked = self.done["consumed"]
        while self.going or self._numbers:
            if self._acks:
                wire.send(b"".join(self._acks))
                self._acks.clear()
            if asked - self.done["consumed"] < PULL:
                body = b'{"batch":%d}' % PULL
                wire.send(
                    b"PUB $JS.API.CONSUMER.MSG.NEXT.WORK.WORKER pulled %d\r\n%b\r\n" % (len(body), body)
                )
                asked += PULL
            await asyncio.sleep(0.002)
        wire.send(b"".join(self._acks) + b"PING\r\n")
        await asyncio.sleep(0.5)
        wire.close()
        self.lost += wire.errors

    def _got(self, words: list[bytes], data: bytes) -> None:
        number, _, payload = data.partition(b" ")
        if payload != PAYLOAD:
            self.lost.append(f"message {number!r} was delivered as {data!r}")
        self._acks.append(b"PUB %b 4\r\n+ACK\r\n" % words[3])
        self.done["consumed"] += 1
        if int(number) in self._numbers:
            self._numbers.discard(int(number))
        else:
            self._early.add(int(number))

    async def _ttl(self) -> None:
        while self.going:
            asked = time.monotonic()
            await self.js.publish(f"short.{self.done['ttl'] % 100}", PAYLOAD, timeout=TIMEOUT_S, ttl=TTL_S)
            self.waits.append(time.monotonic() - asked)
            self.done["ttl"] += 1
            await asyncio.sleep(STEP_S)

    async def _batches(self) -> None:
        while self.going:
            ack = await self.js.publish_batch([("batches", b"%d" % number) for number in range(10)])
            if ack.count != 10:
                self.lost.append(f"the ack of a batch of 10 has count {ack.count}")
            self.done["batches"] += 1
            await asyncio.sleep(0.1)

    async def _kv(self) -> None:
        while self.going:
            number = self.done["kv"]
            key, value = f"k{number % 500}", b"%d" % number
            await self.bucket.put(key, value)
            if (await self.bucket.get(key)).value != value:
                self.lost.append(f"{key} is not {value!r}")
            if number % 5 == 4:
                await self.bucket.delete(key)
            self.done["kv"] += 1
            await asyncio.sleep(STEP_S)

    async def _claims(self) -> None:
        connection = await connect(self.url)
        store = {"path": str(self.folder / "claims")}
        config = ClaimConfig("soak", threshold=64 * 1024, store=store)
        claims = await Claims.open(connection, config, streams=["CLAIMED"], timeout_s=TIMEOUT_S)
        reader = await connection.jetstream().pull_subscribe("claimed", "READER", stream="CLAIMED")
        while self.going:
            number = self.done["claims"]
            data = os.urandom(1024) * 200
            await claims.producer.publish("claimed", data, msg_id=f"claim-{number}")
            got: list[bytes] = []

            async def work(received: Any, got: list[bytes] = got) -> None:
                got.append(bytes(received.data))

            for message in await reader.fetch(1, timeout=TIMEOUT_S):
                await claims.consumer.handle(message, work)
            if got != [data]:
                self.lost.append(f"claim {number} was resolved to other bytes")
            self.done["claims"] += 1
            if number % 10 == 9:
                await claims.collector.collect()
            await asyncio.sleep(0.5)
        await claims.close()
        await connection.close()

    async def _sample(self) -> None:
        while self.going:
            memory = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            descriptors = len(os.listdir(f"/proc/{self.pid}/fd"))
            size = sum(
                path.stat().st_blocks * 512 for path in (self.folder / "data").rglob("*") if path.is_file()
            )
            self.samples.append((round(time.monotonic() - self.begun, 1), memory, descriptors, size))
            await asyncio.sleep(SAMPLE_S)

    async def _account(self) -> None:
        """Check that everything acknowledged was consumed, has expired or was copied."""
        if self._numbers or self._early:
            self.lost.append(
                f"{len(self._numbers)} acknowledged messages were never delivered, "
                f"{len(self._early)} delivered messages were never acknowledged"
            )
        if self.done["consumed"] < self.done["acknowledged"]:
            self.lost.append(
                f"{self.done['acknowledged'] - self.done['consumed']} messages acknowledged but not consumed"
            )
        await asyncio.sleep(TTL_S + 4)
        left = (await self.js.stream_info("SHORT")).state.messages
        if left:
            self.lost.append(f"{left} messages still exist after their TTL")
        batches, copy = [(await self.js.stream_info(name)).state for name in ("BATCHES", "COPY")]
        if (batches.last_seq, batches.messages) != (copy.last_seq, copy.messages):
            self.lost.append(f"the mirror has {copy}, its upstream {batches}")
        if batches.last_seq != self.done["batches"] * 10:
            self.lost.append(
                f"{self.done['batches']} batches of 10 were acknowledged, but there are {batches.last_seq} messages"
            )

    def _wait_s(self, share: float) -> float:
        """Return this quantile of the ack latency of messages with a TTL."""
        return sorted(self.waits)[min(int(len(self.waits) * share), len(self.waits) - 1)]

    def figures(self, minutes: float) -> dict[str, Any]:
        half = [sample for sample in self.samples if sample[0] > minutes * 60 / 4] or self.samples
        return {
            "minutes": minutes,
            "load": os.getloadavg(),
            "peak": round(self.peak),
            "rate": round(self.done["consumed"] / self.samples[-1][0]),
            "done": self.done,
            "lost": self.lost,
            "wait_ms": {share: round(self._wait_s(share) * 1000, 1) for share in (0.5, 0.99, 0.999, 1.0)},
            "memory_mib_start": round(self.samples[0][1] / 2**20, 1),
            "memory_mib_quarter": round(half[0][1] / 2**20, 1),
            "memory_mib_end": round(half[-1][1] / 2**20, 1),
            "memory_percent_an_hour_after_the_first_quarter": round(slope(half) * 3600 / half[0][1] * 100, 1),
            "descriptors": [self.samples[0][2], max(s[2] for s in self.samples), self.samples[-1][2]],
            "disk_mib": [round(s[3] / 2**20, 1) for s in (self.samples[0], half[0], half[-1])],
            "samples": self.samples,
        }


def slope(samples: list[tuple[float, int, int, int]]) -> float:
    """Return the growth in bytes per second: the slope of a line through all samples."""
    if len(samples) < 3:
        return 0.0
    return statistics.linear_regression([s[0] for s in samples], [s[1] for s in samples]).slope


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--figures", type=Path, default=ROOT / "out" / "soak.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with serving(folder, "-js", "-sd", "data", may_stall=True) as running:
            soak = Soak(running.url, running.process.pid, folder)
            try:
                asyncio.run(soak.run(arguments.minutes))
            except Exception as error:  # the results so far are still reported
                soak.lost.append(f"ended early: {type(error).__name__}: {error}")
            soak.lost += find_stalls(running.log)
            figures = soak.figures(arguments.minutes)
    arguments.figures.parent.mkdir(exist_ok=True)
    arguments.figures.write_text(json.dumps(figures))
    del figures["samples"]
    print(json.dumps(figures, indent=1))
    return bool(soak.lost)


if __name__ == "__main__":
    sys.exit(main())
