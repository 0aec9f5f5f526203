"""Encoding of deliveries in pure Python, with the names and behaviour of the compiled `deliveries`.

Owns the encoding of a run of records (`encode_deliveries`, and `encode_leafnode_run` for another server), the parsing
of ack subjects (`split_ack_subject`) and the subjects of a run (`collect_subjects`). It is used where the compiled
version was not built, and documents in readable form what that version does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from headrace._native.record_header import RECORD_HEADER, RECORD_HEADER_BYTES

_ACK = b"$JS.ACK."


def iter_records(view: memoryview) -> Iterator[tuple[int, int, bytes, bytes, bytes]]:
    """Yield sequence, time, subject, header and payload of every complete record."""
    at, end = 0, len(view)
    while end - at >= RECORD_HEADER_BYTES:
        size, subject_size, _, header_size, _, seq, time_ns = RECORD_HEADER.unpack_from(view, at)
        subject_at = at + RECORD_HEADER_BYTES
        header_at = subject_at + subject_size
        payload_at = header_at + header_size
        at += size
        if size < RECORD_HEADER_BYTES or at > end or payload_at > at:
            return
        yield (
            seq,
            time_ns,
            bytes(view[subject_at:header_at]),
            bytes(view[header_at:payload_at]),
            bytes(view[payload_at:at]),
        )


def _write_msg(sub: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
    client = sub.client
    if header and client.headers:
        size = len(header) + len(payload)
        line = b"HMSG %s %s %s %d %d\r\n" % (subject, sub.sid, reply, len(header), size)
        client.buffer += line + header + payload + b"\r\n"
    else:
        size = len(payload)
        client.buffer += b"MSG %s %s %s %d\r\n%s\r\n" % (subject, sub.sid, reply, size, payload)
    sub.delivered += 1
    client.out_msgs += 1
    client.out_bytes += size
    client.mark_dirty()


def encode_deliveries(
    targets: list[list[Any]],
    view: memoryview,
    seqs: Sequence[int],
    at: int,
    most: int,
    ack: bytes,
    cseq: int,
    pending: int,
    base: int,
    bytes_max: int,
    strict: bool,
) -> tuple[int, int]:
    """Write the records of `view` that are in `seqs` from index `at` on, at most `most`, to the targets in turn.

    A target is a list of subscriptions that all get a message. `ack` is the ack subject up to the stream sequence;
    `pending` is the number of pending messages before this run. Sizes are reply, header and payload plus `base`, or
    plus the subject if `base` is negative; the run ends before `bytes_max` is exceeded if `strict`, after it otherwise
    (negative: no limit). Returns how many were written and their size.
    """
    if at < 0:
        raise IndexError(at)
    start, stop, total = at, min(at + most, len(seqs)), 0
    if at >= stop or not targets:
        return 0, 0
    for seq, time_ns, subject, header, payload in iter_records(view):
        wanted = int(seqs[at])
        if seq < wanted:
            continue
        if seq > wanted:
            break
        pending = max(pending - 1, 0)
        reply = b"%s%d.%d.%d.%d" % (ack, seq, cseq, time_ns, pending)
        size = len(reply) + len(header) + len(payload) + (base if base >= 0 else len(subject))
        if bytes_max >= 0 and total + (size if strict else 0) > bytes_max:
            break
        for sub in targets[(at - start) % len(targets)]:
            _write_msg(sub, subject, reply, header, payload)
        total += size
        cseq += 1
        at += 1
        if at == stop:
            break
    return at - start, total


def _parse_number(token: bytes) -> int:
    value = int(token) if token.isdigit() and len(token) <= 19 else -1
    return value if value < 1 << 63 else -1


def encode_leafnode_run(
    to: bytes,
    view: memoryview,
    seqs: Sequence[int],
    at: int,
    most: int,
    ack: bytes,
    cseq: int,
    pending: int,
    bytes_max: int,
) -> tuple[bytearray, int, int]:
    """Encode the records of `view` that are in `seqs` from index `at` on, at most `most`, for another server.

    They go to the subject `to`, and their own subjects follow the reply: `reply@subject`. The other arguments are those
    of `encode_deliveries`; a size is that of `to`, reply, header and payload. The run ends after `bytes_max` is exceeded,
    unless that is negative. Returns the bytes, how many messages they are, and their size.
    """
    if at < 0:
        raise IndexError(at)
    data, start, stop, total = bytearray(), at, min(at + most, len(seqs)), 0
    if at >= stop:
        return data, 0, 0
    for seq, time_ns, subject, header, payload in iter_records(view):
        wanted = int(seqs[at])
        if seq < wanted:
            continue
        if seq > wanted:
            break
        pending = max(pending - 1, 0)
        reply = b"%s%d.%d.%d.%d" % (ack, seq, cseq, time_ns, pending)
        size = len(header) + len(payload)
        if header:
            data += b"HMSG %s %s@%s %d %d\r\n" % (to, reply, subject, len(header), size)
        else:
            data += b"LMSG %s %s@%s %d\r\n" % (to, reply, subject, size)
        data += b"".join((header, payload, b"\r\n"))
        total += len(to) + len(reply) + size
        cseq += 1
        at += 1
        if at >= stop or 0 <= bytes_max < total:
            break
    return data, at - start, total


def split_ack_subject(subject: bytes) -> tuple[bytes, int, int, int] | None:
    """Parse an ack subject: key, delivery count, stream sequence and consumer sequence.

    The key is `stream.consumer`, or `domain.account.stream.consumer` in the second form; an invalid number is -1. None
    if it is not an ack subject.
    """
    if not subject.startswith(_ACK):
        return None
    tokens = subject.split(b".")
    if len(tokens) == 9:
        names = 4
    elif len(tokens) >= 11:
        names = 6
    else:
        return None
    count, stream_seq, consumer_seq = (_parse_number(token) for token in tokens[names : names + 3])
    return b".".join(tokens[2:names]), count, stream_seq, consumer_seq


def collect_subjects(view: memoryview, last: int, found: set[bytes]) -> int:
    """Add the subjects of the records in `view` up to sequence `last`; return the sequence to continue with."""
    seq = last
    for seq, _, subject, _, _ in iter_records(view):
        if seq > last:
            return last + 1
        found.add(subject)
    return seq + 1
