"""Outcomes of a power loss for operations that no sync covered. Owns the classes of outcome for crash tests.

Invariant: bytes outside a pending write never change (overwriting is power-safe), and a write lands in whole sectors of
512 bytes or 4 KiB. Must not know stores: an outcome sees only writes and name changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from random import Random
from typing import NamedTuple

from headrace.sim.disk.sparse_file import PendingWrite

LandedWrites = Sequence[PendingWrite]


class PendingPosition(NamedTuple):
    """Position of a pending operation among all pending ones, oldest first."""

    rank: int
    total: int
    cut: int


NameRule = Callable[[Random, PendingPosition], bool]
WriteRule = Callable[[PendingWrite, Random, PendingPosition], LandedWrites]


class Outcome(NamedTuple):
    """A class of outcome: what happens to names, and to content."""

    name: str
    keeps_name: NameRule
    land_write: WriteRule


def keep_write(write: PendingWrite, rng: Random, position: PendingPosition) -> LandedWrites:
    return (write,)


def drop_write(write: PendingWrite, rng: Random, position: PendingPosition) -> LandedWrites:
    return ()


def zero_write(write: PendingWrite, rng: Random, position: PendingPosition) -> LandedWrites:
    """The file has grown, but its new blocks were never written."""
    return (write._replace(data=bytes(len(write.data))),)


def garble_write(write: PendingWrite, rng: Random, position: PendingPosition) -> LandedWrites:
    return (write._replace(data=rng.randbytes(len(write.data))),)


def get_sector_borders(write: PendingWrite, sector: int) -> list[int]:
    """Return the file offsets of the sector borders inside a write."""
    first = write.offset - write.offset % sector + sector
    return list(range(first, write.offset + len(write.data), sector))


def tear_write(write: PendingWrite, rng: Random, sector: int) -> LandedWrites:
    """The beginning of the write landed, up to a sector border; the length may already include all of it."""
    borders = get_sector_borders(write, sector)
    if not borders:
        return (write,) if rng.random() < 0.5 else ()
    cut = rng.choice(borders)
    size = write.size if rng.random() < 0.5 else cut
    return (PendingWrite(write.op_number, write.offset, write.data[: cut - write.offset], size),)


def tear_write_at_512(write: PendingWrite, rng: Random, position: PendingPosition) -> LandedWrites:
    return tear_write(write, rng, 512)


def tear_write_at_4096(write: PendingWrite, rng: Random, position: PendingPosition) -> LandedWrites:
    return tear_write(write, rng, 4096)


def scatter_sectors(write: PendingWrite, rng: Random, position: PendingPosition) -> LandedWrites:
    """Any of the sectors landed, the last one more likely than the first."""
    borders = [write.offset, *get_sector_borders(write, 512), write.offset + len(write.data)]
    landed = []
    for start, end in pairwise(borders):
        if rng.random() < (0.3 if start == write.offset and len(borders) > 2 else 0.6):
            piece = write.data[start - write.offset : end - write.offset]
            landed.append(PendingWrite(write.op_number, start, piece, end))
    if landed and rng.random() < 0.5:
        landed.append(PendingWrite(write.op_number, write.offset, b"", write.size))
    return landed


def mix_outcomes(write: PendingWrite, rng: Random, position: PendingPosition) -> LandedWrites:
    rule = rng.choice(
        (
            keep_write,
            keep_write,
            drop_write,
            zero_write,
            garble_write,
            tear_write_at_512,
            tear_write_at_4096,
            scatter_sectors,
        )
    )
    return rule(write, rng, position)


def keep_always(rng: Random, position: PendingPosition) -> bool:
    return True


def keep_never(rng: Random, position: PendingPosition) -> bool:
    return False


def keep_maybe(rng: Random, position: PendingPosition) -> bool:
    return rng.random() < 0.5


def _keep_oldest(write: PendingWrite, rng: Random, position: PendingPosition) -> LandedWrites:
    return (write,) if position.rank < position.cut else ()


def _keep_newest(write: PendingWrite, rng: Random, position: PendingPosition) -> LandedWrites:
    return (write,) if position.rank == position.total - 1 else ()


#: Every class that a crash test applies at every operation.
OUTCOMES: tuple[Outcome, ...] = (
    Outcome("keep", keep_always, keep_write),
    Outcome("drop", keep_never, drop_write),
    Outcome("names only", keep_always, drop_write),
    Outcome("content only", keep_never, keep_write),
    Outcome("zeros", keep_always, zero_write),
    Outcome("garbage", keep_always, garble_write),
    Outcome("torn at 512", keep_always, tear_write_at_512),
    Outcome("torn at 4096", keep_always, tear_write_at_4096),
    Outcome("scattered", keep_maybe, scatter_sectors),
    Outcome("oldest", lambda rng, position: position.rank < position.cut, _keep_oldest),
    Outcome("newest", lambda rng, position: position.rank == position.total - 1, _keep_newest),
    Outcome("mixed", keep_maybe, mix_outcomes),
)

OUTCOMES_BY_NAME: dict[str, Outcome] = {outcome.name: outcome for outcome in OUTCOMES}
