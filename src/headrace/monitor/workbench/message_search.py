"""Finds messages by their content, in slices and only for a short time per request: the page continues where it ended.

A search reads messages from the newest down. It compares bytes, without regular expressions: a pattern from a page could
keep the event loop busy.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

from headrace.broker.stream import Stream
from headrace.errors import CorruptData
from headrace.monitor.message_browser import encode_message, find_subject_filter
from headrace.monitor.query import Query
from headrace.monitor.sliced_page import Slices

#: How long a request searches before it returns what it has found.
SEARCH_S = 0.030
FOUND_MAX = 25
TEXT_BYTES_MAX = 1024


async def search_messages(stream: Stream, query: Query) -> dict[str, Any]:
    """Search `text` in payloads and headers from `seq` (0: the newest) downwards; raise ValueError on a bad query.

    `next` in the result is where to continue, 0 if all was searched.
    """
    text = query.get("text", "").encode()
    if not text or len(text) > TEXT_BYTES_MAX:
        raise ValueError(f"text must have 1 to {TEXT_BYTES_MAX} bytes")
    ignores_case = query.get("case", "") != "1"
    text = text.lower() if ignores_case else text
    stream.retention.enforce()
    subject_filter, log = await find_subject_filter(stream, query), stream.log
    seq = min(int(query.get("seq", 0) or 0) or log.committed_seq, log.committed_seq)
    end_s, searched = perf_counter() + SEARCH_S, 0
    found: list[dict[str, Any]] = []
    with Slices() as slices:
        seq = log.find_prev(subject_filter, seq) if seq > 0 else 0
        while seq and len(found) < FOUND_MAX and perf_counter() < end_s:
            if _contains(stream, seq, text, ignores_case=ignores_case):
                found.append(encode_message(stream, seq))
            searched += 1
            seq = log.find_prev(subject_filter, seq - 1) if seq > 1 else 0
            if slices.is_over():
                await slices.next_turn()
    return {"messages": found, "searched": searched, "next": seq}


def _contains(stream: Stream, seq: int, text: bytes, *, ignores_case: bool) -> bool:
    try:
        message = stream.log.get(seq)
    except CorruptData:
        return False
    if message is None:
        return False
    _, subject, header, payload, _ = message
    if ignores_case:
        return text in payload.lower() or text in header.lower() or text in subject.lower()
    return text in payload or text in header or text in subject
