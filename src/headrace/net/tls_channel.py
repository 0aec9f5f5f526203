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
    """One end of a TLS channel: `open` after the handshake, `ended` when the peer said goodbye."""

    __slots__ = ("_incoming", "_outgoing", "_tls", "established", "peer_closed")

    def __init__(self, context: ssl.SSLContext, host: str | None = None) -> None:
        """With the name of a host this is the end that dialled it; else the other."""
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=host is None, server_hostname=host
        )
        self.established = False
        self.peer_closed = False

    def receive(self, data: memoryview) -> list[bytes]:
        """Take what came from the peer; the plain text in it. Raises ssl.SSLError when it is no good TLS."""
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
        """The peer's certificate, if it showed one and it was verified."""
        return self._tls.getpeercert() or None

    def drain_outgoing(self) -> bytes:
        """What has to go to the peer for the channel's own sake: handshake, alerts, tickets."""
        return self._outgoing.read()

    def encrypt(self, plaintext: bytes | bytearray) -> bytes:
        """What to send so that the peer reads `plain`."""
        self._tls.write(plaintext)
        return self._outgoing.read()

    def close(self) -> bytes:
        """The farewell."""
        try:
            self._tls.unwrap()
        except ssl.SSLError:
            pass
        return self._outgoing.read()
