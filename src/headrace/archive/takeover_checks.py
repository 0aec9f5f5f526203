"""Decides whether a server may take its archive over: the checks of a start.

Owns nothing. A start that is refused has changed nothing. Must not know how groups are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.archive.group_format import GroupHeader
from headrace.errors import ArchiveError, ArchiveFenced


@dataclass(frozen=True, slots=True)
class EarlierRuns:
    """What a server knows about its archive: the newest epoch and group that it recorded, and stores of removed accounts.

    `highest` has the highest sequence in each store, if messages may be acknowledged before they are archived.
    """

    epoch: int = 0
    group: int = 0
    absent: frozenset[int] = frozenset()
    highest: Mapping[int, int] = field(default_factory=dict)


NO_EARLIER_RUNS = EarlierRuns()


def check_length(name: str, last: int, header: GroupHeader | None, earlier: EarlierRuns) -> None:
    """Raise ArchiveError if groups are missing that this server has written."""
    epoch = header.epoch if header is not None else 0
    if last < earlier.group or epoch < earlier.epoch:
        raise ArchiveError(
            f"this server has written group {earlier.group} of epoch {earlier.epoch}, but the newest one in {name} is "
            f"group {last} of epoch {epoch}: is the right bucket or folder mounted? Nothing was changed; to begin a new "
            "archive, remove headrace-archive.json from the store directory"
        )


def check_last(
    header: GroupHeader, known_writers: set[str], local_frames: dict[int, int], absent: frozenset[int]
) -> None:
    """Raise ArchiveFenced unless the newest group is this server's, and has nothing that its stores lack."""
    remedy = (
        "nothing in the archive was changed. With ack: remote, start this server with --standby: it rebuilds its stores "
        "from the archive. With ack: local, use `headrace archive promote URL DIR` or `headrace archive restore URL DIR`. "
        "Remove headrace-archive.json from the store directory only to give up what the archive has and this disk lacks"
    )
    if header.writer not in known_writers:
        raise ArchiveFenced(
            f"the archive has newer groups of another server (epoch {header.epoch}, group {header.number}): {remedy}"
        )
    for store, frame in header.heads.items():
        if store not in absent and frame > local_frames.get(store, 0):
            raise ArchiveFenced(
                f"the archive has frame {frame} of store {store:016x}, which is not on this disk: {remedy}"
            )
