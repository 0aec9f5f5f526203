"""Runs one seed of the simulation, with small chunks and names by seed."""

from __future__ import annotations

from random import Random
from typing import Any

from headrace.archive import group_writer
from headrace.backup import create, restore, retention
from headrace.sim.checkers.store_invariants import Violation
from headrace.sim.clock import SimClock

from ..module_settings import module_settings
from .simulation import TwoBrokerSimulation

CHUNK_BYTES = 3000


class _Names:
    """Names that are random by seed."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def token_hex(self, size: int) -> str:
        return self._rng.randbytes(size).hex()


class _Time:
    """The time of the simulation."""

    def __init__(self, clock: SimClock) -> None:
        self.time_ns = clock.now_ns


def run_seed(seed: int) -> TwoBrokerSimulation:
    """Run one seed; raise Violation with the command that repeats it."""
    simulation = TwoBrokerSimulation(seed)
    chunks: Any = [(module, "CHUNK_BYTES", CHUNK_BYTES) for module in (create, restore)]
    names: Any = [(module, "secrets", _Names(simulation.make_rng("names"))) for module in (create, retention)]
    times: Any = [(module, "time", _Time(simulation.clock)) for module in (create, retention)]
    try:
        with module_settings(*chunks, (group_writer, "PART_BYTES", 4000), *names, *times):
            simulation.run()
    except Exception as error:
        text = f"{type(error).__name__}: {error}\n{simulation}\nreplay: python -m tests.sim.run_two_brokers {seed} 1"
        raise Violation(text) from error
    return simulation
