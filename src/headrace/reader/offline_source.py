"""The source of a store that no broker has open.

Owns pinning such a store. It changes only while a broker runs, so it is checked at most once a second.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import pyarrow as pa

from headrace.errors import StoreError
from headrace.reader import stream_admin
from headrace.reader.backends import SnapshotBackend
from headrace.reader.batch_cast import SeqRange
from headrace.reader.claim_lease import ClaimReaderLease
from headrace.reader.direct_get_decode import StoredMessage
from headrace.reader.last_per_subject import plan_by_seq
from headrace.reader.options import ReadOptions
from headrace.reader.partitions import Partition, SnapshotPartition, read_partition, split_range
from headrace.reader.read_source import Backend, ReadSource
from headrace.reader.snapshot_reader import DiskPin
from headrace.reader.stream_admin import StreamInfo
from headrace.storage.snapshot.offline_pin import find_store_folder, pin_offline
from headrace.storage.snapshot.open_snapshot import ArrowLayout, Selection, open_folder, open_pin

_PIN_INTERVAL_S = 1.0


class OfflineSource(ReadSource):
    """A store that no broker has open."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self._stream_info: StreamInfo | None = None
        self._pinned_at_s = 0.0

    def get_info(self) -> StreamInfo:
        if self._stream_info is None or time.monotonic() - self._pinned_at_s > _PIN_INTERVAL_S:
            self._stream_info = self._pin_offline()
            self._pinned_at_s = time.monotonic()
        return self._stream_info

    def _pin_offline(self) -> StreamInfo:
        options = self.options
        try:
            offline_pin = pin_offline(options.path, options.stream, options.lease_s)
        except StoreError as error:
            raise StoreError(f"{error}; if the broker is running, set option `servers` too") from error
        return StreamInfo(
            options.stream,
            str(offline_pin.created_ns),
            offline_pin.first_seq,
            offline_pin.last_seq + 1,
            offline_pin.messages,
            offline_pin.bytes,
            dict(offline_pin.config),
            offline_pin.pin,
        )

    def find_seq_at_time(self, time_ns: int) -> int | None:
        snapshot = self._locate(self.pin()).open_uncached()
        try:
            for batch in snapshot.batches(Selection(first_ns=time_ns), ArrowLayout(("seq",))):
                if batch.num_rows:
                    return int(batch.column(0)[0].as_py())
        finally:
            snapshot.close()
        return None

    def find_message(self, seq: int) -> StoredMessage | None:
        snapshot = self._locate(self.pin()).open_uncached()
        layout = ArrowLayout(("seq", "time", "subject", "data"))
        try:
            for batch in snapshot.batches(Selection(first_seq=seq), layout, 1):
                if batch.num_rows:
                    at, time, subject, data = (column[0] for column in batch.columns)
                    return StoredMessage(
                        at.as_py(), time.value, subject.as_py().encode(), b"", bytes(data.as_py())
                    )
        finally:
            snapshot.close()
        return None

    def find_key_prefix(self, stream_info: StreamInfo) -> str:
        return stream_admin.find_key_prefix(self.options, stream_info)

    def pin(self) -> str:
        return self.get_info().pin

    def unpin(self, pin: str) -> None:
        """Do nothing: leases expire, and the next process that opens the store removes expired pins."""

    def has_pin(self, pin: str) -> bool:
        return self._locate(pin).exists()

    def lease_claims(self, finished: int) -> None:
        """Do nothing: no collector runs without a server."""

    def open_claim_lease(self) -> ClaimReaderLease | None:
        return None

    def plan(self, seq_range: SeqRange, pin: str) -> Sequence[Partition]:
        files = self._locate(pin)
        return [SnapshotPartition(each, files) for each in split_range(seq_range, self.options)]

    def plan_last_per_subject(self, end: int, pin: str) -> Sequence[Partition]:
        return plan_by_seq(self.options, end, self._locate(pin))

    def read(self, partition: Partition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self.options, schema)

    def open_backend(self, pin: str) -> Backend:
        path, stream = _find_folder(self.options.path), self.options.stream
        return SnapshotBackend(open_pin(path, stream, pin) if pin else open_folder(path, stream))

    def _locate(self, pin: str) -> DiskPin:
        return DiskPin(self.options.path, self.options.stream, pin)


def _find_folder(path: str) -> str:
    """Return the store below a server's folder; the given folder if it has none, which then causes the error."""
    try:
        return str(find_store_folder(path))
    except StoreError:
        return path
