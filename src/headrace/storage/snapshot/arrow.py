"""Converts records in memory to Arrow record batches, a whole run at a time.

Owns the row format that readers see (`ArrowLayout.schema`) and the conversion from record bytes to columns. Invariant:
no step costs Python time per message; payloads are views of the mapped file unless the layout asks for plain `binary`.
Must not know files, pins or stores. It imports pyarrow, so nothing that the broker imports may import it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace._native.record_header import RECORD_HEADER_BYTES, RECORD_HEADER_FIELDS

Array = npt.NDArray[Any]

COLUMNS = ("seq", "time", "subject", "headers", "data", "expires_at", "size")
TTL_NEVER = 0xFFFFFFFF
NS = 1_000_000_000

_RECORD_HEADER = np.dtype([(name, f"<u{size}") for name, size in RECORD_HEADER_FIELDS])
_VIEW = np.dtype([("length", "<i4"), ("prefix", "<u4"), ("buffer", "<i4"), ("offset", "<i4")])
_INLINE_MAX = 12
# A view's offset is a signed 32-bit number, so larger files are presented as several overlapping buffers.
_SPAN_BITS = 30
_SPAN = 1 << _SPAN_BITS
_BUFFER_MAX = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class ArrowLayout:
    """Which columns a reader wants, and with which types."""

    columns: tuple[str, ...] = COLUMNS
    unit: str = "ns"
    views: bool = False
    parse_headers: bool = False

    def __post_init__(self) -> None:
        unknown = [name for name in self.columns if name not in COLUMNS]
        if unknown or not self.columns:
            problem = f"unknown columns: {', '.join(unknown)}" if unknown else "no column is selected"
            raise ValueError(f"{problem}; available: {', '.join(COLUMNS)}")
        if self.unit not in ("ns", "us"):
            raise ValueError(f"the time unit is {self.unit!r}; it must be 'ns' or 'us'")

    def schema(self) -> pa.Schema:
        """The Arrow schema of every batch with this layout."""
        binary = pa.binary_view() if self.views else pa.binary()
        time = pa.timestamp(self.unit, tz="UTC")
        parsed = pa.map_(pa.string(), pa.list_(pa.string()))
        types = {
            "seq": pa.field("seq", pa.uint64(), nullable=False),
            "time": pa.field("time", time, nullable=False),
            "subject": pa.field("subject", pa.string(), nullable=False),
            "headers": pa.field("headers", parsed if self.parse_headers else binary),
            "data": pa.field("data", binary, nullable=False),
            "expires_at": pa.field("expires_at", time),
            "size": pa.field("size", pa.uint32(), nullable=False),
        }
        return pa.schema([types[name] for name in self.columns])


def gather_headers(data: memoryview, offsets: Array) -> Array:
    """Return the fixed parts of the records at `offsets`, gathered in one pass."""
    if len(offsets) == 0:
        return np.empty(0, _RECORD_HEADER)
    return _sliding_view(data, RECORD_HEADER_BYTES)[offsets].view(_RECORD_HEADER)


def compute_expiry(time_ns: Array, ttl_s: Array) -> tuple[Array, Array]:
    """Return (deadline in ns, whether there is one) for each row."""
    bounded = (ttl_s != 0) & (ttl_s != TTL_NEVER)
    deadline = time_ns.astype(np.int64) + ttl_s.astype(np.int64) * NS
    return deadline, bounded


def make_subject_dictionary(subjects: list[bytes]) -> pa.Array:
    """Return the subject table as strings; invalid UTF-8 is replaced, since Arrow strings must be valid."""
    raw = pa.array(subjects, pa.binary())
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([subject.decode("utf-8", "replace") for subject in subjects], pa.string())


def make_batch(
    layout: ArrowLayout, data: memoryview, offsets: Array, rows: Array, subject_ids: Array, subjects: pa.Array
) -> pa.RecordBatch:
    """Make one record batch of the records at `offsets` of `data`, whose headers are `rows`."""
    builder = _ColumnBuilder(layout, data, offsets, rows, subject_ids, subjects)
    arrays = [getattr(builder, name)() for name in layout.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=layout.schema())


@dataclass(frozen=True, slots=True)
class _ColumnBuilder:
    """Builds columns, with one method per column."""

    layout: ArrowLayout
    source: memoryview
    offsets: Array
    rows: Array
    subject_ids: Array
    subjects: pa.Array

    def seq(self) -> pa.Array:
        return _make_array(pa.uint64(), self.rows["seq"])

    def time(self) -> pa.Array:
        return self._times(self.rows["time_ns"].astype(np.int64), None)

    def subject(self) -> pa.Array:
        return self.subjects.take(_make_array(pa.uint32(), self.subject_ids.astype(np.uint32, copy=False)))

    def headers(self) -> pa.Array:
        start = self.offsets + RECORD_HEADER_BYTES + self.rows["subject_len"]
        lengths = self.rows["header_len"].astype(np.int64)
        if not lengths.any():
            return pa.nulls(len(lengths), self.layout.schema().field("headers").type)
        blocks = make_binary_views(self.source, start, lengths, lengths > 0)
        if self.layout.parse_headers:
            return parse_headers(blocks)
        return blocks if self.layout.views else blocks.cast(pa.binary())

    def data(self) -> pa.Array:
        skip = RECORD_HEADER_BYTES + self.rows["subject_len"].astype(np.int64) + self.rows["header_len"]
        views = make_binary_views(self.source, self.offsets + skip, self.rows["size"] - skip, None)
        return views if self.layout.views else views.cast(pa.binary())

    def expires_at(self) -> pa.Array:
        deadline, bounded = compute_expiry(self.rows["time_ns"], self.rows["ttl_s"])
        return self._times(deadline, bounded)

    def size(self) -> pa.Array:
        return _make_array(pa.uint32(), self.rows["size"] - np.uint32(RECORD_HEADER_BYTES))

    def _times(self, ns: Array, valid: Array | None) -> pa.Array:
        values = ns // 1000 if self.layout.unit == "us" else ns
        return _make_array(pa.timestamp(self.layout.unit, tz="UTC"), values, valid)


def make_binary_views(data: memoryview, starts: Array, lengths: Array, valid: Array | None) -> pa.Array:
    """Make a binary_view array over `data`: only short values are copied, since the format stores them inline."""
    views = np.zeros(len(starts), _VIEW)
    views["length"] = lengths
    long = lengths > _INLINE_MAX
    if long.all():
        _fill_references(data, views, starts)
    else:
        outside = np.flatnonzero(long)
        referring = views[outside]
        _fill_references(data, referring, starts[outside])
        views[outside] = referring
        _fill_inline(data, views, starts, lengths, np.flatnonzero((lengths > 0) & ~long))
    buffers = [_make_validity(valid), pa.py_buffer(views), *_split_buffers(data)]
    return pa.Array.from_buffers(pa.binary_view(), len(views), buffers)


def _fill_references(data: memoryview, views: Array, starts: Array) -> None:
    if len(starts) == 0:
        return
    views["prefix"] = _sliding_view(data, 4)[starts].view("<u4")
    views["buffer"] = starts >> _SPAN_BITS
    views["offset"] = starts & (_SPAN - 1)


def _fill_inline(data: memoryview, views: Array, starts: Array, lengths: Array, short: Array) -> None:
    inside = starts[short] + _INLINE_MAX <= len(data)
    whole = short[inside]
    body = np.zeros((len(short), _INLINE_MAX), np.uint8)
    if len(whole):
        body[inside] = _sliding_view(data, _INLINE_MAX)[starts[whole]].view(np.uint8).reshape(-1, _INLINE_MAX)
    # Only values in the last 12 bytes of the file get here: one record at most.
    for at in np.flatnonzero(~inside):
        rest = np.frombuffer(data[int(starts[short[at]]) :], np.uint8)
        body[at, : len(rest)] = rest
    body[np.arange(_INLINE_MAX) >= lengths[short][:, None]] = 0
    raw = views.view(np.uint8).reshape(-1, _VIEW.itemsize)
    raw[short, 4:] = body


def _split_buffers(data: memoryview) -> list[pa.Buffer]:
    whole = pa.py_buffer(data)
    starts = range(0, max(len(data), 1), _SPAN)
    return [whole.slice(start, min(len(data) - start, _BUFFER_MAX)) for start in starts]


def _sliding_view(data: memoryview, width: int) -> Array:
    """Return every `width` bytes of `data` as one element, at every byte position: indexing it gathers."""
    return np.ndarray((max(len(data) - width + 1, 0),), np.dtype((np.void, width)), data, strides=(1,))


def _make_validity(valid: Array | None) -> pa.Buffer | None:
    if valid is None or valid.all():
        return None
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def _make_array(kind: pa.DataType, values: Array, valid: Array | None = None) -> pa.Array:
    contiguous = np.ascontiguousarray(values)
    return pa.Array.from_buffers(kind, len(contiguous), [_make_validity(valid), pa.py_buffer(contiguous)])


def parse_headers(blocks: pa.Array) -> pa.MapArray:
    """Parse raw header blocks to map<string, list<string>>: repeated names collect their values, in order."""
    rows, names, values = _split_header_lines(blocks)
    encoded = names.dictionary_encode()
    ids = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    entry, first, member = np.unique(
        rows * (len(encoded.dictionary) + 1) + ids, return_index=True, return_inverse=True
    )
    # Names keep the order of their first appearance, values the order of their lines.
    by_appearance = np.argsort(first, kind="stable")
    rank = np.empty(len(entry), np.int64)
    rank[by_appearance] = np.arange(len(entry))
    lines = np.argsort(rank[member], kind="stable")
    list_ends = np.cumsum(np.bincount(rank[member], minlength=len(entry)))
    lists = pa.ListArray.from_arrays(_make_offsets(list_ends), values.take(pa.array(lines)))
    keys = names.take(pa.array(first[by_appearance]))
    row_ends = np.cumsum(np.bincount(rows[first], minlength=len(blocks)))
    valid = blocks.is_valid().to_numpy(zero_copy_only=False)
    offsets = pa.array(np.concatenate(([0], row_ends)).astype(np.int32), mask=np.append(~valid, False))
    return pa.MapArray.from_arrays(offsets, keys, lists)


def _make_offsets(ends: Array) -> pa.Array:
    return pa.array(np.concatenate(([0], ends)).astype(np.int32))


def _split_header_lines(blocks: pa.Array) -> tuple[Array, pa.Array, pa.Array]:
    """Return (row number, name, value) of each header line of each block, in order."""
    split = pc.split_pattern(blocks.cast(pa.binary()), b"\r\n")
    rows = pc.list_parent_indices(split).to_numpy(zero_copy_only=False).astype(np.int64)
    lines = pc.list_flatten(split)
    colon = pc.find_substring(lines, b":").to_numpy(zero_copy_only=False).astype(np.int64)
    # The status line has no name; an inline status may hold a colon but always opens its block.
    opening = np.concatenate(([True], rows[1:] != rows[:-1])) if len(rows) else np.empty(0, bool)
    header_lines = np.flatnonzero((colon > 0) & ~opening)
    parts = pc.split_pattern(lines.take(pa.array(header_lines)), b":", max_splits=1)
    names, values = pc.list_element(parts, 0), pc.list_element(parts, 1)
    return rows[header_lines], _to_strings(names), _to_strings(values)


def _to_strings(values: pa.Array) -> pa.Array:
    try:
        return pc.utf8_trim_whitespace(values.cast(pa.string()))
    except pa.ArrowInvalid:
        texts = [value.decode("utf-8", "replace") for value in values.to_pylist()]
        return pc.utf8_trim_whitespace(pa.array(texts, pa.string()))
