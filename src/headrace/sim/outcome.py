"""What a power loss does to operations that no sync covered. Owns the classes of outcome for crash tests.

Invariant: bytes outside a pending write never change (overwriting is power-safe), and a write lands by whole
sectors of 512 bytes or 4 KiB. It must not know stores: an outcome sees writes and name changes only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from random import Random
from typing import NamedTuple

from headrace.sim.image import Write

Landed = Sequence[Write]


class Place(NamedTuple):
    """Where a pending operation stands among all pending ones, oldest first."""

    rank: int
    total: int
    cut: int


NameRule = Callable[[Random, Place], bool]
WriteRule = Callable[[Write, Random, Place], Landed]


class Outcome(NamedTuple):
    """A class of outcome: what happens to names, and what to content."""

    name: str
    keeps: NameRule
    lands: WriteRule


def kept(write: Write, rng: Random, place: Place) -> Landed:
    return (write,)


def dropped(write: Write, rng: Random, place: Place) -> Landed:
    return ()


def zeroed(write: Write, rng: Random, place: Place) -> Landed:
    """The file has grown, but its new blocks were never written."""
    return (write._replace(data=bytes(len(write.data))),)


def garbled(write: Write, rng: Random, place: Place) -> Landed:
    return (write._replace(data=rng.randbytes(len(write.data))),)


def sectors(write: Write, sector: int) -> list[int]:
    """File offsets of the sector borders inside a write."""
    first = write.offset - write.offset % sector + sector
    return list(range(first, write.offset + len(write.data), sector))


def torn(write: Write, rng: Random, sector: int) -> Landed:
    """The front of the write landed, up to a sector border; the length may already speak of all of it."""
    borders = sectors(write, sector)
    if not borders:
        return (write,) if rng.random() < 0.5 else ()
    cut = rng.choice(borders)
    size = write.size if rng.random() < 0.5 else cut
    return (Write(write.at, write.offset, write.data[: cut - write.offset], size),)


def torn_512(write: Write, rng: Random, place: Place) -> Landed:
    return torn(write, rng, 512)


def torn_4096(write: Write, rng: Random, place: Place) -> Landed:
    return torn(write, rng, 4096)


def scattered(write: Write, rng: Random, place: Place) -> Landed:
    """Any of the sectors landed, the last one rather than the first."""
    borders = [write.offset, *sectors(write, 512), write.offset + len(write.data)]
    landed = []
    for start, end in pairwise(borders):
        if rng.random() < (0.3 if start == write.offset and len(borders) > 2 else 0.6):
            piece = write.data[start - write.offset : end - write.offset]
            landed.append(Write(write.at, start, piece, end))
    if landed and rng.random() < 0.5:
        landed.append(Write(write.at, write.offset, b"", write.size))
    return landed


def mixed(write: Write, rng: Random, place: Place) -> Landed:
    rule = rng.choice((kept, kept, dropped, zeroed, garbled, torn_512, torn_4096, scattered))
    return rule(write, rng, place)


def always(rng: Random, place: Place) -> bool:
    return True


def never(rng: Random, place: Place) -> bool:
    return False


def maybe(rng: Random, place: Place) -> bool:
    return rng.random() < 0.5


def _oldest(write: Write, rng: Random, place: Place) -> Landed:
    return (write,) if place.rank < place.cut else ()


def _newest(write: Write, rng: Random, place: Place) -> Landed:
    return (write,) if place.rank == place.total - 1 else ()


#: Every class a crash test goes through at every operation.
OUTCOMES: tuple[Outcome, ...] = (
    Outcome("keep", always, kept),
    Outcome("drop", never, dropped),
    Outcome("names only", always, dropped),
    Outcome("content only", never, kept),
    Outcome("zeros", always, zeroed),
    Outcome("garbage", always, garbled),
    Outcome("torn at 512", always, torn_512),
    Outcome("torn at 4096", always, torn_4096),
    Outcome("scattered", maybe, scattered),
    Outcome("oldest", lambda rng, place: place.rank < place.cut, _oldest),
    Outcome("newest", lambda rng, place: place.rank == place.total - 1, _newest),
    Outcome("mixed", maybe, mixed),
)

BY_NAME: dict[str, Outcome] = {outcome.name: outcome for outcome in OUTCOMES}
