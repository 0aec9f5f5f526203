"""What the logs of one store share, and the callbacks through which they reach the rest of the store.

Owns the block cache and the large messages that wait for the next frame. A log knows this context, not the store.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

from headrace.errors import StoreError
from headrace.storage.damage_report import RecoveryReport
from headrace.storage.feature_requests import FeatureRequests
from headrace.storage.io.disk import Disk
from headrace.storage.native_records import OpenFrame, RecordBlock
from headrace.storage.options import StoreOptions
from headrace.storage.segments.segment import BlockCache, FileSegment

if TYPE_CHECKING:
    from headrace.storage.log.file_log import FileLog


#: Space that is checked ahead for large messages of the open frame, at most.
LARGE_RESERVED_MAX = 64 << 20

#: A large message, its log, and the segment that it is written to.
LargeWrite: TypeAlias = "tuple[FileLog, FileSegment, RecordBlock]"


class Flusher(Protocol):
    """Writes blocks and columns to their files in the background."""

    def add_block(self, log: FileLog, segment: FileSegment, block: RecordBlock) -> None: ...
    def add_columns(self, log: FileLog, segment: FileSegment) -> None: ...


class FileCollector(Protocol):
    """Unlinks files when nothing refers to them any more."""

    def add(self, path: str, has_large: bool = False) -> None: ...
    def add_dead(self, log: FileLog, segment: FileSegment) -> None: ...


class CompactionTrigger(Protocol):
    """Compacts segments with many dead rows."""

    def maybe_compact(self, log: FileLog, segment: FileSegment) -> None: ...


class SpaceChecker(Protocol):
    """Raises `StoreFull` unless this many bytes are free beyond the headroom; returns how many more are."""

    def check_free(self, size: int) -> int: ...


def _raise_deleted(size: int) -> None:
    raise StoreError("the stream was deleted")


@dataclass(slots=True, kw_only=True)
class LogContext:
    """What all file logs of a store share."""

    disk: Disk
    store_id: int
    options: StoreOptions
    open_frame: OpenFrame
    flusher: Flusher
    file_gc: FileCollector
    compactor: CompactionTrigger
    space: SpaceChecker
    report: RecoveryReport
    features: FeatureRequests
    block_cache: BlockCache = field(init=False)
    closed_frame: OpenFrame = field(init=False)  # that of deleted logs: nothing can be appended
    #: Large messages that must be synced before the next frame.
    large_writes: list[LargeWrite] = field(default_factory=list)
    large_pending_bytes: int = 0
    #: What is left of the space that was checked: the members of a batch must not be refused one by one.
    large_reserved_bytes: int = 0

    def __post_init__(self) -> None:
        self.block_cache = BlockCache(self.options.cache_bytes)
        self.closed_frame = OpenFrame(_raise_deleted)
        self.closed_frame.closed = True

    @property
    def journal_bytes(self) -> int:
        """Bytes that the next commit writes to the journal."""
        return self.open_frame.pending_bytes

    @property
    def frame_bytes(self) -> int:
        """Bytes that the next commit writes, large messages included."""
        return self.open_frame.pending_bytes + self.large_pending_bytes

    def check_large_space(self, size: int) -> int:
        """Check that a large message fits beyond the headroom: no space is reserved for large messages.

        Returns how much would be left.
        """
        return self.space.check_free(self.large_pending_bytes + size)

    def reserve_large_space(self, size: int) -> None:
        """Check the space for all large messages of a batch, so that the messages themselves need no check."""
        self.large_reserved_bytes = 0
        self.check_large_space(size)
        self.large_reserved_bytes = size

    def take_large_space(self, size: int) -> None:
        """Use reserved space for a large message, or check that there is some.

        Where there is plenty, the check serves for other messages of the frame too: asking the file system takes as long
        as storing a message.
        """
        if size <= self.large_reserved_bytes:
            self.large_reserved_bytes -= size
        else:
            self.large_reserved_bytes = min(self.check_large_space(size) // 16, LARGE_RESERVED_MAX)

    def drop_large_writes(self, log: FileLog) -> None:
        """Drop the large messages of a log that is deleted with the frame that would refer to them."""
        self.large_writes = [large for large in self.large_writes if large[0] is not log]
        self.large_pending_bytes = sum(block.used for _, _, block in self.large_writes)
