"""Runs simulations of a keyed consumer by seed: `python -m tests.sim.run_keyed_simulation FIRST COUNT`.

Prints the seeds that fail; exits with 1 if there are any.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import Pool

from headrace.broker.consumers import ack_state_record
from headrace.broker.consumers.message_keys import SubjectKeys, TokenKeys
from headrace.sim.keyed_simulation import KeyedSimulation

from .module_settings import module_settings
from .store_sizes import SIZES, SMALL_SLICES


def run_keyed(seed: int) -> KeyedSimulation:
    """Run one seed, with small or larger files; with small ones, also searches look at few messages."""
    simulation = KeyedSimulation(seed, SIZES[seed % 2])
    slices = ((ack_state_record, "KEYS_PER_SLICE", 1 + seed % 3), *SMALL_SLICES)
    with search_rows(*((1, 4) if seed % 2 == 0 else (16, 64))), module_settings(*slices):
        simulation.run()
    return simulation


@contextmanager
def search_rows(near: int, chunk: int) -> Iterator[None]:
    """Set how many messages are searched for the next one of a key, and at a time for those of many keys."""
    kinds = (SubjectKeys, TokenKeys)
    before = [(kind.NEAR_ROWS, kind.CHUNK_ROWS) for kind in kinds]
    for kind in kinds:
        kind.NEAR_ROWS, kind.CHUNK_ROWS = near, chunk
    try:
        yield
    finally:
        for kind, rows in zip(kinds, before, strict=True):
            kind.NEAR_ROWS, kind.CHUNK_ROWS = rows


def run(seed: int) -> tuple[int, str, int]:
    """Run one seed; return what is wrong, "" if nothing is, and the number of deliveries."""
    try:
        simulation = run_keyed(seed)
    except Exception:
        return seed, traceback.format_exc(limit=-4), 0
    return seed, "", simulation.checker.deliveries


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--processes", type=int, default=1)
    given = parser.parse_args()
    seeds = range(given.first, given.first + given.count)
    deliveries, failed = 0, []
    with Pool(given.processes) as pool:
        for seed, problem, count in pool.imap_unordered(run, seeds, chunksize=8):
            deliveries += count
            if problem:
                failed.append(seed)
                print(f"seed {seed}: {problem}", flush=True)
    print(f"{len(seeds)} seeds, {deliveries} deliveries, {len(failed)} failed: {sorted(failed)[:50]}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
