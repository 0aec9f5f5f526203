"""The journal of one store, as the archiver reads it: whole frames, in order, in few reads."""

from __future__ import annotations

import pytest

from headrace.archive import journal_tail
from headrace.archive.journal_tail import JournalTail, StorePosition
from headrace.errors import ArchiveError
from headrace.storage.format import COMMIT, FRAME_HEADER_BYTES, align_up, encode_entry, encode_frame_header

STORE = 7
_KIND = 99  # of an entry that the archive does not look into


class JournalFile:
    """One journal file, which counts how often it is read."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.frame = 0
        self.reads: list[int] = []

    def add(self, size: int, file: int = 1) -> None:
        """Append a frame with one entry of a size."""
        self.frame += 1
        body = encode_entry(_KIND, 1, bytes([self.frame % 256]) * size)
        head, _ = encode_frame_header(COMMIT, STORE, file, self.frame, [body], 0)
        frame = head + body
        self.data += frame.ljust(align_up(len(frame)), b"\0")

    @property
    def position(self) -> StorePosition:
        return StorePosition(STORE, "$G", self.frame, [(1, self.frame, len(self.data))])

    def read(self, path: str, offset: int, length: int) -> bytes:
        self.reads.append(length)
        return bytes(self.data[offset : offset + length])


def collect(tail: JournalTail, file: JournalFile, size_max: int = 1 << 30) -> list[int]:
    """Collect frames until there are no more; return the numbers of the last ones of each run."""
    found = []
    while (run := tail.collect(file.position, file.read, size_max)) is not None:
        tail.advance(run)
        found.append(run.last)
    return found


def test_many_frames_take_one_read() -> None:
    file, tail = JournalFile(), JournalTail(STORE, 0)
    for _ in range(40):
        file.add(100_000)
    assert collect(tail, file) == [40]
    assert len(file.reads) == 1
    file.add(10)
    assert collect(tail, file) == [41]
    assert file.reads[1:] == [align_up(FRAME_HEADER_BYTES + 26)], "only what is new"


@pytest.mark.parametrize("read_bytes", [FRAME_HEADER_BYTES, 1_000, 5_000, 100_000])
def test_frames_that_do_not_fit_into_a_read_are_read_whole(
    monkeypatch: pytest.MonkeyPatch, read_bytes: int
) -> None:
    monkeypatch.setattr(journal_tail, "READ_BYTES", read_bytes)
    file = JournalFile()
    for size in (0, 10_000, 1, 4_000, 50_000, 7):
        file.add(size)
    whole = JournalTail(STORE, 0).collect(file.position, file.read, 1 << 30)
    assert whole is not None
    tail, pieces = JournalTail(STORE, 0), b""
    for number in range(1, 7):
        run = tail.collect(file.position, file.read, 1)
        assert run is not None
        assert (run.first, run.last) == (number, number)
        tail.advance(run)
        pieces += b"".join(each for each in run.pieces if isinstance(each, memoryview))
    assert pieces == b"".join(each for each in whole.pieces if isinstance(each, memoryview))
    assert collect(tail, file) == []


def test_nothing_of_a_failed_attempt_is_used_again() -> None:
    file, tail = JournalFile(), JournalTail(STORE, 0)
    file.add(100)
    file.data[60] ^= 1
    with pytest.raises(ArchiveError, match="frame 1 of account"):
        collect(tail, file)
    file.data[60] ^= 1
    assert collect(tail, file) == [1]


def test_a_frame_of_an_earlier_use_of_the_file_is_none_of_it() -> None:
    file, tail = JournalFile(), JournalTail(STORE, 0)
    file.add(100, file=3)
    with pytest.raises(ArchiveError, match="is not in journal file 1"):
        collect(tail, file)


def test_no_read_remains_in_memory() -> None:
    """A server may have thousands of stores."""
    file, tail = JournalFile(), JournalTail(STORE, 0)
    file.add(100_000)
    collect(tail, file)
    assert len(tail._data) == 0
