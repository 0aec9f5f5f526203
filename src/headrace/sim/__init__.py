"""The simulator: a clock, a disk and a world in which nothing happens by accident.

Shipped because users test against it too. Everything is driven by a seed: the same seed gives the same run.
"""

from headrace.sim.clock import EPOCH_NS, SECOND_NS, SimClock
from headrace.sim.disk import SimDisk
from headrace.sim.faults import Fault
from headrace.sim.outcome import BY_NAME, OUTCOMES, Outcome
from headrace.sim.snapshot import Snapshot

__all__ = (
    "BY_NAME",
    "EPOCH_NS",
    "OUTCOMES",
    "SECOND_NS",
    "Fault",
    "Outcome",
    "SimClock",
    "SimDisk",
    "Snapshot",
)
