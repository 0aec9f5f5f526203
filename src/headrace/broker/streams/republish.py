"""Republishing: copies of stored messages, sent to other subjects once they are durable."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.routing.apply_transform import make_transform
from headrace.jetstream_api import times
from headrace.protocol import headers

if TYPE_CHECKING:
    from headrace.broker.commit.group_commit import GroupCommit
    from headrace.jetstream_api.configs import RePublish

#: Nothing is republished to subjects that start with one of these.
SERVER_PREFIXES = (b"$JS.", b"$SYS.")


class Republisher:
    """Republishes the messages of one stream."""

    __slots__ = ("_group_commit", "_headers_only", "_stream", "_transform")

    def __init__(self, stream: bytes, rule: RePublish, group_commit: GroupCommit) -> None:
        self._stream = stream
        self._transform = make_transform(rule.src, rule.dest)
        self._headers_only = rule.headers_only
        self._group_commit = group_commit

    def republish(
        self, subject: bytes, header: bytes, payload: bytes, seq: int, time_ns: int, previous_seq: int
    ) -> None:
        """Republish a stored message; `previous_seq` is the one before it on its subject."""
        target = self._transform(subject)
        # The functions of a transform can make any subject; a copy must never be a request to the server.
        if target is None or target.startswith(SERVER_PREFIXES):
            return
        fields = [
            (b"Nats-Stream", self._stream),
            (b"Nats-Subject", subject),
            (b"Nats-Sequence", b"%d" % seq),
            (b"Nats-Time-Stamp", times.format_time(time_ns).encode()),
            (b"Nats-Last-Sequence", b"%d" % previous_seq),
        ]
        if self._headers_only:
            fields.append((b"Nats-Msg-Size", b"%d" % len(payload)))
            payload = b""
        self._group_commit.reply_after_commit(target, b"", headers.append(header, fields), payload)
