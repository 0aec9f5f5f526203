"""The columns of a segment as arrays, in pure Python: one row per record.

Owns the arrays and the lookup of single rows. Must not know subjects' names or which rows match a filter: that is
`SegmentIndex` in `records_pure`, which is all there is of both in the compiled version.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
#: Time, offset, size, subject, ttl, flags, and delta if sequences have gaps.
Columns = tuple[Array, Array, Array, Array, Array, Array, Array | None]

KINDS = (np.uint64, np.uint32, np.uint32, np.uint32, np.uint32, np.uint16)
DELTA_MAX = 0xFFFFFFFF


def grow_array(array: Array, used: int, capacity: int) -> Array:
    """Return a larger copy of an array; views of the old one stay valid."""
    fresh = np.zeros(capacity, array.dtype)
    fresh[:used] = array[:used]
    return fresh


class SegmentArrays:
    """The arrays of a segment, and access to their rows."""

    def __init__(self, base: int = 0) -> None:
        self.base = base
        self.rows = 0
        self.alive = 0
        self.alive_bytes = 0
        self.time, self.offset, self.size, self.subject, self.ttl, self.flags = (
            np.zeros(0, kind) for kind in KINDS
        )
        self.delta: Array | None = None
        self.live: Array | None = None
        self.packed: list[bytes] | None = None  # only the compiled version packs columns
        self._capacity = 0

    def _check_row(self, i: int) -> None:
        if not 0 <= i < self.rows:
            raise IndexError(i)

    def check_span(self, lo: int, hi: int) -> None:
        if lo < 0 or hi > self.rows:
            raise IndexError((lo, hi))

    def _grow(self) -> None:
        if self._capacity < 0:
            raise ValueError("these columns are read-only")
        capacity = max(self._capacity * 2 if self._capacity < 8192 else self._capacity * 3 // 2, 64)
        for name in ("time", "offset", "size", "subject", "ttl", "flags", "delta", "live"):
            array = getattr(self, name)
            if array is not None:
                setattr(self, name, grow_array(array, self.rows, capacity))
        self._capacity = capacity

    def append(self, seq: int, time: int, offset: int, size: int, subject: int, ttl: int, flags: int) -> None:
        i = self.rows
        if i >= self._capacity:
            self._grow()
        if i == 0:
            self.base = seq
        elif self.delta is None and seq != self.base + i:
            self.delta = np.zeros(self._capacity, np.uint32)
            self.delta[:i] = np.arange(i)
        self.time[i], self.offset[i], self.size[i] = time, offset, size
        self.subject[i], self.ttl[i], self.flags[i] = subject, ttl, flags
        if self.delta is not None:
            self.delta[i] = seq - self.base
        if self.live is not None:
            self.live[i] = 1
        self.rows = i + 1
        self.alive += 1
        self.alive_bytes += size

    def seq(self, i: int) -> int:
        self._check_row(i)
        return self.base + (int(self.delta[i]) if self.delta is not None else i)

    def lower_bound(self, seq: int) -> int:
        if seq <= self.base:
            return 0
        want = seq - self.base
        if self.delta is None:
            return min(want, self.rows)
        return int(np.searchsorted(self.delta[: self.rows], want)) if want <= DELTA_MAX else self.rows

    def find_row(self, seq: int) -> int:
        i = self.lower_bound(seq)
        return i if i < self.rows and self.seq(i) == seq else -1

    def find_rows(self, seqs: Array) -> Array:
        return np.array([self.lower_bound(seq) for seq in seqs.tolist()], np.intp)

    def get_seqs(self, rows: Array) -> Array:
        steps = rows.astype(np.uint64) if self.delta is None else self.delta[rows].astype(np.uint64)
        return steps + np.uint64(self.base)

    def row(self, i: int) -> tuple[int, int, int, int, int, int]:
        self._check_row(i)
        return (
            int(self.offset[i]),
            int(self.size[i]),
            int(self.subject[i]),
            int(self.time[i]),
            int(self.ttl[i]),
            int(self.flags[i]),
        )

    def get_offset(self, i: int) -> int:
        self._check_row(i)
        return int(self.offset[i])

    def get_time(self, i: int) -> int:
        self._check_row(i)
        return int(self.time[i])

    def get_end(self, i: int) -> int:
        return self.get_offset(i) + int(self.size[i])

    def find_offset(self, offset: int, lo: int, hi: int) -> int:
        self.check_span(lo, hi)
        return lo + int(np.searchsorted(self.offset[lo:hi].astype(np.int64), offset))

    def find_latest_time(self) -> int:
        return int(self.time[: self.rows].max(initial=0))

    def get_times(self, rows: Array) -> Array:
        return self.time[rows]

    def get_ttls(self, rows: Array) -> Array:
        return self.ttl[rows]

    def get_subjects(self, rows: Array) -> Array:
        return self.subject[rows]

    def to_arrays(self) -> Columns:
        """Return the columns as arrays: time, offset, size, subject, ttl, flags, delta or None."""
        n, delta = self.rows, self.delta
        columns = (self.time, self.offset, self.size, self.subject, self.ttl, self.flags)
        time, offset, size, subject, ttl, flags = (column[:n] for column in columns)
        return time, offset, size, subject, ttl, flags, None if delta is None else delta[:n]

    def map_subjects(self, new_ids: Array) -> Array:
        """Return the column of subject ids, as an array, with `new_ids[i]` instead of each id i."""
        subject: Array = np.zeros(len(self.subject), np.uint32)
        subject[: self.rows] = new_ids[self.subject[: self.rows]]
        return subject

    def encode_subjects(self, subject: Array) -> Array | bytes:
        """Return a result of `map_subjects` in the form that this column has: an array, or packed."""
        return subject

    def set_subjects(self, column: Array | bytes) -> None:
        """Replace the subject ids by a result of `encode_subjects`; since then no row was added, and none packed."""
        if not self.rows:
            return
        if not isinstance(column, np.ndarray) or len(column) != len(self.subject):
            raise ValueError(f"not the subjects of {self.rows} rows")
        self.subject = column
