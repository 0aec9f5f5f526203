"""Damages every byte of a store, one after another: `python -m tests.crash.enumerate_bit_rot --jobs 2`.

Flips one bit of each byte, opens the store and checks it; prints the positions that violate a guarantee.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from multiprocessing import get_context
from random import Random

from .bit_rot import Verdict, build, examine, flipped

Place = tuple[str, int]


def places() -> list[Place]:
    return [(path, offset) for path, content in build().files.items() for offset in range(len(content))]


def try_place(place: Place) -> tuple[Place, Verdict | None, str]:
    path, offset = place
    bit = Random(f"{path} {offset}").randrange(8)
    try:
        return place, examine(build(), {path: flipped(build().files[path], offset, bit)}), ""
    except Exception as error:
        return place, None, f"{path}, byte {offset}, bit {bit}: {type(error).__name__}: {error}"


def kind_of(verdict: Verdict | None) -> str:
    if verdict is None:
        return "a promise broken"
    if verdict.refused:
        return "refused to open"
    if verdict.reported:
        return f"reported, {'some messages' if verdict.unreadable else 'nothing'} lost"
    return "no effect, or repaired"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--stride", type=int, default=1, help="only each nth byte")
    arguments = parser.parse_args()
    chosen = places()[:: arguments.stride]
    found: Counter[str] = Counter()
    failures, started = 0, time.monotonic()
    print(f"{len(chosen):,} bytes of {len(build().files)} files", flush=True)
    with get_context("fork").Pool(arguments.jobs) as pool:
        for _, verdict, failure in pool.imap_unordered(try_place, chosen, chunksize=64):
            found[kind_of(verdict)] += 1
            if failure:
                failures += 1
                if failures <= 20:
                    print(failure, flush=True)
    for kind, number in found.most_common():
        print(f"  {kind:40} {number:>10,}")
    print(f"{time.monotonic() - started:.0f} s of wall time; {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
