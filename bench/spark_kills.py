"""Kills parts of a Spark pipeline, round after round, and checks with a ledger that each row was written exactly once.

    python bench/spark_kills.py [--rounds 200] [--first 0] [--seed 1] [--only headrace,join,staged,driver] [--out FOLDER]

A standalone Spark cluster (a master, two workers) reads a stream with `format("headrace")` and writes to another one. In
each round rows are published, one process is killed (an executor, the driver's JVM, a Python worker, or the server: the
Headrace server or a node of a cluster of three nats-servers), what died is started again, and the target must become
complete: each row once with the right content, or at least once in that mode. Half of the kills are aimed at an epoch
that is half-written. Rounds are spread over all combinations of server, query, mode and victim.

With `--plant NAME` the sink has a bug, and the campaign ends with success at the first round that notices it: a row is
missing although its epoch has ended, or is there twice. Only processes are killed whose death can show the bug, unless
`--only` names others.

Results are appended to `rounds.jsonl` in the folder of results, and a run with the same seed and rounds continues there.
What explains a violation is kept beside it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(1, str(Path(__file__).parents[1] / "src"))

from kills.plan import DIMENSIONS, VICTIMS, RoundPlan, iter_blocks, make_plan, select_open_rounds
from kills.plants import PLANTS, plant_bug
from kills.rounds import STUCK, QueryUnderTest, RoundResult
from kills.servers import BACKENDS, Backend
from kills.spark_cluster import SparkCluster

ROOT = Path(__file__).parents[1]
#: Number of rounds from which preparations for faster starts pay.
_LONG = 12


class Campaign:
    """The processes of a campaign, and its results."""

    def __init__(self, folder: Path, given: argparse.Namespace, *, is_long: bool) -> None:
        self._folder, self._out, self._seed, self._limit_s = folder, given.out, given.seed, given.limit
        source = plant_bug(given.plant, ROOT / "src", folder) if given.plant else ROOT / "src"
        self._cluster = SparkCluster(folder, source, is_archived=is_long)
        self._backends: dict[str, Backend] = {}
        self._plant = given.plant
        #: Whether the planted bug was noticed.
        self.has_noticed = False

    def run_block(self, block: Sequence[RoundPlan]) -> None:
        """Run rounds of one query; after a violation the others get a new one, unless a bug was to be noticed."""
        while block and not self.has_noticed:
            first = block[0]
            folder = self._folder / f"query-{first.number}"
            draw = random.Random(f"{self._seed}-{first.number}")
            query = QueryUnderTest(self._cluster, self._get_backend(first.server), first, folder, draw)
            done = self._run_rounds(query, block)
            block = block[done:]

    def _run_rounds(self, query: QueryUnderTest, block: Sequence[RoundPlan]) -> int:
        """Run rounds until one has a violation; return how many were run."""
        for place, plan in enumerate(block, 1):
            result = query.run_round(plan, self._limit_s)
            if place == len(block) and not result.violations:
                late = query.finish()
                result.violations = {f"{kind}, after the round": each for kind, each in late.items()}
            if result.violations:
                query.dump(self._out / f"round-{plan.number}")
                query.abandon()
            self._record(result)
            # A query that is stuck shows no bug: a slow machine can be the reason.
            self.has_noticed = bool(self._plant and result.violations and STUCK not in result.violations)
            if result.violations:
                return place
        return len(block)

    def _record(self, result: RoundResult) -> None:
        with (self._out / "rounds.jsonl").open("a") as file:
            file.write(json.dumps({"seed": self._seed, "time": time.time(), **result.to_dict()}) + "\n")
        plan = result.plan
        found = f"VIOLATION {', '.join(result.violations)}" if result.violations else "ok"
        place = f"{plan.server}/{plan.query}/{plan.mode}"
        words = f"{plan.victim} ({result.killed}) at: {result.moment}{' *' if result.aim else ''}"
        notes = f", {len(result.failures)} restarts" if result.failures else ""
        notes += f", {result.stored_share:.0%} stored" if result.stored_share is not None else ""
        notes += f", {result.repeated} rows repeated" if result.repeated else ""
        print(
            f"{plan.number:4} {place:32} {words:60} {result.seconds:6.1f} s  {found}{notes}",
            flush=True,
        )

    def _get_backend(self, kind: str) -> Backend:
        if kind not in self._backends:
            self._backends[kind] = BACKENDS[kind](self._folder)
        return self._backends[kind]

    def close(self) -> None:
        self._cluster.close()
        for backend in self._backends.values():
            backend.close()


def load_results(out: Path, seed: int) -> list[dict[str, Any]]:
    """Return the results of a seed so far."""
    path = out / "rounds.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [each for each in map(json.loads, lines) if each["seed"] == seed]


def print_summary(results: Sequence[dict[str, Any]]) -> None:
    """Print the number of rounds by query, mode, server and victim, and the violations."""
    counts = Counter(tuple(each[name] for name in DIMENSIONS) for each in results)
    print(f"\n{'server':14}{'query':12}{'mode':13}" + "".join(f"{victim:>10}" for victim in VICTIMS))
    for row in itertools.product(*list(DIMENSIONS.values())[:3]):
        numbers = [counts[(*row, victim)] for victim in VICTIMS]
        if any(numbers):
            print("{:14}{:12}{:13}".format(*row) + "".join(f"{number:>10}" for number in numbers))
    aimed = [each for each in results if each["aim"]]
    moments = Counter(each["moment"] for each in results)
    print(f"\n{len(results)} rounds, {len(aimed)} aimed at a half-written epoch")
    print("killed at: " + ", ".join(f"{name} {count}" for name, count in moments.most_common()))
    restarts = Counter(each["victim"] for each in results if each["failures"])
    print("rounds in which the query failed and was started again: " + (_join(restarts) or "none"))
    repeated = sum(each["repeated"] > 0 for each in results if each["mode"] == "atLeastOnce")
    print(f"rounds of atLeastOnce with repeated rows: {repeated}")
    bad = [each for each in results if each["violations"]]
    print(f"violations: {len(bad)}")
    for each in bad:
        print(
            f"  round {each['number']}: {'/'.join(each[name] for name in DIMENSIONS)}: {each['violations']}"[
                :400
            ]
        )


def _join(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="the round to begin with")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="servers, queries, modes and victims, separated by commas")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "spark-kills")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds after which a round is stuck")
    parser.add_argument("--plant", default="", choices=["", *PLANTS], help="a bug; a round must notice it")
    given = parser.parse_args()
    if given.plant:
        given.out = given.out / given.plant
        shutil.rmtree(given.out, ignore_errors=True)
    only = [each for each in given.only.split(",") if each]
    unknown = set(only) - {each for of in DIMENSIONS.values() for each in of}
    if unknown:
        parser.error(f"--only: {', '.join(sorted(unknown))} is none of {DIMENSIONS}")
    if given.plant:
        only.append(PLANTS[given.plant].mode)
        only += [] if set(only) & set(VICTIMS) else PLANTS[given.plant].victims
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that no process is left behind
    given.out.mkdir(parents=True, exist_ok=True)
    plan = make_plan(given.rounds, given.seed, only)[given.first :]
    todo = select_open_rounds(plan, load_results(given.out, given.seed))
    has_noticed = False
    with tempfile.TemporaryDirectory(prefix="spark-kills-", ignore_cleanup_errors=True) as name:
        if todo:
            campaign = Campaign(Path(name), given, is_long=len(todo) >= _LONG)
            try:
                for block in iter_blocks(todo):
                    campaign.run_block(block)
                has_noticed = campaign.has_noticed
            finally:
                campaign.close()
    results = load_results(given.out, given.seed)
    print_summary(results)
    if given.plant:
        sys.exit(not has_noticed)
    sys.exit(any(each["violations"] for each in results))


if __name__ == "__main__":
    main()
