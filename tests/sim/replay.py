"""One seed again, with its options: `python -m tests.sim.replay SEED`."""

import sys

from headrace.sim.storeworld import StoreWorld

from .options import SIZES

if __name__ == "__main__":
    seed = int(sys.argv[1])
    world = StoreWorld(seed, SIZES[seed % len(SIZES)])
    print(world)
    print(world.run(), f"{world.crashes} crashes")
