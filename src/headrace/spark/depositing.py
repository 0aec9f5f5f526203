"""Payloads that are too large for a message, put away as claims by the tasks of a sink.

Owns the way from a chunk of messages to the same chunk with references. Invariants: a claim's name follows from the place
of its row in the query and from the payload, so that a repeated task finds the claim of the first attempt, and nothing
else; what was put away for rows that are refused is removed, and what another attempt may have used is left alone, since
its timer runs. Must not know Spark.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.claims import ClaimConfig, Claims
from headrace.claims import reference as references
from headrace.claims.clock import SECOND_NS, SystemClock
from headrace.claims.producer import Producer
from headrace.claims.reference import Reference
from headrace.claims.registry import Entry
from headrace.spark.connections import connect
from headrace.spark.link import Address
from headrace.spark.payloads import run
from headrace.spark.rows import Lot, ends_and_bytes, header

_PARALLEL = 8
#: Room for what a publisher adds to a row's headers.
_HEADERS_ADDED = 256
_TTL = b"Nats-TTL"


@dataclass(frozen=True)
class Desk:
    """Where payloads are put away; the same in every task. `timed` says that the stream takes TTLs."""

    address: Address
    config: ClaimConfig
    stream: str
    timed: bool

    def prepare(self) -> None:
        """Make and check what claims need; on the driver, before anything is written."""
        run(_prepare(self))


@dataclass(frozen=True)
class Deposit:
    """A claim that stands in for the payload of a row of a chunk."""

    row: int
    subject: str
    entry: Entry


class Depositor:
    """The claims of one task."""

    def __init__(self, desk: Desk, name: str) -> None:
        self._desk = desk
        self._name = name
        self._open: dict[str, Entry] = {}

    def exchange(self, lots: list[Lot], first: int) -> tuple[list[Lot], list[Deposit]]:
        """The same messages with references in the place of what is too large; `first` is the number of the first row."""
        producer = _claims(os.getpid(), self._desk).producer
        limit = producer.inline_max - _HEADERS_ADDED
        made, deposits, at = [], [], 0
        for lot in lots:
            large = np.flatnonzero(_sizes(lot) > limit).tolist()
            found = run(self._deposit(producer, lot, large, first + at)) if large else []
            made.append(_referring(lot, large, found, self._desk) if large else lot)
            deposits += [
                Deposit(at + row, lot.subjects[row].as_py().decode(), entry)
                for row, entry in zip(large, found, strict=True)
            ]
            at += len(lot)
        return made, deposits

    async def _deposit(self, producer: Producer, lot: Lot, rows: list[int], first: int) -> list[Entry]:
        gate = asyncio.Semaphore(_PARALLEL)

        async def one(row: int) -> Entry:
            async with gate:
                payload, subject = lot.payloads[row].as_py(), lot.subjects[row].as_py().decode()
                # With the payload: a query that gives other rows when repeated must not find those of the first time.
                place = f"{self._name}:{first + row}:{sha256(payload).hexdigest()}"
                claim_id = references.new_id(self._desk.config.namespace, place)
                entry, is_new = await producer.deposit(subject, payload, claim_id, _described(lot, row))
            if is_new:
                self._open[claim_id] = entry
            return entry

        return list(await asyncio.gather(*(one(row) for row in rows)))

    def confirm(self, stored: Iterable[tuple[Deposit, str, int]]) -> None:
        """The messages of these are stored, in which stream and under which sequence."""
        placed = list(stored)
        if placed:
            producer = _claims(os.getpid(), self._desk).producer
            run(_all(producer.confirm(each.entry, stream, seq, each.subject) for each, stream, seq in placed))
        for each, *_ in placed:
            self._open.pop(each.entry.claim_id, None)

    def leave(self) -> None:
        """The rows may be stored, perhaps with these claims: they are not ours to remove."""
        self._open.clear()

    def withdraw(self) -> None:
        """The rows are refused for good: remove what was put away for them."""
        if self._open:
            producer = _claims(os.getpid(), self._desk).producer
            run(_all(producer.withdraw(entry) for entry in self._open.values()))
            self.leave()


async def _all(work: Iterable[Awaitable[None]]) -> None:
    await asyncio.gather(*work)


def _described(lot: Lot, row: int) -> dict[str, str]:
    """What of a row's headers the reference repeats, for readers restore it from there."""
    lines = b"" if lot.lines is None else lot.lines[row].as_py()
    found = header(lines, references.CONTENT_TYPE.encode())
    return {} if found is None else {references.CONTENT_TYPE: found.decode()}


def _sizes(lot: Lot) -> npt.NDArray[np.int64]:
    sizes: npt.NDArray[np.int64] = np.diff(ends_and_bytes(lot.payloads)[0]).astype(np.int64)
    return sizes if lot.lines is None else sizes + np.diff(ends_and_bytes(lot.lines)[0])


def _referring(lot: Lot, rows: list[int], entries: list[Entry], desk: Desk) -> Lot:
    payloads = lot.payloads.to_pylist()
    lines = [b""] * len(lot) if lot.lines is None else lot.lines.to_pylist()
    now_s = SystemClock().now_ns() // SECOND_NS
    for row, entry in zip(rows, entries, strict=True):
        payloads[row] = Reference(**(entry.reference or {})).encode()
        lines[row] += f"{references.CLAIM_HEADER}: true\r\n".encode()
        if desk.timed and header(lines[row], _TTL) is None:
            # Message and claim die together; the claim may be that of an attempt long before.
            lines[row] += b"%s: %ds\r\n" % (_TTL, max(entry.expires_at - now_s, 1))
    return replace(lot, lines=pa.array(lines, pa.binary()), payloads=pa.array(payloads, pa.binary()))


async def _prepare(desk: Desk) -> None:
    connection = await connect(desk.address)
    try:
        async with await Claims.open(connection, desk.config, streams=[desk.stream]):
            await connection.flush()
    finally:
        await connection.close()


class _Kept:
    """A desk as a key: by what it says, since a configuration's mappings have no hash."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self._text = repr((desk, desk.address, sorted(desk.config.store.items(), key=str)))

    def __hash__(self) -> int:
        return hash(self._text)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Kept) and self._text == other._text and self.desk.address == other.desk.address
        )


def _claims(pid: int, desk: Desk) -> Claims:
    """This process's connection for the claims of a desk: Spark forks its workers and keeps them."""
    return _opened(pid, _Kept(desk))


@lru_cache(maxsize=4)
def _opened(pid: int, key: _Kept) -> Claims:
    async def make() -> Claims:
        return Claims(await connect(key.desk.address), key.desk.config)

    return run(make())
