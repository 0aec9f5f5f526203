"""Leafnode sessions without sockets: handshake, interest and permissions between servers."""
