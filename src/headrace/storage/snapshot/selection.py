"""Selects the rows of a snapshot that a reader wants.

Owns the bounds and subject patterns of a read, and turns them into masks over columns. Invariant: a subject is matched
once, however many messages have it. Must not know files; imports pyarrow, as `arrow` does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.storage.snapshot.arrow import Array, compute_expiry


@dataclass(frozen=True, slots=True)
class Selection:
    """Bounds are half open: the first is included, the end is not. None and () mean unbounded.

    `only_seqs` are the sequences of the selected rows, if they are known individually.
    """

    patterns: tuple[bytes, ...] = ()
    first_seq: int | None = None
    end_seq: int | None = None
    first_ns: int | None = None
    end_ns: int | None = None
    only_seqs: Array | None = None

    def subject_mask(self, subjects: list[bytes]) -> Array | None:
        """Return for each subject id whether it is selected; None if all are."""
        if not self.patterns or b">" in self.patterns:
            return None
        table = pa.array(subjects, pa.binary())
        matched = pc.match_substring_regex(table, _compile_patterns(self.patterns))
        return np.asarray(matched.to_numpy(zero_copy_only=False), bool)

    def row_mask(self, time_ns: Array, ttl_s: Array, as_of_ns: int) -> Array | None:
        """Return for each row whether it is within the time bounds and was alive at `as_of_ns`; None if all are."""
        masks = []
        if ttl_s.any():
            deadline, bounded = compute_expiry(time_ns, ttl_s)
            masks.append(~(bounded & (deadline <= as_of_ns)))
        if self.first_ns is not None:
            masks.append(time_ns.astype(np.int64) >= self.first_ns)
        if self.end_ns is not None:
            masks.append(time_ns.astype(np.int64) < self.end_ns)
        return np.logical_and.reduce(masks) if masks else None

    def seq_span(self, seq: Array) -> tuple[int, int]:
        """Return where the sequences within the bounds begin and end in an ascending array."""
        low = 0 if self.first_seq is None else np.searchsorted(seq, np.uint64(max(self.first_seq, 0)))
        high = len(seq) if self.end_seq is None else np.searchsorted(seq, np.uint64(max(self.end_seq, 0)))
        return int(low), int(high)


def _compile_patterns(patterns: tuple[bytes, ...]) -> bytes:
    """Compile all patterns to one regular expression; on binary values it matches byte by byte."""
    return b"^(?:" + b"|".join(_pattern_to_regex(pattern) for pattern in patterns) + b")$"


def _pattern_to_regex(pattern: bytes) -> bytes:
    *tokens, last = pattern.split(b".")
    parts = [_TOKEN if token == b"*" else re.escape(token) for token in tokens]
    ends = {b"*": _TOKEN, b">": _TOKEN + rb"(?:\." + _TOKEN + b")*"}
    return rb"\.".join([*parts, ends.get(last, re.escape(last))])


_TOKEN = b"[^.]+"
