"""Replies to published messages.

Owns the distinction between errors of a message and those of the moment: a restart, an election of a leader, a move of
the stream to another server.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from nats.aio.msg import Msg

from headrace.client.errors import JetStreamError, NoStream, make_error

_NO_RESPONDERS = "503"
#: JetStream temporarily unavailable, not enabled (yet) for the account, not enabled (yet); and a message with the same id
#: that a cluster is still replicating: a moment later the reply is that of a duplicate.
_TEMPORARY_ERR_CODES = {10008, 10039, 10076, 10158}


@dataclass(frozen=True, slots=True)
class PublishReply:
    """One reply: its JSON object, and its error if it has one."""

    body: dict[str, Any]
    error: JetStreamError | NoStream | None

    @property
    def err_code(self) -> int:
        return (self.error.err_code or 0) if isinstance(self.error, JetStreamError) else 0

    @property
    def is_temporary(self) -> bool:
        """Whether the same message may be stored a moment later."""
        return is_temporary(self.error)


def is_temporary(error: Exception | None) -> bool:
    if isinstance(error, JetStreamError):
        return error.err_code in _TEMPORARY_ERR_CODES
    return isinstance(error, NoStream)


def parse_reply(message: Msg, subject: str) -> PublishReply:
    """Parse the reply to a message that was published on `subject`."""
    if message.headers and message.headers.get("Status") == _NO_RESPONDERS:
        return PublishReply({}, NoStream(subject))
    body: dict[str, Any] = msgspec.json.decode(message.data)
    error = body.get("error")
    return PublishReply(body, make_error(error) if error else None)
