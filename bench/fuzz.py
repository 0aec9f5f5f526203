"""Fuzzes with the seeds after those of `make test`: `make fuzz INPUTS=50000000`. Keeps figures in out/fuzz.json.

python bench/fuzz.py --inputs 1000000 --only wire,leaf
python bench/fuzz.py --replay wire:17:204
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from tests.fuzz.input_generator import Maker  # noqa: E402
from tests.fuzz.target import Finding, run, shown  # noqa: E402
from tests.fuzz.targets import TARGETS  # noqa: E402

BATCH = 500
#: Lower seeds are those of `make test`.
FIRST_SEED = 1_000
SAVE_S = 10.0


def fuzz(job: tuple[str, int]) -> tuple[str, int, float, str]:
    """Run one batch; return target, inputs, CPU seconds and findings."""
    name, seed = job
    begun = time.process_time()
    try:
        fed = run(name, TARGETS[name][0], seed, BATCH)
    except Finding as finding:
        return name, 0, time.process_time() - begun, str(finding)
    return name, fed, time.process_time() - begun, ""


def replay(what: str) -> None:
    name, seed, index = what.split(":")
    maker = Maker(int(seed))
    make, check = TARGETS[name][0](maker)
    for number in range(int(index) + 1):
        case = make(maker)
        if number == int(index):
            print(shown(case))
        check(case)
    print("no finding")


def jobs(figures: dict[str, Any], names: list[str]) -> Any:
    """Yield batches without end, each target in proportion to its share."""
    whole = sum(TARGETS[name][1] for name in names)
    while True:
        total = sum(figures["batches"].get(name, 0) for name in names) + 1
        name = max(names, key=lambda each: TARGETS[each][1] / whole * total - figures["batches"].get(each, 0))
        done = figures["batches"].get(name, 0)
        figures["batches"][name] = done + 1
        yield name, FIRST_SEED + done


def load(path: Path) -> dict[str, Any]:
    if path.exists():
        kept: dict[str, Any] = json.loads(path.read_text())
        return kept
    return {"inputs": {}, "cpu_s": {}, "batches": {}, "findings": []}


def save(path: Path, figures: dict[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(figures, indent=1))
    beside.replace(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--inputs", type=int, default=50_000_000, help="total, including the runs that the figures record"
    )
    parser.add_argument("--minutes", type=float, default=0, help="stop after this many minutes (0: no limit)")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default=",".join(TARGETS))
    parser.add_argument("--figures", type=Path, default=ROOT / "out" / "fuzz.json")
    parser.add_argument("--replay", help="run one input again: target:seed:index")
    arguments = parser.parse_args()
    if arguments.replay:
        replay(arguments.replay)
        return 0
    os.nice(15)
    figures = load(arguments.figures)
    begun = saved = time.monotonic()
    with multiprocessing.Pool(arguments.jobs) as pool:
        for name, fed, cpu_s, found in pool.imap_unordered(
            fuzz,
            limited(
                jobs(figures, arguments.only.split(",")),
                figures,
                arguments.inputs,
                begun,
                arguments.minutes,
            ),
        ):
            figures["inputs"][name] = figures["inputs"].get(name, 0) + fed
            figures["cpu_s"][name] = round(figures["cpu_s"].get(name, 0) + cpu_s, 2)
            if found:
                figures["findings"].append(found)
                print(found, flush=True)
            if time.monotonic() - saved > SAVE_S:
                saved = time.monotonic()
                save(arguments.figures, figures)
    save(arguments.figures, figures)
    fed = sum(figures["inputs"].values())
    print(
        f"{fed:,} inputs, {len(figures['findings'])} findings, {sum(figures['cpu_s'].values()):,.0f} s of CPU"
    )
    return bool(figures["findings"])


def limited(batches: Any, figures: dict[str, Any], inputs: int, begun: float, minutes: float) -> Any:
    """Yield batches until there are enough inputs or the time is over, as fast as workers finish: the pool would
    otherwise take all at once.
    """
    given = sum(figures["inputs"].values())
    ahead = given
    for job in batches:
        while ahead - sum(figures["inputs"].values()) > 40 * BATCH:
            time.sleep(0.05)
        if ahead >= inputs or (minutes and time.monotonic() - begun > minutes * 60):
            figures["batches"][job[0]] -= 1
            return
        ahead += BATCH
        yield job


if __name__ == "__main__":
    sys.exit(main())
