"""The simulator: virtual time, simulated disks and whole simulations in which a seed decides everything.

Shipped because users test against it too. The same seed gives the same run.
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
