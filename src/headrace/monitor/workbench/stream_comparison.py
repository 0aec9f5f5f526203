"""Compares two streams: configuration, figures, and their subjects with the number of messages and the newest one.

The comparison is made in slices and its result is limited. It does not read all messages: two streams with equal counts
and equal newest messages of all subjects count as equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from headrace.broker.stream import Stream
from headrace.broker.streams.stream_info import make_stream_info
from headrace.errors import CorruptData
from headrace.monitor.sliced_page import PAUSE, Slices

DIFFERENCES_MAX = 200
#: Subjects of the first stream that are compared; the result says if there are more.
SUBJECTS_MAX = 200_000


async def compare_streams(left: Stream, right: Stream) -> dict[str, Any]:
    """Return what is different: configuration, figures and subjects."""
    left_info, right_info = _read_info(left), _read_info(right)
    compared = 0
    found: list[dict[str, Any]] = []
    count = 0
    with Slices() as slices:
        for subject in _iter_all_subjects(left, right):
            if isinstance(subject, bytes):
                compared += 1
                if (difference := _compare_subject(left, right, subject)) is not None:
                    count += 1
                    if len(found) < DIFFERENCES_MAX:
                        found.append(difference)
                if compared == SUBJECTS_MAX:
                    break
            if slices.is_over():
                await slices.next_turn()
    return {
        "config": _compare_values(left_info["config"], right_info["config"]),
        "state": _compare_values(left_info["state"], right_info["state"]),
        "subjects": found,
        "different_subjects": count,
        "compared_subjects": compared,
        "is_complete": compared < SUBJECTS_MAX,
    }


def _read_info(stream: Stream) -> dict[str, Any]:
    """Return the info of a stream as plain values."""
    info: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(make_stream_info(stream, in_list=True)))
    return info


def _compare_values(left: dict[str, Any], right: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"name": name, "left": left.get(name), "right": right.get(name)}
        for name in sorted({*left, *right})
        if left.get(name) != right.get(name)
    ]


def _iter_all_subjects(left: Stream, right: Stream) -> Iterator[bytes | object]:
    """Iterate over the subjects of both streams, each once; yield PAUSE in place of those to skip."""
    for stream, other in ((left, None), (right, left)):
        log = stream.log
        for sid in range(len(log.subject_index)):
            if sid >= len(log.subject_index) or not int(log.subject_index.counts[sid]):
                yield PAUSE
                continue
            subject = log.subject_index.name(sid)
            is_new = other is None or not other.log.get_subject_count(subject)
            yield subject if is_new else PAUSE


def _compare_subject(left: Stream, right: Stream, subject: bytes) -> dict[str, Any] | None:
    counts = left.log.get_subject_count(subject), right.log.get_subject_count(subject)
    seqs = left.log.get_last_seq(subject), right.log.get_last_seq(subject)
    contents = _read_content(left, seqs[0]), _read_content(right, seqs[1])
    if counts[0] == counts[1] and contents[0] == contents[1]:
        return None
    return {
        "subject": subject.decode(errors="replace"),
        "left": counts[0],
        "right": counts[1],
        "left_seq": seqs[0],
        "right_seq": seqs[1],
        "newest_differs": contents[0] != contents[1],
    }


def _read_content(stream: Stream, seq: int) -> bytes | None:
    try:
        message = stream.log.get(seq) if seq else None
    except CorruptData:
        return None
    return message[3] if message is not None else None
