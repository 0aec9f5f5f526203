"""Leafnode sessions without sockets: interest, permissions and fan-out between servers."""
