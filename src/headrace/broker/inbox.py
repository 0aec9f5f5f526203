"""Inboxes of the server itself: where the answer to one of its own requests is expected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.broker.advisories import nuid
from headrace.broker.router import Hub


class Inbox:
    """Where the answer to one request is expected."""

    __slots__ = ("_call", "_hub", "subject")

    def __init__(self, hub: Hub, call: Callable[[bytes, bytes], None]) -> None:
        self._hub, self._call = hub, call
        self.subject = f"$JSC.R.{nuid()[:8]}".encode()
        hub.subscribe_internal(self.subject, self)

    def offer(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        call = self._call
        self.close()
        call(header, payload)

    def close(self) -> None:
        """Expect nothing more; no harm when the answer came."""
        if self.subject:
            self._hub.unsubscribe_internal(self.subject, self)
            self.subject = b""
