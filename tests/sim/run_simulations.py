"""Run simulations by seed: `python -m tests.sim.run_simulations 17` replays one, `... 0 20000 --jobs 2` runs many.

Runs of many seeds print a line per minute and save their results in out/sim.json, so that an interrupted run continues
later. Every tenth seed also runs a store simulation, and every hundredth is repeated with another PYTHONHASHSEED. At the
end each probe must have been hit. `--cover` searches for a few seeds that hit them all, for `sim/test_coverage.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from headrace.sim.checkers.store_invariants import Violation
from headrace.sim.simulation import Simulation
from headrace.sim.store_simulation import StoreSimulation

from .coverage_marks import names, taken
from .module_settings import module_settings
from .store_sizes import SIZES, SMALL_SLICES

FIGURES = Path("out/sim.json")
#: Every how many seeds a store simulation runs too, and every how many a seed is repeated.
STORES, AGAIN = 10, 100


def make_simulation(seed: int) -> Simulation:
    return Simulation(seed, SIZES[seed % len(SIZES)])


def run(seed: int) -> str:
    """Return a seed's digest; errors contain the command that replays the seed."""
    return _run_seed(seed, make_simulation, "run_simulations")


def run_store(seed: int) -> str:
    """Do the same for a store simulation."""
    return _run_seed(
        seed, lambda number: StoreSimulation(number, SIZES[number % len(SIZES)]), "run_store_simulation"
    )


def _run_seed(seed: int, make: Any, replay: str) -> str:
    try:
        with module_settings(*SMALL_SLICES):
            return str(make(seed).run())
    except Exception as error:
        text = f"{type(error).__name__}: {error}\nreplay: python -m tests.sim.{replay} {seed}"
        raise Violation(text) from error


class SeedResult(NamedTuple):
    """The result of a seed."""

    seed: int
    digest: str
    failure: str
    probes: dict[str, int]


def attempt(seed: int) -> SeedResult:
    """Run one seed, and a store simulation if it is due."""
    taken()
    digest = failure = ""
    try:
        digest = run(seed)
        if seed % STORES == 0:
            run_store(seed)
    except Violation as error:
        failure = str(error)
    return SeedResult(seed, digest, failure, dict(taken()))


class Campaign:
    """Many seeds, with saved results. They are discarded if the same seed now runs differently."""

    def __init__(self, first: int, figures: Path = FIGURES) -> None:
        self._file = figures
        self.saved: dict[str, Any] = {"next": first, "done": 0, "broken": [], "probes": {}, "digests": {}}
        self.saved["meaning"] = attempt(0).digest
        known = json.loads(figures.read_text()) if figures.exists() else {}
        if known.get("meaning") == self.saved["meaning"]:
            self.saved = known
        elif known:
            print(f"seeds run differently since {figures} was written: starting over", flush=True)

    def run(self, last: int, jobs: int) -> None:
        """Run the remaining seeds."""
        saved, told = self.saved, time.monotonic()
        hits = Counter(saved["probes"])
        with get_context("spawn").Pool(jobs) as pool:
            for outcome in pool.imap(attempt, range(saved["next"], last), chunksize=4):
                saved["next"], saved["done"] = outcome.seed + 1, saved["done"] + 1
                hits.update(outcome.probes)
                saved["probes"] = dict(sorted(hits.items()))
                if outcome.failure:
                    saved["broken"].append(outcome.seed)
                    print(outcome.failure, flush=True)
                elif outcome.seed % AGAIN == 0:
                    saved["digests"][str(outcome.seed)] = outcome.digest
                if time.monotonic() - told > 60 or outcome.failure or outcome.seed + 1 == last:
                    told = time.monotonic()
                    self._write()

    def _write(self) -> None:
        self._file.parent.mkdir(exist_ok=True)
        self._file.write_text(json.dumps(self.saved))
        missing = len(self.missed())
        print(
            f"{self.saved['done']:,} seeds, {len(self.saved['broken'])} failed, {missing} probes not hit yet",
            flush=True,
        )

    def missed(self) -> list[str]:
        """Probes that no seed has hit."""
        return [name for name in names() if name not in self.saved["probes"]]

    def wavering(self) -> list[int]:
        """Return seeds whose digest depends on PYTHONHASHSEED."""
        known = {int(seed): digest for seed, digest in self.saved["digests"].items()}
        again = digests(known, hashing="1")
        return [seed for seed, digest in known.items() if again[seed] != digest]

    def verdict(self) -> int:
        """Print what is wrong; return 1 if anything is."""
        missed, wavering = self.missed(), self.wavering()
        for name in missed:
            print(f"never hit: {name}")
        for seed in wavering:
            print(f"not deterministic, the digest depends on PYTHONHASHSEED: seed {seed}")
        print(
            f"{len(names()) - len(missed)} of {len(names())} probes hit, {len(self.saved['digests'])} seeds repeated"
        )
        return 1 if self.saved["broken"] or missed or wavering else 0


def digests(seeds: Iterable[int], *, hashing: str) -> dict[int, str]:
    """Return the digests of some seeds, computed in another process with this PYTHONHASHSEED."""
    command = [sys.executable, "-m", "tests.sim.run_simulations", "--digests", *map(str, seeds)]
    environment = {**os.environ, "PYTHONHASHSEED": hashing}
    root = Path(__file__).parents[2]
    said = subprocess.run(command, env=environment, cwd=root, stdout=subprocess.PIPE, check=True, text=True)
    return {int(seed): digest for seed, digest in (line.split() for line in said.stdout.splitlines())}


def cover(seeds: range, stores: range, jobs: int) -> None:
    """Print a few seeds that together hit every probe twice, or once if no more is possible."""
    with get_context("spawn").Pool(jobs) as pool:
        hit = dict(zip(seeds, pool.map(_probes_of_world, seeds, chunksize=4), strict=True))
        hit |= dict(zip((-1 - n for n in stores), pool.map(_probes_of_store, stores), strict=True))
    wanted = Counter(name for each in hit.values() for name in each)
    left = Counter({name: min(count, 2) for name, count in wanted.items()})
    chosen: list[int] = []
    while +left:
        best = max(
            (seed for seed in hit if seed not in chosen), key=lambda s: sum(left[n] > 0 for n in hit[s])
        )
        chosen.append(best)
        left.subtract({name: 1 for name in hit[best] if left[name] > 0})
    print("WORLDS =", sorted(seed for seed in chosen if seed >= 0))
    print("STORES =", sorted(-1 - seed for seed in chosen if seed < 0))
    print("rare:", wanted.most_common()[:-12:-1], "never:", sorted(set(names()) - set(wanted)))


def _probes_of_world(seed: int) -> list[str]:
    taken()
    run(seed)
    return sorted(taken())


def _probes_of_store(seed: int) -> list[str]:
    taken()
    run_store(seed)
    return sorted(taken())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "seeds", type=int, nargs="*", help="the seed to replay, or the first and the last plus one"
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--digests", type=int, nargs="*", help="print the digests of these seeds")
    parser.add_argument("--cover", type=int, help="search this many seeds for a few that hit every probe")
    options = parser.parse_args()
    if options.digests is not None:
        for seed in options.digests:
            print(seed, run(seed))
        return 0
    if options.cover:
        cover(range(options.cover), range(options.cover // STORES), options.jobs)
        return 0
    if len(options.seeds) == 2:
        campaign = Campaign(options.seeds[0])
        campaign.run(options.seeds[1], options.jobs)
        return campaign.verdict()
    made = make_simulation(options.seeds[0])
    print(made)
    print(made.run(), f"{made.crashes} crashes, {len(made.history_checker.sent)} messages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
