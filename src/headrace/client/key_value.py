"""Key-value bucket: nats-py's `KeyValue` with TTLs, limit markers, richer watching, and changes of several keys at
once.

Owns the changes of one bucket. `key_value_reader` reads it, `kv_entry` interprets stored messages, `kv_config` makes the
bucket's configuration, `kv_batch` changes several keys together.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from nats.js.kv import KeyValue as NatsKeyValue

from headrace.client import kv_batch
from headrace.client import outgoing_message as m
from headrace.client.codecs import Codec, encode_value
from headrace.client.configs import StreamInfo
from headrace.client.durations import SECOND_NS, Duration, format_ttl
from headrace.client.errors import (
    KeyExists,
    NoStream,
    TTLDisabled,
    WrongLastSequence,
    WrongRevision,
    translate_error,
)
from headrace.client.key_value_reader import KeyValueReader, get_write_prefix
from headrace.client.kv_config import BucketStatus
from headrace.client.kv_entry import OPERATION_HEADER, Operation, check_key
from headrace.durations import parse_duration_ns

if TYPE_CHECKING:
    from headrace.client.context import JetStream


class KeyValue(KeyValueReader, NatsKeyValue):  # type: ignore[misc]
    """A bucket.

    ::

        kv = await js.create_key_value(bucket="sessions", limit_markers="1h")
        revision = await kv.create("ann", b"token", ttl="15m")
        await kv.update("ann", b"token 2", last=revision)
        print((await kv.get("ann")).value)
    """

    def __init__(
        self, js: JetStream, bucket: str, info: StreamInfo, read_prefix: str, codec: Codec | None = None
    ) -> None:
        super().__init__(js, bucket, info, read_prefix, codec)
        self._write_prefix = get_write_prefix(bucket, info.config)

    @property
    def js(self) -> JetStream:
        return self._js

    def encode(self, value: Any) -> bytes:
        """Return a value as it is stored: encoded by the codec of the bucket, if it has one."""
        return encode_value(value, self._codec)

    async def put(self, key: str, value: Any, validate_keys: bool = True) -> int:
        """Store a value whatever was there; return its revision.

        There is no TTL here: when it expired, an older revision would come back. `create` accepts one.
        """
        return await self._write(key, self.encode(value), {}, validate_keys)

    async def create(
        self,
        key: str,
        value: Any,
        validate_keys: bool = True,
        msg_ttl: Duration | None = None,
        *,
        ttl: Duration | None = None,
    ) -> int:
        """Store a value if the key has none; return its revision. With a `ttl` the key is gone after that time.

        Raises `KeyExists`, or `TTLDisabled` if the bucket has no limit markers.
        """
        headers = await self._ttl_headers(ttl if ttl is not None else msg_ttl)
        last = 0
        for attempts_left in reversed(range(kv_batch.CREATE_ATTEMPTS)):
            expected = {m.EXPECTED_SUBJECT_SEQUENCE: str(last)}
            try:
                return await self._write(key, self.encode(value), headers | expected, validate_keys)
            except WrongRevision as error:
                entry = await self.last(key, from_leader=True)
                if (entry and not entry.deleted) or not attempts_left:
                    raise _make_key_exists(key, entry.revision if entry else None, error) from error
            # A tombstone or marker is the last revision, and the new value replaces it. It may end at any moment.
            last = entry.revision if entry else 0
        raise AssertionError("the last attempt returns or raises")

    async def update(self, key: str, value: Any, last: int | None = None, validate_keys: bool = True) -> int:
        """Store a value if `last` is the key's revision (0 or None: it has none); raise `WrongRevision` if not."""
        return await self._write(
            key, self.encode(value), {m.EXPECTED_SUBJECT_SEQUENCE: str(last or 0)}, validate_keys
        )

    async def delete(
        self,
        key: str,
        last: int | None = None,
        validate_keys: bool = True,
        msg_ttl: Duration | None = None,
    ) -> bool:
        """Mark the key as deleted, if `last` (when given) is its revision; its history stays."""
        if msg_ttl is not None:
            raise TypeError(
                "delete() does not accept a TTL: use purge(key, ttl=...), whose marker expires after that time"
            )
        await self._write(
            key, b"", {OPERATION_HEADER: Operation.DEL.value} | _make_revision_headers(last), validate_keys
        )
        return True

    async def purge(
        self,
        key: str,
        msg_ttl: Duration | None = None,
        *,
        ttl: Duration | None = None,
        last: int | None = None,
        validate_keys: bool = True,
    ) -> bool:
        """Remove the key with its history, if `last` (when given) is its revision.

        A marker stays for watchers; with a `ttl` the marker is gone too after that time, and nothing is left.
        """
        headers = await self._ttl_headers(ttl if ttl is not None else msg_ttl)
        headers |= {OPERATION_HEADER: Operation.PURGE.value, m.ROLLUP: "sub"} | _make_revision_headers(last)
        await self._write(key, b"", headers, validate_keys)
        return True

    async def put_many(self, values: Mapping[str, Any]) -> dict[str, int]:
        """Store several keys, all or none; return their revisions. The bucket needs `allow_atomic`."""
        return await kv_batch.put_many(self, values)

    async def update_many(self, values: Mapping[str, tuple[Any, int]]) -> dict[str, int]:
        """Store several keys if each has the given revision, all or none; return their new revisions."""
        return await kv_batch.update_many(self, values)

    async def create_many(self, values: Mapping[str, Any], *, ttl: Duration | None = None) -> dict[str, int]:
        """Store several keys if none of them has a value, all or none; return their revisions."""
        return await kv_batch.create_many(self, values, await self._ttl_headers(ttl))

    async def purge_deletes(self, olderthan: Duration = 30 * 60) -> bool:
        """Remove deleted and purged keys for good: markers older than this, and the history under younger ones.

        A negative number removes all markers, whatever their age.
        """
        purge_all = isinstance(olderthan, int | float) and olderthan < 0
        limit = timedelta(0) if purge_all else timedelta(seconds=parse_duration_ns(olderthan) / SECOND_NS)
        async with await self.watchall(meta_only=True) as watcher:
            markers = [entry for entry in await watcher.initial() if entry.deleted]
        for entry in markers:
            is_young = not purge_all and datetime.now(UTC) - entry.created < limit
            # Up to the marker that was seen: values stored meanwhile stay.
            end = entry.revision if is_young else entry.revision + 1
            await self._js.purge_stream(self._stream, subject=self._pre + entry.key, seq=end)
        return True

    async def get_cached_status(self, *, required: str) -> BucketStatus:
        """Return the cached status; request it again if it lacks `required`, which may have been enabled meanwhile."""
        if not getattr(self._last_status, required):
            await self.status()
        return self._last_status

    def subject(self, key: str) -> str:
        """Return the subject to which the key is written."""
        return self._write_prefix + check_key(key)

    async def _write(
        self, key: str, value: bytes, headers: dict[str, str], validate_keys: bool = True
    ) -> int:
        subject = self.subject(key) if validate_keys else self._write_prefix + key
        try:
            ack = await self._js.publish(subject, value, headers=headers or None)
        except WrongLastSequence as error:
            raise translate_error(error, WrongRevision) from error
        except NoStream as error:
            raise self._make_bucket_not_found() from error
        return ack.seq

    async def _ttl_headers(self, ttl: Duration | None) -> dict[str, str]:
        if ttl is None:
            return {}
        headers = {m.TTL: format_ttl(ttl)}
        if self.is_mirror:
            return headers  # the upstream decides
        if not (await self.get_cached_status(required="allows_ttl")).allows_ttl:
            raise TTLDisabled.refuse(f"bucket {self._name!r} has no limit markers, so keys cannot have a TTL")
        return headers


def _make_key_exists(key: str, revision: int | None, error: WrongRevision) -> KeyExists:
    exists = KeyExists(error.code, error.err_code, f"{key!r} already has a value")
    exists.revision = revision
    return exists


def _make_revision_headers(last: int | None) -> dict[str, str]:
    return {m.EXPECTED_SUBJECT_SEQUENCE: str(last)} if last else {}
