"""Whole messages in the order of a stream, for a file that the page writes: limited by bytes and time per request.

The page asks again, from `next`, until that is 0 or after the end that the viewer chose.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

from headrace.broker.stream import Stream
from headrace.monitor.message_browser import encode_message, find_subject_filter, parse_time_ns
from headrace.monitor.query import Query
from headrace.monitor.sliced_page import PageRows, Slices

EXPORT_S = 0.030
EXPORT_BYTES_MAX = 4 * 1024 * 1024
_WHOLE = 1 << 62


async def export_messages(stream: Stream, query: Query) -> dict[str, Any]:
    """Return messages from `seq` or the time `since`, up to the time `until`; raise ValueError on a bad query."""
    stream.retention.enforce()
    log, subject_filter = stream.log, await find_subject_filter(stream, query)
    since, until = query.get("since", ""), query.get("until", "")
    last = log.committed_seq
    seq = int(query.get("seq", 0) or 0)
    if since and not seq:
        seq = log.find_seq_at_time(parse_time_ns(since)) or last + 1
    end = (log.find_seq_at_time(parse_time_ns(until)) or last + 1) if until else last + 1
    end_s, size, found = perf_counter() + EXPORT_S, 0, list[dict[str, Any]]()
    with Slices() as slices:
        seq = log.find_next(subject_filter, seq)
        while 0 < seq < end and size < EXPORT_BYTES_MAX and perf_counter() < end_s:
            found.append(encode_message(stream, seq, _WHOLE))
            size += int(found[-1].get("size", 0)) + 100
            seq = log.find_next(subject_filter, seq + 1)
            if slices.is_over():
                await slices.next_turn()
    return {"messages": PageRows(lambda: iter(found)), "next": seq if 0 < seq < end else 0, "end": end}
