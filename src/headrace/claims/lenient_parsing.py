"""nats-py connections for collectors that tolerate subjects that are not UTF-8 and broken header blocks.

Servers store both. nats-py's read loop ends at the first such message, while the connection still reports that it is
connected but receives nothing more: one marker would stop a collector for good.
"""

from __future__ import annotations

from typing import Any

from nats.aio.client import Client


class CollectorClient(Client):
    """A client that receives subjects with replacement characters where they cannot be decoded, and no headers if the
    header block cannot be parsed.
    """

    async def _process_headers(self, headers: Any) -> Any:
        try:
            return await super()._process_headers(headers)
        except (IndexError, ValueError):
            return None

    def _build_message(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: Any) -> Any:
        try:
            return super()._build_message(sid, subject, reply, data, headers)
        except UnicodeDecodeError:
            readable = subject.decode(errors="replace").encode()
            return super()._build_message(sid, readable, reply, data, headers)


async def connect(servers: str | list[str], **options: Any) -> Client:
    """Connect as `nats.connect` does."""
    client = CollectorClient()
    await client.connect(servers, **options)
    return client
