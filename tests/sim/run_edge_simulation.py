"""Runs simulations of the edge by seed: `python -m tests.sim.run_edge_simulation FIRST COUNT [--hours 24] [--sites 4]`.

Prints a line for each seed; exits with 1 if a copy does not equal its site's history.
"""

from __future__ import annotations

import argparse
import sys
import time

from headrace.sim.edge_simulation import CopyDifference, EdgeSimulation

from .store_sizes import SIZES


def run(seed: int, hours: float, sites: int, fault_pause_s: float) -> str:
    """Run one seed; return what is wrong, "" if nothing is."""
    started_s = time.process_time()
    simulation = EdgeSimulation(seed, SIZES[1], sites, fault_pause_s=fault_pause_s)
    simulation.run(hours)
    try:
        simulation.check()
        problem = ""
    except CopyDifference as error:
        problem = str(error)
    simulation.servers.close()
    messages, sent = sum(map(len, simulation.acked.values())), simulation.servers.bytes
    print(
        f"seed {seed}: {hours:g} h, {messages} messages, {sent / 1e6:.1f} MB sent, {dict(simulation.faults)}, "
        f"{time.process_time() - started_s:.0f} s of CPU: {problem or 'copies equal'}",
        flush=True,
    )
    return problem


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--sites", type=int, default=4)
    parser.add_argument("--fault-pause", type=float, default=300.0, help="mean seconds between faults")
    given = parser.parse_args()
    seeds = range(given.first, given.first + given.count)
    problems = [run(seed, given.hours, given.sites, given.fault_pause) for seed in seeds]
    return 1 if any(problems) else 0


if __name__ == "__main__":
    sys.exit(main())
