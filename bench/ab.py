#!/usr/bin/env python3
"""Compare the speed of two versions of the server: `bench/ab.py OLD NEW`.

OLD and NEW are checkouts (folders) or git revisions; a revision is checked out into a temporary worktree. The
compiled core is built in both, with this interpreter. The load generator is always the one next to this file.

A round starts one server of each version and runs every workload on both, in short slices that take turns
(ABBA). Each round adds one pair of measurements per workload. Server and load generator run on different cores.

The figure of a workload is the CPU time that the server process took per operation, all threads, user and system.
The ratio NEW/OLD is estimated from the pairs (Hodges-Lehmann on the logarithms, 99 % interval from Wilcoxon's
signed-rank test). The verdict of a workload:

  slower         the whole interval lies above 1.03: NEW certainly takes over 3 % more
  faster         the whole interval lies below 1/1.03
  no difference  anything else

"No difference" is certain when the whole interval lies between 1/1.03 and 1.03. If it does not, the workload gets
more rounds, up to --max-pairs; if that is not enough, the last column says "inconclusive".
The ratio of throughputs (of wall-clock latencies for request and sync1) is shown beside it, with its own interval;
the disk and other processes disturb it more, and it has no part in the verdict.

Ctrl-C or SIGTERM ends the run with a report of the pairs so far.
Exit status: 0 no workload is slower, 1 at least one is, 2 something could not be measured,
or the run was interrupted before --pairs rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import platform
import random
import signal
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from checkouts import Checkout, CheckoutError, checked_out
from intervals import CONFIDENCE, MARGIN, SLOWER, Interval, estimate
from perf import BUSY_LOAD, Server
from sampling import SLICES, Sample, sample, servers, warm_up

Pair = list[Sample]


class Comparison:
    """The pairs of each workload, and their evaluation."""

    def __init__(self, checkouts: list[Checkout], names: list[str], scale: float, seed: int) -> None:
        self.checkouts = checkouts
        self.scale = scale
        self.pairs: dict[str, list[Pair]] = {name: [] for name in names}
        self.failures: dict[str, str] = {}
        self._random = random.Random(seed)
        self._first = {name: self._random.randrange(2) for name in names}

    def run_round(self, names: Iterable[str]) -> None:
        """Add a pair to each of the workloads."""
        shared = [name for name in names if not SLICES[name].alone]
        if shared:
            with servers(self.checkouts, self._random.randrange(1, 1 << 32)) as pair:
                for server in pair:
                    warm_up(server, self.scale)
                for name in shared:
                    self._measure(name, pair)
        for name in names:
            if SLICES[name].alone:
                with servers(self.checkouts, self._random.randrange(1, 1 << 32)) as pair:
                    self._measure(name, pair)

    def _measure(self, name: str, pair: list[Server]) -> None:
        first = (self._first[name] + len(self.pairs[name])) % 2
        try:
            self.pairs[name].append(sample(SLICES[name], pair, self.scale, first))
        except Exception as error:  # a workload that one version cannot run must not end the others
            self.failures[name] = f"{type(error).__name__}: {str(error)[:200]}"
            print(f"  {name}: {self.failures[name]}", file=sys.stderr, flush=True)

    def cost(self, name: str) -> Interval:
        """NEW/OLD in CPU time per operation."""
        return estimate([math.log(new.cpu_us / old.cpu_us) for old, new in self.pairs[name]])

    def throughput(self, name: str) -> Interval:
        """NEW/OLD in operations per second."""
        return estimate([math.log(new.rate / old.rate) for old, new in self.pairs[name]])

    def undecided(self) -> list[str]:
        """The workloads that more pairs may decide."""
        return [
            name for name in self.pairs if name not in self.failures and not self.cost(name).is_conclusive()
        ]

    def result(self, name: str) -> dict[str, Any]:
        pairs, cost = self.pairs[name], self.cost(name)
        if not pairs:
            return {"verdict": "failed", "failure": self.failures.get(name, "not measured"), "pairs": []}
        median_us = [sorted(pair[side].cpu_us for pair in pairs)[len(pairs) // 2] for side in (0, 1)]
        return {
            "verdict": cost.verdict(),
            "conclusive": cost.is_conclusive(),
            "cpu": _finite(cost),
            "throughput": _finite(self.throughput(name)),
            "cpu_us": median_us,
            "failure": self.failures.get(name),
            "pairs": [[asdict(side) for side in pair] for pair in pairs],
        }


def _finite(interval: Interval) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in asdict(interval).items()}


HEAD = f"{'workload':15}{'OLD us':>12}{'NEW us':>12}  {'CPU NEW/OLD':21}{'throughput NEW/OLD':21}{'pairs':>5}  verdict"


def show(name: str, result: dict[str, Any]) -> None:
    if not result["pairs"]:
        print(f"{name:15}failed: {result['failure']}")
        return
    old, new = result["cpu_us"]
    cost, rate = (_shown(result[what]) for what in ("cpu", "throughput"))
    note = "" if result["conclusive"] else "inconclusive"
    print(
        f"{name:15}{old:12.3f}{new:12.3f}  {cost:21}{rate:21}{len(result['pairs']):5}  "
        f"{result['verdict']:14} {note}".rstrip()
    )


def _shown(interval: dict[str, float | None]) -> str:
    if interval["high"] is None:
        return f"{interval['ratio']:.3f} [too few]"
    return f"{interval['ratio']:.3f} [{interval['low']:.3f},{interval['high']:.3f}]"


def compare(comparison: Comparison, least: int, most: int) -> None:
    """Run rounds until each workload is decided, `most` rounds are over or the user interrupts."""
    started = time.monotonic()
    for number in range(most):
        names = list(comparison.pairs) if number < least else comparison.undecided()
        if not names:
            return
        comparison.run_round([name for name in names if name not in comparison.failures])
        print(
            f"  round {number + 1}, {time.monotonic() - started:.0f} s: {len(names)} workloads, load average "
            f"{os.getloadavg()[0]:.1f}, {len(comparison.undecided())} undecided",
            file=sys.stderr,
            flush=True,
        )


def report(comparison: Comparison, seed: int) -> dict[str, Any]:
    for side, checkout in zip(("OLD", "NEW"), comparison.checkouts, strict=True):
        print(f"{side} {checkout.name} ({checkout.commit})")
    print(HEAD)
    results = {name: comparison.result(name) for name in comparison.pairs}
    for name, result in results.items():
        show(name, result)
    load = os.getloadavg()[0]
    if load > BUSY_LOAD:
        print(f"load average {load:.1f}: other work ran on this machine and widened the intervals")
    return {
        "old": comparison.checkouts[0].commit,
        "new": comparison.checkouts[1].commit,
        "margin": MARGIN,
        "confidence": CONFIDENCE,
        "scale": comparison.scale,
        "seed": seed,
        "load": load,
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "workloads": results,
    }


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", metavar="OLD", help="a checkout or a git revision")
    parser.add_argument(
        "new", metavar="NEW", help="another one, or the same one to see how much the figures vary by chance"
    )
    parser.add_argument("--only", default="", help=f"workloads, separated by commas: {', '.join(SLICES)}")
    parser.add_argument(
        "--pairs", type=int, default=10, help="pairs of each workload (default 10, at least 8)"
    )
    parser.add_argument(
        "--max-pairs", type=int, default=30, help="maximum for undecided workloads (default 30)"
    )
    parser.add_argument(
        "--scale", type=float, default=1.0, help="factor for the length of slices (default 1)"
    )
    parser.add_argument("--seed", type=int, help="seed of the order and of hash seeds (default random)")
    parser.add_argument(
        "--no-build", action="store_true", help="use the compiled modules of folders as they are"
    )
    parser.add_argument("--json", type=Path, help="file for the results and all measurements")
    options = parser.parse_args(words)
    options.names = options.only.split(",") if options.only else list(SLICES)
    if unknown := set(options.names) - set(SLICES):
        parser.error(f"unknown workload: {', '.join(sorted(unknown))}; choose from {', '.join(SLICES)}")
    return options


def main() -> int:
    options = parse()
    signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # so that servers are stopped and worktrees removed
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    try:
        with checked_out([options.old, options.new], not options.no_build) as checkouts:
            comparison = Comparison(checkouts, options.names, options.scale, seed)
            with contextlib.suppress(KeyboardInterrupt):  # the measurements so far are reported
                compare(comparison, options.pairs, max(options.pairs, options.max_pairs))
    except CheckoutError as error:
        print(f"ab.py: {error}", file=sys.stderr)
        return 2
    results = report(comparison, seed)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    if comparison.failures or any(len(pairs) < options.pairs for pairs in comparison.pairs.values()):
        return 2
    return 1 if any(each["verdict"] == SLOWER for each in results["workloads"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
