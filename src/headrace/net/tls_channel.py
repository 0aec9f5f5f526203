"""TLS without I/O, on a socket that may have carried plain bytes before: bytes in, bytes out.

Owns the handshake and the records of one connection. The connection decides when it begins, so INFO can be sent in plain
text before it, or encrypted after it.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

READ_CHUNK_BYTES = 256 * 1024


class TlsChannel:
    """One end of a TLS channel; `established` after the handshake, `peer_closed` when the peer closed it."""

    __slots__ = ("_incoming", "_outgoing", "_tls", "established", "peer_closed")

    def __init__(self, context: ssl.SSLContext, host: str | None = None) -> None:
        """With the name of a host this is the client side, otherwise the server side."""
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=host is None, server_hostname=host
        )
        self.established = False
        self.peer_closed = False

    def receive(self, data: memoryview) -> list[bytes]:
        """Process bytes from the peer and return the plain text in them; raise ssl.SSLError if they are not valid TLS."""
        self._incoming.write(data)
        plaintext: list[bytes] = []
        try:
            if not self.established:
                self._tls.do_handshake()
                self.established = True
            while chunk := self._tls.read(READ_CHUNK_BYTES):
                plaintext.append(chunk)
            self.peer_closed = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.peer_closed = True
        return plaintext

    def get_peer_certificate(self) -> Mapping[str, Any] | None:
        """Return the peer's certificate, if it presented one and it was verified."""
        return self._tls.getpeercert() or None

    def drain_outgoing(self) -> bytes:
        """Return bytes to send for TLS itself: handshake, alerts, tickets."""
        return self._outgoing.read()

    def encrypt(self, plaintext: bytes | bytearray) -> bytes:
        """Encrypt plain text and return the bytes to send."""
        self._tls.write(plaintext)
        return self._outgoing.read()

    def close(self) -> bytes:
        """Close the channel and return the closing alert to send."""
        try:
            self._tls.unwrap()
        except ssl.SSLError:
            pass
        return self._outgoing.read()
