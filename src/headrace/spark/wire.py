"""Ranges of a stream read over the wire, by batched direct gets.

Owns the requests and their repetition. Invariant: the rows of a range are those that exist, in sequence order, each once,
also when the connection breaks in between: a range is resumed behind the last message that was passed on. While Spark
takes one block, the server already prepares the next. Must not know how blocks are decoded.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.spark.blocks import Block, Scanner
from headrace.spark.columns import Span, assemble
from headrace.spark.link import Link, LinkError, drop_link, shared_link
from headrace.spark.offsets import DataLoss
from headrace.spark.options import Options
from headrace.spark.streams import StreamError, facts_of

Ints = npt.NDArray[np.int64]
Asked = Callable[[int], dict[str, Any] | None]

_BLOCK_BYTES = 8 << 20
_PAUSE_S = 0.2


def read_range(options: Options, part: Span, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a range."""
    at = part.start
    for block in _resumed(options, part.start, lambda start: _ranged(options, start, part.end)):
        kept = slice(0, int(np.searchsorted(block.seqs, part.end)))
        _refuse_loss(options, part, at, block.seqs)
        at = int(block.seqs[-1]) + 1
        if kept.stop:
            yield assemble(block.columns(schema.names, kept), schema)
    if at < part.end:
        _refuse_loss(options, part, at, np.empty(0, np.int64))


def read_newest(
    options: Options, subjects: list[str], end: int, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The last message of each of some subjects below `end`."""

    def asked(start: int) -> dict[str, Any]:
        wanted = {"multi_last": subjects, "up_to_seq": end - 1, "batch": len(subjects)}
        return {**wanted, "seq": start, "max_bytes": _BLOCK_BYTES}

    for block in _resumed(options, 1, asked):
        yield assemble(block.columns(schema.names, slice(0, len(block))), schema)


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
            block = scanner.block(link.buffer)
            last = _last_sequence(scanner.status, options)
            more = len(block) > 0 and b"Nats-Num-Pending: 0\r\n" not in scanner.status
            scanner = _ask(link, options, asked(last + 1)) if more else None
            if len(block):
                yield block
    finally:
        if scanner is not None:
            # The reader was left in the middle: what is still on its way must not meet the next request.
            drop_link(options.address)


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
    return int(status.partition(b"Nats-Last-Sequence: ")[2].partition(b"\r\n")[0])


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
