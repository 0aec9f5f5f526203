"""Crash points by the million: `python -m tests.crash.enumerate_crash_points --points 2000000 --jobs 2`.

Runs scripted workloads with varying orders of their disk queues, and all small workloads, until enough points were
tried; prints a line per minute and saves the figures, so that a run can be continued later.
`--replay LABEL` repeats one point. `--full-seconds N` crashes on disks that are full or nearly so, `--full LABEL`
repeats one of these.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from itertools import count, islice
from multiprocessing import get_context
from pathlib import Path

from . import fullness
from .crash_points import Checker, Tally, trace_of
from .workloads import SCRIPTED, words


def stories(start: int) -> Iterator[str]:
    """Yield labels without end: scripted workloads by seed, mixed with small ones."""
    spelled = iter(words())
    for seed in count(start):
        for name in SCRIPTED:
            yield f"{name}/{seed}"
            for _, word in zip(range(20), spelled, strict=False):
                yield f"small/{word}"


def calm() -> None:
    """Collect garbage less often: stores have many cycles, and later collections make a worker a tenth faster."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def work(label: str) -> tuple[str, Tally, str]:
    """Check all points of one workload; return the text of the first violation, if any."""
    checker = Checker(trace_of(label))
    try:
        return label, checker.run(), ""
    except AssertionError as error:
        return label, checker.tally, str(error)


def replay(label: str) -> None:
    """Check one point again: "append/0:37:torn at 512"."""
    trace, number, outcome = label.rsplit(":", 2)
    checker = Checker(trace_of(trace))
    checker.check(int(number), outcome)
    print(f"{label} passed: {checker.tally}")


def load(figures: Path) -> tuple[Tally, int]:
    """Return the figures of earlier runs, and the number of the next workload."""
    if not figures.exists():
        return Tally(), 0
    saved = json.loads(figures.read_text())
    return Tally(**saved["tally"]), saved["next"]


def save(figures: Path, total: Tally, following: int) -> None:
    figures.parent.mkdir(parents=True, exist_ok=True)
    figures.write_text(json.dumps({"next": following, "tally": asdict(total)}, indent=1) + "\n")


def campaign(points: int, jobs: int, start: int, figures: Path) -> int:
    """Continue after the last run, until all runs together have tried enough points."""
    total, done = load(figures)
    failures, started, told = 0, time.monotonic(), 0.0
    print(
        f"{points:,} crash points wanted, {total.total:,} done; {jobs} jobs, seeds from {start}", flush=True
    )
    with get_context("fork").Pool(jobs, calm) as pool:
        for label, tally, failure in pool.imap(work, islice(stories(start), done, None)):
            total.add(tally)
            done += 1
            if failure:
                failures += 1
                print(f"FAILED {failure}", flush=True)
            enough = total.total >= points or failures > 20
            if enough or time.monotonic() - told > 60:
                told = time.monotonic()
                save(figures, total, done)
                print(f"{label}: {total}", flush=True)
            if enough:
                pool.terminate()
                break
    print(f"{time.monotonic() - started:.0f} s of wall time; {done:,} workloads; {failures} failures")
    for name, number in sorted(total.by_outcome.items()):
        print(f"  {name:14} {number:>10,}")
    return 1 if failures else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=2_000_000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="first seed of the scripted workloads")
    parser.add_argument("--figures", type=Path, default=Path("out/crash.json"), help="kept, to go on later")
    parser.add_argument("--only", help="workloads such as append/0,small/abc")
    parser.add_argument("--replay", help="repeat one crash point")
    parser.add_argument("--full", help="repeat one crash on a full disk")
    parser.add_argument("--full-seconds", type=int, help="crashes on full disks, for so long")
    arguments = parser.parse_args()
    if arguments.only:
        for label in arguments.only.split(","):
            print(f"{label}: {Checker(trace_of(label)).run()}", flush=True)
        return 0
    if arguments.full:
        fullness.replay(arguments.full)
        return 0
    if arguments.full_seconds:
        return fullness.campaign(arguments.full_seconds, arguments.seed)
    if arguments.replay:
        replay(arguments.replay)
        return 0
    return campaign(arguments.points, arguments.jobs, arguments.seed, arguments.figures)


if __name__ == "__main__":
    sys.exit(main())
