"""Files of an earlier copy: linked if they never change again, otherwise compared chunk by chunk."""

from __future__ import annotations

from pathlib import Path

from headrace.archive.file_reuse import FileReuse
from headrace.backup.records import FileEntry, ObjectRef, StoreEntry, compute_digest

PATH = "streams/1/1.seg"


def make_file(data: bytes, stable: int, run: str = "r") -> FileEntry:
    return FileEntry(PATH, len(data), stable, [ObjectRef(compute_digest(data), len(data), run)])


def make_store(file: FileEntry) -> StoreEntry:
    return StoreEntry("$G", "headrace", 1, "", 1, 1, [file])


def write(folder: Path, data: bytes) -> Path:
    path = folder / "headrace" / PATH
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    return path


def test_a_sealed_file_is_linked(tmp_path: Path) -> None:
    source = write(tmp_path / "a", b"data")
    reuse = FileReuse(tmp_path / "a", [make_store(make_file(b"data", 4))])
    target = tmp_path / "b" / "x.seg"
    assert reuse("headrace", make_file(b"data", 4, "other run"), target) == {0}
    assert target.stat().st_ino == source.stat().st_ino
    assert reuse.reused_bytes == 4


def test_a_file_that_may_grow_is_copied(tmp_path: Path) -> None:
    source = write(tmp_path / "a", b"data and more")
    reuse = FileReuse(tmp_path / "a", [make_store(make_file(b"data", 0))])
    target = tmp_path / "b" / "x.seg"
    assert reuse("headrace", make_file(b"data", 0), target) == {0}
    assert target.read_bytes() == b"data"
    assert target.stat().st_ino != source.stat().st_ino


def test_nothing_that_differs_is_taken(tmp_path: Path) -> None:
    write(tmp_path / "a", b"DATA")
    for reuse in (FileReuse(tmp_path / "a"), FileReuse(tmp_path / "absent")):
        assert reuse("headrace", make_file(b"data", 4), tmp_path / "b" / "x.seg") == set()
