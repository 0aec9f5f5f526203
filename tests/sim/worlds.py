"""Worlds by seed: `python -m tests.sim.worlds 17` replays one, `python -m tests.sim.worlds 0 20000 --jobs 2` runs many.

Many seeds print a line a minute and keep their figures in out/sim.json, so that a run that was ended goes on later.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from multiprocessing import get_context
from pathlib import Path

from headrace.sim.checks import Violation
from headrace.sim.world import World

from .options import SIZES

FIGURES = Path("out/sim.json")


def world(seed: int) -> World:
    return World(seed, SIZES[seed % len(SIZES)])


def run(seed: int) -> str:
    """A seed's digest; whatever goes wrong is told with the command that replays it."""
    try:
        made = world(seed)
        return made.run()
    except Exception as error:
        text = f"{type(error).__name__}: {error}\nreplay: python -m tests.sim.worlds {seed}"
        raise Violation(text) from error


def attempt(seed: int) -> tuple[int, str]:
    try:
        run(seed)
    except Violation as error:
        return seed, str(error)
    return seed, ""


def campaign(first: int, last: int, jobs: int) -> int:
    """Run seeds until all are done; how many broke a promise."""
    saved = json.loads(FIGURES.read_text()) if FIGURES.exists() else {"next": first, "done": 0, "broken": []}
    start, told = max(first, saved["next"]), time.monotonic()
    with get_context("spawn").Pool(jobs) as pool:
        for seed, failure in pool.imap(attempt, range(start, last), chunksize=4):
            saved["next"], saved["done"] = seed + 1, saved["done"] + 1
            if failure:
                saved["broken"].append(seed)
                print(failure, flush=True)
            if time.monotonic() - told > 60 or failure or seed + 1 == last:
                told = time.monotonic()
                FIGURES.parent.mkdir(exist_ok=True)
                FIGURES.write_text(json.dumps(saved))
                print(f"{saved['done']:,} seeds, {len(saved['broken'])} broken", flush=True)
    return len(saved["broken"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int, nargs="?")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    if options.last is not None:
        return min(campaign(options.first, options.last, options.jobs), 1)
    made = world(options.first)
    print(made)
    print(made.run(), f"{made.crashes} crashes, {len(made.ledger.sent)} messages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
