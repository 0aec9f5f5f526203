"""Reads ranges of a stream from a server, completely, in whichever way its blocks are fetched.

Owns the end of a range, and retries. Invariants: a range returns the messages that exist, in sequence order, each once,
even if the connection breaks: the read resumes after the last message that was passed on. Replicas and mirrors answer
too and may lag, so a range ends before its planned end only if the stream's leader confirms it, and rows that no other
server has are read from the leader. Must not know how blocks are fetched or decoded.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import DataLoss
from headrace.reader.batch_cast import OPEN_END, SeqRange, build_batch
from headrace.reader.blocking_connection import ConnectionFailed, ServerAddress, drop_connection
from headrace.reader.direct_get_decode import ReplyBlock, StoredMessage, block_of
from headrace.reader.leader_reader import LeaderReader
from headrace.reader.options import ReadOptions
from headrace.reader.stream_admin import fetch_stream_info, mark_reachable, with_retry

T = TypeVar("T")
Ints = npt.NDArray[np.int64]
#: Yields the messages of a range from the given start up to the given end, as far as they are available.
FetchBlocks = Callable[[ReadOptions, int, int], Iterator[ReplyBlock]]
_log = logging.getLogger("headrace.spark")

#: Maximum size of a block that is read from the leader.
BLOCK_BYTES_MAX = 8 << 20
_RETRY_PAUSE_S = 0.2
#: Number of retries while the servers that reply lag, and the first pause; pauses double.
_TRIES = 4
_LAG_PAUSE_S = 0.02
_LAG_PAUSE_MAX_S = 1.0
#: Sequences to read from the leader before other servers are tried again.
_LEADER_SEQS = 8192


def read_seq_range(
    options: ReadOptions, seq_range: SeqRange, schema: pa.Schema, fetch: FetchBlocks
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range, fetched in the given way."""
    next_seq = seq_range.start
    for block in _read_blocks(options, seq_range, fetch):
        in_range = slice(0, int(np.searchsorted(block.seqs, seq_range.end)))
        _check_data_loss(options, seq_range, next_seq, block.seqs)
        next_seq = int(block.seqs[-1]) + 1
        if in_range.stop:
            yield build_batch(block.to_columns(schema.names, in_range), schema)
    if next_seq < seq_range.end:
        _check_data_loss(options, seq_range, next_seq, np.empty(0, np.int64))


def _read_blocks(options: ReadOptions, seq_range: SeqRange, fetch: FetchBlocks) -> Iterator[ReplyBlock]:
    """Yield the blocks of a range until all is read, or the leader has nothing more in it."""
    next_seq, lag = seq_range.start, Lag()
    while next_seq < seq_range.end:
        for block in _with_resume(options, next_seq, seq_range.end, fetch):
            next_seq, lag = int(block.seqs[-1]) + 1, Lag()
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
        messages, next_seq = _read_from_leader(options, next_seq, seq_range.end)
        if messages:
            yield block_of(messages)


def _with_resume(options: ReadOptions, start: int, end: int, fetch: FetchBlocks) -> Iterator[ReplyBlock]:
    """Yield blocks from `start` on.

    A broken connection is retried until the timeout, and reading resumes after the last message passed on.
    """
    retry_deadline = time.monotonic() + options.reconnect_s
    while True:
        try:
            for block in fetch(options, start, end):
                start = int(block.seqs[-1]) + 1
                yield block
                retry_deadline = time.monotonic() + options.reconnect_s
            return
        except ConnectionFailed:
            drop_connection(options.address)
            if time.monotonic() > retry_deadline:
                raise
            time.sleep(_RETRY_PAUSE_S)


def _next_at_leader(options: ReadOptions, next_seq: int, end: int) -> int:
    """Return the first message of a range from `next_seq` on; 0 if the leader has none.

    A leader that does not yet have what the range was planned on, such as one that just restarted, is retried for a
    while.
    """
    deadline = time.monotonic() + options.reconnect_s
    lag = Lag()
    while True:
        found, last = ask_leader(options, partial(_find_next_at, next_seq=next_seq))
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


def ask_leader(options: ReadOptions, question: Callable[[LeaderReader], T]) -> T:
    """Query the leader over this process's connection, which is idle now."""
    mark_reachable(options.address)
    return with_retry(
        options.address, options.reconnect_s, lambda connection: question(LeaderReader(options, connection))
    )


def _read_from_leader(options: ReadOptions, start: int, end: int) -> tuple[list[StoredMessage], int]:
    """Return the next messages of a range, and the sequence (excluded) up to which they are complete.

    Only as far as the leader has got: one that lags must not be taken for one without messages.
    """
    last = ask_leader(options, LeaderReader.last_seq)
    end = min(start + _LEADER_SEQS, end, last + 1)
    if end <= start:
        return [], start
    return ask_leader(options, partial(LeaderReader.read, start=start, end=end, bytes_max=BLOCK_BYTES_MAX))


def fetch_from_leader(options: ReadOptions, start: int, end: int) -> Iterator[ReplyBlock]:
    """Yield the messages of a range from the leader, one request each: slow, but every stream allows it."""
    while start < end:
        messages, start = _read_from_leader(options, start, end)
        if messages:
            yield block_of(messages)
        elif not (start := _next_at_leader(options, start, end)):
            return


class Lag:
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


def info_address(options: ReadOptions) -> ServerAddress:
    """Return the address of a connection for requests about a stream while blocks of it are read."""
    return replace(options.address, name=f"{options.address.name or 'headrace spark'} info")


def _check_data_loss(options: ReadOptions, seq_range: SeqRange, next_seq: int, seqs: Ints) -> None:
    """Check sequences from `next_seq` on that are missing in a block.

    Gaps are normal, unless the stream's first sequence has passed them since the query was planned.
    """
    last = int(seqs[-1]) if len(seqs) else seq_range.end - 1
    if len(seqs) > last - next_seq or not options.fail_on_data_loss or seq_range.first_seq > seq_range.start:
        return
    # Over a separate connection: on the one for blocks, the next block is already in transit.
    stream_info = fetch_stream_info(
        info_address(options), options.api_prefix, options.stream, options.reconnect_s
    )
    lost_end = min(stream_info.first_seq, last + 1, seq_range.end)
    missing = lost_end - next_seq - int(np.searchsorted(seqs, lost_end))
    if missing > 0 and stream_info.retention == "limits":
        raise DataLoss(
            f"stream {options.stream!r} now starts at sequence {stream_info.first_seq}: {missing} of the sequences "
            f"{next_seq} to {lost_end - 1} were removed before the query read them. "
            "To continue without them, set option failOnDataLoss=false"
        )
