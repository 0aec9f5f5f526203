"""Pinned files fetched from a broker over HTTP, for tasks that share no disk with it.

Owns the requests, their repetition while a broker restarts, and which bytes of a pin a range needs. Invariant: what is
read is verified like a file on disk, block by block. One segment is in memory while the next one is fetched; of a segment
that a range only touches, only the blocks it touches are. Must not know Spark.
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

from headrace.errors import Corrupt, HeadraceError
from headrace.spark.streams import StreamError
from headrace.store import manifest as manifests
from headrace.store.format import SEGMENT_HEADER_BYTES
from headrace.store.manifest import Manifest
from headrace.store.runs import Cache, Place, open_rows, read_subjects
from headrace.store.snapshots import Selection, Shape, Snapshot
from headrace.store.states import SegmentState

_PAUSE_S = 0.2
#: The longest answer that a broker gives.
_RANGE_BYTES = 8 << 20
_TIMEOUT_S = 30.0


class Unavailable(HeadraceError):
    """The broker's HTTP port did not answer in time."""


@dataclass(frozen=True)
class Grant:
    """A pin, where its files are served, and what has to be shown there."""

    url: str
    stream: str
    pin: str
    token: str = field(repr=False)
    tls_ca: str = ""
    patience_s: float = 30.0


class Server:
    """The files of one pin; one thread uses it at a time."""

    def __init__(self, grant: Grant) -> None:
        self._grant = grant
        self._connection: http.client.HTTPConnection | None = None

    def read(self, file: str, start: int = 0, end: int = -1) -> bytes:
        """Bytes `start` to `end` of a file; -1: to its end."""
        found = bytearray()
        while end < 0 or start + len(found) < end:
            first = start + len(found)
            last = min(first + _RANGE_BYTES, end) if end >= 0 else first + _RANGE_BYTES
            body, size = self._range(file, first, last - 1)
            found += body
            if start + len(found) >= size:
                break
        return bytes(found)

    def _range(self, file: str, first: int, last: int) -> tuple[bytes, int]:
        """Some bytes, and the file's size. A broker that is not there is waited for."""
        deadline = time.monotonic() + self._grant.patience_s
        while True:
            try:
                return self._ask(file, first, last)
            except (OSError, http.client.HTTPException) as error:
                self._connection = None
                if time.monotonic() > deadline:
                    raise Unavailable(f"{self._grant.url} does not serve pinned files: {error}") from error
                time.sleep(_PAUSE_S)

    def _ask(self, file: str, first: int, last: int) -> tuple[bytes, int]:
        if self._connection is None:
            self._connection = _connect(self._grant)
        headers = {"Authorization": f"Bearer {self._grant.token}", "Range": f"bytes={first}-{last}"}
        self._connection.request("GET", f"/pins/{self._grant.pin}/{file}", headers=headers)
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status == http.client.SERVICE_UNAVAILABLE:
            raise http.client.HTTPException("it is starting")
        if answer.status != http.client.PARTIAL_CONTENT:
            raise StreamError(
                f"{self._grant.url} does not serve {file} of pin {self._grant.pin}: "
                f"{answer.status} {body.decode(errors='replace').strip()}"
            )
        return body, int(answer.headers["Content-Range"].rpartition("/")[2])


def _connect(grant: Grant) -> http.client.HTTPConnection:
    url = urlsplit(grant.url)
    host = url.hostname or "127.0.0.1"
    if url.scheme == "https":
        context = ssl.create_default_context(cafile=grant.tls_ca or None)
        return http.client.HTTPSConnection(host, url.port or 443, timeout=_TIMEOUT_S, context=context)
    return http.client.HTTPConnection(host, url.port or 8222, timeout=_TIMEOUT_S)


def read_pin(grant: Grant, selection: Selection, shape: Shape, rows_max: int) -> Iterator[pa.RecordBatch]:
    """The chosen rows of a pin, in sequence order."""
    server, manifest = Server(grant), opened(grant)
    low, high = selection.first_seq or 0, selection.end_seq or manifest.committed_seq + 1
    wanted = [state for state in manifest.segments if state.last >= low and state.base < high]
    with ThreadPoolExecutor(1) as ahead:
        coming = [ahead.submit(_fetch, server, grant, state, low, high) for state in wanted[:1]]
        for number, state in enumerate(wanted, 1):
            files = coming.pop().result()
            coming += [
                ahead.submit(_fetch, server, grant, each, low, high) for each in wanted[number : number + 1]
            ]
            alone = msgspec.structs.replace(manifest, segments=[state], loose=[])
            yield from Snapshot(files, alone).batches(selection, shape, rows_max)
    rest = msgspec.structs.replace(manifest, segments=[], generation=-1)
    yield from Snapshot(_Files(), rest).batches(selection, shape, rows_max)


def newest(grant: Grant, selection: Selection) -> npt.NDArray[np.uint64]:
    """The sequences of the last chosen message of each subject; of segments with columns nothing else is fetched."""
    server, manifest = Server(grant), opened(grant)
    files = _Files()
    for state in manifest.segments:
        files |= _fetch(server, grant, state, 0, 0)
    return Snapshot(files, manifest).newest(selection)


@lru_cache(maxsize=4)
def opened(grant: Grant) -> Manifest:
    """What a pin shows; kept, since Spark's workers read many ranges of one pin."""
    found = manifests.decoded(Server(grant).read(manifests.NAME), f"the manifest of {grant.pin}")
    if found.stream != grant.stream:
        raise StreamError(f"pin {grant.pin} is of stream {found.stream}, not of {grant.stream}")
    return found


@lru_cache(maxsize=4)
def _subjects(grant: Grant) -> bytes:
    manifest = opened(grant)
    return Server(grant).read(manifest.subjects.rpartition("/")[2]) if manifest.generation >= 0 else b""


class _Files(dict[str, memoryview]):
    """Fetched files by their path, in the place of a disk."""

    def map(self, path: str) -> memoryview:
        return self[path]


def _fetch(server: Server, grant: Grant, state: SegmentState, low: int, high: int) -> _Files:
    """What a snapshot of one segment reads for the sequences from `low` up to `high`."""
    manifest = opened(grant)
    files, name = _Files(), f"{state.number:08x}"
    if manifest.generation >= 0:
        files[manifest.subjects] = memoryview(_subjects(grant))
    columns = server.read(f"{name}.col") if state.number in manifest.columns else b""
    files[manifest.column_file(state.number)] = memoryview(columns)
    start, end = _span(grant, state, columns, low, high)
    data = mmap.mmap(-1, state.end)
    for first, last in ((0, SEGMENT_HEADER_BYTES), (max(start, SEGMENT_HEADER_BYTES), end)):
        found = server.read(f"{name}.seg", first, last)
        if len(found) != last - first:
            raise Corrupt(f"segment {name} of pin {grant.pin} ends too early")
        data[first:last] = found
    files[manifest.segment(state.number)] = memoryview(data)
    return files


def _span(grant: Grant, state: SegmentState, columns: bytes, low: int, high: int) -> tuple[int, int]:
    """The bytes of the blocks that hold a range; all of a segment without columns, which has to be scanned."""
    whole = SEGMENT_HEADER_BYTES, state.end
    if not columns or (low <= state.base and state.last < high):
        return whole
    manifest = opened(grant)
    cache = Cache(memoryview(columns), manifest.generation, read_subjects(memoryview(_subjects(grant))))
    rows = open_rows(cache, Place(manifest.store, manifest.ident, ""), state)
    if rows is None:
        return whole
    first, stop = (int(each) for each in np.searchsorted(rows.seq, np.array([low, high], np.uint64)))
    if first == stop:
        return SEGMENT_HEADER_BYTES, SEGMENT_HEADER_BYTES
    from_, to = (np.searchsorted(rows.blocks, rows.offset[[first, stop - 1]], side="right") - 1).tolist()
    end = int(rows.blocks[to + 1]) if to + 1 < len(rows.blocks) else state.end
    return int(rows.blocks[from_]), end
