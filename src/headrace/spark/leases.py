"""Spark as a reader that collectors of claims know of: what it may still read, or read again, is not collected.

Owns the leases `$CLAIMS.reader.<stream>.<reader>` of this process's queries (see `headrace.claims.floors`). Invariants: a
lease is there before the first position it protects is handed out; its floor is never above what Spark has finished, and
it says where the reader began, so that nobody takes it for a reader of what was before; it is renewed while the query
lives, and left to run out when it stops, so that a restart finds its claims.
Where the server keeps no claims it is asked again before each position that is handed out, and every few seconds: the first
claim makes the registry. It has connections of its own: a refusal here must not end a query.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Sequence
from typing import NamedTuple

from headrace.spark.link import Link, LinkError, Refused
from headrace.spark.options import Options
from headrace.spark.streams import StreamError, call

_log = logging.getLogger("headrace.spark")
_REGISTRY = "CLAIMS"
#: The operation keeps the server from leaving a marker when the lease runs out.
_HEADER = b"NATS/1.0\r\nKV-Operation: PURGE\r\nNats-TTL: %ds\r\n\r\n"
_LOOK_S = 5.0
_UNPROTECTED = "claims of stream %r are not protected: %s"
#: The name of a reader that wants nothing to be kept for it.
NOBODY = "none"


class Reach(NamedTuple):
    """What a reader has finished, and the first sequence that it could read at all."""

    finished: int
    start: int


class Lease:
    """What one query protects. Used by the driver's process only."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._subject = _subject(options)
        self._reach: Reach | None = None
        self._told: Reach | None = None
        self._told_s = 0.0
        self._is_kept = True
        self._link: Link | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def hold(self, reach: Reach) -> None:
        """Everything that is finished may be collected, nothing behind it."""
        self._reach = reach
        if self._is_kept and reach != self._told:
            self._tell()
        if self._is_kept and self._thread is None:
            self._thread = threading.Thread(target=self._renew, name="headrace-lease", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Renew it no more; it lasts on for its time."""
        self._ended.set()
        with self._lock:
            self._drop()

    def _renew(self) -> None:
        third_s = self._options.lease_s / 3
        while self._is_kept and not self._ended.wait(min(_LOOK_S, third_s)):
            if self._reach != self._told or time.monotonic() - self._told_s > third_s:
                self._tell()

    def _tell(self) -> None:
        """A query whose server is away notices by itself; the lease is told again with the next look."""
        with self._lock:
            if self._ended.is_set():
                return
            reach = self._reach
            assert reach is not None, "something is held before it is told"
            try:
                self._link = self._link or Link(self._options.address)
                if _write(self._link, self._options, self._subject, reach):
                    self._told, self._told_s = reach, time.monotonic()
            except Refused as error:
                _log.warning(_UNPROTECTED, self._options.stream, error)
                self._is_kept = False
            except (LinkError, StreamError) as error:
                _log.warning("claims of stream %r may lose their lease: %s", self._options.stream, error)
                self._drop()
            if not self._is_kept:
                self._drop()

    def _drop(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None


def may_read_claims(options: Options, columns: Sequence[str]) -> bool:
    """Whether the rows of a query can lead to payloads that a collector is to leave alone."""
    if not _is_told(options):
        return False
    return options.claims == "inline" or "claim" in columns or {"headers", "data"} <= set(columns)


def _is_told(options: Options) -> bool:
    """Whether a server is to know of this reader; files without `servers` have none."""
    return options.claim_reader != NOBODY and (options.servers_given or not options.path)


def protect_once(options: Options, finished: int) -> None:
    """For a batch read: hold what is behind `finished` for one lease."""
    if not _is_told(options):
        return
    try:
        link = Link(options.address)
    except LinkError as error:
        _log.warning(_UNPROTECTED, options.stream, error)
        return
    try:
        _write(link, options, _subject(options), Reach(finished, finished + 1))
    except (LinkError, Refused, StreamError) as error:
        _log.warning(_UNPROTECTED, options.stream, error)
    finally:
        link.close()


def _subject(options: Options) -> str:
    return f"$CLAIMS.reader.{options.stream}.{options.claim_reader or uuid.uuid4().hex}"


def _write(link: Link, options: Options, subject: str, reach: Reach) -> bool:
    """Write a lease down; False where nobody keeps claims.

    Refused when this user may not say what it reads, StreamError when the server cannot take it now.
    """
    found = call(link, f"{options.api}.STREAM.NAMES", {"subject": subject})
    if _REGISTRY not in (found.get("streams") or ()):
        return False
    _store(link, subject, reach, options)
    return True


def _store(link: Link, subject: str, reach: Reach, options: Options) -> None:
    header = _HEADER % max(1, round(options.lease_s))
    filters = {"filters": [options.subject]} if options.subject else {}
    body = json.dumps({"acked": reach.finished, "start": reach.start, **filters}).encode()
    reply = link.new_inbox()
    sizes = (subject.encode(), reply, len(header), len(header) + len(body), header, body)
    link.send(b"HPUB %s %s %d %d\r\n%s%s\r\n" % sizes)
    answer = json.loads(link.answer(reply, subject).payload)
    if "error" in answer:
        raise StreamError(f"the lease {subject} is refused: {answer['error'].get('description')}")
