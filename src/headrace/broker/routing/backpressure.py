"""Backpressure by a receiving connection: senders pause while it is congested and resume when it is writable again."""

from __future__ import annotations

from collections.abc import Callable

from headrace._native import ClientState, RouteTable

#: How much output of a client may wait by default.
OUTPUT_BYTES_MAX = 2 * 1024 * 1024


class BackpressuredClient(ClientState):
    """A client that senders may have to wait for.

    `blocked`: its socket accepts no more output for now. `output_limit`: with more output than this, delivery to it waits.
    """

    __slots__ = ("blocked", "output_limit", "writable_callbacks")

    def __init__(self, table: RouteTable) -> None:
        super().__init__(table)
        self.blocked = False
        self.output_limit = OUTPUT_BYTES_MAX
        self.writable_callbacks: list[Callable[[], None]] = []

    def on_writable(self, call: Callable[[], None]) -> None:
        """Call once, when the pending output has been sent."""
        if call not in self.writable_callbacks:
            self.writable_callbacks.append(call)

    def notify_writable(self) -> None:
        """Call the waiting senders, beginning with another one each time: the pending output has been sent."""
        self.blocked = False
        callbacks, self.writable_callbacks = self.writable_callbacks, []
        for call in (*callbacks[1:], *callbacks[:1]):
            call()
