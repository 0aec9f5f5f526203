"""Key-value bucket: nats-py's `KeyValue` with TTLs, limit markers, richer watching, and changes of several keys at
once.

Owns the operations on one bucket. `kv_entry` interprets stored messages, `kv_config` makes the bucket's configuration,
`watch` watches it, `kv_batch` changes several keys together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import nats.errors
import nats.js.errors as theirs
from nats.js import api
from nats.js.kv import KeyValue as NatsKeyValue

from headrace.client import kv_batch
from headrace.client import outgoing_message as m
from headrace.client.configs import StreamInfo
from headrace.client.durations import SECOND_NS, Duration, format_ttl
from headrace.client.errors import (
    BucketNotFound,
    KeyExists,
    KeyNotFound,
    NoKeys,
    NoStream,
    TTLDisabled,
    WrongLastSequence,
    WrongRevision,
    translate_error,
    translate_nats_errors,
)
from headrace.client.kv_config import BucketStatus, parse_bucket_name, subject_prefix_for
from headrace.client.kv_entry import OPERATION_HEADER, Entry, Operation, check_key, parse_operation
from headrace.client.watch import Watcher, WatchOptions, check_patterns
from headrace.durations import parse_duration_ns

if TYPE_CHECKING:
    from headrace.client.context import JetStream


class KeyValue(NatsKeyValue):
    """A bucket.

    ::

        kv = await js.create_key_value(bucket="sessions", limit_markers="1h")
        revision = await kv.create("ann", b"token", ttl="15m")
        await kv.update("ann", b"token 2", last=revision)
        print((await kv.get("ann")).value)
    """

    def __init__(self, js: JetStream, bucket: str, info: StreamInfo) -> None:
        stream = str(info.config.name)
        read_prefix, write_prefix = _get_prefixes(bucket, info.config)
        super().__init__(bucket, stream, read_prefix, js, bool(info.config.allow_direct))
        self._js: JetStream = js
        self._write_prefix = write_prefix
        #: Whether this is a copy of another bucket, which gets all writes.
        self.is_mirror = bool(info.config.mirror)
        self._last_status = BucketStatus(info, bucket)

    @property
    def bucket(self) -> str:
        return self._name

    @property
    def js(self) -> JetStream:
        return self._js

    async def get(self, key: str, revision: int | None = None, validate_keys: bool = True) -> Entry:
        """Return the last entry of the key, or that of a revision; raise `KeyNotFound` if the key has no value there."""
        if validate_keys:
            check_key(key)
        entry = await self.last(key, revision)
        if entry is None or entry.deleted:
            missing = KeyNotFound.refuse(f"{key!r} has no value in bucket {self._name!r}")
            missing.entry, missing.op = entry, entry and entry.operation
            raise missing
        return entry

    async def last(self, key: str, revision: int | None = None, *, from_leader: bool = False) -> Entry | None:
        """Return the last entry of the key, value or marker; None if there is none.

        Any replica or mirror may reply, and may lag. With `from_leader` only the stream's leader does: use it when a
        write depends on the result.
        """
        subject = self._pre + key
        try:
            selector: dict[str, Any] = {"seq": revision} if revision else {"subject": subject}
            message = await self._js.get_msg(
                self._stream, direct=self._direct and not from_leader, **selector
            )
        except theirs.NotFoundError as error:
            if error.err_code == BucketNotFound.ERR_CODE:
                raise self._make_bucket_not_found() from error
            return None
        except nats.errors.NoRespondersError as error:
            raise self._make_bucket_not_found() from error
        if message.subject != subject:
            return None
        # A marker with an unknown reason still means that the key is gone.
        operation = parse_operation(message.headers) or Operation.PURGE
        created = message.time or datetime.now(UTC)
        return Entry(self._name, key, message.data or b"", message.seq or 0, 0, created, operation)

    async def put(self, key: str, value: bytes, validate_keys: bool = True) -> int:
        """Store a value whatever was there; return its revision.

        There is no TTL here: when it expired, an older revision would come back. `create` accepts one.
        """
        return await self._write(key, value, {}, validate_keys)

    async def create(
        self,
        key: str,
        value: bytes,
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
                return await self._write(key, value, headers | expected, validate_keys)
            except WrongRevision as error:
                entry = await self.last(key, from_leader=True)
                if (entry and not entry.deleted) or not attempts_left:
                    raise _make_key_exists(key, entry.revision if entry else None, error) from error
            # A tombstone or marker is the last revision, and the new value replaces it. It may end at any moment.
            last = entry.revision if entry else 0
        raise AssertionError("the last attempt returns or raises")

    async def update(
        self, key: str, value: bytes, last: int | None = None, validate_keys: bool = True
    ) -> int:
        """Store a value if `last` is the key's revision (0 or None: it has none); raise `WrongRevision` if not."""
        return await self._write(key, value, {m.EXPECTED_SUBJECT_SEQUENCE: str(last or 0)}, validate_keys)

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

    async def put_many(self, values: Mapping[str, bytes]) -> dict[str, int]:
        """Store several keys, all or none; return their revisions. The bucket needs `allow_atomic`."""
        return await kv_batch.put_many(self, values)

    async def update_many(self, values: Mapping[str, tuple[bytes, int]]) -> dict[str, int]:
        """Store several keys if each has the given revision, all or none; return their new revisions."""
        return await kv_batch.update_many(self, values)

    async def create_many(
        self, values: Mapping[str, bytes], *, ttl: Duration | None = None
    ) -> dict[str, int]:
        """Store several keys if none of them has a value, all or none; return their revisions."""
        return await kv_batch.create_many(self, values, await self._ttl_headers(ttl))

    async def history(self, key: str) -> list[Entry]:  # type: ignore[override]
        """Return every stored entry of the key, oldest first, with its deletes and markers.

        Raises `NoKeys` if there is none.
        """
        async with await self.watch(check_key(key), include_history=True) as watcher:
            entries = await watcher.initial()
        if not entries:
            raise NoKeys.refuse(f"there are no entries for {key!r} in bucket {self._name!r}")
        return entries

    async def keys(self, /, filters: Sequence[str] | None = None, **kwargs: Any) -> list[str]:
        """Return the keys that have a value and match one of the filters ("orders.*").

        Raise `NoKeys` if there are none.
        """
        options = {"ignore_deletes": True, "meta_only": True, **kwargs}
        async with await self.watch(filters or ">", **options) as watcher:
            entries = await watcher.initial()
        if not entries:
            raise NoKeys.refuse(f"no keys found in bucket {self._name!r}")
        return list(dict.fromkeys(entry.key for entry in entries))

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

    async def status(self) -> BucketStatus:
        """Return the current state and configuration."""
        with translate_nats_errors(f"the status of bucket {self._name!r}"):
            self._last_status = BucketStatus(await self._js.stream_info(self._stream), self._name)
        return self._last_status

    async def watch(
        self,
        keys: str | Sequence[str],
        headers_only: bool = False,
        include_history: bool = False,
        ignore_deletes: bool = False,
        meta_only: bool = False,
        inactive_threshold: Duration | None = None,
        *,
        updates_only: bool = False,
        resume_from: int | None = None,
    ) -> Watcher:
        """Watch the keys that match a filter or one of several; the options are those of `WatchOptions`."""
        options = WatchOptions(
            keys=check_patterns(keys),
            include_history=include_history,
            ignore_deletes=ignore_deletes,
            meta_only=meta_only or headers_only,
            updates_only=updates_only,
            resume_from=resume_from,
            inactive_threshold=inactive_threshold,
        )
        return await Watcher(self._js, self._name, self._stream, self._pre, options).start()

    async def watchall(self, **kwargs: Any) -> Watcher:
        """Watch every key."""
        return await self.watch(">", **kwargs)

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

    def _make_bucket_not_found(self) -> BucketNotFound:
        return BucketNotFound.refuse(f"there is no bucket {self._name!r}")


def _make_key_exists(key: str, revision: int | None, error: WrongRevision) -> KeyExists:
    exists = KeyExists(error.code, error.err_code, f"{key!r} already has a value")
    exists.revision = revision
    return exists


def _make_revision_headers(last: int | None) -> dict[str, str]:
    return {m.EXPECTED_SUBJECT_SEQUENCE: str(last)} if last else {}


def _get_prefixes(bucket: str, config: api.StreamConfig) -> tuple[str, str]:
    """Return where keys are read and where they are written: a mirror has its upstream's subjects and accepts no
    writes.
    """
    if not config.mirror:
        return subject_prefix_for(bucket), subject_prefix_for(bucket)
    upstream_prefix = subject_prefix_for(parse_bucket_name(config.mirror.name) or config.mirror.name)
    external = config.mirror.external
    return (
        upstream_prefix,
        f"{external.api}.{upstream_prefix}" if external and external.api else upstream_prefix,
    )
