"""Decides which bases and groups a restore inside the window of `keep` needs, and drops the others.

Owns the order: bases first, then the floor, then groups. Invariant: if a base is older than the window, the newest such
base stays, with all groups after it; of the bases after it the newest ones stay, and the first one of each epoch and hour,
so that a restore replays at most an hour of groups. Must not know who writes the archive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.archive.group_log import GroupLog
from headrace.backup.backup_log import BackupLog
from headrace.backup.records import BackupRecord
from headrace.backup.retention import BackupRetention
from headrace.backup.target import BackupTarget
from headrace.errors import BackupDamaged

HOUR_NS = 3600 * 1_000_000_000


@dataclass(frozen=True, slots=True)
class TrimPlan:
    """The bases that stay and those that go; groups up to `floor` go."""

    retained: list[BackupRecord]
    dropped: list[BackupRecord]
    floor: int


def find_trim_plan(log: BackupLog, oldest_ns: int, thin_ns: int = 0) -> TrimPlan:
    """Return what a restore to any moment since `oldest_ns` needs: the newest base before it, and later ones.

    Of those before `thin_ns` the first one of each epoch and hour is enough.
    """
    records = [record for _, record in log.list_backups()]
    # The newest one by epoch: a server that was replaced may finish a base after the first one of its successor.
    old = [(each.epoch, n) for n, each in enumerate(records) if each.moment_ns <= oldest_ns]
    first = max(old)[1] if old else 0
    retained = _thin(records[first:], thin_ns)
    kept = {each.id for each in retained}
    dropped = [each for each in records if each.id not in kept]
    return TrimPlan(retained, dropped, min((each.group for each in retained), default=0))


def _thin(records: Sequence[BackupRecord], thin_ns: int) -> list[BackupRecord]:
    """Return the bases that stay, always the first one and the newest one."""
    newest = max(((each.epoch, n) for n, each in enumerate(records)), default=(0, 0))[1]
    retained, hours = [], set()
    for n, each in enumerate(records):
        hour = (each.epoch, each.moment_ns // HOUR_NS)
        if each.moment_ns > thin_ns or hour not in hours or n in (0, newest, len(records) - 1):
            retained.append(each)
        hours.add(hour)
    return retained


def _check_records(log: BackupLog, plan: TrimPlan) -> None:
    """Raise BackupDamaged if a record cannot be read that may be that of a base inside the window."""
    oldest = next(number for number, record in log.list_backups() if record is plan.retained[0])
    for number, problem in log.damaged.items():
        if number > oldest:
            raise BackupDamaged(f"{problem}: bases are removed when it is older than the window")


async def run_trim(
    bases: BackupTarget, log: BackupLog, groups: GroupLog, plan: TrimPlan, floor: int
) -> tuple[int, int]:
    """Drop what the plan says, groups up to `floor`; return the numbers of dropped bases and groups."""
    if plan.dropped:
        _check_records(log, plan)
        dropped = {each.id for each in plan.dropped}
        oldest = next(number for number, record in log.list_backups() if record is plan.retained[0])
        thinned = [number for number, each in log.list_backups() if number > oldest and each.id in dropped]
        keep = len(plan.retained) + len(thinned)
        await BackupRetention(bases, log, keep, oldest=oldest, thinned=thinned).run()
    removed = await groups.trim(floor) if plan.retained else 0
    return len(plan.dropped), removed
