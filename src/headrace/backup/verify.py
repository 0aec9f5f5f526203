"""Verifies backups: reads every object that they name and compares its checksum.

Owns no state. It only reads. Must not know stores.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.backup.backup_log import BackupLog
from headrace.backup.records import BackupRecord, ObjectRef
from headrace.backup.target import BackupTarget
from headrace.errors import BackupDamaged

CONCURRENCY = 8


@dataclass(slots=True)
class VerifyReport:
    """What was read, and for each damaged backup what is wrong."""

    backups: int = 0
    objects: int = 0
    bytes: int = 0
    problems: dict[str, list[str]] = field(default_factory=dict)

    def add(self, backup: str, problem: str) -> None:
        """Add a problem of a backup."""
        self.problems.setdefault(backup, []).append(problem)


async def verify_backups(
    target: BackupTarget,
    log: BackupLog,
    backups: list[BackupRecord],
    progress: Callable[[int], None] = lambda done: None,
) -> VerifyReport:
    """Read all objects of these backups, each once."""
    report = VerifyReport(len(backups))
    users: dict[ObjectRef, list[str]] = {}
    for record in backups:
        try:
            index = await log.read_index(record)
        except BackupDamaged as error:
            report.add(record.id, f"its index: {error}")
            continue
        report.objects += 1
        for ref in index.list_objects():
            users.setdefault(ref, []).append(record.id)
    refs = iter(users)

    async def work() -> None:
        for ref in refs:
            try:
                await target.read(ref)
            except BackupDamaged as error:
                for name in users[ref]:
                    report.add(name, str(error))
            report.objects += 1
            report.bytes += ref.length
            progress(ref.length)

    async with asyncio.TaskGroup() as group:
        for _ in range(CONCURRENCY):
            group.create_task(work())
    return report
