"""Where accounts keep their streams."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace
from headrace.net.options import Options
from headrace.net.streams import store_path, stores_in
from headrace.store.fsck import main


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("$G", "headrace"),
        ("A", "headrace-accounts/A"),
        ("../x", "headrace-accounts/%2E%2E%2Fx"),
        ("..", "headrace-accounts/%2E%2E"),
        ("a b", "headrace-accounts/a%20b"),
        ("ÄÖ", "headrace-accounts/%C3%84%C3%96"),
    ],
)
def test_a_name_is_no_path(name: str, folder: str) -> None:
    assert store_path(Options(store_dir="/data"), name) == Path("/data") / folder


async def test_all_stores_are_found(tmp_path: Path) -> None:
    assert stores_in(tmp_path) == [tmp_path]
    from headrace.api.limits import NO_LIMITS
    from headrace.net.options import AccountOptions, User

    users = (User("a", "a", "A"), User("b", "b", "B"))
    accounts = (AccountOptions("A", streams=NO_LIMITS), AccountOptions("B", streams=NO_LIMITS))
    async with headrace.Server(store_dir=tmp_path, users=users, accounts=accounts):
        pass
    async with headrace.Server(store_dir=tmp_path):
        pass
    found = stores_in(tmp_path)
    assert [path.name for path in found] == ["headrace", "A", "B"]
    assert all(main(str(path)) == 0 for path in found)
    assert stores_in(found[1]) == [found[1]]
