"""Fetches pinned files from a broker over HTTP, for tasks that share no disk with it.

Owns the requests, their retries while a broker restarts, and the choice of the bytes of a pin that a range needs.
Invariant: the data is verified like a file on disk, block by block. One segment is in memory while the next is fetched;
of a segment that the range covers in part, only the blocks in the range are fetched. Must not know Spark.
"""

from __future__ import annotations

import http.client
import mmap
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import urlsplit

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import CorruptData, HeadraceError
from headrace.reader.stream_admin import StreamError
from headrace.storage.checkpoint_schema import SegmentState
from headrace.storage.format import SEGMENT_HEADER_BYTES
from headrace.storage.snapshot import manifest as manifests
from headrace.storage.snapshot.manifest import Manifest
from headrace.storage.snapshot.open_snapshot import ArrowLayout, Selection, StreamSnapshot
from headrace.storage.snapshot.record_runs import ColumnCache, SegmentId, load_rows, read_subjects

_RETRY_PAUSE_S = 0.2
#: The longest response that a broker sends.
_RANGE_BYTES = 8 << 20
_TIMEOUT_S = 30.0


class HttpUnavailable(HeadraceError):
    """The broker's HTTP port did not answer in time."""


@dataclass(frozen=True)
class PinAccess:
    """A pin, the URL that serves its files, and the token for it."""

    url: str
    stream: str
    pin: str
    token: str = field(repr=False)
    tls_ca: str = ""
    retry_timeout_s: float = 30.0

    def open(self) -> HttpSnapshot:
        return HttpSnapshot(self)


class PinFileClient:
    """Fetches the files of one pin; one thread uses it at a time."""

    def __init__(self, access: PinAccess) -> None:
        self._access = access
        self._connection: http.client.HTTPConnection | None = None

    def read(self, file: str, start: int = 0, end: int = -1) -> bytes:
        """Read bytes `start` to `end` of a file; -1 means to its end."""
        found = bytearray()
        while end < 0 or start + len(found) < end:
            first = start + len(found)
            last = min(first + _RANGE_BYTES, end) if end >= 0 else first + _RANGE_BYTES
            body, size = self._fetch_bytes(file, first, last - 1)
            found += body
            if start + len(found) >= size:
                break
        return bytes(found)

    def _fetch_bytes(self, file: str, first: int, last: int) -> tuple[bytes, int]:
        """Return some bytes and the file's size. Retries while the broker is down."""
        deadline = time.monotonic() + self._access.retry_timeout_s
        while True:
            try:
                return self._request(file, first, last)
            except (OSError, http.client.HTTPException) as error:
                self._connection = None
                if time.monotonic() > deadline:
                    raise HttpUnavailable(
                        f"{self._access.url} does not serve snapshot files: {error}"
                    ) from error
                time.sleep(_RETRY_PAUSE_S)

    def _request(self, file: str, first: int, last: int) -> tuple[bytes, int]:
        if self._connection is None:
            self._connection = _connect(self._access)
        headers = {"Authorization": f"Bearer {self._access.token}", "Range": f"bytes={first}-{last}"}
        self._connection.request("GET", f"/pins/{self._access.pin}/{file}", headers=headers)
        response = self._connection.getresponse()
        body = response.read()
        if response.status == http.client.SERVICE_UNAVAILABLE:
            raise http.client.HTTPException("the server is starting")
        if response.status != http.client.PARTIAL_CONTENT:
            raise StreamError(
                f"{self._access.url} does not serve {file} of pin {self._access.pin}: "
                f"{response.status} {body.decode(errors='replace').strip()}"
            )
        return body, int(response.headers["Content-Range"].rpartition("/")[2])


def _connect(access: PinAccess) -> http.client.HTTPConnection:
    url = urlsplit(access.url)
    host = url.hostname or "127.0.0.1"
    if url.scheme == "https":
        context = ssl.create_default_context(cafile=access.tls_ca or None)
        return http.client.HTTPSConnection(host, url.port or 443, timeout=_TIMEOUT_S, context=context)
    return http.client.HTTPConnection(host, url.port or 8222, timeout=_TIMEOUT_S)


class HttpSnapshot:
    """The rows of a pin; files are fetched when they are needed."""

    def __init__(self, access: PinAccess) -> None:
        self._access = access

    def batches(self, selection: Selection, layout: ArrowLayout, rows_max: int) -> Iterator[pa.RecordBatch]:
        """Yield the selected rows, in sequence order."""
        access = self._access
        client, manifest = PinFileClient(access), load_manifest(access)
        low, high = selection.first_seq or 0, selection.end_seq or manifest.committed_seq + 1
        segments = [state for state in manifest.segments if state.last_seq >= low and state.first_seq < high]
        with ThreadPoolExecutor(1) as executor:
            pending = [
                executor.submit(_fetch_segment, client, access, state, low, high) for state in segments[:1]
            ]
            for number, state in enumerate(segments, 1):
                files = pending.pop().result()
                pending += [
                    executor.submit(_fetch_segment, client, access, each, low, high)
                    for each in segments[number : number + 1]
                ]
                segment_manifest = msgspec.structs.replace(manifest, segments=[state], loose=[])
                yield from StreamSnapshot(files, segment_manifest).batches(selection, layout, rows_max)
        tail_manifest = msgspec.structs.replace(manifest, segments=[], generation=-1)
        yield from StreamSnapshot(_FetchedFiles(), tail_manifest).batches(selection, layout, rows_max)

    def find_last_per_subject(self, selection: Selection) -> npt.NDArray[np.uint64]:
        """Return the sequences of the last selected message of each subject.

        For segments with good columns, only the columns and the header are fetched.
        """
        client, manifest = PinFileClient(self._access), load_manifest(self._access)
        files = _FetchedFiles()
        for state in manifest.segments:
            files |= _fetch_segment(client, self._access, state, 0, 0)
        return StreamSnapshot(files, manifest).find_last_per_subject(selection)


@lru_cache(maxsize=4)
def load_manifest(access: PinAccess) -> Manifest:
    """Load the manifest of a pin; cached, since Spark's workers read many ranges of one pin."""
    found = manifests.decode(PinFileClient(access).read(manifests.FILE_NAME), f"the manifest of {access.pin}")
    if found.stream != access.stream:
        raise StreamError(f"pin {access.pin} belongs to stream {found.stream}, not to {access.stream}")
    return found


@lru_cache(maxsize=4)
def _fetch_subjects(access: PinAccess) -> bytes:
    manifest = load_manifest(access)
    return (
        PinFileClient(access).read(manifest.subjects_path.rpartition("/")[2])
        if manifest.generation >= 0
        else b""
    )


class _FetchedFiles(dict[str, memoryview]):
    """Fetched files by path, used in place of a disk."""

    def map(self, path: str) -> memoryview:
        return self[path]


def _fetch_segment(
    client: PinFileClient, access: PinAccess, state: SegmentState, low: int, high: int
) -> _FetchedFiles:
    """Fetch what a snapshot of one segment reads for the sequences from `low` up to `high`."""
    manifest = load_manifest(access)
    files, name = _FetchedFiles(), f"{state.number:08x}"
    if manifest.generation >= 0:
        files[manifest.subjects_path] = memoryview(_fetch_subjects(access))
    columns = client.read(f"{name}.col") if state.number in manifest.columns else b""
    files[manifest.columns_path(state.number)] = memoryview(columns)
    start, end = _find_block_range(access, state, columns, low, high)
    data = mmap.mmap(-1, state.end)
    for first, last in ((0, SEGMENT_HEADER_BYTES), (max(start, SEGMENT_HEADER_BYTES), end)):
        found = client.read(f"{name}.seg", first, last)
        if len(found) != last - first:
            raise CorruptData(f"segment {name} of pin {access.pin} is truncated")
        data[first:last] = found
    files[manifest.segment_path(state.number)] = memoryview(data)
    return files


def _find_block_range(
    access: PinAccess, state: SegmentState, columns: bytes, low: int, high: int
) -> tuple[int, int]:
    """Return the bytes of the blocks that contain a range; the whole segment if it has no columns and must be scanned."""
    whole_segment = SEGMENT_HEADER_BYTES, state.end
    if not columns or (low <= state.first_seq and state.last_seq < high):
        return whole_segment
    manifest = load_manifest(access)
    cache = ColumnCache(
        memoryview(columns), manifest.generation, read_subjects(memoryview(_fetch_subjects(access)))
    )
    rows = load_rows(cache, SegmentId(manifest.store, manifest.ident, ""), state)
    if rows is None:
        return whole_segment
    first, stop = (int(each) for each in np.searchsorted(rows.seq, np.array([low, high], np.uint64)))
    if first == stop:
        return SEGMENT_HEADER_BYTES, SEGMENT_HEADER_BYTES
    first_block, last_block = (
        np.searchsorted(rows.blocks, rows.offset[[first, stop - 1]], side="right") - 1
    ).tolist()
    end = int(rows.blocks[last_block + 1]) if last_block + 1 < len(rows.blocks) else state.end
    return int(rows.blocks[first_block]), end
