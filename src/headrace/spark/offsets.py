"""Offsets: positions in a stream as stored in Spark's checkpoint.

Owns the format of an offset: everything needed to read the same range again, and to notice that it no longer exists.
Invariant: offsets contain sequences only; an offset names the next message to read, whether or not that sequence
exists.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

from headrace.errors import DataLoss, HeadraceError
from headrace.reader.fingerprint import Fingerprint
from headrace.reader.options import EARLIEST, LAST_PER_SUBJECT, LATEST, Bound, ReadOptions
from headrace.reader.stream_admin import StreamInfo

VERSION = 1
#: Field of an offset of which only the end is known: the first sequence of the stream when it was made.
FIRST_SEQ = "first"
#: Servers count nanoseconds in 64 bits; a later time (after 2262) would wrap around to an early one.
_MAX_TIME_NS = (1 << 63) - 1
_log = logging.getLogger("headrace.spark")


@dataclass(frozen=True)
class Offset:
    """The next sequence to read of one particular stream, and the pin that shows everything below it.

    A batch that starts at an offset with `last_per_subject_seq` has the last message of each subject up to that
    sequence. `start_seq` is the first sequence that the query could read of this stream; if a checkpoint does not have
    it, it is the position from which the query continues. `anchors` are messages of the stream, by which a copy of it is
    recognized.
    """

    stream: str
    identity: str
    next_seq: int
    pin: str = ""
    last_per_subject_seq: int = 0
    start_seq: int = 0
    anchors: tuple[Fingerprint, ...] = ()

    def to_json(self) -> dict[str, Any]:
        fields = {
            "v": VERSION,
            "stream": self.stream,
            "identity": self.identity,
            "next_seq": self.next_seq,
        }
        optional_fields = {
            "pin": self.pin,
            "newest": self.last_per_subject_seq,
            "began": self.start_seq,
            "anchors": [str(each) for each in self.anchors],
        }
        return {**fields, **{name: value for name, value in optional_fields.items() if value}}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Offset:
        if "streams" in value:
            raise HeadraceError(
                f"the checkpoint belongs to a query of several streams ({', '.join(value['streams'])}); use another "
                "checkpointLocation"
            )
        if value.get("v") != VERSION:
            raise HeadraceError(
                f"the checkpoint has an offset in another format: {value}; use the version that wrote it, "
                "or a new checkpointLocation"
            )
        return cls(
            value["stream"],
            value["identity"],
            int(value["next_seq"]),
            value.get("pin", ""),
            int(value.get("newest", 0)),
            int(value.get("began", value["next_seq"])),
            tuple(Fingerprint.parse(text) for text in value.get("anchors", ())),
        )

    def with_next_seq(self, next_seq: int, pin: str = "") -> Offset:
        return replace(self, next_seq=next_seq, pin=pin, last_per_subject_seq=0)


def restore_initial_offset(start: Offset, end: Offset) -> Offset:
    """Return where the first batch of a query starts that was planned up to `end` and is repeated after a restart.

    Spark does not log the start of the first batch: it asks for the initial offset again, which by now is a later one.
    """
    if start.identity != end.identity:
        return start
    if end.start_seq < start.start_seq:
        return replace(start, next_seq=end.start_seq, start_seq=end.start_seq)
    if start.last_per_subject_seq >= end.next_seq:
        return replace(start, next_seq=end.next_seq, last_per_subject_seq=end.next_seq - 1)
    return start


def make_offset(stream_info: StreamInfo, next_seq: int) -> Offset:
    """Make an offset in the stream as it is now."""
    return Offset(stream_info.name, stream_info.identity, next_seq)


def resolve_bound(bound: Bound, stream_info: StreamInfo, find_seq_at_time: Any) -> int:
    """Return the sequence that a bound means: the first to read, or the first not to read."""
    if bound == EARLIEST:
        return stream_info.first_seq
    if bound in (LATEST, LAST_PER_SUBJECT):
        return stream_info.next_seq
    if bound.time_ns:
        return find_seq_at_time(min(max(bound.time_ns, 0), _MAX_TIME_NS)) or stream_info.next_seq
    return max(bound.seq, 1)


def start_after_loss(start: Offset, stream_info: StreamInfo, options: ReadOptions) -> Offset:
    """Return where reading continues: at `start`, or after lost messages if that is acceptable. Raises DataLoss."""
    if start.identity != stream_info.identity:
        report_loss(
            options,
            f"stream {stream_info.name!r} is not the one in the checkpoint: it was deleted and created again, or it "
            "is a copy that lacks the messages by which the checkpoint recognizes it, such as a mirror that lags. "
            f"Messages of the old stream from sequence {start.next_seq} on are lost",
        )
        return make_first_offset(stream_info)
    if start.next_seq > stream_info.next_seq:
        report_loss(
            options,
            f"stream {stream_info.name!r} ends at sequence {stream_info.next_seq - 1}, but the query has read up to "
            f"{start.next_seq - 1}: the server lost its newest messages",
        )
        return replace(start.with_next_seq(stream_info.next_seq), anchors=())
    if start.next_seq < stream_info.first_seq and stream_info.retention == "limits":
        report_loss(
            options,
            f"stream {stream_info.name!r} starts at sequence {stream_info.first_seq}: sequences {start.next_seq} to "
            f"{stream_info.first_seq - 1} ({stream_info.first_seq - start.next_seq} in total) were removed before they "
            "were read",
        )
        return start.with_next_seq(stream_info.first_seq)
    return start


def end_after_loss(end: Offset, stream_info: StreamInfo, options: ReadOptions) -> Offset:
    """Return where a batch that was planned earlier can end now. Raises DataLoss."""
    if end.identity != stream_info.identity:
        # Its start is of the former stream too, so the loss was already reported.
        return make_first_offset(stream_info)
    if end.next_seq > stream_info.next_seq:
        return start_after_loss(end, stream_info, options)
    return end


def make_first_offset(stream_info: StreamInfo) -> Offset:
    """Make the offset of the first message of the stream."""
    return replace(make_offset(stream_info, stream_info.first_seq), start_seq=stream_info.first_seq)


def report_loss(options: ReadOptions, message: str) -> None:
    """Raise DataLoss, or log the loss if the query accepts it."""
    if options.fail_on_data_loss:
        raise DataLoss(f"{message}. To continue without them, set option failOnDataLoss=false")
    _log.warning("%s; continuing, because failOnDataLoss is false", message)
