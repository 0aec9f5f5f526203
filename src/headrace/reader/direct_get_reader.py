"""Fetches messages from a server by batched direct gets.

Owns the requests. Invariant: what is passed on of a range is complete up to its last message, whichever replica or mirror
replies, and even if replies are lost. While Spark processes one block, the server prepares the next. Must not know how
blocks are decoded.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.reader.batch_cast import OPEN_END, build_batch
from headrace.reader.blocking_connection import (
    BlockingConnection,
    ConnectionFailed,
    connection_for,
    drop_connection,
)
from headrace.reader.direct_get_decode import ReplyBlock, ReplyBlockScanner, block_of
from headrace.reader.leader_reader import LeaderReader
from headrace.reader.options import ReadOptions
from headrace.reader.range_reader import Lag, ask_leader
from headrace.reader.stream_admin import StreamError, mark_reachable, with_retry

_IS_LAST = b"Nats-Num-Pending: 0\r\n"
_RESPONSE_BYTES_MAX = 8 << 20
#: Subjects whose last messages are read from the leader at once, since their sizes are unknown.
_SUBJECTS_MAX = 128


def read_last_per_subject(
    options: ReadOptions, subjects: list[str], end: int, schema: pa.Schema, *, is_open: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield the last message below `end` of each given subject.

    With `is_open`, messages from `end` on count too; a subject that gets one meanwhile may then be returned twice.
    """
    for block in _read_last_blocks(options, subjects, end, is_open=is_open):
        if len(block):
            yield build_batch(block.to_columns(schema.names, slice(0, len(block))), schema)


def read_last_from_leader(
    options: ReadOptions, subjects: list[str], end: int, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Like `read_last_per_subject`, for a stream that does not allow direct gets."""
    for some in _group(subjects):
        newest = ask_leader(options, partial(LeaderReader.find_newest, subjects=some))
        guesses = {subject: seq if seq < end else 0 for subject, seq in newest.items()}
        messages = ask_leader(options, partial(LeaderReader.read_last, guesses=guesses, end=end))
        if messages:
            block = block_of(messages)
            yield build_batch(block.to_columns(schema.names, slice(0, len(block))), schema)


def _group(subjects: list[str]) -> Iterator[list[str]]:
    return (subjects[start : start + _SUBJECTS_MAX] for start in range(0, len(subjects), _SUBJECTS_MAX))


def _read_last_blocks(
    options: ReadOptions, subjects: list[str], end: int, *, is_open: bool
) -> Iterator[ReplyBlock]:
    """Yield the last messages.

    A reply counts only if its server has everything below `end`, which shows only in requests without an upper bound:
    `Nats-UpTo-Sequence` is then the server's last sequence. The leader is asked for the rest.
    """
    lag, left, next_seq = Lag(), set(subjects), 1
    while left and not lag.is_over:
        request = {
            "multi_last": subjects,
            "batch": len(subjects),
            "seq": next_seq,
            "max_bytes": _RESPONSE_BYTES_MAX,
        }
        block, status = _fetch_replies(options, request)
        if not len(block):
            break
        if not block.is_from(options.stream) or _parse_number(status, b"Nats-UpTo-Sequence: ") < end - 1:
            lag.wait()
            continue
        in_range = block if is_open else block.first(int(np.searchsorted(block.seqs, end)))
        yield in_range
        left.difference_update(in_range.subjects())
        next_seq = int(block.seqs[-1]) + 1
        if _IS_LAST in status:
            if len(in_range) == len(block):
                return
            break
    end = OPEN_END if is_open else end
    for some in _group(sorted(left)):
        guesses = _guess_last_seqs(options, some, end)
        yield block_of(ask_leader(options, partial(LeaderReader.read_last, guesses=guesses, end=end)))


def _guess_last_seqs(options: ReadOptions, subjects: list[str], end: int) -> dict[str, int]:
    """Return where the last messages below `end` are according to a server that may lag.

    Subjects that it does not have get 0.
    """
    guesses, next_seq = dict.fromkeys(subjects, 0), 1
    while True:
        request = {"multi_last": subjects, "up_to_seq": end - 1, "batch": len(subjects), "seq": next_seq}
        block, status = _fetch_replies(options, {**request, "max_bytes": _RESPONSE_BYTES_MAX})
        guesses.update(zip(block.subjects(), block.seqs.tolist(), strict=True))
        if not len(block) or _IS_LAST in status:
            return guesses
        next_seq = int(block.seqs[-1]) + 1


def _fetch_replies(options: ReadOptions, request: dict[str, Any]) -> tuple[ReplyBlock, bytes]:
    """Return the replies to one request, and the status that ended them."""

    def ask(connection: BlockingConnection) -> tuple[ReplyBlock, bytes]:
        scanner = _request(connection, options, request)
        assert scanner is not None, "something is wanted"
        block, _ = _receive_block(connection, options, scanner)
        return block, scanner.status

    mark_reachable(options.address)
    return with_retry(options.address, options.reconnect_s, ask)


def _make_range_request(options: ReadOptions, start: int, end: int) -> dict[str, Any] | None:
    """Make the request for messages from `start` on; None if that is beyond the end."""
    if start >= end:
        return None
    request: dict[str, Any] = {
        "seq": start,
        "batch": min(options.batch_rows, end - start),
        "max_bytes": _RESPONSE_BYTES_MAX,
    }
    if options.subject and options.subject != ">":
        request |= {"next_by_subj": options.subject, "batch": options.batch_rows}
    return request


def fetch_blocks(options: ReadOptions, start: int, end: int) -> Iterator[ReplyBlock]:
    """Yield the messages of a range as far as the server that replies has them.

    The next block is requested before one is passed on.
    """
    connection = connection_for(options.address)
    scanner = _request(connection, options, _make_range_request(options, start, end))
    try:
        while scanner is not None:
            found, last = _receive_block(connection, options, scanner)
            block = _keep_certain(options, start, found)
            has_more = len(found) == len(block) > 0 and _IS_LAST not in scanner.status
            start = last + 1
            request = _make_range_request(options, last + 1, end) if has_more else None
            scanner = _request(connection, options, request)
            if len(block):
                yield block
    finally:
        if scanner is not None:
            # The consumer stopped early: replies still in transit must not be taken for those of the next request.
            drop_connection(options.address)


def _keep_certain(options: ReadOptions, start: int, block: ReplyBlock) -> ReplyBlock:
    """Return the leading messages that are certainly complete from `start` on.

    A replica has everything up to its last message. A mirror may lack messages because of its filter or its own limits:
    nothing after a gap is trusted, and with a subject filter every step may be a gap.
    """
    if not len(block) or block.is_from(options.stream):
        return block
    if options.subject and options.subject != ">":
        return block.first(0)
    gaps = np.flatnonzero(block.seqs != np.arange(start, start + len(block)))
    return block.first(int(gaps[0])) if len(gaps) else block


def _request(
    connection: BlockingConnection, options: ReadOptions, request: dict[str, Any] | None
) -> ReplyBlockScanner | None:
    if request is None:
        return None
    body = json.dumps(request).encode()
    subject = f"{options.api_prefix}.DIRECT.GET.{options.stream}".encode()
    reply = connection.new_inbox()
    connection.send(b"PUB %s %s %d\r\n%s\r\n" % (subject, reply, len(body), body))
    return ReplyBlockScanner(reply)


def _receive_block(
    connection: BlockingConnection, options: ReadOptions, scanner: ReplyBlockScanner
) -> tuple[ReplyBlock, int]:
    """Return the replies to a request, and the last sequence that the server sent.

    Each reply names the one sent before it, and the status the last one: if one is missing, the request is repeated.
    """
    _receive(connection, scanner)
    block, last = scanner.take_block(connection.buffer), _parse_last_seq(scanner.status, options)
    if not scanner.is_complete or last != (int(block.seqs[-1]) if len(block) else 0):
        raise ConnectionFailed(f"replies to a direct get of stream {options.stream!r} are missing")
    return block, last


def _receive(connection: BlockingConnection, scanner: ReplyBlockScanner) -> None:
    """Receive until the block is complete."""
    deadline = time.monotonic() + connection.address.timeout_s
    length = -1
    while not scanner.scan(connection.buffer):
        if scanner.is_at_control_line(connection.buffer):
            next_line = connection.handle_control_line(scanner.position)
            if next_line > 0:
                del connection.buffer[scanner.position : next_line]
                continue
        if len(connection.buffer) != length:
            length = len(connection.buffer)
            deadline = time.monotonic() + connection.address.timeout_s
        connection.fill_buffer(deadline, "a direct get")


def _parse_last_seq(status: bytes, options: ReadOptions) -> int:
    """Return the last sequence of a block, from the message that ends it."""
    code = status[9:12]
    if code == b"404":
        return 0
    if code == b"503":
        raise ConnectionFailed(f"no responders for direct gets of stream {options.stream!r}")
    if code != b"204":
        text = status.partition(b"\r\n")[0].decode(errors="replace")
        raise StreamError(f"stream {options.stream!r} rejected a direct get: {text}")
    return _parse_number(status, b"Nats-Last-Sequence: ")


def _parse_number(status: bytes, name: bytes) -> int:
    """Return the number in a header of a status; 0 if there is none."""
    digits = status.partition(name)[2].partition(b"\r\n")[0]
    return int(digits) if digits.isdigit() else 0
