"""Run claim simulations by seed: `python -m tests.sim.run_claim_simulations 17` replays one, `... 0 2000 --jobs 1` many."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from multiprocessing import get_context

from headrace.sim.checkers.store_invariants import Violation
from headrace.sim.claim_simulation import ClaimSimulation

from .store_sizes import SIZES

#: Warnings are expected: the simulation injects these faults.
logging.getLogger("headrace.claims").setLevel(logging.ERROR)


def make_simulation(seed: int) -> ClaimSimulation:
    return ClaimSimulation(seed, SIZES[seed % len(SIZES)])


def run(seed: int) -> str:
    """Return a seed's digest; errors contain the command that replays the seed."""
    try:
        return make_simulation(seed).run()
    except Exception as error:
        text = f"{type(error).__name__}: {error}\nreplay: python -m tests.sim.run_claim_simulations {seed}"
        raise Violation(text) from error


def attempt(seed: int) -> str:
    try:
        run(seed)
    except Violation as error:
        return str(error)
    return ""


def campaign(first: int, last: int, jobs: int) -> int:
    """Run seeds; return how many violated a guarantee."""
    broken, told = 0, time.monotonic()
    with get_context("spawn").Pool(jobs) as pool:
        for done, failure in enumerate(pool.imap(attempt, range(first, last), chunksize=4), start=1):
            broken += bool(failure)
            if failure:
                print(failure, flush=True)
            if time.monotonic() - told > 60 or first + done == last:
                told = time.monotonic()
                print(f"{done:,} seeds, {broken} failed", flush=True)
    return broken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int, nargs="?")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    if options.last is not None:
        return min(campaign(options.first, options.last, options.jobs), 1)
    made = make_simulation(options.first)
    print(made)
    digest = made.run()
    print(
        digest,
        f"{made.crashes} crashes, {len(made.claim_checker.payloads)} payloads, {made.claim_checker.read} read, "
        f"{len(made.claim_checker.deletions)} objects removed, {made.claim_checker.loss_count} losses reported",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
