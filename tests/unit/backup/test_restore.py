"""Restores: into an empty folder only, verified, and complete or refused by a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.backup.restore import FOLDER_MARKER
from headrace.backup.target import BackupTarget
from headrace.errors import BackupDamaged, BackupError, StoreError
from headrace.storage import FileDisk, open_store
from headrace.storage.recovery.recovery import RESTORE_MARKER
from support.small_store import Ticking
from support.store_backups import FOLDER, back_up, fill, make_target, read, restore


class Interrupted(Exception):
    """Ends a restore as a kill does: nothing is cleaned up."""


async def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    fill(tmp_path / "data")
    target = await make_target()
    await back_up(tmp_path / "data", target)
    with pytest.raises(BackupError, match="not empty"):
        await restore(target, tmp_path / "data")


async def interrupt(target: BackupTarget, folder: Path, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Restore until some objects were read."""
    old, reads = BackupTarget.read, 0

    async def read_some(self: BackupTarget, ref: Any) -> bytes:
        nonlocal reads
        reads += 1
        if reads > after:
            raise Interrupted
        return await old(self, ref)

    with monkeypatch.context() as patch:
        patch.setattr(BackupTarget, "read", read_some)
        with pytest.raises(Interrupted):
            await restore(target, folder)


@pytest.mark.parametrize("after", [1, 2, 4])
async def test_a_server_refuses_an_unfinished_restore_and_a_repeated_one_completes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    state = fill(tmp_path / "data", rounds=6)
    target = await make_target()
    record = await back_up(tmp_path / "data", target)
    folder = tmp_path / "restored"
    await interrupt(target, folder, monkeypatch, after)
    disk = FileDisk(folder / FOLDER)
    with pytest.raises(StoreError, match="not completed"):
        open_store(disk, Ticking())
    disk.close()
    run = await restore(target, folder)
    assert run.fetched_bytes <= record.bytes
    assert read(folder) == state
    assert not (folder / FOLDER_MARKER).exists()


async def test_another_backup_does_not_complete_a_restore(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "data")
    target = await make_target()
    await back_up(tmp_path / "data", target)
    await interrupt(target, tmp_path / "restored", monkeypatch, 2)
    await back_up(tmp_path / "data", target)
    with pytest.raises(BackupError, match="unfinished restore"):
        await restore(target, tmp_path / "restored")


async def test_a_repeated_restore_leaves_a_complete_store_alone(tmp_path: Path) -> None:
    """A crash between the removal of the last two markers: a server may have changed the store since."""
    fill(tmp_path / "data")
    target = await make_target()
    record = await back_up(tmp_path / "data", target)
    folder = tmp_path / "restored"
    await restore(target, folder)
    (folder / FOLDER_MARKER).write_text(f"{record.id} copying")
    changed = fill(folder, rounds=1, start=9)
    await restore(target, folder)
    assert read(folder) == changed


async def test_a_store_that_a_server_created_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    fill(tmp_path / "data")
    target = await make_target()
    record = await back_up(tmp_path / "data", target)
    folder = tmp_path / "restored"
    fill(folder)
    (folder / FOLDER_MARKER).write_text(f"{record.id} preparing")
    with pytest.raises(BackupError, match="a server has used"):
        await restore(target, folder)


async def test_the_markers_come_before_the_first_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "data")
    target = await make_target()
    await back_up(tmp_path / "data", target)
    folder = tmp_path / "restored"
    await interrupt(target, folder, monkeypatch, 1)
    assert [path.name for path in folder.rglob("*") if path.is_file()].count(RESTORE_MARKER) == 1


async def test_what_is_no_part_of_a_store_is_refused(tmp_path: Path) -> None:
    from headrace.backup.records import FileEntry, StoreEntry
    from headrace.backup.restore import _check_store

    for folder, path in (
        ("../x", "journal/a"),
        (FOLDER, "../a"),
        (FOLDER, "lock"),
        (FOLDER, "streams/../../a"),
    ):
        entry = StoreEntry("$G", folder, 1, "", 1, 1, [FileEntry(path, 0, 0, [])])
        with pytest.raises(BackupDamaged):
            _check_store(tmp_path, entry)


def test_an_unfinished_restore_of_an_archive_names_its_command(tmp_path: Path) -> None:
    (tmp_path / RESTORE_MARKER).write_text("archive 20261118T000000Z-abcd")
    disk = FileDisk(tmp_path)
    with pytest.raises(StoreError, match="`headrace archive restore` again"):
        open_store(disk, Ticking())
    disk.close()
