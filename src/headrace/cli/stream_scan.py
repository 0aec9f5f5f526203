"""Reads many messages of a stream with `headrace.read`, over the connection that the command line names.

Owns the translation of connection options and of `--since` and `--until` into a range of sequences. Invariant: the range
is fixed before the first row is read, so a command ends although publishers continue. Must not know what is done with rows.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

from headrace.cli.connection_target import ConnectionTarget
from headrace.cli.exit_codes import USAGE_ERROR, CliError
from headrace.cli.session import CliSession

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
Batches = Iterator["pa.RecordBatch"]
COLUMNS = ("seq", "time", "subject", "headers", "data")
_BATCH_ROWS = 8192


@dataclass(frozen=True)
class ScanRange:
    """Sequences to read: `start` included, `end` excluded."""

    start: int
    end: int

    @property
    def length(self) -> int:
        return max(0, self.end - self.start)


async def resolve_range(session: CliSession, stream: str, since: str = "", until: str = "") -> ScanRange:
    """Return the sequences between two times or sequences, as far as the stream has them now."""
    state = (await session.api_request(f"STREAM.INFO.{stream}"))["state"]
    first, end = int(state["first_seq"]), int(state["last_seq"]) + 1
    start = max(first, await _find_seq(session, stream, since, end)) if since else first
    stop = min(end, await _find_seq(session, stream, until, end)) if until else end
    return ScanRange(start, max(start, stop))


async def _find_seq(session: CliSession, stream: str, bound: str, end: int) -> int:
    """Return a sequence as it is, or the first one at or after a time; `end` if all messages are older."""
    from headrace.client.errors import NotFound, StreamNotFound

    when = parse_bound(bound)
    if not isinstance(when, datetime):
        return when or 0
    body = {"start_time": f"{when.replace(tzinfo=None).isoformat()}Z"}
    try:
        return int((await session.api_request(f"STREAM.MSG.GET.{stream}", body))["message"]["seq"])
    except StreamNotFound:
        raise
    except NotFound:
        return end


def iter_batches(
    target: ConnectionTarget,
    stream: str,
    scan_range: ScanRange,
    subjects: Sequence[str] | None = None,
    limit: int = 0,
) -> Batches:
    """Yield the rows of a range in batches; at most `limit` rows, if it is not 0."""
    if not scan_range.length:
        return
    remaining = limit
    for batch in read_batches(target, stream, subjects, scan_range.start, scan_range.end):
        rows = batch.slice(0, remaining) if limit else batch
        remaining -= rows.num_rows
        yield rows
        if limit and remaining <= 0:
            return


def read_batches(
    target: ConnectionTarget,
    stream: str,
    subjects: Sequence[str] | None,
    start: int | datetime | None,
    end: int | datetime | None,
) -> Batches:
    """Yield the rows between two sequences or times in batches."""
    from headrace.reader import read

    with read(
        make_server_list(target),
        stream,
        list(subjects or ()),
        start,
        end,
        COLUMNS,
        batch_rows=_BATCH_ROWS,
        connection=make_connection_options(target),
    ) as scan:
        yield from scan


def parse_bound(text: str) -> int | datetime | None:
    """Parse `--since` or `--until`: a sequence, a time, or a duration before now; None if it is not given."""
    from headrace.cli.consumer_options import parse_time

    if not text:
        return None
    return int(text) if text.isdigit() else parse_time(text)


def make_schema() -> pa.Schema:
    """Return the schema of all batches."""
    from headrace.storage.snapshot.open_snapshot import ArrowLayout

    return ArrowLayout(COLUMNS, "ns", False, True).schema()


def make_server_list(target: ConnectionTarget) -> str:
    """Return the servers, each with a scheme: without one `headrace.read` would take it for a folder."""
    return ",".join(url if "://" in url else f"nats://{url}" for url in target.servers)


def make_connection_options(target: ConnectionTarget) -> dict[str, str]:
    """Return the connection options of `headrace.read`; raise CliError for those that it lacks."""
    missing = {
        "--nkey": target.nkey,
        "tls_first": target.tls_first,
        "jetstream_api_prefix": target.api_prefix,
        "inbox_prefix": target.inbox_prefix,
    }
    for name, value in missing.items():
        if value:
            raise CliError(
                f"this command cannot use {name} yet: choose other credentials, such as --creds, "
                "or read single messages with 'headrace stream get'",
                USAGE_ERROR,
            )
    given = {
        "user": target.user,
        "password": target.password,
        "token": target.token,
        "creds": _expand(target.creds),
        "tlsCa": _expand(target.tlsca),
        "tlsCert": _expand(target.tlscert),
        "tlsKey": _expand(target.tlskey),
        "domain": target.domain,
        "timeout": f"{target.timeout:g}s",
    }
    return {name: value for name, value in given.items() if value}


def _expand(path: str) -> str:
    import os

    return os.path.expanduser(path)


async def run_blocking(session: CliSession, work: Callable[[], T]) -> T:
    """Run work that blocks, without the session's connection: the server would close an idle one."""
    await session.close()
    with _ctrl_c_raises():
        return work()


@contextmanager
def _ctrl_c_raises() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt at once: the event loop's own handler would only record it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
