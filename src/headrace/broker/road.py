"""The way to an origin: whether anybody hears what is asked of it, and when that comes back.

Interest is all it looks at, so it serves origins in this server, behind a leafnode connection, and played ones alike.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.broker.router import Hub


class Road:
    """Calls `reopened` whenever requests on a subject are heard again after a time when they were not."""

    __slots__ = ("_hub", "_open", "_reopened", "_subject")

    def __init__(self, hub: Hub, reopened: Callable[[], None]) -> None:
        self._hub = hub
        self._reopened = reopened
        self._subject = b""
        self._open = True

    def watch(self, subject: bytes) -> None:
        """From now on."""
        self._subject = subject
        self._open = self._hub.interest(subject)
        self._hub.watch(subject, self._changed)

    def leave(self) -> None:
        """No more; no harm when it was never watched."""
        if self._subject:
            self._hub.unwatch(self._subject, self._changed)
            self._subject = b""

    def _changed(self, subject: bytes) -> None:
        was_open, self._open = self._open, self._hub.interest(subject)
        if self._open and not was_open:
            self._reopened()
