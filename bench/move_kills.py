"""Moves streams between Headrace and a cluster of three nats-servers, and kills a process in every move.

    python bench/move_kills.py [--rounds 50] [--seed 1] [--plant NAME] [--out out/move-kills.jsonl]

Publishers of a stream and of a work queue publish all the time, each with a worker that acknowledges what it processed.
Each round moves the stream, the queue and a bucket to the other server. During one step a process is killed: the tool, the
Headrace server, or a node of the cluster. What died is started again, and the move is continued, or undone and started
again. Afterwards every acknowledged message must be in its stream, with its sequence and content, and every one
must have reached the worker; the bucket is unchanged. Rounds are spread over all pairs of step and victim.

With `--plant NAME` the tool has a bug (`moves/plants.py`). Then only those steps and processes are chosen whose death can
show it, and the campaign ends with success at the first round that notices it.

Prints a line for each round, appends it to `--out`, and exits with 1 if anything was lost.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import logging
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(1, str(Path(__file__).parents[1] / "src"))

from kills.plants import plant_changes
from moves.load import CONNECT, WORKER, StreamLoad
from moves.plants import PLANTS, STEPS, VICTIMS
from moves.tool import SOURCE, MoveTool

from headrace.client import connect
from support.cluster_leaf import Pair, start_pair

STREAM, QUEUE, BUCKET = "LOAD", "JOBS", "KV_SETTINGS"
NAMES = (STREAM, QUEUE, BUCKET)
_KEYS = 20
_ATTEMPTS_MAX = 8


class Campaign:
    """The servers, the load, and where the streams are."""

    def __init__(self, pair: Pair, seed: int, plant: str, folder: Path) -> None:
        self._pair = pair
        self._chance = random.Random(seed)
        self._is_ours = True
        self._last_error = ""
        self._plant = PLANTS.get(plant)
        source = plant_changes(plant, self._plant.changes, SOURCE, folder) if self._plant else SOURCE
        self._tool = MoveTool(pair, NAMES, source)
        self._loads = [
            StreamLoad(STREAM, "load", pair.ours.url),
            StreamLoad(QUEUE, "jobs", pair.ours.url),
        ]

    def run(self, rounds: int, out: Path) -> int:
        """Run the rounds, with a planted bug until one notices it; return the number of those with problems."""
        asyncio.run(self._set_up())
        plant = self._plant
        plans = list(itertools.product(plant.steps if plant else STEPS, plant.victims if plant else VICTIMS))
        self._chance.shuffle(plans)
        for load in self._loads:
            load.start()
        lost = 0
        for number in range(rounds):
            step, victim = plans[number % len(plans)]
            result = self._run_round(step, victim)
            line = json.dumps({"round": number + 1, **result})
            print(line, flush=True)
            with out.open("a") as file:
                file.write(line + "\n")
            lost += bool(result["problems"])
            if self._plant and lost:
                break
        for load in self._loads:
            load.stop()
        return lost

    async def _set_up(self) -> None:
        async with await connect(self._pair.ours.url) as connection:
            js = connection.jetstream()
            await js.add_stream(name=STREAM, subjects=["load"])
            await js.add_stream(name=QUEUE, subjects=["jobs"], retention="workqueue")
            bucket = await js.create_key_value(bucket=BUCKET.removeprefix("KV_"), history=2)
            for number in range(2 * _KEYS):
                await bucket.put(f"key{number % _KEYS}", b"%d" % number)
            for stream in (STREAM, QUEUE):
                config = {"durable_name": WORKER, "ack_policy": "explicit", "ack_wait": 2 * 10**9}
                body = {"stream_name": stream, "config": config}
                await js.api_request(f"CONSUMER.CREATE.{stream}.{WORKER}", body)

    def _run_round(self, step: str, victim: str) -> dict[str, Any]:
        started_s = time.monotonic()
        for load in self._loads:
            load.longest_wait_s = 0.0
        undoes = self._chance.random() < 0.4
        delay_s = self._chance.random() * 0.15
        codes = [self._move(step, victim, delay_s)]
        is_undone = False
        while codes[-1] != 0 and len(codes) < _ATTEMPTS_MAX:
            if undoes and not is_undone:
                is_undone = self._end(self._call("undo")) == 0
            codes.append(self._end(self._call("move")))
        problems = [f"the move did not finish: {self._last_error}"] if codes[-1] else []
        self._is_ours = not self._is_ours
        self._pair.await_connected()
        for load in self._loads:
            load.follow(self._place)
        if not problems:
            problems = asyncio.run(self._check())
        return {
            "to": "headrace" if self._is_ours else "cluster",
            "step": step,
            "victim": victim,
            "codes": codes,
            "undone": is_undone,
            "acked": sum(len(load.acked) for load in self._loads),
            "repeated": sum(load.deliveries[WORKER].count_repeated() for load in self._loads),
            "longest_wait_s": round(max(load.longest_wait_s for load in self._loads), 2),
            "seconds": round(time.monotonic() - started_s, 1),
            "problems": problems,
        }

    @property
    def _place(self) -> str:
        return self._pair.ours.url if self._is_ours else self._pair.cluster.urls

    def _call(self, command: str) -> subprocess.Popen[str]:
        options = ["--ack-wait", "300ms"] if command == "move" else []
        return self._tool.start(command, back=not self._is_ours, options=options)

    def _move(self, step: str, victim: str, delay_s: float) -> int:
        """Start a move, kill the victim shortly after a step began, and return the tool's exit code."""
        tool = self._call("move")
        assert tool.stderr is not None
        for line in tool.stderr:
            if line.strip() == f"headrace: {step}":
                time.sleep(delay_s)
                self._kill(victim, tool)
                break
        return self._end(tool)

    def _end(self, tool: subprocess.Popen[str]) -> int:
        """Wait for the end of the tool, keep its last message, and return its exit code."""
        _, text = tool.communicate()
        self._last_error = text[-500:]
        return tool.returncode

    def _kill(self, victim: str, tool: subprocess.Popen[str]) -> None:
        if victim == "tool":
            tool.kill()
        elif victim == "headrace":
            self._pair.ours.kill()
            time.sleep(self._chance.random())
            self._pair.ours.start()
        else:
            node = self._chance.choice(self._pair.cluster.nodes)
            node.kill()
            time.sleep(self._chance.random())
            node.start()

    async def _check(self) -> list[str]:
        """Wait until the workers have everything; return what is missing."""
        async with await connect(self._place.split(","), **CONNECT) as connection:
            js = connection.jetstream()
            problems = await self._loads[0].find_problems(js)
            for load in self._loads[1:]:
                problems += await load.find_undelivered()
            keys = [f"key{number}" for number in range(_KEYS)]
            bucket = await js.key_value(BUCKET.removeprefix("KV_"))
            values = [(await bucket.get(key)).value for key in keys]
            if values != [b"%d" % (number + _KEYS) for number in range(_KEYS)]:
                problems.append(f"the bucket has other values: {values}")
        return problems


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plant", default="", choices=["", *PLANTS], help="a bug; a round must notice it")
    parser.add_argument("--out", type=Path, default=Path("out/move-kills.jsonl"))
    given = parser.parse_args()
    logging.getLogger("nats").setLevel(logging.CRITICAL)  # connections break all the time
    given.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, start_pair(Path(folder)) as pair:
        lost = Campaign(pair, given.seed, given.plant, Path(folder)).run(given.rounds, given.out)
    if given.plant:
        print(f"{given.plant}: {'noticed' if lost else f'not noticed in {given.rounds} rounds'}")
        return 0 if lost else 1
    print(f"{given.rounds} rounds with seed {given.seed}, {lost} with problems")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
