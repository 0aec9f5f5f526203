"""Planted bugs: a mutant is a small patch of the real code, applied in a separate process, and the trials that should
detect it.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import os
import pickle
import resource
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
        return self.cause not in ("", "NOT CAUGHT") and not any(word in self.cause for word in BROKEN)


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
    """Run `hunt` in a separate process, so that the patch does not outlast it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))
        with os.fdopen(writing, "wb") as pipe:
            pickle.dump(tuple(hunt(mutant)), pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    return Caught(*pickle.loads(said)) if said else Caught(0, 0.0, f"the process died: {status}")


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
