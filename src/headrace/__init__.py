"""Headrace: durable streams that speak NATS/JetStream and feed Apache Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.reader import read, read_kv
    from headrace.server import Server

__all__ = ["API_LEVEL", "COMPATIBLE_VERSION", "Server", "__version__", "read", "read_kv"]

__version__ = "0.1.0"

#: The nats-server release whose behaviour clients may rely on; they gate features on it.
COMPATIBLE_VERSION = "2.15.1"
#: The JetStream API level served.
API_LEVEL = 5


def __getattr__(name: str) -> Any:
    # Imported on first use: `import headrace` is part of every start, of a server as of a client.
    if name == "Server":
        from headrace.server import Server

        return Server
    if name in ("read", "read_kv"):
        from headrace import reader

        return getattr(reader, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
