"""Old backups go, the objects of the others stay, whatever runs or stalls beside a prune."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from random import Random

import pytest

from headrace.backup import retention
from headrace.backup.backup_log import BackupLog
from headrace.backup.create import BackupRun
from headrace.backup.needed_files import NeededFile, NeededFiles
from headrace.backup.pinned_stores import SourceStore
from headrace.backup.records import BackupRecord
from headrace.backup.retention import BackupRetention
from headrace.backup.target import BackupTarget
from headrace.backup.verify import verify_backups
from headrace.claims.stores import Attributes, Chunk, MemoryStore, ObjectInfo, ObjectStoreError
from headrace.errors import BackupError
from support.store_backups import MemoryFiles, back_up, fill, make_target, read, restore


async def count_objects(target: BackupTarget) -> int:
    return len([info async for info in target.list("objects/")])


async def test_the_newest_backups_stay(tmp_path: Path) -> None:
    target = await make_target()
    states, ids = [], []
    for number in range(4):
        states.append(fill(tmp_path / "data", rounds=1, start=number))
        ids.append((await back_up(tmp_path / "data", target)).id)
    before = await count_objects(target)
    result = await BackupRetention(target, await BackupLog.load(target), 2).run()
    assert result.dropped == ids[:2]
    assert result.objects > 0
    assert await count_objects(target) == before - result.objects + 1  # the list of removed objects
    log = await BackupLog.load(target)
    assert [record.id for _, record in log.list_backups()] == ids[2:]
    assert not (await verify_backups(target, log, [record for _, record in log.list_backups()])).problems
    await restore(target, tmp_path / "restored", ids[2])
    assert read(tmp_path / "restored") == states[2]
    with pytest.raises(BackupError, match="has no backup"):
        log.find(ids[0])


async def test_a_prune_that_was_interrupted_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = await make_target()
    for number in range(3):
        fill(tmp_path / "data", rounds=1, start=number)
        await back_up(tmp_path / "data", target)

    async def die(keys: Sequence[str]) -> None:
        raise ObjectStoreError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(target, "delete", die)
        with pytest.raises(ObjectStoreError):
            await BackupRetention(target, await BackupLog.load(target), 1).run()
    log = await BackupLog.load(target)
    assert len(log.list_backups()) == 1
    dead = set(log.dead)
    assert dead
    # A backup that starts now uses none of the objects that may go at any moment.
    state = fill(tmp_path / "data", rounds=1, start=9)
    record = await back_up(tmp_path / "data", target)
    index = await log.read_index(record)
    assert not dead & {ref.key for ref in index.list_objects()}
    await BackupRetention(target, await BackupLog.load(target), 1).run()
    left = {info.key async for info in target.list("objects/")}
    assert not dead & left
    await restore(target, tmp_path / "restored")
    assert read(tmp_path / "restored") == state


async def test_objects_of_a_run_that_is_still_sending_stay(tmp_path: Path) -> None:
    fill(tmp_path / "data")
    target = await make_target()
    await back_up(tmp_path / "data", target)
    await target.create("objects/ab/" + "ab" * 32 + ".0123456789ab", b"an object of an interrupted run")
    await BackupRetention(target, await BackupLog.load(target), 1).run()
    assert await target.read_any("objects/ab/" + "ab" * 32 + ".0123456789ab") is not None
    await BackupRetention(target, await BackupLog.load(target), 1, orphan_age_ns=-(10**12)).run()
    assert await target.read_any("objects/ab/" + "ab" * 32 + ".0123456789ab") is None


class ShuffledStore(MemoryStore):
    """Interleaves its users at random, and loses replies: an operation is done, and the caller gets an error."""

    def __init__(self, rng: Random) -> None:
        super().__init__("backups")
        self._rng = rng
        self.faults = 0.0

    async def _pause(self) -> None:
        for _ in range(self._rng.randrange(6)):
            await asyncio.sleep(0)

    async def put(self, key: str, data: Chunk, attributes: Attributes, *, replace: bool = False) -> None:
        await self._pause()
        await super().put(key, data, attributes, replace=replace)
        if self._rng.random() < self.faults:
            raise ObjectStoreError("no reply")

    async def get(self, key: str) -> AsyncIterator[Chunk]:
        await self._pause()
        return await super().get(key)

    async def head(self, key: str) -> ObjectInfo:
        await self._pause()
        return await super().head(key)

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            await self._pause()
            await super().delete([key])


class Racers:
    """Runs of backups and prunes on one target, at the same time."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.objects = ShuffledStore(self.rng)
        self.made: dict[str, dict[str, bytes]] = {}
        self.faults = 0.0

    async def back_up(self, lineage: str, content: dict[str, bytes]) -> None:
        target = await make_target(self.objects)
        source = SourceStore("$G", "headrace", MemoryFiles(content), lineage, 1, 1, (lineage,))
        files = [
            NeededFile(path, len(data), len(data) if path != "journal/1" else 0, path)
            for path, data in content.items()
        ]
        try:
            run = BackupRun(target, await BackupLog.load(target))
            record = await run.run([NeededFiles(source, 7, 1, 1, files, 1)])
        except (ObjectStoreError, BackupError):
            return  # interrupted
        self.made[record.id] = content

    async def prune(self) -> None:
        target = await make_target(self.objects)
        try:
            await BackupRetention(
                target, await BackupLog.load(target), self.rng.randrange(1, 4), orphan_age_ns=-(10**12)
            ).run()
        except (ObjectStoreError, BackupError):
            return

    async def run(self) -> int:
        await self.objects.ensure_bucket()
        self.faults = self.objects.faults = self.rng.choice((0.0, 0.02, 0.1))
        segments = {f"streams/{number}": bytes([number]) * 50 for number in range(4)}
        tasks = []
        for number in range(12):
            segments |= {f"streams/{number + 4}": bytes([number + 4]) * 50, "journal/1": b"%d" % number}
            if self.rng.random() < 0.4:
                segments.pop(self.rng.choice(sorted(set(segments) - {"journal/1"})))
            tasks.append(asyncio.create_task(self.back_up("a", dict(segments))))
            if self.rng.random() < 0.6:
                tasks.append(asyncio.create_task(self.prune()))
            for _ in range(self.rng.randrange(60)):
                await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        return await self.check()

    async def check(self) -> int:
        """Check that every backup that counts is complete and has its content; return how many there are."""
        self.objects.faults = 0.0
        target = await make_target(self.objects)
        log = await BackupLog.load(target)
        records: list[BackupRecord] = [record for _, record in log.list_backups()]
        report = await verify_backups(target, log, records)
        assert not report.problems, report.problems
        for record in records:
            store = (await log.read_index(record)).stores[0]
            found = {
                file.path: b"".join([await target.read(ref) for ref in file.chunks]) for file in store.files
            }
            assert found == self.made.get(record.id, found)
        return len(records)


@pytest.mark.parametrize("seed", range(40))
async def test_backups_and_prunes_at_the_same_time(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_DELETE_BATCH", 2)
    racers = Racers(seed)
    # With lost replies, all runs of a seed may be interrupted.
    assert await racers.run() > 0 or racers.faults
