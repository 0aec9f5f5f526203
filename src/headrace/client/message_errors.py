"""Errors of single messages that are found by the client: one that cannot be sent, was not stored, or cannot be decoded.

Part of `errors`, where programs find them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import nats.errors

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.client.outgoing_message import Message


class InvalidSubject(HeadraceError, nats.errors.BadSubjectError):
    """Nothing can be published on this subject."""

    def __str__(self) -> str:
        return f"{self.args[0]!r} is not a subject to publish on: it is empty, has white space or is not valid Unicode"


class FailedMessage(NamedTuple):
    """A message that was not stored, and why. After `NoAnswer` or a closed connection it may be stored."""

    message: Message
    error: Exception


class MessagesNotStored(HeadraceError):
    """Messages of a publisher were not stored: `failures` has each with its error."""

    def __init__(self, failures: tuple[FailedMessage, ...]) -> None:
        super().__init__(failures)
        self.failures = failures

    def __str__(self) -> str:
        first = self.failures[0]
        count = "1 message was" if len(self.failures) == 1 else f"{len(self.failures):,} messages were"
        return f"{count} not stored; the first on {first.message.subject!r}: {describe(first.error)}"


class DecodeFailed(HeadraceError, ValueError):
    """The payload of a message, or the value of a key, is not what the codec expects."""

    def __init__(self, source: str, reason: str, data: bytes) -> None:
        super().__init__(source, reason, data)
        self.source = source
        self.reason = reason
        self.data = data

    def __str__(self) -> str:
        shown = f"{self.data[:60]!r}{'...' if len(self.data) > 60 else ''}"
        return f"{self.source} does not decode: {self.reason}; it is {shown}"


def describe(error: Exception) -> str:
    """Return the text of an error; its name if it has none."""
    return str(error) or type(error).__name__
