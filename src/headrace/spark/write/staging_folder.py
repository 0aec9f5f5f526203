"""Staged rows in the files of a folder that the driver and all tasks can access.

Owns these files and their expiry. Must not know what a block contains. See ADR 59.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from headrace.spark.write.progress_log import StagedAttempt
from headrace.spark.write.staging_area import (
    BLOCKS_IN_RECORD,
    AttemptWriter,
    StagedRowsLost,
    decode_index,
    encode_index,
)
from headrace.spark.write.write_target import WriteTarget


def remove_expired_files(staging_path: str, stream: str, expiry_s: float) -> None:
    """Remove staged rows that were left behind: by writes that nobody repeated, and by tasks that did not count."""
    limit_s = time.time() - expiry_s
    for path in (Path(staging_path) / stream).glob("*/*/*"):
        with suppress(OSError):  # another driver may remove it at the same time, or may use the folder again
            if path.stat().st_mtime < limit_s:
                path.unlink()
                path.parent.rmdir()
                path.parent.parent.rmdir()


class FolderStaging:
    """Stages rows in files of a folder that the driver and all tasks can access."""

    def __init__(self, target: WriteTarget) -> None:
        self._target = target
        self._folder = Path(target.staging_path) / target.stream / target.query

    def open_attempt(self, partition: int, attempt: str) -> AttemptWriter:
        path = self._find_path(partition, attempt)
        path.parent.mkdir(parents=True, exist_ok=True)
        return _FileAttemptWriter(path, partition, attempt)

    def read_blocks(self, attempt: StagedAttempt, first: int) -> Iterator[bytes]:
        path = self._find_path(attempt.partition, attempt.attempt)
        try:
            with path.open("rb") as file:
                if attempt.index:
                    offset, size = attempt.index
                    attempt = replace(attempt, blocks=decode_index(_read(file, offset, size)))
                offset = sum(size for (size,) in attempt.blocks[:first])
                for (size,) in attempt.blocks[first:]:
                    yield _read(file, offset, size)
                    offset += size
        except FileNotFoundError as error:
            raise StagedRowsLost(f"{path} with staged rows is missing") from error

    def clean(self, epoch: int) -> None:
        # Not later epochs: another driver may stage them already.
        for path in self._folder.glob("*"):
            if path.name.isdigit() and int(path.name) <= epoch:
                shutil.rmtree(path, ignore_errors=True)
        if not self._target.is_streaming:
            with suppress(OSError):
                self._folder.rmdir()

    def _find_path(self, partition: int, attempt: str) -> Path:
        return self._folder / str(self._target.epoch) / f"{partition}-{attempt}"


def _read(file: BinaryIO, offset: int, size: int) -> bytes:
    file.seek(offset)
    data = file.read(size)
    if len(data) != size:
        raise StagedRowsLost(f"{file.name} is shorter than the task wrote it")
    return data


class _FileAttemptWriter:
    """Writes one file; the references of its blocks are their sizes, and that of their list is its offset and size."""

    def __init__(self, path: Path, partition: int, attempt: str) -> None:
        self._path = path
        self._partition = partition
        self._attempt = attempt
        self._file = path.open("wb")
        self._blocks: list[list[int]] = []

    def add(self, block: bytes) -> None:
        self._file.write(block)
        self._blocks.append([len(block)])

    def finish(self, rows: int) -> StagedAttempt | None:
        found = StagedAttempt(self._partition, self._attempt, self._blocks, rows)
        if len(self._blocks) > BLOCKS_IN_RECORD:
            index = encode_index(self._blocks)
            place = (self._file.tell(), len(index))
            self._file.write(index)
            found = replace(found, blocks=[], index=place, indexed_blocks=len(self._blocks))
        self._sync()
        return found if self._blocks else None

    def _sync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
