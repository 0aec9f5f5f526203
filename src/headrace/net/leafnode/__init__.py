"""Leafnode connections on sockets: the listener, the dialer and the connection."""

__all__: list[str] = []
