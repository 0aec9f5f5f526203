"""An archive in two streams of a NATS cluster: the groups in one, all other objects in the other.

Owns how objects become messages. Invariants: group n is the message with sequence n of the log stream, stored only if
n - 1 is its last one, so no number is used twice, also not after it was removed; an object exists when its head message is
stored, only if there was none, and that names parts which are stored already. Every read that decides asks the leader of the
stream. Must not know what objects contain. See ADR 93.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec

from headrace.archive.nats_streams import REPLICAS, NatsStreams
from headrace.claims.jetstream_client import WRONG_LAST_SEQUENCE
from headrace.claims.stores import (
    Attributes,
    Chunk,
    MultipartUpload,
    ObjectAlreadyExists,
    ObjectInfo,
    ObjectMissing,
    ObjectStoreError,
)
from headrace.claims.stream_messages import StreamMessage
from headrace.errors import ArchiveError, ClaimError, RequestError

#: Objects up to this size are in their head message.
INLINE_BYTES = 4096
#: Room for the headers of a message.
OVERHEAD_BYTES = 1024
#: Requests at the same time.
CONCURRENCY = 8
_PAGE_SIZE = 1000

Result = TypeVar("Result")

_LOG_KEY = re.compile(r"([0-9a-f]{16})/log/([0-9a-f]{16})")


class _Head(msgspec.Struct, frozen=True, array_like=True):
    """The message that makes an object exist: its bytes, or where its parts are."""

    size: int
    data: bytes = b""
    upload: str = ""
    parts: int = 0


class NatsObjects:
    """The bucket of an archive at `nats://HOST,.../STREAM`; implements `ObjectStore`."""

    lifecycle = None

    def __init__(self, streams: NatsStreams) -> None:
        self._streams = streams
        self.bucket = streams.log

    @property
    def object_bytes_max(self) -> int:
        """The largest group; other objects may have any size."""
        return self._streams.max_payload - OVERHEAD_BYTES

    @property
    def warning(self) -> str:
        """What an operator should know about the streams."""
        if self._streams.replicas >= REPLICAS:
            return ""
        return f"stream {self.bucket} has one replica, because the NATS server is not a cluster"

    async def ensure_bucket(self) -> None:
        """Connect, create the streams if they are missing, and refuse those that cannot be used."""
        await self._streams.prepare()

    async def bucket_exists(self) -> bool:
        return await self._streams.exist()

    async def delete_bucket(self) -> None:
        raise ArchiveError(f"remove the streams {self._streams.log} and {self._streams.objects} yourself")

    # Writing

    async def put(self, key: str, data: Chunk, attributes: Attributes, *, replace: bool = False) -> None:
        await self._streams.connect()
        number = _parse_log_key(key)
        if number is None:
            await self._put_object(key, bytes(data), replace)
            return
        if len(data) > self.object_bytes_max:
            raise ArchiveError(
                f"a group has {len(data)} bytes, more than max_payload of the NATS server allows: raise max_payload"
            )
        server, n = number
        expected = {"Nats-Expected-Last-Sequence": str(n - 1)}
        try:
            await self._publish(self._streams.log_subject(server), bytes(data), expected, key)
        except ObjectAlreadyExists:
            last = await self._find_last_group()
            if last is not None:
                self._check_server(server, last.subject)
            raise

    async def _put_object(self, key: str, data: bytes, replace: bool) -> None:
        head = _Head(len(data), data)
        if len(data) > INLINE_BYTES:
            upload, size = secrets.token_hex(8), self.object_bytes_max
            parts = [data[start : start + size] for start in range(0, len(data), size)]
            for start in range(0, len(parts), CONCURRENCY):
                await asyncio.gather(
                    *(
                        self._publish(self._streams.part_subject(upload, start + number), part, {}, key)
                        for number, part in enumerate(parts[start : start + CONCURRENCY])
                    )
                )
            head = _Head(len(data), b"", upload, len(parts))
        before = await self._find_head(key) if replace else None
        expected = {} if replace else {"Nats-Expected-Last-Subject-Sequence": "0"}
        body = msgspec.msgpack.encode(head)
        await self._publish(self._streams.object_subject(key), body, expected, key)
        if before is not None and before[0].upload:
            await self._remove_parts(before[0].upload)

    async def _publish(self, subject: str, data: bytes, headers: dict[str, str], key: str) -> None:
        """Store a message; raise ObjectAlreadyExists if the expectation fails."""
        try:
            await self._streams.client.publish(subject, data, headers)
        except RequestError as error:
            if error.err_code in WRONG_LAST_SEQUENCE:
                raise ObjectAlreadyExists(f"object {key!r} exists already") from error
            raise ObjectStoreError(f"{key} cannot be stored: {error}") from error
        except ClaimError as error:
            raise ObjectStoreError(str(error)) from error

    async def get_version(self, key: str) -> tuple[bytes, str]:
        """Return a small object and the sequence of its message; implements `VersionedStore`."""
        await self._streams.connect()
        found = await self._find_head(key)
        if found is None:
            raise _make_missing(key)
        return found[0].data, str(found[1].seq)

    async def put_version(self, key: str, data: Chunk, version: str) -> None:
        """Replace a small object of this version."""
        await self._streams.connect()
        body = msgspec.msgpack.encode(_Head(len(data), bytes(data)))
        expected = {"Nats-Expected-Last-Subject-Sequence": version}
        await self._publish(self._streams.object_subject(key), body, expected, key)

    async def put_stream(self, key: str, chunks: AsyncIterator[Chunk], attributes: Attributes) -> None:
        await self.put(key, b"".join([bytes(chunk) async for chunk in chunks]), attributes, replace=True)

    # Reading

    async def get(self, key: str) -> AsyncIterator[Chunk]:
        data = await self._read(key)

        async def iter_chunks() -> AsyncIterator[Chunk]:
            yield data

        return iter_chunks()

    async def _read(self, key: str) -> bytes:
        await self._streams.connect()
        number = _parse_log_key(key)
        if number is not None:
            return await self._read_group(key, *number)
        found = await self._find_head(key)
        if found is None:
            raise _make_missing(key)
        head = found[0]
        if not head.upload:
            return head.data
        parts: list[bytes] = []
        for start in range(0, head.parts, CONCURRENCY):
            some = range(start, min(start + CONCURRENCY, head.parts))
            parts += await asyncio.gather(*(self._read_part(head.upload, each) for each in some))
        return b"".join(parts)

    async def _read_group(self, key: str, server: str, number: int) -> bytes:
        message = await self._call_leader(lambda: self._streams.client.get_message(self._streams.log, number))
        if message is None:
            raise _make_missing(key)
        self._check_server(server, message["subject"])
        return b64decode(message.get("data") or "")

    async def _find_last_group(self) -> StreamMessage | None:
        subject = self._streams.log_subject("*")
        return await self._call_leader(lambda: self._streams.client.get_last(self._streams.log, subject))

    def _check_server(self, server: str, subject: str) -> None:
        """Raise ArchiveError if a group belongs to another server."""
        if subject != self._streams.log_subject(server):
            raise ArchiveError(
                f"stream {self._streams.log} has the archive of server {subject.rpartition('.')[2]}, not of {server}: "
                "use another stream for each server"
            )

    async def _read_part(self, upload: str, number: int) -> bytes:
        subject = self._streams.part_subject(upload, number)
        message = await self._call_leader(
            lambda: self._streams.client.get_last(self._streams.objects, subject)
        )
        if message is None:
            raise ObjectMissing(f"a part of an object is missing: {subject}")
        return message.data

    async def _find_head(self, key: str) -> tuple[_Head, StreamMessage] | None:
        subject = self._streams.object_subject(key)
        message = await self._call_leader(
            lambda: self._streams.client.get_last(self._streams.objects, subject)
        )
        return None if message is None else (_decode_head(message), message)

    async def _call_leader(self, request: Callable[[], Awaitable[Result]]) -> Result:
        """Send a request to a stream's leader; its errors become those of an object store."""
        try:
            return await request()
        except ClaimError as error:
            raise ObjectStoreError(str(error)) from error

    async def head(self, key: str) -> ObjectInfo:
        await self._streams.connect()
        found = await self._find_head(key)
        if found is None:
            raise _make_missing(key)
        return ObjectInfo(key, found[0].size, found[1].time_ns)

    async def exists(self, key: str) -> bool:
        try:
            if _parse_log_key(key) is not None:
                await self._read(key)
            else:
                await self.head(key)
            return True
        except ObjectMissing:
            return False

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        await self._streams.connect()
        subject = self._streams.object_subject(prefix)
        messages = await self._call_leader(
            lambda: self._streams.client.get_all(self._streams.objects, subject)
        )
        found = sorted(
            (self._streams.parse_object_subject(each.subject), _decode_head(each).size, each.time_ns)
            for each in messages
        )
        infos = [ObjectInfo(*each) for each in found if each[0] > start_after]
        for start in range(0, len(infos), _PAGE_SIZE):
            yield infos[start : start + _PAGE_SIZE]

    async def prefixes(self, prefix: str) -> Sequence[str]:
        """Return the folder of the server: a log has the groups of one."""
        await self._streams.connect()
        last = await self._find_last_group()
        return [] if prefix or last is None else [f"{last.subject.rpartition('.')[2]}/"]

    # Removing

    async def delete(self, keys: Sequence[str]) -> None:
        await self._streams.connect()
        numbers = [number[1] for key in keys if (number := _parse_log_key(key)) is not None]
        if numbers:  # groups are removed from the first one on
            await self._purge(self._streams.log, {"seq": max(numbers) + 1})
        others = [key for key in keys if _parse_log_key(key) is None]
        for start in range(0, len(others), CONCURRENCY):
            await asyncio.gather(*map(self._delete_object, others[start : start + CONCURRENCY]))

    async def _delete_object(self, key: str) -> None:
        found = await self._find_head(key)
        if found is not None:
            await self._purge(self._streams.objects, {"filter": self._streams.object_subject(key)})
            if found[0].upload:
                await self._remove_parts(found[0].upload)

    async def _remove_parts(self, upload: str) -> None:
        await self._purge(self._streams.objects, {"filter": self._streams.part_subject(upload, "*")})

    async def _purge(self, stream: str, body: dict[str, object]) -> None:
        await self._call_leader(lambda: self._streams.client.api_request(f"STREAM.PURGE.{stream}", body))

    async def uploads(self) -> Sequence[MultipartUpload]:
        """List the uploads that no object names: those that are under way, and interrupted ones."""
        await self._streams.connect()
        client, streams = self._streams.client, self._streams
        first = streams.part_subject("*", 0)
        parts = await self._call_leader(lambda: client.get_all(streams.objects, first))
        heads = await self._call_leader(lambda: client.get_all(streams.objects, streams.object_subject("")))
        named = {_decode_head(each).upload for each in heads}
        found = [(each.subject.split(".")[-2], each.time_ns) for each in parts]
        return [MultipartUpload("", upload, time_ns) for upload, time_ns in found if upload not in named]

    async def abort(self, upload: MultipartUpload) -> None:
        await self._remove_parts(upload.upload_id)

    async def close(self) -> None:
        await self._streams.close()


def _parse_log_key(key: str) -> tuple[str, int] | None:
    """Return server and number of a group; None if the key is that of another object."""
    found = _LOG_KEY.fullmatch(key)
    return None if found is None else (found[1], int(found[2], 16))


def _decode_head(message: StreamMessage) -> _Head:
    return msgspec.msgpack.decode(message.data, type=_Head)


def _make_missing(key: str) -> ObjectMissing:
    return ObjectMissing(f"there is no object {key!r}")
