"""Notifies several listeners of the state of one nats-py connection, besides the callbacks of its user.

nats-py has one callback per event. They are wrapped, again after each `connect()` of the client; the user's own callback is
still called.
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
    listeners = _listeners.setdefault(connection, [])
    for attribute, method in _CALLBACKS.items():
        callback = getattr(connection, attribute, None)
        if not isinstance(
            callback, _Notifier
        ):  # the first time, and after another connect() of the same client
            setattr(connection, attribute, _Notifier(listeners, method, callback))
    listeners.append(listener)


def remove_listener(connection: NATS, listener: ConnectionListener) -> None:
    if listener in _listeners.get(connection, ()):
        _listeners[connection].remove(listener)


class _Notifier:
    """A callback that notifies the listeners, then calls the callback of the user."""

    def __init__(
        self, listeners: list[ConnectionListener], method: str, callback: Callable[[], Awaitable[Any]] | None
    ) -> None:
        self._listeners = listeners
        self._method = method
        self._callback = callback

    async def __call__(self) -> None:
        for listener in list(self._listeners):
            getattr(listener, self._method)()
        if self._callback is not None:
            await self._callback()
