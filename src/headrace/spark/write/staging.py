"""Staged rows: what task attempts write before the driver decides which of them count.

Owns storing and reading the blocks of an attempt in a staging stream on the server. Must not know what a block contains.
See ADR 59.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from headrace.reader.blocking_connection import BlockingConnection
from headrace.reader.stream_admin import call_leader, mark_reachable, with_retry
from headrace.spark.write.acks import describe_error, parse_reply
from headrace.spark.write.progress_log import StagedAttempt
from headrace.spark.write.publish_pipeline import PublishPipeline
from headrace.spark.write.staged_parts import PartReader, PartToStage, encode_part
from headrace.spark.write.staging_area import (
    BLOCKS_IN_RECORD,
    AttemptWriter,
    StagedRowsLost,
    StagingArea,
    decode_index,
    encode_index,
)
from headrace.spark.write.staging_folder import FolderStaging
from headrace.spark.write.write_batches import WriteError
from headrace.spark.write.write_target import WriteTarget

#: Reserve for the headers of a part.
_PART_OVERHEAD = 512
#: Parts that are sent ahead of their acknowledgements.
_PARTS_AHEAD = 4


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
        target = replace(self._target, address=address, partition=partition)
        return _StreamAttemptWriter(target, subject, attempt)

    def read_blocks(self, attempt: StagedAttempt, first: int) -> Iterator[bytes]:
        if attempt.index:
            only_index = replace(
                attempt, blocks=[[]] * attempt.indexed_blocks + [list(attempt.index)], index=()
            )
            (data,) = self.read_blocks(only_index, attempt.indexed_blocks)
            attempt = replace(attempt, blocks=decode_index(data))
        for block in PartReader(self._target, attempt).iter_blocks(first):
            if block is None:
                raise StagedRowsLost(
                    f"staged rows of partition {attempt.partition} of epoch {self._target.epoch} are missing in stream "
                    f"{self._target.staging_stream!r}; they may have expired"
                )
            yield block

    def clean(self, epoch: int) -> None:
        # Not later epochs: another driver may stage them already.
        for each in sorted(self._find_epochs()):
            if each <= epoch:
                self._call("PURGE", {"filter": f"{self._target.staging_prefix}.{each}.>"})

    def _find_epochs(self) -> set[int]:
        """Return the epochs that have staged rows."""
        prefix = f"{self._target.staging_prefix}."
        state = self._call("INFO", {"subjects_filter": f"{prefix}>"})["state"]
        return {
            int(subject.removeprefix(prefix).partition(".")[0]) for subject in state.get("subjects") or ()
        }

    def _call(self, what: str, request: dict[str, str]) -> dict[str, Any]:
        target = self._target
        api_subject = f"{target.api_prefix}.STREAM.{what}.{target.staging_stream}"
        return with_retry(
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

    def finish(self, rows: int) -> StagedAttempt | None:
        self._pipeline.drain()
        count = len(self._blocks)
        if not count:
            return None
        found = StagedAttempt(self._target.partition, self._attempt, self._blocks, rows)
        if count <= BLOCKS_IN_RECORD:
            return found
        self.add(encode_index(self._blocks))
        self._pipeline.drain()
        return replace(found, blocks=[], index=self._blocks[-1], indexed_blocks=count)

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
