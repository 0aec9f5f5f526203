"""The simulator: a clock, a disk and a world in which nothing happens by accident.

Shipped because users test against it too. Everything is driven by a seed: the same seed gives the same run.
"""

from headrace.sim.clock import EPOCH_NS, SECOND_NS, SimClock
from headrace.sim.disk.crash_outcomes import OUTCOMES, OUTCOMES_BY_NAME, Outcome
from headrace.sim.disk.disk_faults import Fault
from headrace.sim.disk.disk_snapshot import DiskSnapshot
from headrace.sim.disk.sim_disk import SimDisk

__all__ = (
    "EPOCH_NS",
    "OUTCOMES",
    "OUTCOMES_BY_NAME",
    "SECOND_NS",
    "DiskSnapshot",
    "Fault",
    "Outcome",
    "SimClock",
    "SimDisk",
)
