"""The wait of a standby with an archive that nobody has begun yet."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headrace.archive.archive_identity import read_identity
from headrace.archive.archive_target import open_archive
from headrace.archive.first_server import FirstServer, claim_first
from headrace.cli import archive_standby
from headrace.cli.serve_flags import parse
from headrace.net.logs import Logger


@pytest.mark.parametrize("has_data", [False, True])
async def test_a_standby_begins_for_a_server_that_is_gone(
    tmp_path: Path, has_data: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for one with data: its standbys wait until it is started, and say so."""
    monkeypatch.setattr(archive_standby, "BEGIN_AFTER_S", 0.05)
    url, home = f"file://{tmp_path / 'archive'}", tmp_path / "data"
    root = open_archive(url)
    await root.prepare()
    await claim_first(root, FirstServer("00000000000000aa", has_data))
    (tmp_path / "server.conf").write_text(
        f'jetstream {{ store_dir: "{home}", archive {{ url: "{url}", ack: remote }} }}'
    )
    options, _ = parse(["-c", str(tmp_path / "server.conf"), "--standby"]).resolve()
    noted = asyncio.Event()
    log = Logger(write=lambda level, text: noted.set() if "begins the archive" in text else None)
    stop = asyncio.Event()
    waiting = asyncio.create_task(archive_standby.ArchiveStandby(options, log).wait(stop))
    await asyncio.wait_for(noted.wait(), 60)
    if has_data:
        for _ in range(5):
            await asyncio.sleep(0.05)
        stop.set()
        assert await asyncio.wait_for(waiting, 60) is None
        assert read_identity(home) is None
    else:
        assert await asyncio.wait_for(waiting, 60) is not None
        identity = read_identity(home)
        assert identity is not None
        assert identity.server == "00000000000000aa"
