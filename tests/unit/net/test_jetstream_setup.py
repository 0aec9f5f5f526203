"""Where accounts store their streams."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace
from headrace.config.options import ServerOptions
from headrace.net.jetstream_setup import find_stores, store_path
from headrace.storage.fsck.check import main


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
    assert store_path(ServerOptions(store_dir="/data"), name) == Path("/data") / folder


async def test_all_stores_are_found(tmp_path: Path) -> None:
    assert find_stores(tmp_path) == [tmp_path]
    from headrace.config.options import AccountOptions, User
    from headrace.jetstream_api.account_limits import NO_LIMITS

    users = (User("a", "a", "A"), User("b", "b", "B"))
    accounts = (
        AccountOptions("A", jetstream_limits=NO_LIMITS),
        AccountOptions("B", jetstream_limits=NO_LIMITS),
    )
    async with headrace.Server(store_dir=tmp_path, users=users, accounts=accounts):
        pass
    async with headrace.Server(store_dir=tmp_path):
        pass
    found = find_stores(tmp_path)
    assert [path.name for path in found] == ["headrace", "A", "B"]
    assert all(main(str(path)) == 0 for path in found)
    assert find_stores(found[1]) == [found[1]]
