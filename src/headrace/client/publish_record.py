"""A message on its way to a stream: validated, with its headers encoded, and the commands that send it.

Owns the syntax of the commands `PUB` and `HPUB`. Must not know batches, replies or connections.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import nats.errors

from headrace.client.codecs import EncodedPayload
from headrace.client.message_errors import InvalidSubject
from headrace.client.outgoing_message import MSG_ID, Message, normalize_headers

_SUBJECT_INVALID = re.compile(r"[\s\x00\ud800-\udfff]")
_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_LINE_BREAKS = str.maketrans({"\r": " ", "\n": " "})


class Record:
    """A message that was accepted and is not yet stored.

    `size` is that of headers and payload, `sent_s` when it was sent last, `refused_s` when no stream listened for it first,
    and `copies` how many copies the server may have got.
    """

    __slots__ = ("copies", "header", "headers", "payload", "refused_s", "sent_s", "size", "subject")

    def __init__(self, subject: str, payload: bytes, headers: Mapping[str, Any] | None) -> None:
        if not subject or _SUBJECT_INVALID.search(subject):
            raise InvalidSubject(subject)
        self.subject = subject
        self.payload = payload
        self.headers = normalize_headers(headers) if headers else None
        self.header = encode_header(self.headers) if self.headers else b""
        self.size = len(self.header) + len(payload)
        self.sent_s: float | None = None
        self.refused_s: float | None = None
        self.copies = 0

    def encode(self, reply: str) -> bytes:
        """Return the command that sends it, with a reply subject."""
        if self.header:
            sizes = f"{len(self.header)} {self.size}"
            return b"HPUB %b\r\n%b%b\r\n" % (
                f"{self.subject} {reply} {sizes}".encode(),
                self.header,
                self.payload,
            )
        return b"PUB %b\r\n%b\r\n" % (f"{self.subject} {reply} {self.size}".encode(), self.payload)

    def to_message(self) -> Message:
        """Return it as a message that can be published again, also by a publisher with a codec."""
        msg_id = (self.headers or {}).get(MSG_ID)
        return Message(self.subject, EncodedPayload(self.payload), self.headers, msg_id=msg_id)


def encode_header(headers: Mapping[str, Any]) -> bytes:
    """Return the header block of a message; raise `BadHeaderError` for a name that is not valid."""
    lines = ["NATS/1.0"]
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise nats.errors.BadHeaderError(name)
        lines.append(f"{name}: {str(value).strip().translate(_LINE_BREAKS)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()
