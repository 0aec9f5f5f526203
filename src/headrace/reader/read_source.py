"""The protocol of a source, one way to read a stream, and of the backend that it opens for a scan.

`open_source` chooses the source; Spark and `headrace.read` use these protocols only. Invariant: all sources return the
same information and rows for the same stream, so that a query can switch between them from one run to the next.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.reader.batch_cast import SeqRange
    from headrace.reader.claim_lease import ClaimReaderLease
    from headrace.reader.direct_get_decode import StoredMessage
    from headrace.reader.partitions import Partition
    from headrace.reader.stream_admin import StreamInfo
    from headrace.storage.snapshot.open_snapshot import ArrowLayout

BoundLike = int | datetime | str | None
PathLike = str | os.PathLike[str]
Batches = Iterator["pa.RecordBatch"]


@dataclass(frozen=True)
class ReadRange:
    """Which rows to read. With `is_table` (the current value of each key) a server is read to the end of the stream."""

    patterns: tuple[str, ...]
    start: BoundLike
    end: BoundLike
    batch_rows: int
    is_table: bool = False


class Backend(Protocol):
    """One state of a stream, as a scan reads it in this process."""

    @property
    def position(self) -> int: ...
    @property
    def as_of(self) -> datetime: ...
    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the rows can have."""

    def find_key_prefix(self, bucket: str) -> str:
        """Return the prefix of the subjects of a bucket's keys."""

    def make_batch_reader(self, read_range: ReadRange, layout: ArrowLayout) -> Callable[[], Batches]:
        """Return a function that reads the range, any number of times."""

    def close(self) -> None: ...


class ReadSource(Protocol):
    """A stream as one way to read it shows it. Creating a source sends no requests, so tasks can create one too."""

    # State of the stream

    def get_info(self) -> StreamInfo: ...
    def find_seq_at_time(self, time_ns: int) -> int | None: ...
    def find_message(self, seq: int) -> StoredMessage | None:
        """Return the first message from `seq` on; raise StreamError if this user may not read it."""

    def find_key_prefix(self, stream_info: StreamInfo) -> str:
        """Return the prefix of the subjects of a bucket's keys."""

    # Pins and leases

    def pin(self) -> str:
        """Pin everything up to now; "" if rows are read by direct gets."""

    def unpin(self, pin: str) -> None: ...
    def has_pin(self, pin: str) -> bool:
        """Return whether a pin of an earlier run can still be read."""

    def lease_claims(self, finished: int) -> None:
        """Protect the claims of everything after `finished` for the duration of one lease."""

    def open_claim_lease(self) -> ClaimReaderLease | None:
        """Return a lease that a streaming query extends; None if no server could register it."""

    # Rows

    def plan(self, seq_range: SeqRange, pin: str) -> Sequence[Partition]:
        """Divide a range among tasks, as shown by a pin if there is one."""

    def plan_last_per_subject(self, end: int, pin: str) -> Sequence[Partition]:
        """Divide the last messages below `end` of all subjects among tasks."""

    def read(self, partition: Partition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Read the rows of a partition."""

    def open_backend(self, pin: str) -> Backend:
        """Open the stream for a scan in this process; files that no broker has open can be read by an existing pin."""
