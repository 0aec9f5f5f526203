"""Reads a stream's backup from one server: the states of its consumers only, or all of it into another server.

The archive has the consumers first, so their states cost little even if the stream is large. Must not know moves.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import nats.errors

from headrace.client.errors import make_error
from headrace.errors import HeadraceError
from headrace.migrate.jetstream_server import JetStreamServer
from headrace.protocol.backup_archive import ArchiveReader

_CHUNK_BYTES = 128 * 1024
_CHUNK_TIMEOUT_S = 20.0
_SUBSCRIPTION_WAIT_S = 5.0
_PAUSE_S = 0.02
_ENTRY_MAX = 64 << 20
_CONSUMERS_PREFIX = b"consumers/"
_STATE_ENTRY = b"state.json"


class BackupFailed(HeadraceError):
    """A server stopped sending or receiving a backup."""


async def read_consumer_states(server: JetStreamServer, stream: str) -> dict[str, dict[str, Any]]:
    """Return the states of a stream's consumers by name, as they are in a backup."""
    found: dict[str, dict[str, Any]] = {}
    reader = ArchiveReader(_ENTRY_MAX)
    expected: int | None = None
    async with _start_backup(server, stream) as (_, chunks):
        async for chunk in chunks:
            reader.feed(chunk)
            while (expected is None or len(found) < expected) and (entry := reader.next()) is not None:
                if entry.name == _STATE_ENTRY:
                    expected = int(json.loads(entry.payload).get("consumer_count", 0))
                elif entry.name.startswith(_CONSUMERS_PREFIX):
                    name = entry.name.removeprefix(_CONSUMERS_PREFIX).decode()
                    found[name] = json.loads(entry.payload)["state"]
            if expected is not None and len(found) >= expected:
                break
    return found


async def copy_stream(old: JetStreamServer, new: JetStreamServer, config: dict[str, Any]) -> None:
    """Restore a stream with its consumers on the new server from a backup of the old one; no files are written."""
    stream = config["name"]
    async with _start_backup(old, stream) as (response, chunks):
        request = {"config": config, "state": response["state"]}
        subject = (await new.api(f"STREAM.RESTORE.{stream}", request, is_slow=True))["deliver_subject"]
        async for chunk in chunks:
            await _send_chunk(new, subject, chunk)
    await _send_chunk(new, subject, b"")


async def _send_chunk(server: JetStreamServer, subject: str, chunk: bytes) -> None:
    """Send a chunk, which the server must receive once: repeat it only if nobody received it.

    In a cluster another node restores the stream, and its subscription may be on its way to the node of the connection.
    """
    deadline_s = time.monotonic() + _SUBSCRIPTION_WAIT_S
    while True:
        try:
            reply = await server.connection.request(subject, chunk, timeout=_CHUNK_TIMEOUT_S * 3)
            break
        except nats.errors.NoRespondersError as error:
            if time.monotonic() > deadline_s:
                raise BackupFailed(f"{server.name} stopped receiving the backup") from error
            await asyncio.sleep(_PAUSE_S)
        except (nats.errors.Error, OSError) as error:
            raise BackupFailed(f"{server.name} stopped receiving the backup: {error}") from error
    if reply.data and (problem := json.loads(reply.data).get("error")):
        raise make_error(problem)


@asynccontextmanager
async def _start_backup(
    server: JetStreamServer, stream: str
) -> AsyncIterator[tuple[dict[str, Any], AsyncIterator[bytes]]]:
    """Start a backup; yield the response and the chunks. The server ends it when nobody listens any more."""
    inbox = server.connection.new_inbox()
    subscription = await server.connection.subscribe(inbox, pending_bytes_limit=-1)
    try:
        request = {"deliver_subject": inbox, "chunk_size": _CHUNK_BYTES}
        # A second request would send a second backup to the same subject.
        response = await server.api(f"STREAM.SNAPSHOT.{stream}", request, is_slow=True)
        yield response, _iter_chunks(server, subscription)
    finally:
        await subscription.unsubscribe()


async def _iter_chunks(server: JetStreamServer, subscription: Any) -> AsyncIterator[bytes]:
    """Yield the chunks and acknowledge each; an empty one is the last."""
    while True:
        try:
            message = await subscription.next_msg(timeout=_CHUNK_TIMEOUT_S)
        except nats.errors.TimeoutError as error:
            raise BackupFailed(f"{server.name} stopped sending the backup") from error
        status = (message.headers or {}).get("Status", "204")
        if status != "204":
            description = (message.headers or {}).get("Description", "")
            raise BackupFailed(f"{server.name} ended the backup: {status} {description}")
        if not message.data:
            return
        yield message.data
        if message.reply:
            await server.connection.publish(message.reply)
