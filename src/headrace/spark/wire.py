"""Ranges of a stream read over the wire, by batched direct gets.

Owns the requests and their repetition. Invariants: the rows of a range are those that exist, in sequence order, each once,
also when the connection breaks in between: a range is resumed behind the last message that was passed on. Replicas and
mirrors answer too, and may be behind: a range ends before its planned end only by the word of the stream's leader, and
while nobody else has the rows they come from the leader. While Spark takes one block, the server already prepares the
next. Must not know how blocks are decoded.
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

from headrace.spark.blocks import Block, Scanner, block_of
from headrace.spark.columns import OPEN_END, Span, assemble
from headrace.spark.leader import Leader
from headrace.spark.link import Link, LinkError, drop_link, shared_link
from headrace.spark.offsets import DataLoss
from headrace.spark.options import Options
from headrace.spark.streams import StreamError, expect, facts_of, persistently

T = TypeVar("T")
Ints = npt.NDArray[np.int64]
_log = logging.getLogger("headrace.spark")
Asked = Callable[[int], dict[str, Any] | None]

_IS_LAST = b"Nats-Num-Pending: 0\r\n"
_BLOCK_BYTES = 8 << 20
_PAUSE_S = 0.2
#: How often direct gets are tried again while those who answer are behind, and the first of the pauses, which double.
_TRIES = 4
_LAG_PAUSE_S = 0.02
_LAG_PAUSE_MAX_S = 1.0
#: Sequences that are read from the leader before direct gets are tried again.
_LEADER_SEQS = 8192
#: Subjects whose last messages are read from the leader at once: nobody knows how large these are.
_SUBJECTS_MAX = 128


def read_range(options: Options, part: Span, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a range."""
    at = part.start
    for block in _whole(options, part):
        kept = slice(0, int(np.searchsorted(block.seqs, part.end)))
        _refuse_loss(options, part, at, block.seqs)
        at = int(block.seqs[-1]) + 1
        if kept.stop:
            yield assemble(block.columns(schema.names, kept), schema)
    if at < part.end:
        _refuse_loss(options, part, at, np.empty(0, np.int64))


class _Lag:
    """How long to wait for those who are behind, before the leader is asked for the rows."""

    def __init__(self) -> None:
        self._tries = 0
        self._pause_s = _LAG_PAUSE_S

    @property
    def is_over(self) -> bool:
        return self._tries >= _TRIES

    def wait(self) -> None:
        """Wait a little longer than the time before; the first time not at all: another one may answer."""
        if self._tries:
            time.sleep(self._pause_s)
            self._pause_s = min(self._pause_s * 2, _LAG_PAUSE_MAX_S)
        self._tries += 1


def _whole(options: Options, part: Span) -> Iterator[Block]:
    """The blocks of a range; it ends when all is read, or the leader has nothing more in it."""
    at, lag = part.start, _Lag()
    while at < part.end:
        for block in _resumed(options, at, lambda start: _ranged(options, start, part.end)):
            at, lag = int(block.seqs[-1]) + 1, _Lag()
            yield block
        if at >= part.end:
            return
        found = _next_at_leader(options, at, part.end)
        if not found:
            return
        at = found
        if not lag.is_over:
            lag.wait()
            continue
        end = min(at + _LEADER_SEQS, part.end)
        read = partial(Leader.read, start=at, end=end, bytes_max=_BLOCK_BYTES)
        messages, at = _ask_leader(options, read)
        if messages:
            yield block_of(messages)


def _next_at_leader(options: Options, at: int, end: int) -> int:
    """The first message of a range that is left to read from `at` on; 0 when the leader has none.

    A leader that does not yet have what the range was planned on, as one just resumed, is asked again for a while.
    """
    deadline = time.monotonic() + options.reconnect_s
    lag = _Lag()
    while True:
        found, last = _ask_leader(options, partial(_look, at=at))
        if found:
            return found if found < end else 0
        if end >= OPEN_END or last >= end - 1:
            return 0
        if time.monotonic() > deadline:
            _refuse_shorter(options, last, end)
            return 0
        lag.wait()


def _look(leader: Leader, at: int) -> tuple[int, int]:
    """The first message from `at` on, and the last sequence as it was before that was asked: that there is no message
    counts only if the stream had come as far as the range."""
    last = leader.last_seq()
    return leader.next_seq(at), last


def _refuse_shorter(options: Options, last: int, end: int) -> None:
    text = (
        f"stream {options.stream!r} ends at sequence {last}, but it had sequence {end - 1} when the query was planned: it "
        "was created again, or its server lost its newest messages"
    )
    if options.fail_on_data_loss:
        raise DataLoss(f"{text}. To go on without them set option failOnDataLoss=false")
    _log.warning("%s; going on, because failOnDataLoss is false", text)


def _ask_leader(options: Options, question: Callable[[Leader], T]) -> T:
    """Ask over this process's link, on which nothing else is under way now."""
    expect(options.address)
    return persistently(options.address, options.reconnect_s, lambda link: question(Leader(options, link)))


def read_newest(
    options: Options, subjects: list[str], end: int, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The last message of each of some subjects below `end`."""
    for block in _newest(options, subjects, end):
        if len(block):
            yield assemble(block.columns(schema.names, slice(0, len(block))), schema)


def _newest(options: Options, subjects: list[str], end: int) -> Iterator[Block]:
    """Answers count if the one who gives them has everything below `end`, which only those show that have no upper end:
    `Nats-UpTo-Sequence` is then the responder's last sequence. The leader is asked for what else is left."""
    lag, left, at = _Lag(), set(subjects), 1
    while left and not lag.is_over:
        wanted = {"multi_last": subjects, "batch": len(subjects), "seq": at, "max_bytes": _BLOCK_BYTES}
        block, status = _answered(options, wanted)
        if not len(block):
            break
        if not block.is_from(options.stream) or _number(status, b"Nats-UpTo-Sequence: ") < end - 1:
            lag.wait()
            continue
        kept = block.first(int(np.searchsorted(block.seqs, end)))
        yield kept
        left.difference_update(kept.subjects())
        at = int(block.seqs[-1]) + 1
        if _IS_LAST in status:
            if len(kept) == len(block):
                return
            break
    subjects = sorted(left)
    for some in (subjects[start : start + _SUBJECTS_MAX] for start in range(0, len(subjects), _SUBJECTS_MAX)):
        guesses = _guesses(options, some, end)
        yield block_of(_ask_leader(options, partial(Leader.read_last, guesses=guesses, end=end)))


def _guesses(options: Options, subjects: list[str], end: int) -> dict[str, int]:
    """Where the last messages below `end` are according to somebody who may be behind; 0 for what it does not have."""
    guesses, at = dict.fromkeys(subjects, 0), 1
    while True:
        wanted = {"multi_last": subjects, "up_to_seq": end - 1, "batch": len(subjects), "seq": at}
        block, status = _answered(options, {**wanted, "max_bytes": _BLOCK_BYTES})
        guesses.update(zip(block.subjects(), block.seqs.tolist(), strict=True))
        if not len(block) or _IS_LAST in status:
            return guesses
        at = int(block.seqs[-1]) + 1


def _answered(options: Options, wanted: dict[str, Any]) -> tuple[Block, bytes]:
    """The answers to one request, and the status that ended them."""

    def ask(link: Link) -> tuple[Block, bytes]:
        scanner = _ask(link, options, wanted)
        assert scanner is not None, "something is wanted"
        _fill(link, scanner)
        _last_sequence(scanner.status, options)
        return scanner.block(link.buffer), scanner.status

    expect(options.address)
    return persistently(options.address, options.reconnect_s, ask)


def _ranged(options: Options, start: int, end: int) -> dict[str, Any] | None:
    """The request for what comes from `start` on; None if that is beyond the end."""
    if start >= end:
        return None
    wanted: dict[str, Any] = {
        "seq": start,
        "batch": min(options.batch_rows, end - start),
        "max_bytes": _BLOCK_BYTES,
    }
    if options.subject and options.subject != ">":
        wanted |= {"next_by_subj": options.subject, "batch": options.batch_rows}
    return wanted


def _resumed(options: Options, start: int, asked: Asked) -> Iterator[Block]:
    """Blocks from `start` on. A link that breaks is made anew while there is patience, and reading goes on behind what was
    passed on."""
    patience = time.monotonic() + options.reconnect_s
    while True:
        try:
            for block in _blocks(options, start, asked):
                start = int(block.seqs[-1]) + 1
                yield block
                patience = time.monotonic() + options.reconnect_s
            return
        except LinkError:
            drop_link(options.address)
            if time.monotonic() > patience:
                raise
            time.sleep(_PAUSE_S)


def _blocks(options: Options, start: int, asked: Asked) -> Iterator[Block]:
    """Blocks from `start` on; the next is asked for before one is passed on."""
    link = shared_link(options.address)
    scanner = _ask(link, options, asked(start))
    try:
        while scanner is not None:
            _fill(link, scanner)
            found = scanner.block(link.buffer)
            last = _last_sequence(scanner.status, options)
            block = _believed(options, start, found)
            more = len(found) == len(block) > 0 and _IS_LAST not in scanner.status
            start = last + 1
            scanner = _ask(link, options, asked(last + 1)) if more else None
            if len(block):
                yield block
    finally:
        if scanner is not None:
            # The reader was left in the middle: what is still on its way must not meet the next request.
            drop_link(options.address)


def _believed(options: Options, start: int, block: Block) -> Block:
    """The messages that are certainly all there are from `start` on, up to the last of them.

    A replica has everything up to its last message. A mirror may leave out messages by its filter, or have removed them
    by its own limits: what follows a gap is not believed, and after a filter every step is a gap.
    """
    if not len(block) or block.is_from(options.stream):
        return block
    if options.subject and options.subject != ">":
        return block.first(0)
    gaps = np.flatnonzero(block.seqs != np.arange(start, start + len(block)))
    return block.first(int(gaps[0])) if len(gaps) else block


def _ask(link: Link, options: Options, wanted: dict[str, Any] | None) -> Scanner | None:
    if wanted is None:
        return None
    body = json.dumps(wanted).encode()
    subject = f"{options.api}.DIRECT.GET.{options.stream}".encode()
    reply = link.new_inbox()
    link.send(b"PUB %s %s %d\r\n%s\r\n" % (subject, reply, len(body), body))
    return Scanner(reply)


def _fill(link: Link, scanner: Scanner) -> None:
    """Receive until the block is whole."""
    deadline = time.monotonic() + link.address.timeout_s
    length = -1
    while not scanner.scan(link.buffer):
        if scanner.foreign(link.buffer):
            after = link.service(scanner.at)
            if after > 0:
                del link.buffer[scanner.at : after]
                continue
        if len(link.buffer) != length:
            length = len(link.buffer)
            deadline = time.monotonic() + link.address.timeout_s
        link.receive(deadline, "a direct get")


def _last_sequence(status: bytes, options: Options) -> int:
    """The last sequence of a block, from the message that ends it."""
    code = status[9:12]
    if code == b"404":
        return 0
    if code == b"503":
        raise LinkError(f"nobody answers direct gets of stream {options.stream!r} now")
    if code != b"204":
        text = status.partition(b"\r\n")[0].decode(errors="replace")
        raise StreamError(f"stream {options.stream!r} refuses a direct get: {text}")
    return _number(status, b"Nats-Last-Sequence: ")


def _number(status: bytes, name: bytes) -> int:
    """The number in a header of a status; 0 where there is none."""
    digits = status.partition(name)[2].partition(b"\r\n")[0]
    return int(digits) if digits.isdigit() else 0


def _refuse_loss(options: Options, part: Span, at: int, seqs: Ints) -> None:
    """Sequences from `at` on are missing in a block. That is normal, unless the stream's beginning has passed them since
    the query was planned."""
    last = int(seqs[-1]) if len(seqs) else part.end - 1
    if len(seqs) > last - at or not options.fail_on_data_loss or part.first_seq > part.start:
        return
    # Over a link of its own: on that of the blocks the next one is already on its way.
    aside = replace(options.address, name="headrace spark facts")
    facts = facts_of(aside, options.api, options.stream, options.reconnect_s)
    gone = min(facts.first_seq, last + 1, part.end)
    missing = gone - at - int(np.searchsorted(seqs, gone))
    if missing > 0 and facts.retention == "limits":
        raise DataLoss(
            f"stream {options.stream!r} now begins at sequence {facts.first_seq}: {missing} of the sequences {at} to "
            f"{gone - 1} were removed while the query was about to read them. "
            "To go on without them set option failOnDataLoss=false"
        )
