"""Inboxes for the server's own requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.broker.routing.router import SubjectRouter
from headrace.protocol.nuid import nuid


class Inbox:
    """The reply subject of one request; calls `call` with the reply and closes itself."""

    __slots__ = ("_call", "_router", "subject")

    def __init__(self, router: SubjectRouter, call: Callable[[bytes, bytes], None]) -> None:
        self._router, self._call = router, call
        self.subject = f"$JSC.R.{nuid()[:8]}".encode()
        router.subscribe_internal(self.subject, self)

    def on_message(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        call = self._call
        self.close()
        call(header, payload)

    def close(self) -> None:
        """Unsubscribe; no effect if the reply has arrived."""
        if self.subject:
            self._router.unsubscribe_internal(self.subject, self)
            self.subject = b""
