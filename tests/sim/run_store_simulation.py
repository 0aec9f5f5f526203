"""Replays one seed of the store simulation: `python -m tests.sim.run_store_simulation SEED`."""

import sys

from headrace.sim.store_simulation import StoreSimulation

from .store_sizes import SIZES

if __name__ == "__main__":
    seed = int(sys.argv[1])
    simulation = StoreSimulation(seed, SIZES[seed % len(SIZES)])
    print(simulation)
    print(simulation.run(), f"{simulation.crashes} crashes")
