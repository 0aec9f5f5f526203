"""What a place for staged rows does, whether it is a stream or a folder.

Owns the protocol of staging areas and the lists of blocks that are staged beside long attempts. Invariants: an attempt is
complete only after `finish`; a block is read as it was written, or `StagedRowsLost` is raised. Must not know where rows
are staged, nor what a block contains. See ADR 59.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from typing import Protocol

from headrace.errors import HeadraceError
from headrace.spark.write.progress_log import StagedAttempt

#: An attempt with more blocks stages the list of them, too: the record of an epoch has all attempts in one message.
BLOCKS_IN_RECORD = 16


class StagedRowsLost(HeadraceError):
    """The rows of an attempt that counts are not where it stored them: they have expired or were removed."""


class AttemptWriter(Protocol):
    """Stores the blocks of one task attempt."""

    def add(self, block: bytes) -> None:
        """Store a block; it may not be durable yet."""

    def finish(self, rows: int) -> StagedAttempt | None:
        """Wait until all blocks are durable, and return where they are; None if there are none."""


class StagingArea(Protocol):
    """The staged rows of one query."""

    def open_attempt(self, partition: int, attempt: str) -> AttemptWriter:
        """Begin an attempt of a task."""

    def read_blocks(self, attempt: StagedAttempt, first: int) -> Iterator[bytes]:
        """Yield the blocks of an attempt from number `first` on."""

    def clean(self, epoch: int) -> None:
        """Remove the staged rows of an epoch and of earlier ones, also of attempts that do not count."""


def encode_index(blocks: list[list[int]]) -> bytes:
    """Encode the list of an attempt's blocks."""
    return zlib.compress(json.dumps(blocks).encode(), 1)


def decode_index(data: bytes) -> list[list[int]]:
    """Decode the list of an attempt's blocks."""
    blocks: list[list[int]] = json.loads(zlib.decompress(data))
    return blocks
