"""Reads ranges of a stream from a server, by batched direct gets.

Owns the requests and their retries. Invariants: a range returns the messages that exist, in sequence order, each once,
even if the connection breaks: the read resumes after the last message that was passed on. Replicas and mirrors answer
too and may lag, so a range ends before its planned end only if the stream's leader confirms it, and rows that no other
server has are read from the leader. While Spark processes one block, the server prepares the next. Must not know how
blocks are decoded.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import DataLoss
from headrace.reader.batch_cast import OPEN_END, SeqRange, build_batch
from headrace.reader.blocking_connection import (
    BlockingConnection,
    ConnectionFailed,
    connection_for,
    drop_connection,
)
from headrace.reader.direct_get_decode import ReplyBlock, ReplyBlockScanner, block_of
from headrace.reader.leader_reader import LeaderReader
from headrace.reader.options import ReadOptions
from headrace.reader.stream_admin import StreamError, fetch_stream_info, mark_reachable, with_retry

T = TypeVar("T")
Ints = npt.NDArray[np.int64]
_log = logging.getLogger("headrace.spark")
MakeRequest = Callable[[int], dict[str, Any] | None]

_IS_LAST = b"Nats-Num-Pending: 0\r\n"
_RESPONSE_BYTES_MAX = 8 << 20
_RETRY_PAUSE_S = 0.2
#: Number of direct-get retries while the servers that reply lag, and the first pause; pauses double.
_TRIES = 4
_LAG_PAUSE_S = 0.02
_LAG_PAUSE_MAX_S = 1.0
#: Sequences to read from the leader before direct gets are tried again.
_LEADER_SEQS = 8192
#: Subjects whose last messages are read from the leader at once, since their sizes are unknown.
_SUBJECTS_MAX = 128


def read_seq_range(options: ReadOptions, seq_range: SeqRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range."""
    next_seq = seq_range.start
    for block in _read_blocks(options, seq_range):
        in_range = slice(0, int(np.searchsorted(block.seqs, seq_range.end)))
        _check_data_loss(options, seq_range, next_seq, block.seqs)
        next_seq = int(block.seqs[-1]) + 1
        if in_range.stop:
            yield build_batch(block.to_columns(schema.names, in_range), schema)
    if next_seq < seq_range.end:
        _check_data_loss(options, seq_range, next_seq, np.empty(0, np.int64))


class _Lag:
    """Backoff for replicas that lag, before the rows are read from the leader."""

    def __init__(self) -> None:
        self._tries = 0
        self._pause_s = _LAG_PAUSE_S

    @property
    def is_over(self) -> bool:
        return self._tries >= _TRIES

    def wait(self) -> None:
        """Wait longer each time; not at all the first time, because another replica may reply."""
        if self._tries:
            time.sleep(self._pause_s)
            self._pause_s = min(self._pause_s * 2, _LAG_PAUSE_MAX_S)
        self._tries += 1


def _read_blocks(options: ReadOptions, seq_range: SeqRange) -> Iterator[ReplyBlock]:
    """Yield the blocks of a range until all is read, or the leader has nothing more in it."""
    next_seq, lag = seq_range.start, _Lag()
    while next_seq < seq_range.end:
        for block in _with_resume(
            options, next_seq, lambda start: _make_range_request(options, start, seq_range.end)
        ):
            next_seq, lag = int(block.seqs[-1]) + 1, _Lag()
            yield block
        if next_seq >= seq_range.end:
            return
        found = _next_at_leader(options, next_seq, seq_range.end)
        if not found:
            return
        next_seq = found
        if not lag.is_over:
            lag.wait()
            continue
        end = min(next_seq + _LEADER_SEQS, seq_range.end)
        read = partial(LeaderReader.read, start=next_seq, end=end, bytes_max=_RESPONSE_BYTES_MAX)
        messages, next_seq = _ask_leader(options, read)
        if messages:
            yield block_of(messages)


def _next_at_leader(options: ReadOptions, next_seq: int, end: int) -> int:
    """Return the first message of a range from `next_seq` on; 0 if the leader has none.

    A leader that does not yet have what the range was planned on, such as one that just restarted, is retried for a
    while.
    """
    deadline = time.monotonic() + options.reconnect_s
    lag = _Lag()
    while True:
        found, last = _ask_leader(options, partial(_find_next_at, next_seq=next_seq))
        if found:
            return found if found < end else 0
        if end >= OPEN_END or last >= end - 1:
            return 0
        if time.monotonic() > deadline:
            _refuse_shorter(options, last, end)
            return 0
        lag.wait()


def _find_next_at(leader: LeaderReader, next_seq: int) -> tuple[int, int]:
    """Return the first message from `next_seq` on, and the last sequence of the stream before that request: "no
    message" counts only if the stream had already reached the end of the range.
    """
    last = leader.last_seq()
    return leader.next_seq(next_seq), last


def _refuse_shorter(options: ReadOptions, last: int, end: int) -> None:
    text = (
        f"stream {options.stream!r} ends at sequence {last}, but it had sequence {end - 1} when the query was planned: it "
        "was deleted and created again, or the server lost its newest messages"
    )
    if options.fail_on_data_loss:
        raise DataLoss(f"{text}. To continue without them, set option failOnDataLoss=false")
    _log.warning("%s; continuing, because failOnDataLoss is false", text)


def _ask_leader(options: ReadOptions, question: Callable[[LeaderReader], T]) -> T:
    """Query the leader over this process's connection, which is idle now."""
    mark_reachable(options.address)
    return with_retry(
        options.address, options.reconnect_s, lambda connection: question(LeaderReader(options, connection))
    )


def read_last_per_subject(
    options: ReadOptions, subjects: list[str], end: int, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the last message below `end` of each given subject."""
    for block in _read_last_blocks(options, subjects, end):
        if len(block):
            yield build_batch(block.to_columns(schema.names, slice(0, len(block))), schema)


def _read_last_blocks(options: ReadOptions, subjects: list[str], end: int) -> Iterator[ReplyBlock]:
    """Yield the last messages.

    A reply counts only if its server has everything below `end`, which shows only in requests without an upper bound:
    `Nats-UpTo-Sequence` is then the server's last sequence. The leader is asked for the rest.
    """
    lag, left, next_seq = _Lag(), set(subjects), 1
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
        in_range = block.first(int(np.searchsorted(block.seqs, end)))
        yield in_range
        left.difference_update(in_range.subjects())
        next_seq = int(block.seqs[-1]) + 1
        if _IS_LAST in status:
            if len(in_range) == len(block):
                return
            break
    subjects = sorted(left)
    for some in (subjects[start : start + _SUBJECTS_MAX] for start in range(0, len(subjects), _SUBJECTS_MAX)):
        guesses = _guess_last_seqs(options, some, end)
        yield block_of(_ask_leader(options, partial(LeaderReader.read_last, guesses=guesses, end=end)))


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
        _receive(connection, scanner)
        _parse_last_seq(scanner.status, options)
        return scanner.take_block(connection.buffer), scanner.status

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


def _with_resume(options: ReadOptions, start: int, make_request: MakeRequest) -> Iterator[ReplyBlock]:
    """Yield blocks from `start` on.

    A broken connection is retried until the timeout, and reading resumes after the last message passed on.
    """
    retry_deadline = time.monotonic() + options.reconnect_s
    while True:
        try:
            for block in _fetch_blocks(options, start, make_request):
                start = int(block.seqs[-1]) + 1
                yield block
                retry_deadline = time.monotonic() + options.reconnect_s
            return
        except ConnectionFailed:
            drop_connection(options.address)
            if time.monotonic() > retry_deadline:
                raise
            time.sleep(_RETRY_PAUSE_S)


def _fetch_blocks(options: ReadOptions, start: int, make_request: MakeRequest) -> Iterator[ReplyBlock]:
    """Yield blocks from `start` on; the next block is requested before one is passed on."""
    connection = connection_for(options.address)
    scanner = _request(connection, options, make_request(start))
    try:
        while scanner is not None:
            _receive(connection, scanner)
            found = scanner.take_block(connection.buffer)
            last = _parse_last_seq(scanner.status, options)
            block = _keep_certain(options, start, found)
            has_more = len(found) == len(block) > 0 and _IS_LAST not in scanner.status
            start = last + 1
            scanner = _request(connection, options, make_request(last + 1)) if has_more else None
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


def _check_data_loss(options: ReadOptions, seq_range: SeqRange, next_seq: int, seqs: Ints) -> None:
    """Check sequences from `next_seq` on that are missing in a block.

    Gaps are normal, unless the stream's first sequence has passed them since the query was planned.
    """
    last = int(seqs[-1]) if len(seqs) else seq_range.end - 1
    if len(seqs) > last - next_seq or not options.fail_on_data_loss or seq_range.first_seq > seq_range.start:
        return
    # Over a separate connection: on the one for blocks, the next block is already in transit.
    own_address = replace(options.address, name="headrace spark info")
    stream_info = fetch_stream_info(own_address, options.api_prefix, options.stream, options.reconnect_s)
    lost_end = min(stream_info.first_seq, last + 1, seq_range.end)
    missing = lost_end - next_seq - int(np.searchsorted(seqs, lost_end))
    if missing > 0 and stream_info.retention == "limits":
        raise DataLoss(
            f"stream {options.stream!r} now starts at sequence {stream_info.first_seq}: {missing} of the sequences "
            f"{next_seq} to {lost_end - 1} were removed before the query read them. "
            "To continue without them, set option failOnDataLoss=false"
        )
