"""Stream information and pins for the driver, from a server or from a store without one.

Owns the choice between the two. Invariant: both return the same information about the same stream, so that a query can
switch between them from one run to the next.
"""

from __future__ import annotations

import time
from typing import Protocol

from headrace.errors import StoreError
from headrace.reader import http_snapshot, snapshot_reader, stream_admin
from headrace.reader.options import ReadOptions
from headrace.reader.stream_admin import StreamError, StreamInfo
from headrace.storage.snapshot.offline_pin import find_store_folder, pin_offline
from headrace.storage.snapshot.open_snapshot import ArrowLayout, Selection, open_pin

_PIN_INTERVAL_S = 1.0


class ReadSource(Protocol):
    """What planning needs to know about a stream."""

    def get_info(self) -> StreamInfo: ...
    def find_seq_at_time(self, time_ns: int) -> int | None: ...
    def pin(self) -> str:
        """Pin everything up to now; "" if rows are read by direct gets."""

    def unpin(self, pin: str) -> None: ...
    def get_token(self, pin: str) -> str:
        """Return the token with which tasks fetch the files of a pin; "" if they open the files themselves."""

    def has_pin(self, pin: str) -> bool:
        """Return whether a pin of an earlier run can still be read."""


def open_source(options: ReadOptions) -> ReadSource:
    """Return the source that the options select."""
    if options.path and not options.servers_given:
        return OfflineSource(options)
    if options.is_http_path:
        return HttpSource(options)
    return SharedDiskSource(options) if options.path else ServerSource(options)


class ServerSource:
    """A server; rows are read by direct gets too."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options

    def get_info(self) -> StreamInfo:
        stream_info = stream_admin.fetch_info(self.options)
        if not stream_info.config.get("allow_direct") and not self.options.path:
            raise StreamError(
                f"stream {stream_info.name!r} allows no direct get; set allow_direct in its configuration, "
                "or read its files with option `path`"
            )
        return stream_info

    def find_seq_at_time(self, time_ns: int) -> int | None:
        return stream_admin.find_seq_at_time(self.options, time_ns)

    def pin(self) -> str:
        return ""

    def unpin(self, pin: str) -> None:
        """Do nothing: there are no pins."""

    def get_token(self, pin: str) -> str:
        return ""

    def has_pin(self, pin: str) -> bool:
        return False


class SharedDiskSource(ServerSource):
    """A Headrace broker whose files are on a shared disk; it grants pins."""

    def pin(self) -> str:
        find_store_folder(self.options.path)
        return stream_admin.pin_stream(self.options)

    def unpin(self, pin: str) -> None:
        stream_admin.unpin_stream(self.options, pin)

    def has_pin(self, pin: str) -> bool:
        return _can_open_pin(self.options, pin)


class HttpSource(ServerSource):
    """A Headrace broker that serves the files of pins over HTTP; it grants pins and a token for each."""

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._tokens: dict[str, str] = {}

    def pin(self) -> str:
        pin, token = stream_admin.pin_with_token(self.options)
        # Fails here once if the files cannot be served, instead of in every task.
        http_snapshot.load_manifest(snapshot_reader.make_pin_access(self.options, pin, token))
        self._tokens[pin] = token
        return pin

    def unpin(self, pin: str) -> None:
        self._tokens.pop(pin, None)
        stream_admin.unpin_stream(self.options, pin)

    def get_token(self, pin: str) -> str:
        if pin and pin not in self._tokens:
            _, self._tokens[pin] = stream_admin.pin_with_token(self.options, pin)
        return self._tokens.get(pin, "")

    def has_pin(self, pin: str) -> bool:
        try:
            _, self._tokens[pin] = stream_admin.pin_with_token(self.options, pin)
        except StreamError:
            self._tokens.pop(pin, None)
            return False
        return True


class OfflineSource:
    """A store that no broker has open. It changes only while one runs, so it is checked at most once a second."""

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
            raise StoreError(f"{error}; with a running broker give option `servers` too") from error
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
        folder = str(find_store_folder(self.options.path))
        snapshot = open_pin(folder, self.options.stream, self.pin())
        try:
            for batch in snapshot.batches(Selection(first_ns=time_ns), ArrowLayout(("seq",))):
                if batch.num_rows:
                    return int(batch.column(0)[0].as_py())
        finally:
            snapshot.close()
        return None

    def pin(self) -> str:
        return self.get_info().pin

    def unpin(self, pin: str) -> None:
        """Do nothing: leases expire, and the next process that opens the store removes expired pins."""

    def get_token(self, pin: str) -> str:
        return ""

    def has_pin(self, pin: str) -> bool:
        return _can_open_pin(self.options, pin)


def _can_open_pin(options: ReadOptions, pin: str) -> bool:
    try:
        open_pin(str(find_store_folder(options.path)), options.stream, pin).close()
    except StoreError:
        return False
    return True
