"""Promotions of an archive whose server ran in this process: interrupted ones, mirrors, and what is refused."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.api import StreamConfig, StreamSource

from headrace.archive.archive_target import open_archive
from headrace.archive.archive_verify import choose_server
from headrace.archive.group_writer import GroupWriter
from headrace.archive.sequence_reserve import RESERVE_MIN
from headrace.cli import archive_promote
from headrace.cli.archive_promote import Promotion, PromotionResult, skip_used_sequences
from headrace.config.archive_options import ArchiveOptions
from headrace.errors import ArchiveError
from headrace.server import Server


async def publish(server: Server, count: int) -> int:
    client = await nats.connect(server.url)
    js = client.jetstream()
    await js.add_stream(name="S", subjects=["s"])
    last = [await js.publish("s") for _ in range(count)][-1].seq
    await client.close()
    return last


async def lose_server(folder: Path, archive: ArchiveOptions) -> None:
    """Run a server that archives five messages, and remove its directory."""
    async with Server(folder / "data", archive=archive) as server:
        assert await publish(server, 5) == 5
        assert server.archive is not None
        while not (stats := server.archive.read_stats()) or stats.lag_s or not stats.bases:
            await asyncio.sleep(0.01)
    shutil.rmtree(folder / "data")


async def promote(url: str, home: Path) -> PromotionResult:
    target = open_archive(url)
    try:
        return await Promotion(target, url, await choose_server(target, ""), home).run()
    finally:
        await target.close()


async def test_an_interrupted_promotion_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No server starts before the sequences that the lost one may have used are skipped."""
    url, home = f"file://{tmp_path / 'archive'}", tmp_path / "promoted"
    archive = ArchiveOptions(url, group_delay_s=0.005)
    await lose_server(tmp_path, archive)

    def fail(*arguments: Any) -> int:
        raise OSError("killed")

    monkeypatch.setattr(archive_promote, "skip_used_sequences", fail)
    with pytest.raises(OSError, match="killed"):
        await promote(url, home)
    with pytest.raises(ArchiveError, match="archive promote` was interrupted, run it again"):
        await Server(home, archive=archive).start()
    monkeypatch.undo()
    result = await promote(url, home)
    assert result.epoch == 3
    (reserved,) = result.reserved.values()
    assert reserved >= RESERVE_MIN
    async with Server(home, archive=archive) as server:
        assert await publish(server, 1) == reserved + 1
        assert server.jetstream is not None
        assert server.jetstream.streams["S"].log.messages == 6
    with pytest.raises(ArchiveError, match="not empty"):
        await promote(url, home)


async def test_a_mirror_keeps_the_sequences_of_its_upstream(tmp_path: Path) -> None:
    async def wait_for(server: Server, last: int) -> None:
        assert server.jetstream is not None
        while server.jetstream.streams["M"].log.last_seq != last:
            await asyncio.sleep(0.01)

    async with Server(tmp_path / "data") as server:
        assert await publish(server, 3) == 3
        client = await nats.connect(server.url)
        await client.jetstream().add_stream(StreamConfig(name="M", mirror=StreamSource(name="S")))
        await client.close()
        await wait_for(server, 3)
    assert skip_used_sequences(tmp_path / "data" / "headrace", 1000) == 1000
    async with Server(tmp_path / "data") as server:
        assert server.jetstream is not None
        assert server.jetstream.streams["S"].log.last_seq == 1000
        assert server.jetstream.streams["M"].log.last_seq == 3
        assert await publish(server, 1) == 1001
        await wait_for(server, 1001)


async def test_without_a_reserve_as_many_sequences_are_skipped_as_one_would_have(tmp_path: Path) -> None:
    async with Server(tmp_path / "data") as server:
        assert await publish(server, 3) == 3
    assert skip_used_sequences(tmp_path / "data" / "headrace", 0) == 3 + RESERVE_MIN


async def test_an_archive_that_lacks_nothing_is_not_promoted(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'archive'}"
    await lose_server(tmp_path, ArchiveOptions(url, ack="remote"))
    with pytest.raises(ArchiveError, match="start a server with --standby"):
        await promote(url, tmp_path / "promoted")
    assert not (tmp_path / "promoted").exists()


async def test_an_archive_without_a_base_is_not_promoted(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'archive'}"
    await lose_server(tmp_path, ArchiveOptions(url))
    (bases,) = (tmp_path / "archive").glob("*/base")
    shutil.rmtree(bases)
    with pytest.raises(ArchiveError, match="has no base"):
        await promote(url, tmp_path / "promoted")


async def test_an_epoch_without_a_base_is_lost_and_its_sequences_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its groups cannot be replayed; but clients have seen its messages."""
    url, home = f"file://{tmp_path / 'archive'}", tmp_path / "promoted"
    archive = ArchiveOptions(url, group_delay_s=0.005)
    await lose_server(tmp_path, archive)
    first = await promote(url, tmp_path / "data")
    monkeypatch.setattr(GroupWriter, "needs_base", property(lambda writer: False))
    async with Server(tmp_path / "data", archive=archive) as server:
        last = await publish(server, 3)
    monkeypatch.undo()
    assert [last] == [reserved + 3 for reserved in first.reserved.values()]
    shutil.rmtree(tmp_path / "data")
    capsys.readouterr()
    second = await promote(url, home)
    assert "epoch 3 has no base yet" in capsys.readouterr().err
    (reserved,) = second.reserved.values()
    assert reserved > last
    async with Server(home, archive=archive) as server:
        assert await publish(server, 1) == reserved + 1
        assert server.jetstream is not None
        assert server.jetstream.streams["S"].log.messages == 6
