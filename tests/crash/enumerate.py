"""Crash points by the million: `python -m tests.crash.enumerate --points 2000000 --jobs 2`.

Works through scripted workloads with ever new orders of their lanes and all small workloads, until enough
points were tried; prints a line a minute. `--replay LABEL` repeats one point.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from itertools import count
from multiprocessing import get_context

from .points import Checker, Tally, trace_of
from .workloads import SCRIPTED, words


def stories(start: int) -> Iterator[str]:
    """Labels without end: scripted ones by seed, the small ones strewn between."""
    spelled = iter(words())
    for seed in count(start):
        for name in SCRIPTED:
            yield f"{name}/{seed}"
            for _, word in zip(range(20), spelled, strict=False):
                yield f"small/{word}"


def work(label: str) -> tuple[str, Tally, str]:
    """All points of one workload; the text of the first violation, if any."""
    checker = Checker(trace_of(label))
    try:
        return label, checker.run(), ""
    except AssertionError as error:
        return label, checker.tally, str(error)


def replay(label: str) -> None:
    """One point again: "append/0:37:torn at 512"."""
    trace, number, outcome = label.rsplit(":", 2)
    checker = Checker(trace_of(trace))
    checker.check(int(number), outcome)
    print(f"{label} holds: {checker.tally}")


def campaign(points: int, jobs: int, start: int) -> int:
    total, failures, started, told = Tally(), [], time.monotonic(), time.monotonic()
    print(f"at least {points:,} crash points, {jobs} jobs, seeds from {start}", flush=True)
    with get_context("fork").Pool(jobs) as pool:
        for label, tally, failure in pool.imap_unordered(work, stories(start)):
            total.add(tally)
            if failure:
                failures.append(label)
                print(f"FAILED {failure}", flush=True)
            if time.monotonic() - told > 60:
                told = time.monotonic()
                print(f"{label}: {total}", flush=True)
            if total.total >= points or len(failures) > 20:
                pool.terminate()
                break
    print(f"{total}; {time.monotonic() - started:.0f} s of wall time; {len(failures)} failures")
    for name, number in sorted(total.by_outcome.items()):
        print(f"  {name:14} {number:>10,}")
    return 1 if failures else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=2_000_000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="first seed of the scripted workloads")
    parser.add_argument("--only", help="workloads such as append/0,small/abc")
    parser.add_argument("--replay", help="repeat one crash point")
    arguments = parser.parse_args()
    if arguments.only:
        for label in arguments.only.split(","):
            print(f"{label}: {Checker(trace_of(label)).run()}", flush=True)
        return 0
    if arguments.replay:
        replay(arguments.replay)
        return 0
    return campaign(arguments.points, arguments.jobs, arguments.seed)


if __name__ == "__main__":
    sys.exit(main())
