"""Scans direct-get replies and encodes publishes, in pure Python; same names and results as the compiled
`reply_scanner`. See ADR 52.
"""

from __future__ import annotations

import re
from array import array
from datetime import UTC, datetime
from functools import lru_cache
from itertools import pairwise
from typing import Any

#: Numbers per message in `ReplyScanner.packed_rows`.
FIELDS_PER_MESSAGE = 8
#: Headers that a server adds to a stored message, last line first.
_NAMES = (
    b"Nats-Last-Sequence: ",
    b"Nats-Num-Pending: ",
    b"Nats-Time-Stamp: ",
    b"Nats-Sequence: ",
    b"Nats-Subject: ",
    b"Nats-Stream: ",
)
#: Which of the numbers of a message is its sequence.
_SEQ_FIELD = 3
_OPENING = 10
_LENGTHS = 24
_SPACE = 32
_RETURN = 13
_DIGITS_MAX = 18
#: Up to the last complete year that 63 bits of nanoseconds can represent.
_TIME = re.compile(
    r"((?:19[7-9][0-9]|2[01][0-9]{2}|22[0-5][0-9]|226[01])-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?Z"
)

BinaryColumn = tuple[Any, ...]


class ReplyScanner:
    """Finds the messages of one request's replies in a buffer that is still being filled."""

    def __init__(self, reply: bytes) -> None:
        self.position = 0
        self.count = 0
        self.status = b""
        #: Whether each message names the one found before it as the one that the server sent before it.
        self.is_complete = True
        self._line = b"HMSG %s 1 " % reply
        self._rows = array("q")

    def scan(self, buffer: bytearray) -> bool:
        """Scan complete messages; return True once the reply that ends the block was found.

        The text of a ValueError is what the reply lacks.
        """
        line, skip = self._line, len(self._line)
        while self.position + skip < len(buffer) and buffer.startswith(line, self.position):
            begin = self.position + skip
            found = buffer.find(b"\n", begin, begin + _LENGTHS)
            if found < 0 and len(buffer) - begin < _LENGTHS:
                break
            end = found - 1
            first, blank, second = buffer[begin : max(end, begin)].partition(b" ")
            if found <= begin or buffer[end] != _RETURN or not blank:
                raise ValueError("header and total length")
            head, total = _number(first), _number(second)
            if head < _OPENING or total < head:
                raise ValueError("valid lengths")
            after = end + 4 + total
            if after > len(buffer):
                break
            if buffer[end + 10] == _SPACE:
                self.status = bytes(buffer[end + 2 : after - 2])
                self.position = after
                return True
            self._add_row(buffer, end + 2, head, total)
            self.position = after
        return False

    def _add_row(self, buffer: bytearray, at: int, head: int, total: int) -> None:
        """Parse the lines that the server added, from the last one backwards."""
        end = at + head - 4
        found = {}
        for name in _NAMES:
            begin = buffer.rfind(b"\n", at, max(end, at)) + 1
            if not begin or not buffer[begin:end].startswith(name):
                raise ValueError(name.decode())
            found[name] = begin + len(name), end
            end = begin - 2
        place, stop = found[b"Nats-Subject: "]
        low, high = found[b"Nats-Sequence: "]
        from_, to = found[b"Nats-Time-Stamp: "]
        seq, time_ns = _number(buffer[low:high]), _parse_time_ns(buffer[from_:to].decode("latin-1"))
        if seq < 0 or time_ns < 0:
            raise ValueError("a valid sequence and time")
        low, high = found[b"Nats-Last-Sequence: "]
        previous = self._rows[_SEQ_FIELD - FIELDS_PER_MESSAGE] if self.count else 0
        if _number(buffer[low:high]) != previous:
            self.is_complete = False
        self._rows.extend((at, head, total, seq, time_ns, place, stop - place, end + 2))
        self.count += 1

    def packed_rows(self) -> bytes:
        """Return eight numbers per message: where its header begins, the header's length and the total length,
        sequence, time in nanoseconds, position and length of the subject, and where the stored headers end.
        """
        return self._rows.tobytes()


def _number(text: bytearray) -> int:
    """Return the number; -1 if the text is not all digits."""
    return int(text) if text.isdigit() and len(text) <= _DIGITS_MAX else -1


def _parse_time_ns(text: str) -> int:
    """Parse a server's time; -1 if it has another format."""
    match = _TIME.fullmatch(text)
    if match is None:
        return -1
    try:
        return _parse_seconds(match[1]) * 1_000_000_000 + int((match[2] or "").ljust(9, "0"))
    except ValueError:
        return -1


@lru_cache(maxsize=64)
def _parse_seconds(text: str) -> int:
    if text[11:13] == "24":  # midnight at the end of the day, which Python accepts from 3.14 on
        raise ValueError(text)
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


def encode_publishes(
    subjects: BinaryColumn, lines: BinaryColumn, payloads: BinaryColumn, reply: bytes, mark: bytes, first: int
) -> bytearray:
    """Encode an HPUB for each row. A column is (offsets, bytes), as in Arrow; `lines` are the rows' own headers, or ().

    `mark` is the beginning of a header that a number, counting from `first`, completes; b"" adds none.
    """
    if first < 0:
        raise ValueError("the first number must not be negative")
    names, bodies = _column_values(subjects), _column_values(payloads)
    headers = _column_values(lines) if lines else [b""] * len(names)
    if not len(names) == len(bodies) == len(headers):
        raise ValueError("columns of different lengths")
    out = bytearray()
    to = b" %s" % reply if reply else b""
    for row, (subject, header, payload) in enumerate(zip(names, headers, bodies, strict=True), first):
        if not subject:
            raise ValueError("a row has no subject")
        if min(subject) <= _SPACE:
            raise ValueError(f"{subject!r} cannot be a subject")
        number = b"%s%d\r\n" % (mark, row) if mark else b""
        head = b"NATS/1.0\r\n%s%s\r\n" % (header, number)
        size = len(head)
        out += b"HPUB %s%s %d %d\r\n%s%s\r\n" % (subject, to, size, size + len(payload), head, payload)
    return out


def _column_values(column: BinaryColumn) -> list[bytes]:
    offsets, data = column
    ends = [int(each) for each in offsets]
    whole = bytes(data)
    if ends and (ends[0] < 0 or ends[-1] > len(whole) or ends != sorted(ends)):
        raise ValueError("the offsets of a column do not ascend or point outside of it")
    return [whole[low:high] for low, high in pairwise(ends)]
