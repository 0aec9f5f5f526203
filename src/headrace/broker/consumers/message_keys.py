"""The keys of messages, by which a consumer keeps order: whole subjects, or chosen tokens of them.

Owns the numbers of keys: a whole subject has the log's id for it, tokens have numbers of their own. Numbers change when
the log renumbers its subjects. Knows no consumers.
"""

from __future__ import annotations

from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.storage import Filter, StreamLog
from headrace.storage.native_records import BOUND_ONLY_BIT, Array, SegmentIndex
from headrace.storage.sequence_arrays import Seqs, sort_unique

Keys = npt.NDArray[np.uint32]
#: The sequence in an entry of the subject index, without its flag.
_SEQ_BITS = BOUND_ONLY_BIT - 1
#: Key of a subject that was not looked at.
_UNKNOWN = (1 << 32) - 1


class MessageKeys(Protocol):
    """Numbers keys."""

    #: Whether every subject is a key of its own, so that a filter matches all messages of a key or none.
    ARE_SUBJECTS: bool
    #: Rows that are searched for the next message of one key alone, and at a time for those of many keys.
    NEAR_ROWS: int
    CHUNK_ROWS: int
    #: How many subjects were looked up because their keys were not known; the reader resets it.
    lookups: int

    def from_subjects(self, subject_ids: Array) -> Keys:
        """Return the keys of subjects."""

    def get_name(self, key: int) -> bytes:
        """Return the text of a key."""

    def encode_pairs(self, keys: Keys, seqs: Seqs) -> bytes:
        """Encode pairs of the text of a key and a sequence as elements of an array of MessagePack."""

    def find(self, name: bytes) -> int:
        """Return the number of a key; -1 if certainly no message has it."""

    def find_next(
        self, key: int, seq: int, end: int, subject_filter: Filter | None = None
    ) -> tuple[int, int]:
        """Find the first live message of a key, from `seq` to `end` (exclusive), that matches a filter, if it is near.

        Returns its sequence, or 0; and where to continue the search, `end` if nothing is left.
        """

    def may_match(self, keys: Keys, subject_filter: Filter | None) -> npt.NDArray[np.bool_]:
        """Return which keys may have messages that match a filter."""

    def get_lasts(self, keys: Keys) -> Seqs:
        """Return for each key a sequence after which no message has it."""

    def remap(self, new_ids: Array, kept: Array, blocked: Keys) -> tuple[Array, Array]:
        """Apply new ids of subjects; return the same for keys. `blocked` keys may have messages that were not looked at."""


class SubjectKeys:
    """Every subject is a key."""

    ARE_SUBJECTS = True
    NEAR_ROWS = 4_096
    CHUNK_ROWS = 32_768

    __slots__ = ("_log", "_subjects", "lookups")

    def __init__(self, log: StreamLog) -> None:
        self._log, self._subjects = log, log.subject_index
        self.lookups = 0

    def from_subjects(self, subject_ids: Array) -> Keys:
        return subject_ids

    def get_name(self, key: int) -> bytes:
        return self._subjects.name(key)

    def encode_pairs(self, keys: Keys, seqs: Seqs) -> bytes:
        return self._subjects.encode_names(keys, seqs)

    def find(self, name: bytes) -> int:
        return self._subjects.find(name)

    def find_next(
        self, key: int, seq: int, end: int, subject_filter: Filter | None = None
    ) -> tuple[int, int]:
        if subject_filter is not None and not subject_filter.matches(self.get_name(key)):
            return 0, end
        index, rows_left = self._subjects, self.NEAR_ROWS
        if not index.counts[key] or int(index.lasts[key]) & ~BOUND_ONLY_BIT < seq:
            return 0, end
        for segment in self._log.iter_segments_from(seq):
            columns = segment.columns
            if columns.base >= end:
                break
            lo, end_row = columns.lower_bound(seq), columns.lower_bound(end)
            hi = min(end_row, lo + rows_left)
            row = columns.next_for_subject(key, lo, hi) if lo < hi else -1
            if row >= 0:
                return columns.seq(row), columns.seq(row)
            if hi < end_row:
                return 0, columns.seq(hi)
            rows_left -= hi - lo
        return 0, end

    def may_match(self, keys: Keys, subject_filter: Filter | None) -> npt.NDArray[np.bool_]:
        return self._log.match_subjects(subject_filter, keys)

    def get_lasts(self, keys: Keys) -> Seqs:
        lasts: Seqs = self._subjects.lasts[keys] & np.uint64(_SEQ_BITS)
        return lasts

    def remap(self, new_ids: Array, kept: Array, blocked: Keys) -> tuple[Array, Array]:
        return new_ids, kept


class TokenKeys:
    """Subjects with the same chosen tokens have the same key; a subject that lacks one has an empty token there.

    A subject gets its key when a message on it is looked at, because there may be very many.
    """

    ARE_SUBJECTS = False
    NEAR_ROWS = 256  # each costs more
    CHUNK_ROWS = 8_192

    __slots__ = ("_by_name", "_by_subject", "_log", "_names", "_positions", "_subjects", "lookups")

    def __init__(self, log: StreamLog, positions: tuple[int, ...]) -> None:
        self._log, self._subjects = log, log.subject_index
        self._positions = positions
        self.lookups = 0
        self._by_name: dict[bytes, int] = {}
        self._names: list[bytes] = []
        self._by_subject: Keys = np.full(8, _UNKNOWN, np.uint32)

    def from_subjects(self, subject_ids: Array) -> Keys:
        total = len(self._subjects)
        if total > len(self._by_subject):
            grown = np.full(total + total // 2, _UNKNOWN, np.uint32)
            grown[: len(self._by_subject)] = self._by_subject
            self._by_subject = grown
        keys = self._by_subject[subject_ids]
        unknown = keys == _UNKNOWN
        if unknown.any():
            sids = sort_unique(subject_ids[unknown]).tolist()
            self.lookups += len(sids)
            for sid in sids:
                self._by_subject[sid] = self.find(self._make_name(self._subjects.name(sid)))
            keys = self._by_subject[subject_ids]
        return keys

    def _make_name(self, subject: bytes) -> bytes:
        tokens = subject.split(b".")
        return b".".join(
            tokens[position - 1] if position <= len(tokens) else b"" for position in self._positions
        )

    def get_name(self, key: int) -> bytes:
        return self._names[key]

    def encode_pairs(self, keys: Keys, seqs: Seqs) -> bytes:
        names = [self._names[key] for key in keys.tolist()]
        return b"".join(map(msgspec.msgpack.encode, zip(names, seqs.tolist(), strict=True)))

    def find(self, name: bytes) -> int:
        key = self._by_name.get(name, -1)
        if key < 0:
            key = self._by_name[name] = len(self._names)
            self._names.append(name)
        return key

    def find_next(
        self, key: int, seq: int, end: int, subject_filter: Filter | None = None
    ) -> tuple[int, int]:
        rows_left = self.NEAR_ROWS
        for segment in self._log.iter_segments_from(seq):
            columns = segment.columns
            if columns.base >= end:
                break
            lo, end_row = columns.lower_bound(seq), columns.lower_bound(end)
            hi = min(end_row, lo + rows_left)
            row = self._find_row(columns, key, lo, hi, subject_filter)
            if row >= 0:
                return columns.seq(row), columns.seq(row)
            if hi < end_row:
                return 0, columns.seq(hi)
            rows_left -= hi - lo
        return 0, end

    def _find_row(
        self, columns: SegmentIndex, key: int, lo: int, hi: int, subject_filter: Filter | None
    ) -> int:
        """Return the first live row of a key, from `lo` to `hi` (exclusive), that matches a filter; -1 if there is none."""
        subject_ids = columns.get_subjects(np.arange(lo, hi))
        is_wanted = self.from_subjects(subject_ids) == key
        if columns.live is not None:
            is_wanted &= columns.live[lo:hi] != 0
        rows = np.flatnonzero(is_wanted)
        rows = rows[self._log.match_subjects(subject_filter, subject_ids[rows])]
        return lo + int(rows[0]) if len(rows) else -1

    def may_match(self, keys: Keys, subject_filter: Filter | None) -> npt.NDArray[np.bool_]:
        return np.ones(len(keys), bool)

    def get_lasts(self, keys: Keys) -> Seqs:
        return np.full(len(keys), self._log.last_seq, np.uint64)

    def remap(self, new_ids: Array, kept: Array, blocked: Keys) -> tuple[Array, Array]:
        known = min(len(kept), len(self._by_subject))
        old_keys = self._by_subject[:known]
        is_known = kept[:known] & (old_keys != _UNKNOWN)
        used = np.zeros(len(self._names), bool)
        used[old_keys[is_known]] = True
        used[blocked] = True
        new_keys = np.maximum(np.cumsum(used, dtype=np.int64) - 1, 0).astype(np.uint32)
        by_subject: Keys = np.full(max(len(self._subjects), 8), _UNKNOWN, np.uint32)
        by_subject[new_ids[:known][is_known]] = new_keys[old_keys[is_known]]
        self._names = [self._names[key] for key in np.flatnonzero(used).tolist()]
        self._by_name = {name: key for key, name in enumerate(self._names)}
        self._by_subject = by_subject
        return new_keys, used


def make_keys(log: StreamLog, key_tokens: str) -> MessageKeys:
    """Return the keys for a configured list of tokens, such as "2" or "1,3"; whole subjects for ""."""
    if not key_tokens:
        return SubjectKeys(log)
    return TokenKeys(log, parse_tokens(key_tokens))


def parse_tokens(key_tokens: str) -> tuple[int, ...]:
    """Parse a list of positions, the first being 1."""
    return tuple(int(part) for part in key_tokens.split(","))
