"""Status messages of pull requests: what they mean for the requests that a client has open.

Owns the codes and texts of nats-server: 100 is a heartbeat, 404 and 408 end a request without a problem, 409 has many
meanings, 503 says that nobody listens for requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from nats.aio.msg import Msg

from headrace.client.errors import BadRequest, ConsumerNotFound, JetStreamError, MessageTooLarge

_STATUS, _DESCRIPTION, _MISSING = "Status", "Description", "Nats-Pending-Messages"
_HEARTBEAT, _NO_RESPONDERS, _BAD_REQUEST = "100", "503", "400"
_DELETED = "consumer deleted"
_TOO_LARGE = "message size exceeds maxbytes"
#: Beginnings of descriptions that say that the same request would be refused again.
_REFUSALS = ("exceeded maxrequest", "consumer is push based", "bad request")
#: Descriptions that say that the same request may be accepted later.
_BUSY = ("exceeded maxwaiting", "maximum pending")


class PullEnd(Enum):
    """What a status means for an open request."""

    NONE = auto()  # it stays open
    ENDED = auto()  # send another one
    RETRY = auto()  # send another one after a pause
    FATAL = auto()  # another one would fail, too
    TOO_LARGE = auto()  # the next message does not fit into what is left of `max_bytes`


@dataclass(frozen=True, slots=True)
class PullStatus:
    """One status message; `missing` is how many messages of the request will not come, None if it is not known."""

    code: str
    description: str
    end: PullEnd
    missing: int | None

    def make_error(self, stream: str, consumer: str) -> JetStreamError:
        """Return the error of a FATAL or TOO_LARGE status."""
        text = f"consumer {consumer!r} of stream {stream!r}: {self.description or self.code}"
        if self.end is PullEnd.TOO_LARGE:
            return MessageTooLarge.refuse(f"{text}; raise max_bytes")
        return (ConsumerNotFound if self.description.lower() == _DELETED else BadRequest).refuse(text)


def parse_status(message: Msg) -> PullStatus | None:
    """Return the status, or None for a message of the stream."""
    headers = message.headers
    if message.reply or not headers or _STATUS not in headers:
        return None
    code, description = headers[_STATUS], headers.get(_DESCRIPTION, "")
    missing = headers.get(_MISSING)
    return PullStatus(
        code, description, _find_end(code, description.lower()), int(missing) if missing else None
    )


def _find_end(code: str, text: str) -> PullEnd:
    if code == _HEARTBEAT:
        return PullEnd.NONE
    if text.startswith(_TOO_LARGE):
        return PullEnd.TOO_LARGE
    if code == _NO_RESPONDERS or text.startswith(_BUSY):
        return PullEnd.RETRY
    if code == _BAD_REQUEST or text == _DELETED or text.startswith(_REFUSALS):
        return PullEnd.FATAL
    return PullEnd.ENDED
