"""Registers queries as readers of claims, so that collectors keep everything a query may still read or read again.

Owns the leases `$CLAIMS.reader.<stream>.<reader>` of this process's queries (see `headrace.claims.ack_floors`).
Invariants: a lease exists before the first position that it protects is returned; its floor is never above what Spark
has finished; and it records where the reader began, so that the reader does not count for earlier messages. The lease
is renewed while the query runs and left to expire when it stops, so that a restarted query finds its claims.
As long as the server has no claims registry, the module asks again before each position that it returns, and every few
seconds: the first claim creates the registry. It uses connections of its own, because an error here must not end a
query. See ADR 54.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Sequence
from typing import NamedTuple

from headrace.reader.blocking_connection import BlockingConnection, ConnectionFailed, ServerRejected
from headrace.reader.options import ReadOptions
from headrace.reader.stream_admin import StreamError, call_api

_log = logging.getLogger("headrace.spark")
_REGISTRY = "CLAIMS"
#: This operation prevents a delete marker when the lease expires.
_HEADER = b"NATS/1.0\r\nKV-Operation: PURGE\r\nNats-TTL: %ds\r\n\r\n"
_RENEW_CHECK_S = 5.0
_UNPROTECTED = "claims of stream %r may be deleted before they are read: no lease: %s"
#: The reader name that disables leases.
NO_READER = "none"


class LeaseRange(NamedTuple):
    """The last sequence a reader has finished, and the first one that it could read at all."""

    finished: int
    start: int


class ClaimReaderLease:
    """The lease of one query. Used only in the driver's process."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._subject = _make_subject(options)
        self._range: LeaseRange | None = None
        self._written_range: LeaseRange | None = None
        self._written_at_s = 0.0
        self._active = True
        self._connection: BlockingConnection | None = None
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def extend(self, lease_range: LeaseRange) -> None:
        """Move the lease: collectors may delete everything finished, and nothing after it."""
        self._range = lease_range
        if self._active and lease_range != self._written_range:
            self._write_lease()
        if self._active and self._thread is None:
            self._thread = threading.Thread(target=self._renew_loop, name="headrace-lease", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop renewing; the lease lasts until it expires."""
        self._stopped.set()
        with self._lock:
            self._close_connection()

    def _renew_loop(self) -> None:
        third_s = self._options.lease_s / 3
        while self._active and not self._stopped.wait(min(_RENEW_CHECK_S, third_s)):
            if self._range != self._written_range or time.monotonic() - self._written_at_s > third_s:
                self._write_lease()

    def _write_lease(self) -> None:
        """Write the lease.

        If the server is away the query notices by itself, and the next check writes the lease again.
        """
        with self._lock:
            if self._stopped.is_set():
                return
            lease_range = self._range
            assert lease_range is not None, "extend() comes first"
            try:
                self._connection = self._connection or BlockingConnection(self._options.address)
                if _write_if_registry(self._connection, self._options, self._subject, lease_range):
                    self._written_range, self._written_at_s = lease_range, time.monotonic()
            except ServerRejected as error:
                _log.warning(_UNPROTECTED, self._options.stream, error)
                self._active = False
            except (ConnectionFailed, StreamError) as error:
                _log.warning(
                    "the lease for claims of stream %r could not be renewed, will retry: %s",
                    self._options.stream,
                    error,
                )
                self._close_connection()
            if not self._active:
                self._close_connection()

    def _close_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def may_read_claims(options: ReadOptions, columns: Sequence[str]) -> bool:
    """Return whether the rows of a query can lead to payloads that collectors must not delete."""
    if options.claim_reader == NO_READER:
        return False
    return options.claims == "inline" or "claim" in columns or {"headers", "data"} <= set(columns)


def lease_once(options: ReadOptions, finished: int) -> None:
    """Protect everything after `finished` for the duration of one lease; for a batch read."""
    if options.claim_reader == NO_READER:
        return
    try:
        connection = BlockingConnection(options.address)
    except ConnectionFailed as error:
        _log.warning(_UNPROTECTED, options.stream, error)
        return
    try:
        _write_if_registry(connection, options, _make_subject(options), LeaseRange(finished, finished + 1))
    except (ConnectionFailed, ServerRejected, StreamError) as error:
        _log.warning(_UNPROTECTED, options.stream, error)
    finally:
        connection.close()


def _make_subject(options: ReadOptions) -> str:
    return f"$CLAIMS.reader.{options.stream}.{options.claim_reader or uuid.uuid4().hex}"


def _write_if_registry(
    connection: BlockingConnection, options: ReadOptions, subject: str, lease_range: LeaseRange
) -> bool:
    """Write a lease; return False if the server has no claims registry.

    Raises ServerRejected if this user may not publish leases, StreamError if the server cannot store the lease now.
    """
    found = call_api(connection, f"{options.api_prefix}.STREAM.NAMES", {"subject": subject})
    if _REGISTRY not in (found.get("streams") or ()):
        return False
    _publish_lease(connection, subject, lease_range, options)
    return True


def _publish_lease(
    connection: BlockingConnection, subject: str, lease_range: LeaseRange, options: ReadOptions
) -> None:
    header = _HEADER % max(1, round(options.lease_s))
    filters = {"filters": [options.subject]} if options.subject else {}
    body = json.dumps({"acked": lease_range.finished, "start": lease_range.start, **filters}).encode()
    reply = connection.new_inbox()
    publish_fields = (subject.encode(), reply, len(header), len(header) + len(body), header, body)
    connection.send(b"HPUB %s %s %d %d\r\n%s%s\r\n" % publish_fields)
    response = json.loads(connection.receive_reply(reply, subject).payload)
    if "error" in response:
        raise StreamError(f"the lease {subject} was rejected: {response['error'].get('description')}")
