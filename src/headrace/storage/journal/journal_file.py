"""Files of the journal: what one is, and the operations that create one or reuse it.

Pure functions. Must not know which file is written to or needed.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.storage.format import journal_path
from headrace.storage.io.disk import Op

_ZERO_CHUNK = bytes(1 << 20)


class JournalFile(NamedTuple):
    """A journal file; `last_frame` is the number of its last frame."""

    number: int
    size: int
    last_frame: int


def create_ops(number: int, size: int) -> list[Op]:
    """Create a new file, allocated and written once, so that later syncs need not update file system metadata."""
    path = journal_path(number)
    return [
        ("create", path, size),
        ("write", path, 0, _make_zeros(size)),
        ("sync", path),
        ("syncdir", "journal"),
    ]


def rename_ops(old: JournalFile, number: int) -> list[Op]:
    """Reuse a free file under a new number."""
    return [("rename", journal_path(old.number), journal_path(number)), ("syncdir", "journal")]


def _make_zeros(size: int) -> list[bytes]:
    full_chunks, rest = divmod(size, len(_ZERO_CHUNK))
    return [_ZERO_CHUNK] * full_chunks + ([_ZERO_CHUNK[:rest]] if rest else [])
