"""Encodes stored records as direct-get replies, in pure Python; the compiled version is `direct_get.pyx`.

See ADR 9.
"""

from __future__ import annotations

import datetime
from typing import Any

from headrace._native.deliveries_pure import iter_records
from headrace._native.records_pure import BLOCK_HEADER_BYTES

OutboundMsg = tuple[bytes, bytes, bytes, bytes]
_SECOND_NS = 1_000_000_000
_EPOCH_DAY = datetime.date(1970, 1, 1).toordinal()


def _format_time(time_ns: int) -> bytes:
    """Format as RFC 3339 in UTC with up to nine digits, trailing zeros trimmed."""
    second, fraction = divmod(time_ns, _SECOND_NS)
    days, rest = divmod(second, 86_400)
    date = datetime.date.fromordinal(days + _EPOCH_DAY).isoformat()
    text = f"{date}T{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    if fraction:
        text += f".{fraction:09}".rstrip("0")
    return text.encode() + b"Z"


def _encode_headers(
    seq: int, time_ns: int, subject: bytes, header: bytes, fixed: bytes, more: bytes = b""
) -> bytes:
    """Return the stored headers plus those that describe the record, and `more`."""
    stored = header[:-2] if header else b"NATS/1.0\r\n"
    where = b"\r\nNats-Sequence: %d\r\nNats-Time-Stamp: %b\r\n" % (seq, _format_time(time_ns))
    return b"".join((stored, fixed, subject, where, more, b"\r\n"))


def encode_reply(data: bytes | bytearray | memoryview, at: int, fixed: bytes) -> tuple[bytes, bytes]:
    """Return header block and payload of the reply for the record at `at`; `fixed` goes before its subject."""
    found = next(iter_records(memoryview(data)[at:]), None) if at >= 0 else None
    if found is None:
        raise ValueError("no record there")
    seq, time_ns, subject, header, payload = found
    return _encode_headers(seq, time_ns, subject, header, fixed), payload


def encode_last_by_subject(log: Any, subject: bytes, skip: int, fixed: bytes) -> tuple[bytes, bytes] | None:
    """Return the reply with the newest message of a subject, which starts after `skip` bytes of `subject`.

    None if the message must be searched for: a wildcard, no such message, or one that is not in the active segment.
    """
    if skip < 0:
        raise IndexError(skip)
    name = subject[skip:]
    if not name or b"*" in name or b">" in name:
        return None
    seq, columns = log.cached_last_seq(name), log.columns
    row = columns.find_live_row(seq) if seq > 0 and columns.rows and seq >= columns.base else -1
    if row < 0:
        return None
    offset = columns.get_offset(row)
    if offset >= log.block_offset:
        return encode_reply(log.tail, offset - log.block_offset - BLOCK_HEADER_BYTES, fixed)
    data, place = log.read_active_block(offset)
    return encode_reply(data, offset - place, fixed)


def encode_replies(
    messages: list[OutboundMsg],
    view: memoryview,
    seqs: Any,
    at: int,
    most: int,
    bytes_max: int,
    reply: bytes,
    fixed: bytes | None,
    pending: int,
    last: int,
) -> tuple[int, int]:
    """Add the records of `view` that are in `seqs` from index `at` on as replies to `reply`, at most `most` and none
    after `bytes_max` is reached.

    `fixed` is None for payloads alone; `pending` is the number of pending messages before these, `last` the sequence
    sent before. Returns how many were added and their size: that of subjects, stored headers and payloads.
    """
    if at < 0:
        raise IndexError(at)
    start, stop, size = at, min(at + most, len(seqs)), 0
    for seq, time_ns, subject, header, payload in iter_records(view):
        if at >= stop or size >= bytes_max or seq > int(seqs[at]):
            break
        if seq < int(seqs[at]):
            continue
        pending = max(pending - 1, 0)
        block = b""
        if fixed is not None:
            more = b"Nats-Num-Pending: %d\r\nNats-Last-Sequence: %d\r\n" % (pending, last)
            block = _encode_headers(seq, time_ns, subject, header, fixed, more)
        messages.append((reply, b"", block, payload))
        size += len(subject) + len(header) + len(payload)
        last = seq
        at += 1
    return at - start, size
