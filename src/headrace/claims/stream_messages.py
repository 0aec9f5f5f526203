"""Messages of a stream as the server sends them: by `STREAM.MSG.GET`, by direct gets, and the statuses between them.

Owns the conversion to `StreamMessage`. Must not know how they were requested.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from nats.aio.msg import Msg

from headrace.claims.clock import SECOND_NS, parse_rfc3339_ns

_LOG = logging.getLogger("headrace.claims")


@dataclass(frozen=True, slots=True)
class StreamMessage:
    """A message as stored in a stream."""

    subject: str
    seq: int
    headers: Mapping[str, str]
    data: bytes
    time: datetime | None = None

    @property
    def time_ns(self) -> int:
        """When it was stored."""
        if self.time is not None:
            return round(self.time.timestamp() * SECOND_NS)
        return parse_rfc3339_ns(self.headers["Nats-Time-Stamp"])


def get_status(message: Msg) -> str:
    """Return the status of a reply; "" if it is a message of a stream.

    A publisher may give its messages a header `Status`. Messages of a consumer have a reply subject for their acks, and
    those of a direct get the sequence that the server adds; statuses have neither.
    """
    headers = message.headers or {}
    return "" if message.reply or "Nats-Sequence" in headers else headers.get("Status", "")


def parse_stored(found: Mapping[str, Any]) -> StreamMessage:
    """Convert a message returned by `STREAM.MSG.GET`."""
    lines = base64.b64decode(found.get("hdrs") or "").decode(errors="replace").split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines if line)
    headers = {name.strip(): value.strip() for name, _, value in pairs}
    headers["Nats-Time-Stamp"] = found["time"]
    return StreamMessage(found["subject"], found["seq"], headers, base64.b64decode(found.get("data") or ""))


def is_readable(message: Msg) -> bool:
    """Return whether nats-py could parse the headers of a direct get's reply; if not, it drops all of them."""
    if message.headers and "Nats-Sequence" in message.headers:
        return True
    _LOG.warning("ignored a record with headers that are not UTF-8")
    return False


def parse_direct(message: Msg) -> StreamMessage:
    """Convert a message returned by a direct get."""
    headers = message.headers or {}
    return StreamMessage(headers["Nats-Subject"], int(headers["Nats-Sequence"]), headers, message.data)
