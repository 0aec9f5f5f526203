"""Staged rows: what task attempts write before the driver decides which of them count.

Owns storing and reading the blocks of an attempt, in a staging stream on the server or in a folder that driver and
tasks share. Invariants: an attempt is complete only after `finish`; a block is read as it was written, or `StagedRowsLost`
is raised. Must not know what a block contains. See ADR 59.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from headrace.errors import HeadraceError
from headrace.reader.blocking_connection import BlockingConnection
from headrace.reader.stream_admin import call_leader, mark_reachable, with_retry
from headrace.spark.write.acks import describe_error, parse_reply
from headrace.spark.write.progress_log import StagedAttempt
from headrace.spark.write.publish_pipeline import PublishPipeline
from headrace.spark.write.staged_parts import PartReader, PartToStage, encode_part
from headrace.spark.write.write_batches import WriteError
from headrace.spark.write.write_target import WriteTarget

#: Reserve for the headers of a part.
_PART_OVERHEAD = 512
#: Parts that are sent ahead of their acknowledgements.
_PARTS_AHEAD = 4


class StagedRowsLost(HeadraceError):
    """The rows of an attempt that counts are not where it stored them: they have expired or were removed."""


class AttemptWriter(Protocol):
    """Stores the blocks of one task attempt."""

    def add(self, block: bytes) -> None:
        """Store a block; it may not be durable yet."""

    def finish(self) -> list[list[int]]:
        """Wait until all blocks are durable; return their references."""


class StagingArea(Protocol):
    """The staged rows of one query."""

    def open_attempt(self, partition: int, attempt: str) -> AttemptWriter:
        """Begin an attempt of a task."""

    def read_blocks(self, attempt: StagedAttempt, first: int) -> Iterator[bytes]:
        """Yield the blocks of an attempt from number `first` on."""

    def clean(self) -> None:
        """Remove the staged rows of the epoch, also of attempts that do not count."""


def open_staging(target: WriteTarget) -> StagingArea:
    """Return the staging area of a target's query."""
    return FolderStaging(target) if target.staging_path else StreamStaging(target)


class StreamStaging:
    """Stages rows in a stream on the target's server."""

    def __init__(self, target: WriteTarget) -> None:
        # A connection of its own: blocks are read while other blocks are published.
        self._target = replace(target, address=replace(target.address, name="headrace-staging"))
        mark_reachable(self._target.address)

    def open_attempt(self, partition: int, attempt: str) -> AttemptWriter:
        subject = f"{self._target.staging_prefix}.{self._target.epoch}.{partition}.{attempt}"
        # Rows are staged again while others are read, so the two do not share replies.
        address = replace(self._target.address, name="headrace-staging-writer")
        mark_reachable(address)
        return _StreamAttemptWriter(replace(self._target, address=address), subject, attempt)

    def read_blocks(self, attempt: StagedAttempt, first: int) -> Iterator[bytes]:
        reader = PartReader(self._target, attempt)
        for block in reader.iter_blocks(first):
            if block is None:
                raise StagedRowsLost(
                    f"staged rows of partition {attempt.partition} of epoch {self._target.epoch} are missing in stream "
                    f"{self._target.staging_stream!r}; they may have expired"
                )
            yield block

    def clean(self) -> None:
        target = self._target
        api_subject = f"{target.api_prefix}.STREAM.PURGE.{target.staging_stream}"
        # Another driver may already stage the next epoch.
        request = {"filter": f"{target.staging_prefix}.{target.epoch}.>"}
        with_retry(
            target.address,
            target.reconnect_s,
            lambda connection: call_leader(connection, api_subject, request),
        )


class _StreamAttemptWriter:
    def __init__(self, target: WriteTarget, subject: str, attempt: str) -> None:
        self._target = target
        self._subject = subject.encode()
        self._attempt = attempt
        self._blocks: list[list[int]] = []
        self._part_bytes = 0
        self._parts = 0
        self._pipeline = PublishPipeline(target.address, target.reconnect_s, self, _PARTS_AHEAD)

    def add(self, block: bytes) -> None:
        part_bytes = self._find_part_bytes()
        self._blocks.append([])
        for start in range(0, len(block), part_bytes):
            data = block[start : start + part_bytes]
            part = PartToStage(len(self._blocks) - 1, len(self._blocks[-1]), data)
            self._blocks[-1].append(0)
            self._pipeline.publish(part)

    def finish(self) -> list[list[int]]:
        self._pipeline.drain()
        return self._blocks

    def send(self, connection: BlockingConnection, item: PartToStage) -> bytes:
        inbox = connection.new_inbox()
        connection.send(encode_part(item, self._subject, inbox, self._attempt))
        return inbox

    def receive(self, connection: BlockingConnection, item: PartToStage, inbox: bytes) -> None:
        reply = parse_reply(connection.receive_reply(inbox, self._target.staging_stream))
        if reply.get("stream") != self._target.staging_stream:
            reason = describe_error(reply["error"]) if "error" in reply else f"the reply is {reply}"
            raise WriteError(f"stream {self._target.staging_stream!r} rejected staged rows: {reason}")
        self._blocks[item.block][item.part] = int(reply["seq"])

    def _find_part_bytes(self) -> int:
        if not self._part_bytes:
            limit = with_retry(
                self._target.address,
                self._target.reconnect_s,
                lambda connection: int(connection.server_info.get("max_payload", 1 << 20)),
            )
            self._part_bytes = max(limit - _PART_OVERHEAD, 1)
        return self._part_bytes


class FolderStaging:
    """Stages rows in files of a folder that the driver and all tasks can access."""

    def __init__(self, target: WriteTarget) -> None:
        self._target = target
        self._folder = Path(target.staging_path) / target.stream / target.query

    def open_attempt(self, partition: int, attempt: str) -> AttemptWriter:
        path = self._find_path(partition, attempt)
        path.parent.mkdir(parents=True, exist_ok=True)
        return _FileAttemptWriter(path)

    def read_blocks(self, attempt: StagedAttempt, first: int) -> Iterator[bytes]:
        path = self._find_path(attempt.partition, attempt.attempt)
        try:
            with path.open("rb") as file:
                file.seek(sum(size for (size,) in attempt.blocks[:first]))
                for (size,) in attempt.blocks[first:]:
                    block = file.read(size)
                    if len(block) != size:
                        raise StagedRowsLost(f"{path} is shorter than the task wrote it")
                    yield block
        except FileNotFoundError as error:
            raise StagedRowsLost(f"{path} with staged rows is missing") from error

    def clean(self) -> None:
        shutil.rmtree(self._folder / str(self._target.epoch), ignore_errors=True)

    def _find_path(self, partition: int, attempt: str) -> Path:
        return self._folder / str(self._target.epoch) / f"{partition}-{attempt}"


class _FileAttemptWriter:
    """Writes one file; the references of its blocks are their sizes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("wb")
        self._blocks: list[list[int]] = []

    def add(self, block: bytes) -> None:
        self._file.write(block)
        self._blocks.append([len(block)])

    def finish(self) -> list[list[int]]:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return self._blocks
