"""What a session has instead of its connection when that is closed.

A session may outlive its connection, for example in the advisory about its last request. Owns the client's address only.
Invariant: it does not refer to the connection, so that closed connections are freed without the garbage collector.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


class ClosedTransport:
    """The transport of a session whose client is gone."""

    __slots__ = ("client_ip", "client_port", "now_ns")

    def __init__(self, client_ip: str, client_port: int, now_ns: Callable[[], int]) -> None:
        self.client_ip = client_ip
        self.client_port = client_port
        self.now_ns = now_ns

    def authenticate(self, fields: Mapping[str, Any]) -> None:
        return None

    def on_connected(self) -> None:
        pass

    def info(self) -> bytes:
        return b""

    def flush(self) -> None:
        pass

    def abort(self) -> None:
        pass
