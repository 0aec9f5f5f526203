"""What belongs in a backup; and that nothing is backed up if something of it is missing."""

from pathlib import Path

import pytest

from headrace.backup.needed_files import NeededFiles, find_needed_files
from headrace.backup.pinned_stores import OfflineStores
from headrace.errors import BackupError
from support.small_store import kill, open_small_store
from support.store_backups import FOLDER, fill


def find(root: Path) -> NeededFiles:
    source = OfflineStores([("$G", FOLDER, root / FOLDER)])
    try:
        return find_needed_files(source.stores[0])
    finally:
        source.close()


def test_caches_are_left_out(tmp_path: Path) -> None:
    fill(tmp_path)
    paths = [file.path for file in find(tmp_path).files]
    assert {path.partition("/")[0] for path in paths} == {"checkpoints", "journal", "streams"}
    assert not [path for path in paths if path.endswith((".col", ".b", "synced")) or "subjects" in path]


def test_a_missing_segment_is_an_error(tmp_path: Path) -> None:
    fill(tmp_path)
    min((tmp_path / FOLDER / "streams").rglob("*.seg")).unlink()
    with pytest.raises(BackupError, match="missing or too short"):
        find(tmp_path)


def test_a_copy_of_a_checkpoint_may_be_damaged_but_not_both(tmp_path: Path) -> None:
    fill(tmp_path)
    newest = max((tmp_path / FOLDER / "checkpoints").glob("*.a"))
    newest.write_bytes(newest.read_bytes()[:-1])
    [found] = [file for file in find(tmp_path).files if file.path.endswith(newest.name)]
    assert found.source.endswith(".b")
    for path in (tmp_path / FOLDER / "checkpoints").iterdir():
        path.write_bytes(b"x" * 100)
    with pytest.raises(BackupError, match="damaged"):
        find(tmp_path)


def test_a_damaged_journal_is_an_error(tmp_path: Path) -> None:
    """The sync marker says that there was a frame."""
    fill(tmp_path)
    store = open_small_store(tmp_path / FOLDER)
    store.logs["S"].append(b"s", b"", b"one", 1)
    store.commit()
    store.disk.drain()
    kill(store)
    frame = find(tmp_path).frame
    assert frame > 0
    for path in (tmp_path / FOLDER / "journal").glob("*.jnl"):
        path.write_bytes(path.read_bytes().replace(b"one", b"two"))
    with pytest.raises(BackupError, match="journal"):
        find(tmp_path)


def test_an_unfinished_restore_is_refused(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / FOLDER / "restoring").touch()
    with pytest.raises(BackupError, match="not completed"):
        find(tmp_path)
