"""Worlds of claims by seed: `python -m tests.sim.claimworlds 17` replays one, `... 0 2000 --jobs 1` runs many."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from multiprocessing import get_context

from headrace.sim.checks import Violation
from headrace.sim.claimworld import ClaimWorld

from .options import SIZES

#: What claims warn of is what these worlds are made of.
logging.getLogger("headrace.claims").setLevel(logging.ERROR)


def world(seed: int) -> ClaimWorld:
    return ClaimWorld(seed, SIZES[seed % len(SIZES)])


def run(seed: int) -> str:
    """A seed's digest; whatever goes wrong is told with the command that replays it."""
    try:
        return world(seed).run()
    except Exception as error:
        text = f"{type(error).__name__}: {error}\nreplay: python -m tests.sim.claimworlds {seed}"
        raise Violation(text) from error


def attempt(seed: int) -> str:
    try:
        run(seed)
    except Violation as error:
        return str(error)
    return ""


def campaign(first: int, last: int, jobs: int) -> int:
    """Run seeds; how many broke a promise."""
    broken, told = 0, time.monotonic()
    with get_context("spawn").Pool(jobs) as pool:
        for done, failure in enumerate(pool.imap(attempt, range(first, last), chunksize=4), start=1):
            broken += bool(failure)
            if failure:
                print(failure, flush=True)
            if time.monotonic() - told > 60 or first + done == last:
                told = time.monotonic()
                print(f"{done:,} seeds, {broken} broken", flush=True)
    return broken


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
    digest = made.run()
    print(
        digest,
        f"{made.crashes} crashes, {len(made.ledger.payloads)} payloads, {made.ledger.read} read, "
        f"{len(made.ledger.removals)} objects removed, {made.ledger.losses} losses reported",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
