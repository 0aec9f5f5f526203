"""Notifies several listeners of the state of one nats-py connection, besides the callbacks of its user.

nats-py has one callback per event. They are wrapped once per connection; the user's own callback is still called.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from nats.aio.client import Client as NATS


class ConnectionListener(Protocol):
    """What a listener is called for."""

    def on_disconnect(self) -> None: ...

    def on_reconnect(self) -> None: ...

    def on_close(self) -> None: ...


#: Attributes of nats-py's client that contain its callbacks, and the method of listeners for each.
_CALLBACKS = {
    "_disconnected_cb": "on_disconnect",
    "_reconnected_cb": "on_reconnect",
    "_closed_cb": "on_close",
}
_listeners: WeakKeyDictionary[NATS, list[ConnectionListener]] = WeakKeyDictionary()


def add_listener(connection: NATS, listener: ConnectionListener) -> None:
    if connection not in _listeners:
        _listeners[connection] = []
        for attribute, method in _CALLBACKS.items():
            callback = getattr(connection, attribute, None)
            setattr(connection, attribute, _make_callback(_listeners[connection], method, callback))
    _listeners[connection].append(listener)


def remove_listener(connection: NATS, listener: ConnectionListener) -> None:
    if listener in _listeners.get(connection, ()):
        _listeners[connection].remove(listener)


def _make_callback(
    listeners: list[ConnectionListener], method: str, callback: Callable[[], Awaitable[Any]] | None
) -> Callable[[], Awaitable[None]]:
    async def notify() -> None:
        for listener in list(listeners):
            getattr(listener, method)()
        if callback is not None:
            await callback()

    return notify
