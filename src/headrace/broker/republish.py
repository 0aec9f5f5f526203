"""Copies of what a stream stores, sent to other subjects once it is durable."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.api import times
from headrace.broker.mappings import mapping
from headrace.protocol import headers

if TYPE_CHECKING:
    from headrace.api.configs import RePublish
    from headrace.broker.ticks import Ticker


class Republisher:
    """The copies of one stream."""

    __slots__ = ("_mapping", "_only_headers", "_stream", "_ticker")

    def __init__(self, stream: bytes, rule: RePublish, ticker: Ticker) -> None:
        self._stream = stream
        self._mapping = mapping(rule.src, rule.dest)
        self._only_headers = rule.headers_only
        self._ticker = ticker

    def send(
        self, subject: bytes, header: bytes, payload: bytes, seq: int, time_ns: int, previous: int
    ) -> None:
        """A message was stored; `previous` is the one before it on its subject."""
        target = self._mapping(subject)
        if target is None:
            return
        fields = [
            (b"Nats-Stream", self._stream),
            (b"Nats-Subject", subject),
            (b"Nats-Sequence", b"%d" % seq),
            (b"Nats-Time-Stamp", times.text(time_ns).encode()),
            (b"Nats-Last-Sequence", b"%d" % previous),
        ]
        if self._only_headers:
            fields.append((b"Nats-Msg-Size", b"%d" % len(payload)))
            payload = b""
        self._ticker.hold(target, b"", headers.append(header, fields), payload)
