"""Bytes of a group: damage is found wherever it is."""

from __future__ import annotations

import pytest

from headrace.archive.group_format import GroupHeader, decode_group, encode_group, iter_entries
from headrace.errors import ArchiveDamaged, ArchiveError

HEADER = GroupHeader(7, 1, "w", 3, 1, 1, 5, {9: (1, 2)}, {9: 2}, (0, 0), 0, 0, 0, 0)


def test_a_group_is_read_as_it_was_written() -> None:
    group = decode_group(encode_group(HEADER, b"body"), 7, 3)
    assert bytes(group.body) == b"body"
    assert group.header.heads == {9: 2}
    assert group.header.is_last_part


def test_every_changed_byte_and_every_missing_end_is_found() -> None:
    data = encode_group(HEADER, b"body")
    for at in range(len(data)):
        with pytest.raises(ArchiveError):
            decode_group(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], 7, 3)
        with pytest.raises(ArchiveDamaged):
            decode_group(data[:at], 7, 3)


def test_a_group_counts_only_under_its_own_name() -> None:
    data = encode_group(HEADER, b"")
    for server, number in ((8, 3), (7, 4)):
        with pytest.raises(ArchiveDamaged, match="belongs to"):
            decode_group(data, server, number)


def test_a_truncated_entry_is_refused() -> None:
    with pytest.raises(ArchiveDamaged):
        list(iter_entries(b"\1" * 20))
