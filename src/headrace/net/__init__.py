"""Sockets and their surroundings: listeners, connections, TLS, timers, reload, logs."""

__all__: list[str] = []
