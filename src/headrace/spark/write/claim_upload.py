"""Uploads payloads that are too large for a message as claims, in the tasks of a sink.

Owns the conversion of a batch of messages to the same batch with references. Invariants: a claim's name is derived from
its row's place in the query, or its message id, and from the payload, so that a repeated task finds the claim of the first
attempt and no other; claims uploaded for rows that are then rejected are removed, and claims that another attempt may have
used are left to their timers. Must not know Spark. See ADR 53.
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
from headrace.claims.producer import ClaimProducer
from headrace.claims.reference import Reference
from headrace.claims.reference_publisher import limit_sent_ttl
from headrace.claims.registry import ClaimEntry
from headrace.clock import SystemClock
from headrace.reader.blocking_connection import ServerAddress
from headrace.reader.claim_fetch import run_blocking
from headrace.spark.claims.nats_connection import connect
from headrace.spark.write.encode_rows import MessageColumns, find_header, get_offsets_and_bytes

_PARALLEL = 8
#: Reserve for what a publisher adds to a row's headers.
_HEADERS_ADDED = 256
_TTL = b"Nats-TTL"
_MSG_ID = b"Nats-Msg-Id"


@dataclass(frozen=True)
class ClaimUploadConfig:
    """Where payloads are uploaded; the same in every task. `timed` says whether the stream accepts TTLs."""

    address: ServerAddress
    claim_config: ClaimConfig
    stream: str
    allows_ttl: bool

    def prepare(self) -> None:
        """Create and check what claims need; on the driver, before anything is written."""
        run_blocking(_prepare(self))


@dataclass(frozen=True)
class UploadedClaim:
    """A claim that replaces the payload of a row of a batch."""

    row: int
    subject: str
    entry: ClaimEntry


class ClaimUploader:
    """The claims of one task."""

    def __init__(self, config: ClaimUploadConfig, task_id: str) -> None:
        self._config = config
        self._task_id = task_id
        self._unconfirmed: dict[str, ClaimEntry] = {}

    def upload(
        self, column_groups: list[MessageColumns], first: int
    ) -> tuple[list[MessageColumns], list[UploadedClaim]]:
        """Return the same messages with references instead of large payloads; `first` is the number of the first row."""
        producer = _claims_for(os.getpid(), self._config).producer
        limit = producer.inline_max - _HEADERS_ADDED
        replaced, uploaded, offset = [], [], 0
        for columns in column_groups:
            large_rows = np.flatnonzero(_get_message_sizes(columns) > limit).tolist()
            found = (
                run_blocking(self._upload_rows(producer, columns, large_rows, first + offset))
                if large_rows
                else []
            )
            replaced.append(
                _replace_with_references(columns, large_rows, found, self._config) if large_rows else columns
            )
            uploaded += [
                UploadedClaim(offset + row, columns.subjects[row].as_py().decode(), entry)
                for row, entry in zip(large_rows, found, strict=True)
            ]
            offset += len(columns)
        return replaced, uploaded

    async def _upload_rows(
        self, producer: ClaimProducer, columns: MessageColumns, rows: list[int], first: int
    ) -> list[ClaimEntry]:
        semaphore = asyncio.Semaphore(_PARALLEL)

        async def upload_one(row: int) -> ClaimEntry:
            async with semaphore:
                payload, subject = columns.payloads[row].as_py(), columns.subjects[row].as_py().decode()
                # The payload is part of the id: a query that gives other rows when repeated must not find the earlier
                # ones' claims.
                row_id = f"{self._make_row_key(columns, row, first)}:{sha256(payload).hexdigest()}"
                claim_id = references.make_claim_id(self._config.claim_config.namespace, row_id)
                entry, is_new = await producer.upload(
                    subject, payload, claim_id, _get_content_type(columns, row)
                )
            if is_new:
                self._unconfirmed[claim_id] = entry
            return entry

        return list(await asyncio.gather(*(upload_one(row) for row in rows)))

    def _make_row_key(self, columns: MessageColumns, row: int, first: int) -> str:
        """Return what identifies a row when the task is repeated: its own id, or its place."""
        header_lines = b"" if columns.header_lines is None else columns.header_lines[row].as_py()
        msg_id = find_header(header_lines, _MSG_ID)
        return f"{self._task_id}:{first + row}" if msg_id is None else f"id:{msg_id.decode()}"

    def confirm(self, stored: Iterable[tuple[UploadedClaim, str, int]]) -> None:
        """Record that the messages of these claims are stored, in which stream and with which sequence."""
        confirmed = list(stored)
        if confirmed:
            producer = _claims_for(os.getpid(), self._config).producer
            run_blocking(
                _gather(
                    producer.confirm_published(each.entry, stream, seq, each.subject)
                    for each, stream, seq in confirmed
                )
            )
        for each, *_ in confirmed:
            self._unconfirmed.pop(each.entry.claim_id, None)

    def abandon(self) -> None:
        """Keep the claims: the rows may be stored with them, so this attempt must not remove them."""
        self._unconfirmed.clear()

    def undo(self) -> None:
        """Remove the uploaded claims: the rows are rejected for good."""
        if self._unconfirmed:
            producer = _claims_for(os.getpid(), self._config).producer
            run_blocking(_gather(producer.cancel(entry) for entry in self._unconfirmed.values()))
            self.abandon()


async def _gather(work: Iterable[Awaitable[None]]) -> None:
    await asyncio.gather(*work)


def _get_content_type(columns: MessageColumns, row: int) -> dict[str, str]:
    """Return the header of a row that the reference repeats, because readers restore it from there."""
    header_lines = b"" if columns.header_lines is None else columns.header_lines[row].as_py()
    found = find_header(header_lines, references.CONTENT_TYPE.encode())
    return {} if found is None else {references.CONTENT_TYPE: found.decode()}


def _get_message_sizes(columns: MessageColumns) -> npt.NDArray[np.int64]:
    sizes: npt.NDArray[np.int64] = np.diff(get_offsets_and_bytes(columns.payloads)[0]).astype(np.int64)
    return (
        sizes
        if columns.header_lines is None
        else sizes + np.diff(get_offsets_and_bytes(columns.header_lines)[0])
    )


def _replace_with_references(
    columns: MessageColumns, rows: list[int], entries: list[ClaimEntry], config: ClaimUploadConfig
) -> MessageColumns:
    payloads = columns.payloads.to_pylist()
    header_lines = [b""] * len(columns) if columns.header_lines is None else columns.header_lines.to_pylist()
    now_ns = SystemClock().now_ns()
    for row, entry in zip(rows, entries, strict=True):
        payloads[row] = Reference(**(entry.reference or {})).encode()
        header_lines[row] += f"{references.CLAIM_HEADER}: true\r\n".encode()
        if config.allows_ttl:
            # The message ends soon after its claim, which may be from an attempt long ago.
            ttl_s = references.compute_message_ttl_s(entry.expires_at, config.claim_config, now_ns)
            header_lines[row] = _limit_ttl(header_lines[row], ttl_s)
    return replace(
        columns, header_lines=pa.array(header_lines, pa.binary()), payloads=pa.array(payloads, pa.binary())
    )


def _limit_ttl(header_lines: bytes, ttl_s: int) -> bytes:
    """Return the headers of a row with a TTL: that of its claim, or its own if that is shorter."""
    sent = find_header(header_lines, _TTL)
    if sent is None:
        return header_lines + b"%s: %ds\r\n" % (_TTL, ttl_s)
    lines = [line for line in header_lines.split(b"\r\n") if line and not line.startswith(b"%s: " % _TTL)]
    limited = limit_sent_ttl({references.TTL: sent.decode()}, ttl_s)
    return b"".join(
        b"%s\r\n" % line for line in [*lines, *(f"{name}: {ttl}".encode() for name, ttl in limited.items())]
    )


async def _prepare(config: ClaimUploadConfig) -> None:
    connection = await connect(config.address)
    try:
        async with await Claims.open(connection, config.claim_config, streams=[config.stream]):
            await connection.flush()
    finally:
        await connection.close()


class _UploadConfigKey:
    """Makes an upload configuration hashable by its content, since its mappings are not."""

    def __init__(self, config: ClaimUploadConfig) -> None:
        self.config = config
        self._text = repr((config, config.address, sorted(config.claim_config.store.items(), key=str)))

    def __hash__(self) -> int:
        return hash(self._text)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _UploadConfigKey)
            and self._text == other._text
            and self.config.address == other.config.address
        )


def _claims_for(pid: int, config: ClaimUploadConfig) -> Claims:
    """Return this process's connection for the claims of a configuration: Spark forks its workers and reuses them."""
    return _open_claims(pid, _UploadConfigKey(config))


@lru_cache(maxsize=4)
def _open_claims(pid: int, key: _UploadConfigKey) -> Claims:
    async def open_claims() -> Claims:
        return Claims(await connect(key.config.address), key.config.claim_config)

    return run_blocking(open_claims())
