"""Shared by tests of the archive: a target in memory, and a source with one store of made-up frames."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from headrace.archive.group_writer import GroupWriter, WriterSettings
from headrace.archive.journal_tail import StorePosition
from headrace.backup.pinned_stores import SourceStore
from headrace.backup.target import BackupTarget
from headrace.claims.stores import MemoryStore, ObjectStore
from headrace.storage.format import COMMIT, align_up, encode_frame_header

SERVER, STORE = 0xABC, 77


async def make_target(store: ObjectStore | None = None) -> BackupTarget:
    target = BackupTarget(store or MemoryStore("archive"), f"{SERVER:016x}", "memory")
    await target.prepare()
    return target


@dataclass
class FrameSource:
    """One journal file with empty frames, numbered from 1."""

    data: bytearray = field(default_factory=bytearray)
    frame: int = 0
    archived: dict[int, int] = field(default_factory=dict)
    reserved: dict[int, int] = field(default_factory=dict)
    highest: int | None = None

    def add(self, count: int = 1) -> None:
        for _ in range(count):
            self.frame += 1
            head, _ = encode_frame_header(COMMIT, STORE, 1, self.frame, [], 0)
            self.data += head.ljust(align_up(len(head)), b"\0")

    async def read_positions(self) -> list[StorePosition]:
        return [StorePosition(STORE, "$G", self.frame, [(1, self.frame, len(self.data))], self.highest)]

    def read(self, store_id: int, path: str, offset: int, length: int) -> bytes:
        return bytes(self.data[offset : offset + length])

    async def set_archived(self, frames: dict[int, int]) -> None:
        self.archived = dict(frames)

    async def set_reserved(self, sequences: dict[int, int]) -> None:
        self.reserved = dict(sequences)

    async def pin(self) -> list[SourceStore]:
        return []

    async def unpin(self) -> None:
        return None


def make_writer(target: BackupTarget, source: FrameSource, name: str, server: int = SERVER) -> GroupWriter:
    async def no_sleep(delay_s: float) -> None:
        await asyncio.sleep(0)

    settings = WriterSettings(server, name)
    return GroupWriter(target, source, settings, lambda: 1, lambda error: None, no_sleep)
