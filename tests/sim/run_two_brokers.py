"""Runs simulations of two brokers over one archive by seed: `python -m tests.sim.run_two_brokers FIRST COUNT`.

Prints the seeds that fail; exits with 1 if there are any.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter
from multiprocessing import Pool

from .two_brokers.seeds import run_seed


def run(seed: int) -> tuple[int, str, dict[str, int]]:
    """Run one seed; return what is wrong, "" if nothing is, and what happened."""
    try:
        simulation = run_seed(seed)
    except Exception as error:
        trace = "".join(traceback.format_exception(error.__cause__ or error, limit=-6))
        return seed, f"{trace}{error}", {}
    return seed, "", simulation.count()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    seeds = range(given.first, given.first + given.count)
    total: Counter[str] = Counter()
    failed, started_s = [], time.monotonic()
    with Pool(given.jobs) as pool:
        for seed, problem, counts in pool.imap_unordered(run, seeds, chunksize=4):
            total.update(counts)
            if problem:
                failed.append(seed)
                print(f"seed {seed}: {problem}\n", flush=True)
    print(
        f"{len(seeds)} seeds in {time.monotonic() - started_s:.0f} s, {len(failed)} failed: {sorted(failed)[:50]}"
    )
    print(", ".join(f"{count:,} {name}" for name, count in sorted(total.items())))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
