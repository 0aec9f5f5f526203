"""Runs the compiled core under AddressSanitizer and UndefinedBehaviorSanitizer: `make sanitize MINUTES=10`.

Builds the compiled core in a copy of the sources below out/sanitize; the normal build is not touched. Runs the unit
tests of the compiled core and the store, then fuzz targets by seed, continuing after those in
out/sanitize/figures.json. Needs gcc with its sanitizer libraries. The first report of a sanitizer ends the run.

python bench/sanitize.py --minutes 10 --only disk,replies
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

PLACE = ROOT / "out" / "sanitize"
FIGURES = PLACE / "figures.json"
TESTS = ("tests/unit/_native", "tests/unit/storage", "tests/unit/reader/test_read.py")
FLAGS = "-g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined"
LIBRARIES = ("libasan.so", "libubsan.so", "libstdc++.so.6")
#: Share of the time of each target: those that read bytes by address get most.
TARGETS = {
    "wire": 0.12,
    "headers": 0.08,
    "websocket": 0.04,
    "leaf": 0.06,
    "replies": 0.1,
    "snappy": 0.1,
    "store": 0.1,
    "disk": 0.4,
}
BATCH = 100
#: Lower seeds are those of `make test` and `make fuzz`.
FIRST_SEED = 10_000_000
WORKERS = 2


def build() -> Path:
    """Copy the sources and build the compiled core there; return the folder to import from."""
    ignored = shutil.ignore_patterns("*.so", "*.c", "__pycache__", "*.egg-info")
    for each in (PLACE / "src").rglob("*.py*"):
        each.unlink()  # built modules stay: only changed sources are built again
    shutil.copytree(ROOT / "src", PLACE / "src", ignore=ignored, dirs_exist_ok=True)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, PLACE / name)
    # -O3 gains little here and takes minutes to build.
    (PLACE / "setup.py").write_text((ROOT / "setup.py").read_text().replace("-O3", "-O1"))
    environment = {**os.environ, "CFLAGS": FLAGS, "LDFLAGS": FLAGS}
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace", "--parallel", "2"]
    subprocess.run(command, cwd=PLACE, env=environment, check=True, stdout=subprocess.DEVNULL)
    kernel = PLACE / "src" / "headrace" / "_native"
    missing = [each.stem for each in kernel.glob("*.pyx") if not list(kernel.glob(f"{each.stem}.*.so"))]
    if missing:
        raise SystemExit(f"not built with the sanitizers: {', '.join(missing)}")
    return PLACE / "src"


def environment(source: Path) -> dict[str, str]:
    """Return the environment of a process that runs the sanitized core."""
    found = [
        subprocess.check_output(["gcc", f"-print-file-name={name}"], text=True).strip() for name in LIBRARIES
    ]
    return {
        **os.environ,
        "PYTHONPATH": str(source),
        "LD_PRELOAD": ":".join(found),
        "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=1:strict_string_checks=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "PYTHONMALLOC": "malloc",
    }


def run_tests(env: dict[str, str]) -> bool:
    """Run the unit tests; those of the pure version are skipped, since nothing in it is compiled."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "--timeout", "900", *TESTS]
    command += ["--deselect", "tests/unit/storage/test_pure_python.py"]
    return subprocess.run(command, cwd=ROOT, env=env).returncode == 0


def fuzz(env: dict[str, str], minutes: float, names: str) -> bool:
    """Fuzz in several processes until the time is over or a process ends early."""
    figures = load()
    first = figures["next_seed"]
    command = [sys.executable, __file__, "--minutes", str(minutes), "--only", names, "--worker"]
    workers = [
        subprocess.Popen([*command, str(first + each)], cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)
        for each in range(WORKERS)
    ]
    good = True
    for worker in workers:
        said, _ = worker.communicate()
        good = note(figures, said.splitlines()) and worker.returncode == 0 and good
    FIGURES.write_text(json.dumps(figures, indent=1))
    fed = ", ".join(f"{name} {count:,}" for name, count in figures["inputs"].items())
    print(f"{sum(figures['inputs'].values()):,} inputs in all runs ({fed})")
    return good


def load() -> dict[str, Any]:
    if FIGURES.exists():
        kept: dict[str, Any] = json.loads(FIGURES.read_text())
        return kept
    return {"next_seed": FIRST_SEED, "inputs": {}}


def note(figures: dict[str, Any], lines: list[str]) -> bool:
    """Count a worker's inputs; if it ended early, print its current batch and return False."""
    begun = ""
    for line in lines:
        kind, _, rest = line.partition(" ")
        if kind == "begin":
            begun = rest
            figures["next_seed"] = max(figures["next_seed"], int(rest.split(":")[1]) + 1)
        elif kind == "done":
            name = begun.split(":")[0]
            figures["inputs"][name] = figures["inputs"].get(name, 0) + int(rest)
            begun = ""
        else:
            print(line)
    if begun:
        print(f"a process ended early in batch {begun}; run it again with --again {begun}")
    return not begun


def work(seed: int, minutes: float, names: list[str]) -> int:
    """Feed batches until the time is over, each target in proportion to its share."""
    from tests.fuzz.target import Finding, run
    from tests.fuzz.targets import TARGETS as STARTS

    from headrace._native import records

    assert str(PLACE) in str(records.__file__), f"this is not the sanitized core: {records.__file__}"
    spent = dict.fromkeys(names, 0.0)
    until = time.monotonic() + 60 * minutes
    while time.monotonic() < until:
        name = min(names, key=lambda each: spent[each] / TARGETS[each])
        begun = time.monotonic()
        print(f"begin {name}:{seed}", flush=True)
        try:
            print(f"done {run(name, STARTS[name][0], seed, BATCH)}", flush=True)
        except Finding as finding:
            print(finding, flush=True)
            return 1
        spent[name] += time.monotonic() - begun
        seed += WORKERS
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10, help="minutes of fuzzing, after the tests")
    parser.add_argument("--only", default=",".join(TARGETS), help="fuzz targets, separated by commas")
    parser.add_argument("--skip-tests", action="store_true")
    parser.add_argument("--again", help="run one batch of a target again: target:seed")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker is not None:
        return work(arguments.worker, arguments.minutes, arguments.only.split(","))
    env = environment(build())
    if arguments.again:
        name, seed = arguments.again.split(":")
        command = [sys.executable, __file__, "--minutes", "0.0001", "--only", name, "--worker", seed]
        return subprocess.run(command, cwd=ROOT, env=env).returncode
    good = (arguments.skip_tests or run_tests(env)) and fuzz(env, arguments.minutes, arguments.only)
    print("no finding" if good else "FAILED: see the report above")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
