"""The identity of a server in its archive survives starts that fail."""

import shutil
from pathlib import Path

import pytest

from headrace.archive.archive_identity import (
    WRITERS_MAX,
    add_stores,
    add_writer,
    confirm_writer,
    find_absent_stores,
    read_identity,
)
from headrace.errors import ArchiveError

URL = "s3://bucket/archive"


def test_failed_starts_do_not_push_out_the_last_leader(tmp_path: Path) -> None:
    first = add_writer(tmp_path, URL)
    confirm_writer(tmp_path, first)
    for _ in range(WRITERS_MAX + 5):
        identity = add_writer(tmp_path, URL)
    assert identity == read_identity(tmp_path)
    assert identity.server == first.server
    assert first.writers[-1] in identity.writers
    assert len(identity.writers) == WRITERS_MAX + 1


def test_another_url_is_another_archive(tmp_path: Path) -> None:
    first = add_writer(tmp_path, URL)
    assert add_writer(tmp_path, f"{URL}?endpoint=http://x").server == first.server
    assert add_writer(tmp_path, "s3://bucket/other").server != first.server


def test_a_store_of_a_removed_account_may_be_absent(tmp_path: Path) -> None:
    paths = {1: tmp_path / "headrace", 2: tmp_path / "headrace-accounts" / "A"}
    for path in paths.values():
        (path / "journal").mkdir(parents=True)
    identity = add_stores(tmp_path, add_writer(tmp_path, URL), paths)
    assert read_identity(tmp_path) == identity
    assert find_absent_stores(tmp_path, identity, paths) == set()
    assert find_absent_stores(tmp_path, identity, {1: paths[1]}) == {2}
    assert find_absent_stores(tmp_path, identity, {3: tmp_path / "headrace-accounts" / "B"}) == {1, 2}
    with pytest.raises(
        ArchiveError, match=r"0000000000000002 of headrace-accounts/A, but .* has another one"
    ):
        find_absent_stores(tmp_path, identity, {1: paths[1], 3: paths[2]})
    shutil.rmtree(paths[2])
    assert find_absent_stores(tmp_path, identity, {1: paths[1]}) == {2}
    assert set(add_stores(tmp_path, identity, {1: paths[1]}).stores) == {f"{1:016x}"}


def test_a_directory_without_any_of_its_stores_is_refused(tmp_path: Path) -> None:
    identity = add_stores(tmp_path, add_writer(tmp_path, URL), {1: tmp_path / "headrace"})
    with pytest.raises(ArchiveError, match="no store of the archive is in"):
        find_absent_stores(tmp_path, identity, {3: tmp_path / "headrace-accounts" / "B"})
