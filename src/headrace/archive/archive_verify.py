"""Reads an archive: its servers, the range that can be restored, and whether every object is what was written.

Owns no state. It only reads. Must not know stores.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.archive.group_format import server_folder
from headrace.archive.group_log import GroupLog
from headrace.archive.group_writer import BASE_FOLDER
from headrace.backup.backup_log import BackupLog
from headrace.backup.records import BackupRecord
from headrace.backup.target import BackupTarget
from headrace.backup.verify import verify_backups
from headrace.errors import ArchiveDamaged, ArchiveError


@dataclass(frozen=True, slots=True)
class ArchiveSummary:
    """The archive of one server: groups `floor` + 1 to `last`, and its bases."""

    server: int
    floor: int
    last: int
    epoch: int
    last_ns: int
    bases: list[BackupRecord]


@dataclass(slots=True)
class ArchiveReport:
    """What was read, and what is wrong."""

    groups: int = 0
    bases: int = 0
    objects: int = 0
    bytes: int = 0
    problems: list[str] = field(default_factory=list)


async def find_servers(target: BackupTarget) -> list[int]:
    """Return the servers with an archive in this target."""
    found = []
    for name in await target.list_folders():
        try:
            number = int(name, 16)
        except ValueError:
            continue
        if server_folder(number) == name:
            found.append(number)
    return found


async def choose_server(target: BackupTarget, name: str) -> int:
    """Return the server with this name (hexadecimal), or the only one of the target."""
    servers = await find_servers(target)
    if name:
        wanted = [each for each in servers if server_folder(each) == name]
        if not wanted:
            raise ArchiveError(f"{target.name} has no archive of server {name}")
        return wanted[0]
    if not servers:
        raise ArchiveError(f"{target.name} has no archive")
    if len(servers) > 1:
        names = ", ".join(server_folder(each) for each in servers)
        raise ArchiveError(
            f"{target.name} has archives of {len(servers)} servers: add --server-id ID ({names}); `headrace archive list` "
            "shows what they have"
        )
    return servers[0]


async def summarize(target: BackupTarget, server: int) -> ArchiveSummary:
    """Return what the archive of a server has; `target` is its folder."""
    log = GroupLog(target, server)
    _, last = await log.find_end()
    group = await log.read(last) if last else None
    bases = await BackupLog.load(target.open_folder(BASE_FOLDER), is_lenient=True)
    header = group.header if group is not None else None
    return ArchiveSummary(
        server,
        (await log.read_floor()).number,
        last,
        header.epoch if header is not None else 0,
        header.time_ns if header is not None else 0,
        [record for _, record in bases.list_backups()],
    )


async def verify_archive(target: BackupTarget, server: int) -> ArchiveReport:
    """Read every group and every object of the bases, and compare checksums and the chain of groups."""
    report = ArchiveReport()
    bases = target.open_folder(BASE_FOLDER)
    log = await BackupLog.load(bases, is_lenient=True)
    report.problems += [f"base record {number}: {text}" for number, text in log.damaged.items()]
    records = [record for _, record in log.list_backups()]
    found = await verify_backups(bases, log, records)
    report.bases, report.objects, report.bytes = len(records), found.objects, found.bytes
    report.problems += [f"base {name}: {text}" for name, texts in found.problems.items() for text in texts]
    groups = GroupLog(target, server)
    floor = (await groups.read_floor()).number
    report.problems += [
        f"base {each.id} needs group {each.group + 1}, which was removed"
        for each in records
        if each.group < floor
    ]
    await _verify_groups(groups, report, max((each.group for each in records), default=0))
    return report


async def _verify_groups(log: GroupLog, report: ArchiveReport, base_group: int) -> None:
    crc, part = None, 0
    last = max(await log.find_end())
    if base_group > last:
        report.problems.append(
            f"groups {last + 1} to {base_group} are missing: a base continues group {base_group}"
        )
    for number in range((await log.read_floor()).number + 1, last + 1):
        try:
            group = await log.read(number)
            if group is None:
                if number > (await log.read_floor()).number:
                    report.problems.append(f"group {number} is missing")
                crc = None
                continue
        except ArchiveDamaged as error:
            report.problems.append(str(error))
            crc = None
            continue
        if crc is not None and group.header.prev_crc != crc:
            report.problems.append(f"group {number} does not continue the group before it")
        if crc is not None and group.header.part not in (1, part + 1):
            report.problems.append(f"group {number} is part {group.header.part}, after part {part}")
        crc, part = group.crc, group.header.part
        report.groups += 1
        report.bytes += len(group.body)
