"""Sources with a running server: by requests to it, or by the files that a Headrace broker pins.

Owns how a server is asked for information, pins and tokens.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import partial

import pyarrow as pa

from headrace.reader import http_snapshot, stream_admin
from headrace.reader.backends import PinnedBackend, ServerBackend
from headrace.reader.batch_cast import SeqRange
from headrace.reader.claim_lease import ClaimReaderLease, lease_once
from headrace.reader.direct_get_decode import StoredMessage
from headrace.reader.http_snapshot import PinAccess
from headrace.reader.last_per_subject import plan_by_seq, plan_by_subject
from headrace.reader.leader_reader import LeaderReader
from headrace.reader.options import ReadOptions
from headrace.reader.partitions import (
    Partition,
    ServerPartition,
    SnapshotPartition,
    read_partition,
    split_range,
)
from headrace.reader.range_reader import ask_leader
from headrace.reader.read_method import ReadMethod, choose_method
from headrace.reader.read_source import Backend, ReadSource
from headrace.reader.snapshot_reader import DiskPin, PinFiles
from headrace.reader.stream_admin import StreamError, StreamInfo
from headrace.storage.snapshot.offline_pin import find_store_folder
from headrace.storage.snapshot.open_snapshot import open_pin


class _BrokerSource(ReadSource):
    """What all sources with a server have in common."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options

    def get_info(self) -> StreamInfo:
        return stream_admin.fetch_info(self.options)

    def find_seq_at_time(self, time_ns: int) -> int | None:
        return stream_admin.find_seq_at_time(self.options, time_ns)

    def find_message(self, seq: int) -> StoredMessage | None:
        return ask_leader(self.options, partial(LeaderReader.find_message, at=seq))

    def find_key_prefix(self, stream_info: StreamInfo) -> str:
        return stream_admin.find_key_prefix(self.options, stream_info)

    def lease_claims(self, finished: int) -> None:
        lease_once(self.options, finished)

    def open_claim_lease(self) -> ClaimReaderLease | None:
        return ClaimReaderLease(self.options)

    def read(self, partition: Partition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self.options, schema)


class ServerSource(_BrokerSource):
    """A server; rows are read from it in the fastest way that the stream allows."""

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._method: ReadMethod | None = None

    def get_info(self) -> StreamInfo:
        stream_info = super().get_info()
        self._method = choose_method(stream_info)
        return stream_info

    @property
    def method(self) -> ReadMethod:
        """How rows are read, as the stream's configuration was last seen."""
        if self._method is None:
            self.get_info()
        assert self._method is not None
        return self._method

    def pin(self) -> str:
        return ""

    def unpin(self, pin: str) -> None:
        """Do nothing: there are no pins."""

    def has_pin(self, pin: str) -> bool:
        return False

    def plan(self, seq_range: SeqRange, pin: str) -> Sequence[Partition]:
        return [ServerPartition(each, self.method) for each in split_range(seq_range, self.options)]

    def plan_last_per_subject(self, end: int, pin: str) -> Sequence[Partition]:
        return plan_by_subject(self.options, end, self.method)

    def open_backend(self, pin: str) -> Backend:
        return ServerBackend(self, self.options)


class _PinningSource(_BrokerSource):
    """A Headrace broker that grants pins."""

    @abstractmethod
    def _locate(self, pin: str) -> PinFiles:
        """Return where tasks find the files of a pin."""

    def unpin(self, pin: str) -> None:
        stream_admin.unpin_stream(self.options, pin)

    def plan(self, seq_range: SeqRange, pin: str) -> Sequence[Partition]:
        files = self._locate(pin)
        return [SnapshotPartition(each, files) for each in split_range(seq_range, self.options)]

    def plan_last_per_subject(self, end: int, pin: str) -> Sequence[Partition]:
        return plan_by_seq(self.options, end, self._locate(pin))

    def open_backend(self, pin: str) -> Backend:
        # Scans map files, so this fails for an address.
        folder = find_store_folder(self.options.path)
        stream_info = self.get_info()
        new_pin = self.pin()
        return PinnedBackend(open_pin(str(folder), self.options.stream, new_pin), self, stream_info, new_pin)


class SharedDiskSource(_PinningSource):
    """A Headrace broker whose files are on a shared disk."""

    def pin(self) -> str:
        find_store_folder(self.options.path)
        return stream_admin.pin_stream(self.options)

    def has_pin(self, pin: str) -> bool:
        return self._locate(pin).exists()

    def _locate(self, pin: str) -> DiskPin:
        return DiskPin(self.options.path, self.options.stream, pin)


class HttpSource(_PinningSource):
    """A Headrace broker that serves the files of pins over HTTP; it grants a token for each pin."""

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._tokens: dict[str, str] = {}

    def pin(self) -> str:
        pin, token = stream_admin.pin_with_token(self.options)
        # Fails here once if the files cannot be served, instead of in every task.
        http_snapshot.load_manifest(self._make_access(pin, token))
        self._tokens[pin] = token
        return pin

    def unpin(self, pin: str) -> None:
        self._tokens.pop(pin, None)
        super().unpin(pin)

    def has_pin(self, pin: str) -> bool:
        try:
            _, self._tokens[pin] = stream_admin.pin_with_token(self.options, pin)
        except StreamError:
            self._tokens.pop(pin, None)
            return False
        return True

    def _locate(self, pin: str) -> PinAccess:
        if pin not in self._tokens:
            _, self._tokens[pin] = stream_admin.pin_with_token(self.options, pin)
        return self._make_access(pin, self._tokens[pin])

    def _make_access(self, pin: str, token: str) -> PinAccess:
        options = self.options
        return PinAccess(
            options.path, options.stream, pin, token, options.address.tls_ca, options.reconnect_s
        )
