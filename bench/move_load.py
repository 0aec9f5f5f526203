"""Moves many streams with many messages to a cluster of three nats-servers and back, while programs use them.

    python bench/move_load.py [--messages 1000000] [--streams 10] [--stay] [--no-spark] [--out out/move-load.json]

Fills the streams, creates two durable consumers on each, and starts for each stream a publisher (`js.publish`,
`js.publisher`, or `js.publisher` with fast ingest, in turn) and two workers; a program that publishes and reads claims; and
a Spark query that reads the first stream. One command moves all of it to the cluster, and one moves it back. After each
move everything that was acknowledged must be in its stream once, in order, and must have reached the workers; a repeated
delivery must be a redelivery (`moves/deliveries.py`); all claims must resolve; and Spark must have each row once.

Publishers get the address of the new server after a move, as the documentation says. With `--stay` they stay at Headrace,
and the leafnode connection carries their messages: then acks wait behind the messages that are copied back.

Prints how long copying took, how long the streams were closed, and how long a publisher waited for an ack at most. Exits
with 1 if anything was lost or repeated, or if a publisher waited for 5 s or more.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(1, str(Path(__file__).parents[1] / "src"))

from moves import claim_load
from moves.claim_load import ClaimLoad
from moves.load import WORKER, PublishMode, StreamLoad, read_all
from moves.spark_query import SparkQuery
from moves.tool import MoveTool

from headrace.client import connect
from support.cluster_leaf import Pair, start_pair
from support.loop_stalls import find_stalls

_PAYLOAD = b"x" * 128
_CONSUMERS = (WORKER, "second")
_MODES = tuple(PublishMode)
_PAUSE_S = 0.02
_ACK_WAIT_NS = 5 * 10**9
_MAX_WAIT_S = 5.0
#: How long the load runs before and after a move.
_BESIDE_S = 3.0


async def fill(url: str, loads: list[StreamLoad], messages: int) -> None:
    """Create the streams with their consumers, and store messages in each."""
    async with await connect(url) as connection:
        js = connection.jetstream()
        for load in loads:
            name = load.stream
            is_fast = load.mode is PublishMode.FAST or None
            await js.add_stream(name=name, subjects=[f"{name}.>"], allow_batched=is_fast, allow_direct=True)
            async with js.publisher(name) as publisher:
                for number in range(messages):
                    await publisher.publish(f"{name}.{number % 10}", _PAYLOAD)
            for consumer in _CONSUMERS:
                config: dict[str, Any] = {"durable_name": consumer, "ack_policy": "explicit"}
                # Workers start with the messages of the load.
                config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": messages + 1}
                body = {"stream_name": name, "config": {**config, "ack_wait": _ACK_WAIT_NS}}
                await js.api_request(f"CONSUMER.CREATE.{name}.{consumer}", body)


class LoadRun:
    """All programs that use the streams, and what they show."""

    def __init__(self, pair: Pair, folder: Path, given: argparse.Namespace) -> None:
        url = pair.ours.url
        self._pair = pair
        self._per_stream = given.messages // given.streams
        self._loads = [
            StreamLoad(
                f"S{number}",
                f"S{number}.load",
                url,
                mode=_MODES[number % len(_MODES)],
                consumers=_CONSUMERS,
                pause_s=_PAUSE_S,
                stays=given.stay,
            )
            for number in range(given.streams)
        ]
        self._claims = ClaimLoad(url, folder / "objects")
        self._spark = SparkQuery(self._loads[0].stream, folder / "spark") if given.spark else None
        self._tool = MoveTool(pair, [*(load.stream for load in self._loads), *claim_load.STREAMS])
        self._receipts: list[dict[str, dict[str, Any]]] = []
        self._problems: list[str] = []

    def run(self) -> dict[str, Any]:
        """Move everything there and back; return the figures."""
        started_s = time.monotonic()
        asyncio.run(fill(self._pair.ours.url, self._loads, self._per_stream))
        fill_s = round(time.monotonic() - started_s, 1)
        for load in self._loads:
            load.start()
        self._claims.start()
        if self._spark:
            self._spark.start(self._pair.ours.url)
        time.sleep(_BESIDE_S)
        moves = [self._move(back=back) for back in (False, True)]
        for each in (*self._loads, self._claims):
            each.stop()
        self._problems += asyncio.run(self._claims.find_deleted())
        if self._spark:
            self._spark.stop()
        return {"fill_s": fill_s, **self._count(), "moves": moves, "problems": self._problems[:20]}

    def _move(self, *, back: bool) -> dict[str, Any]:
        """Move the streams while the programs run; check everything, and return the figures."""
        for each in (*self._loads, self._claims):
            each.longest_wait_s = 0.0
        claims_before = len(self._claims.published)
        started_s = time.monotonic()
        receipts, steps_s = self._tool.move(back=back)
        seconds = round(time.monotonic() - started_s, 1)
        claims_during = len(self._claims.published) - claims_before
        self._receipts.append(receipts)
        place = self._pair.ours.url if back else self._pair.cluster.urls
        for each in (*self._loads, self._claims):
            each.follow(place)
        time.sleep(_BESIDE_S)
        if self._spark:
            self._spark.start(place)
        waits = dict.fromkeys(_MODES, 0.0)
        for load in self._loads:
            waits[load.mode] = max(waits[load.mode], round(load.longest_wait_s, 2))
        self._problems += asyncio.run(self._find_problems(place))
        if max(waits.values()) >= _MAX_WAIT_S:
            self._problems.append(f"a publisher waited too long: {waits}")
        return {
            "to": "headrace" if back else "cluster",
            "seconds": seconds,
            "steps_s": steps_s,
            "closed_s": max(each["closed_s"] for each in receipts.values()),
            "longest_wait_s": waits,
            "claims_longest_wait_s": round(self._claims.longest_wait_s, 2),
            "claims_published_before": claims_before,
            "claims_published_during": claims_during,
        }

    async def _find_problems(self, place: str) -> list[str]:
        problems = await self._claims.find_problems()
        async with await connect(place.split(",")) as connection:
            js = connection.jetstream()
            for load in self._loads:
                problems += await load.find_problems(js)
            if self._spark:
                name, subject = self._loads[0].stream, self._loads[0].subject
                last_seq = (await js.stream_info(name)).state.last_seq
                expected = await read_all(js, name, subject, last_seq)
                problems += await asyncio.to_thread(self._spark.find_problems, expected, last_seq)
        return problems

    def _count(self) -> dict[str, Any]:
        """Return what was published and repeated; add repeats without a reason to the problems."""
        reasons: Counter[str] = Counter()
        for load in self._loads:
            for consumer, log in load.deliveries.items():
                floors = [each[load.stream]["ack_floors"][consumer] for each in self._receipts]
                found, errors = log.classify(floors)
                reasons.update(found)
                self._problems += [f"{load.stream} > {consumer}: {error}" for error in errors]
        return {
            "streams": len(self._loads) + len(claim_load.STREAMS),
            "messages": self._per_stream * len(self._loads),
            "consumers": len(_CONSUMERS) * len(self._loads) + 2,
            "published": sum(len(load.list_stored()) for load in self._loads),
            "claims": len(self._claims.published),
            "repeated": dict(reasons),
            "given_up": {mode: self._count_given_up(mode) for mode in _MODES},
        }

    def _count_given_up(self, mode: PublishMode) -> dict[str, Any]:
        """Return how many messages got an error, how many of these are stored all the same, and some of the errors."""
        loads = [load for load in self._loads if load.mode is mode]
        errors = [error for load in loads for error in load.errors.items()]
        stored = sum(load.given_up_stored for load in loads)
        return {"count": len(errors), "stored": stored, "first": errors[:3]}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--streams", type=int, default=10)
    parser.add_argument("--stay", action="store_true", help="publishers stay at Headrace")
    parser.add_argument("--no-spark", dest="spark", action="store_false", help="without the Spark query")
    parser.add_argument("--out", type=Path, default=Path("out/move-load.json"))
    given = parser.parse_args()
    logging.getLogger("nats").setLevel(logging.CRITICAL)
    logging.getLogger("headrace").setLevel(logging.CRITICAL)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, start_pair(Path(folder)) as pair:
        figures = LoadRun(pair, Path(folder), given).run()
        figures["stalls"] = find_stalls(pair.ours.log_text())
        print(json.dumps(figures, indent=2), flush=True)
        given.out.write_text(json.dumps(figures, indent=2) + "\n")
    return 1 if figures["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
