"""Decides whether a stream is the one that an offset of a checkpoint belongs to.

The creation time identifies a stream, but a mirror or a restored stream has another one: then its content decides, by the
fingerprints of messages that offsets carry. Owns these fingerprints and the decision, which it makes once per stream and
process. Invariants: a stream that was deleted and created again is never taken for the old one, because its messages have
other times; nor is a copy that lacked messages when it went on with others, because the fingerprints reach up to the last
message that was read. Fingerprints are optional: a user who may not read single messages gets offsets without them.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace

from headrace.errors import HeadraceError
from headrace.reader.fingerprint import Fingerprint, has_same_content, take_fingerprints
from headrace.reader.read_source import ReadSource
from headrace.reader.stream_admin import StreamError, StreamInfo
from headrace.spark.offsets import Offset

_log = logging.getLogger("headrace.spark")
#: Minimum time between two requests for the first message of the stream.
_UPDATE_S = 10.0
#: How many decisions are kept: offsets of older batches are not compared again.
_DECISIONS_MAX = 8
_Anchors = tuple[Fingerprint, ...]


class IdentityChecker:
    """Recognises the stream of one reader, and gives its offsets fingerprints."""

    def __init__(self, source: ReadSource) -> None:
        self._source = source
        self._decisions: dict[tuple[str, _Anchors], bool | None] = {}
        self._first_anchor: _Anchors = ()
        self._anchored_identity = ""
        self._updated_s = 0.0
        self._may_read_messages = True

    def recognize(self, offset: Offset, stream_info: StreamInfo) -> Offset:
        """Return the offset with the identity of the stream as it is now, if it is the same stream.

        Otherwise the identities of the two differ. Raises HeadraceError if a stream of another name is not the same.
        """
        is_same = self._compare_content(offset, stream_info)
        is_copy = (offset.stream, offset.identity) != (stream_info.name, stream_info.identity)
        if is_copy and is_same and max(each.seq for each in offset.anchors) < offset.next_seq - 1:
            # Between the last anchor and the position the copy may have other messages.
            is_same = False
        if offset.stream != stream_info.name and not is_same:
            raise HeadraceError(
                f"the checkpoint belongs to stream {offset.stream!r}, but the query reads {stream_info.name!r}, which is "
                "no copy of it with the same sequences; use another checkpointLocation"
            )
        if is_same:
            return replace(offset, stream=stream_info.name, identity=stream_info.identity)
        if is_same is False:
            return replace(offset, identity="")
        return offset

    def _compare_content(self, offset: Offset, stream_info: StreamInfo) -> bool | None:
        key = (f"{stream_info.name} {stream_info.identity}", offset.anchors)
        if key not in self._decisions:
            try:
                is_same = has_same_content(offset.anchors, self._source.find_message)
            except StreamError as error:
                self._on_refused(error)
                is_same = None
            self._remember(stream_info, offset.anchors, is_same)
        return self._decisions[key]

    def _remember(self, stream_info: StreamInfo, anchors: _Anchors, is_same: bool | None) -> None:
        while len(self._decisions) >= _DECISIONS_MAX:
            del self._decisions[next(iter(self._decisions))]
        self._decisions[(f"{stream_info.name} {stream_info.identity}", anchors)] = is_same

    def add_anchors(self, offset: Offset, stream_info: StreamInfo) -> Offset:
        """Return the offset with the fingerprints of two messages: the first of the stream and the last that is read.

        The last one is there longer if a limit removes old messages, the first one if new messages of a subject replace
        older ones. The last one costs a request for each batch.
        """
        is_position_in_stream = offset.identity == stream_info.identity
        if not (self._may_read_messages and stream_info.messages and is_position_in_stream):
            return offset
        try:
            anchors = self._take_anchors(offset, stream_info)
        except StreamError as error:
            self._on_refused(error)
            return offset
        # What was just read need not be compared with itself.
        self._remember(stream_info, anchors, True)
        return replace(offset, anchors=anchors) if anchors else offset

    def reset(self) -> None:
        """Forget all decisions: the stream was replaced, or lost messages at its end."""
        self._decisions.clear()
        self._first_anchor = ()

    def _take_anchors(self, offset: Offset, stream_info: StreamInfo) -> _Anchors:
        has_first = bool(self._first_anchor) and self._anchored_identity == stream_info.identity
        is_recent = has_first and time.monotonic() - self._updated_s < _UPDATE_S
        last_seq = max(offset.next_seq - 1, stream_info.first_seq)
        seqs = (last_seq,) if is_recent else (stream_info.first_seq, last_seq)
        found = take_fingerprints(self._source.find_message, seqs)
        if not is_recent:
            self._first_anchor = found[:1]
            self._anchored_identity, self._updated_s = stream_info.identity, time.monotonic()
        return tuple(dict.fromkeys((*self._first_anchor, *found)))

    def _on_refused(self, error: StreamError) -> None:
        if self._may_read_messages:
            _log.warning("the checkpoint will not be valid for a copy of the stream: %s", error)
        self._may_read_messages = False
