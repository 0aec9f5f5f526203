"""Targets: URLs, and what a refused create means."""

from pathlib import Path

import pytest

from headrace.backup.target import BackupTarget, open_target
from headrace.claims.stores import Attributes, Chunk, MemoryStore, ObjectAlreadyExists
from headrace.errors import BackupError
from support.store_backups import make_target


async def test_a_folder_is_created(tmp_path: Path) -> None:
    target = open_target(str(tmp_path / "a" / "b"))
    assert not await target.exists()
    await target.prepare()
    assert await target.create("log/1", b"x")
    assert (tmp_path / "a" / "b" / "log" / "1").read_bytes() == b"x"
    assert await open_target(f"file://{tmp_path}/a/b").read_any("log/1") == b"x"
    await target.close()


async def test_only_other_bytes_are_a_conflict() -> None:
    """A store may refuse the retry of a create that had succeeded."""
    target = await make_target()
    assert await target.create("log/1", b"x")
    assert await target.create("log/1", b"x")
    assert not await target.create("log/1", b"y")


class RefusingStore(MemoryStore):
    """Refuses creates of objects that do not exist, for a while."""

    refusals = 1

    async def put(self, key: str, data: Chunk, attributes: Attributes, *, replace: bool = False) -> None:
        if self.refusals:
            self.refusals -= 1
            raise ObjectAlreadyExists("a conflict that is none")
        await super().put(key, data, attributes, replace=replace)


async def test_a_refusal_without_an_object_is_retried() -> None:
    store = RefusingStore("backups")
    target = BackupTarget(store, "x", "memory")
    await target.prepare()
    assert await target.create("log/1", b"x")
    store.refusals = 100
    with pytest.raises(BackupError, match="refuses to create"):
        await target.create("log/2", b"x")


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("ftp://x/y", "is not a target"),
        ("s3:///x", "needs a bucket"),
        ("gs://user:secret@bucket/x", "no credentials"),
        ("s3://bucket/x?secret_access_key=1", "unknown parameter"),
    ],
)
def test_invalid_urls_are_refused(url: str, text: str) -> None:
    with pytest.raises(BackupError, match=text):
        open_target(url)


def test_a_folder_of_a_target_is_named_before_its_parameters() -> None:
    target = BackupTarget(MemoryStore("b"), "p", "s3://b/p?region=eu-1")
    assert target.open_folder("abc").name == "s3://b/p/abc?region=eu-1"


def test_credentials_in_an_endpoint_are_refused() -> None:
    with pytest.raises(BackupError, match="no credentials"):
        open_target("s3://b/p?endpoint=https://user:secret@host")


@pytest.mark.parametrize("url", ["file://backups/one", "file://", "file:backups"])
def test_a_file_url_without_an_absolute_path_is_refused(url: str) -> None:
    """`file://backups/one` would be the folder `/one`."""
    with pytest.raises(BackupError, match="with three slashes"):
        open_target(url)
