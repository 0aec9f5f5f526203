"""The tables of a stream's subjects, which are keys in a bucket and claims in a registry, and of its schedules.

Subjects are read in slices, because a stream may have millions of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from headrace.broker.stream import Stream
from headrace.errors import CorruptData
from headrace.monitor.message_browser import encode_message, find_subject_filter
from headrace.monitor.query import Query
from headrace.monitor.sliced_page import PAUSE, PageRows
from headrace.monitor.varz import format_rfc3339
from headrace.monitor.workbench.table_page import parse_table_request, select_rows
from headrace.protocol import headers
from headrace.storage import Filter

#: Subject and number of its messages.
SubjectCount = tuple[str, int]
#: Subject, sequence and next time of a schedule.
ScheduleEntry = tuple[bytes, int, int]

_SUBJECTS_PER_STEP = 4_096
_SUBJECT_COLUMNS: dict[str, Callable[[SubjectCount], Any]] = {
    "subject": lambda found: found[0],
    "messages": lambda found: found[1],
}
_SCHEDULE_COLUMNS: dict[str, Callable[[ScheduleEntry], Any]] = {
    "subject": lambda entry: entry[0],
    "next": lambda entry: entry[2],
    "seq": lambda entry: entry[1],
}


async def make_subject_table(stream: Stream, query: Query) -> dict[str, Any]:
    """Return a page of the subjects that match `subject`; raise ValueError if the query is not valid.

    With `last`, each row has the newest message: the value of a key.
    """
    stream.retention.enforce()
    request = parse_table_request(query, _SUBJECT_COLUMNS, "subject")
    found = iter_subjects(stream, await find_subject_filter(stream, query))
    page = await select_rows(found, request, _SUBJECT_COLUMNS, lambda each: each[0])
    with_message = bool(query.get("last"))
    rows = PageRows(
        lambda: (_make_subject_row(stream, *each, with_message=with_message) for each in page.rows)
    )
    return {"rows": rows, "matching": page.matching, "total": page.total}


def iter_subjects(stream: Stream, subject_filter: Filter | None) -> Iterator[SubjectCount | object]:
    """Iterate over subjects and counts. If subjects get new ids meanwhile, some may be missing or come twice."""
    log = stream.log
    for start in range(0, len(log.subject_index), _SUBJECTS_PER_STEP):
        epoch = log.subject_epoch
        sids = log.find_subject_ids(subject_filter, start, start + _SUBJECTS_PER_STEP)
        for sid in sids.tolist():
            if log.subject_epoch != epoch:
                break
            yield log.subject_index.name(sid).decode(errors="replace"), int(log.subject_index.counts[sid])
        yield PAUSE


def _make_subject_row(stream: Stream, subject: str, count: int, *, with_message: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"subject": subject, "messages": count}
    if with_message:
        seq = stream.log.get_last_seq(subject.encode())
        row["message"] = encode_message(stream, seq) if seq else None
    return row


async def make_schedule_table(stream: Stream, query: Query) -> dict[str, Any]:
    """Return a page of the schedules of a stream, those that fire next first."""
    request = parse_table_request(query, _SCHEDULE_COLUMNS, "next")
    entries = stream.schedules.iter_entries() if stream.schedules is not None else ()
    page = await select_rows(
        entries, request, _SCHEDULE_COLUMNS, lambda entry: entry[0].decode(errors="replace")
    )
    rows = PageRows(lambda: (_make_schedule_row(stream, *entry) for entry in page.rows))
    return {"rows": rows, "matching": page.matching, "total": page.total}


def _make_schedule_row(stream: Stream, subject: bytes, seq: int, next_ns: int) -> dict[str, Any]:
    try:
        message = stream.log.get(seq)
    except CorruptData:
        message = None
    header = message[2] if message is not None else b""

    def read(name: bytes) -> str:
        return (headers.get(header, name) or b"").decode(errors="replace") if header else ""

    return {
        "subject": subject.decode(errors="replace"),
        "seq": seq,
        "next": format_rfc3339(next_ns),
        "schedule": read(b"Nats-Schedule"),
        "zone": read(b"Nats-Schedule-Time-Zone"),
        "target": read(b"Nats-Schedule-Target"),
    }
