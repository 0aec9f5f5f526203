"""Calls on files work the same where the system lacks some of them."""

import fcntl
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace.claims.stores import FolderStore, StaticAttributes
from headrace.errors import StoreError
from headrace.os_files import lock_exclusive, start_write_back, sync_data


def act_like_macos(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Remove what macOS lacks; return the list of commands that `fcntl` is called with."""
    commands: list[int] = []
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.delattr(os, "fdatasync", raising=False)
    monkeypatch.delattr(os, "posix_fadvise", raising=False)
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", lambda fd, command: commands.append(command))
    return commands


def test_macos_syncs_to_the_medium(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = act_like_macos(monkeypatch)
    sync_data(0)
    start_write_back(0, 0, 1)
    assert commands == [51]


async def test_a_folder_of_claims_works_without_the_calls_of_linux(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = act_like_macos(monkeypatch)
    store = FolderStore(tmp_path)
    await store.ensure_bucket()

    async def chunks() -> AsyncIterator[bytes]:
        yield b"pay"
        yield b"load"

    await store.put_stream("a/b", chunks(), StaticAttributes({}))
    assert b"".join([bytes(chunk) async for chunk in await store.get("a/b")]) == b"payload"
    assert commands == [51]


def test_a_system_with_fsync_alone_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.delattr(os, "fdatasync", raising=False)
    monkeypatch.setattr(os, "fsync", synced.append)
    sync_data(7)
    assert synced == [7]


def test_a_lock_excludes_others_until_the_file_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("w") as first, path.open("w") as second:
        lock_exclusive(first.fileno())
        with pytest.raises(OSError):
            lock_exclusive(second.fileno())
        first.close()
        lock_exclusive(second.fileno())


def test_windows_opens_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(StoreError, match="Linux and macOS only"):
        lock_exclusive(0)
