"""Every kind of damage in a target is found by `verify`, and by a restore that meets it."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.backup.backup_log import BackupLog
from headrace.backup.records import parse_object_key
from headrace.backup.restore import RestoreRun
from headrace.backup.target import BackupTarget
from headrace.backup.verify import verify_backups
from headrace.claims.stores import MemoryStore, StaticAttributes
from headrace.errors import BackupDamaged, BackupError
from support.store_backups import back_up, fill, make_target, read, restore


async def list_keys(target: BackupTarget) -> list[str]:
    return [info.key for prefix in ("objects/", "log/") async for info in target.list(prefix)]


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "extend"])
async def test_damage_of_every_object_is_found(tmp_path: Path, damage: str) -> None:
    fill(tmp_path / "data")
    target = await make_target()
    await back_up(tmp_path / "data", target)
    keys = await list_keys(target)
    kinds = {"log" if key.startswith("log/") else "object" for key in keys}
    assert kinds == {"log", "object"}
    for number, key in enumerate(keys):
        other = MemoryStore("backups")
        broken = await make_target(other)
        for each in keys:
            data = await target.read_any(each)
            assert data is not None
            if each == key:
                middle = len(data) // 2
                flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
                data = {"flip": flipped, "truncate": data[:-1], "extend": data + b"x", "remove": b""}[damage]
            if each != key or damage != "remove":
                await other.put(f"server-1/{each}", data, StaticAttributes())
        await check_found(broken, tmp_path / f"restored-{number}", is_listed=not key.startswith("log/"))


async def check_found(target: BackupTarget, folder: Path, *, is_listed: bool) -> None:
    if is_listed:
        log = await BackupLog.load(target)
        records = [record for _, record in log.list_backups()]
        report = await verify_backups(target, log, records)
        assert list(report.problems) == [records[0].id]
        with pytest.raises(BackupDamaged):
            await restore(target, folder)
    else:
        with pytest.raises(BackupError):
            await restore(target, folder)


async def test_a_damaged_record_does_not_prevent_a_restore_of_another_backup(tmp_path: Path) -> None:
    state = fill(tmp_path / "data")
    objects = MemoryStore("backups")
    target = await make_target(objects)
    first = await back_up(tmp_path / "data", target)
    await back_up(tmp_path / "data", target)
    await objects.put("server-1/log/0000000000000002", b"x", StaticAttributes(), replace=True)
    with pytest.raises(BackupDamaged):
        await back_up(tmp_path / "data", target)
    log = await BackupLog.load(target, is_lenient=True)
    assert list(log.damaged) == [2]
    assert [record.id for _, record in log.list_backups()] == [first.id]
    await RestoreRun(target, log, first, tmp_path / "restored").run()
    assert read(tmp_path / "restored") == state


async def test_each_object_is_read_once(tmp_path: Path) -> None:
    fill(tmp_path / "data")
    target = await make_target()
    await back_up(tmp_path / "data", target)
    await back_up(tmp_path / "data", target)
    log = await BackupLog.load(target)
    report = await verify_backups(target, log, [record for _, record in log.list_backups()])
    assert not report.problems
    assert report.backups == 2
    names = [key for key in await list_keys(target) if key.startswith("objects/")]
    assert report.objects == len(names)
    assert all(parse_object_key(name, 1) is not None for name in names)
