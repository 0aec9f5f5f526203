"""Leafnode sessions without sockets: handshake, interest and permissions between servers."""

__all__: list[str] = []
