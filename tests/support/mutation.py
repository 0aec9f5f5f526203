"""Planted bugs: a mutant is a small patch of the real code, applied in a separate process, and the trials that should
detect it.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest


class Patch:
    """Replaces attributes permanently: each mutant runs in its own process."""

    def __call__(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        setattr(owner, name, make(getattr(owner, name)))


class Mutant(NamedTuple):
    plant: Callable[[Patch], None]
    trials: tuple[Callable[[], Iterator[int]], ...]
    quick: bool = False  # part of make test


def trial_of(test: Callable[..., Any]) -> Callable[[], Iterator[int]]:
    """Make a trial of a test function: each set of its parameters counts as one."""
    tables = []
    for mark in (mark for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"):
        names = [mark.args[0]] if isinstance(mark.args[0], str) else mark.args[0]
        rows = [row if len(names) > 1 else (row,) for row in mark.args[1]]
        tables.append([dict(zip(names, row, strict=True)) for row in rows])

    def trial() -> Iterator[int]:
        for row in itertools.product(*tables):
            arguments = {name: value for part in row for name, value in part.items()}
            try:
                result = test(**arguments)
                asyncio.run(result) if inspect.isawaitable(result) else None
            except pytest.fail.Exception as failure:  # not an Exception
                raise AssertionError(str(failure)) from None
            yield 1

    return trial


#: Memory limit: a planted bug may use a damaged length and must not exhaust the machine.
MEMORY_MAX = 4 << 30
#: Errors of a patch that no longer fits the store: not a catch.
BROKEN = ("AttributeError", "TypeError", "NameError", "ImportError", "UnboundLocalError")


class Caught(NamedTuple):
    """How a mutant was caught: the number of trials, the seconds, and the error."""

    trials: int
    seconds: float
    cause: str

    @property
    def dead(self) -> bool:
        return not self.cause.startswith("NOT CAUGHT") and not any(word in self.cause for word in BROKEN)


def hunt(mutant: Mutant) -> Caught:
    """Plant a bug in this process and run trials until one detects it."""
    started, done = time.monotonic(), 0
    try:
        mutant.plant(Patch())
        for trial in mutant.trials:
            for count in trial():
                done += count
    except Exception as error:
        return Caught(done, time.monotonic() - started, f"{type(error).__name__}: {error}".split("\n")[0])
    return Caught(done, time.monotonic() - started, "NOT CAUGHT")


def in_child(mutant: Mutant) -> Caught:
    """Run `hunt` in a new process, so that the patch does not outlast it.

    Not a fork: a test process has threads of other tests, and a fork copies the locks they hold.
    """
    module = mutant.plant.__module__
    if module == "__main__":
        module = sys.modules[module].__spec__.name
    command = [sys.executable, "-m", "support.mutation", module, mutant.plant.__name__]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=errors)
        try:
            said, _ = child.communicate()
        finally:
            child.kill()
            child.wait()
        if not child.returncode:
            return Caught(*json.loads(said.splitlines()[-1]))
        errors.seek(0)
        last = errors.read().decode(errors="replace").strip().rpartition("\n")[2]
    return Caught(0, 0.0, f"NOT CAUGHT: the process ended with {child.returncode}: {last}")


def _hunt_by_name(module: str, plant: str) -> None:
    """Run one hunt in this process and print how it ended."""
    mutants: dict[str, Mutant] = importlib.import_module(module).MUTANTS
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))
    caught = hunt(next(mutant for mutant in mutants.values() if mutant.plant.__name__ == plant))
    print("\n" + json.dumps(caught), flush=True)
    os._exit(0)  # threads of a broken server may never end


def main(mutants: dict[str, Mutant], names: list[str]) -> int:
    """Try some or all mutants; return 1 if one of them is not caught."""
    alive = []
    for name in names or mutants:
        caught = in_child(mutants[name])
        print(f"{name:32} {caught.trials:>7,} {caught.seconds:>6.1f} s  {caught.cause[:110]}", flush=True)
        if not caught.dead:
            alive.append(name)
    total = len(names or mutants)
    print(
        f"{total - len(alive)} of {total} planted bugs were caught"
        + (f"; not caught: {alive}" if alive else "")
    )
    return 1 if alive else 0


if __name__ == "__main__":
    _hunt_by_name(*sys.argv[1:])
