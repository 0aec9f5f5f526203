"""The wait of a standby: only locks decide."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headrace.cli import serve, standby
from headrace.cli.serve_flags import parse
from headrace.config.options import OptionsError
from headrace.net.logs import SILENT_LOGGER, Logger
from headrace.os_files import is_locked
from headrace.storage import FileDisk


async def test_a_standby_waits_for_all_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "POLL_S", 0.001)
    options, _ = parse(["-js", "-sd", str(tmp_path), "--standby"]).resolve()
    disks = [FileDisk(tmp_path / "headrace"), FileDisk(tmp_path / "headrace-accounts" / "A")]
    waiting = asyncio.create_task(standby.Standby(options, SILENT_LOGGER).wait(asyncio.Event()))
    for disk in disks:
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert not waiting.done()
        disk.close()
    assert await asyncio.wait_for(waiting, 60)


async def test_a_standby_that_is_stopped_ends(tmp_path: Path) -> None:
    options, _ = parse(["-js", "-sd", str(tmp_path), "--standby"]).resolve()
    disk, stop = FileDisk(tmp_path / "headrace"), asyncio.Event()
    waiting = asyncio.create_task(standby.Standby(options, SILENT_LOGGER).wait(stop))
    await asyncio.sleep(0)
    stop.set()
    assert await asyncio.wait_for(waiting, 60) is False
    disk.close()


def test_a_lock_is_found_without_taking_it(tmp_path: Path) -> None:
    assert not is_locked(tmp_path / "lock")
    disk = FileDisk(tmp_path)
    assert is_locked(tmp_path / "lock")
    disk.close()
    assert not is_locked(tmp_path / "lock")
    FileDisk(tmp_path).close()


def test_a_standby_needs_a_store_directory() -> None:
    for flags in (["--standby"], ["--standby", "-js"]):
        with pytest.raises(OptionsError, match="standby requires"):
            parse(flags).resolve()


async def test_a_standby_that_does_not_follow_its_archive_says_so(tmp_path: Path) -> None:
    """With `ack: local` it waits for a lock only, which servers with a disk each never see."""
    lines: list[str] = []
    log = Logger(write=lambda level, text: lines.append(text))
    flags = ["-js", "-sd", str(tmp_path), "--standby", "-c", str(tmp_path / "server.conf")]
    for ack, is_warned in (("local", True), ("remote", False)):
        (tmp_path / "server.conf").write_text(
            f'jetstream {{ store_dir: "{tmp_path}", archive {{ url: "file://{tmp_path}/a", ack: {ack} }} }}'
        )
        options, _ = parse(flags).resolve()
        lines.clear()
        assert await serve._wait_as_standby(options, log, asyncio.Event()) is not None
        assert any("does not follow" in each for each in lines) is is_warned
