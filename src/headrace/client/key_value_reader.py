"""Read-only handle of a key-value bucket: get, watch, history, keys and status.

Owns what is read from one bucket, and the subjects of its keys; `KeyValue` adds the changes. A user needs no permission to
publish on the subjects of the bucket, and the bucket may be a mirror.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import nats.errors
import nats.js.errors as theirs
from nats.js import api

from headrace.client.codecs import Codec, check_codec
from headrace.client.configs import StreamInfo
from headrace.client.durations import Duration
from headrace.client.errors import BucketNotFound, KeyNotFound, NoKeys, translate_nats_errors
from headrace.client.kv_config import BucketStatus, parse_bucket_name, subject_prefix_for
from headrace.client.kv_entry import DecodedEntry, Entry, Operation, check_key, parse_operation
from headrace.client.watch import Watcher, WatchOptions, check_patterns

if TYPE_CHECKING:
    from headrace.client.context import JetStream


class KeyValueReader:
    """A bucket to read from. Created by `JetStream.key_value_reader`.

    ::

        prices = await js.key_value_reader("prices")
        print((await prices.get("pears")).value)
    """

    def __init__(
        self, js: JetStream, bucket: str, info: StreamInfo, read_prefix: str, codec: Codec | None = None
    ) -> None:
        self._js = js
        self._name = bucket
        self._stream = str(info.config.name)
        self._pre = read_prefix
        self._direct = bool(info.config.allow_direct)
        self._codec = check_codec(codec)
        #: Whether this is a copy of another bucket, which gets all writes.
        self.is_mirror = bool(info.config.mirror)
        self._last_status = BucketStatus(info, bucket)

    @property
    def bucket(self) -> str:
        return self._name

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
        entry = Entry(self._name, key, message.data or b"", message.seq or 0, 0, created, operation)
        return entry if self._codec is None else DecodedEntry(entry, self._codec)

    async def history(self, key: str) -> list[Entry]:
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
        return await Watcher(self._js, self._name, self._stream, self._pre, options, self._codec).start()

    async def watchall(self, **kwargs: Any) -> Watcher:
        """Watch every key."""
        return await self.watch(">", **kwargs)

    def _make_bucket_not_found(self) -> BucketNotFound:
        return BucketNotFound.refuse(f"there is no bucket {self._name!r}")


async def find_read_prefix(js: JetStream, bucket: str, info: StreamInfo) -> str:
    """Return the beginning of the subjects of a bucket's keys.

    A mirror has the subjects of its upstream, which may be a mirror, too, or transforms them: its first message shows them.
    """
    mirror = info.config.mirror
    if not mirror:
        return subject_prefix_for(bucket)
    if info.state.messages:
        stream, direct = str(info.config.name), bool(info.config.allow_direct)
        first = api.RawStreamMsg()
        with (
            translate_nats_errors(f"the first message of {stream!r}"),
            contextlib.suppress(theirs.NotFoundError),
        ):
            first = await js.get_msg(stream, seq=1, subject=">", next=True, direct=direct)
        tokens = (first.subject or "").split(".")
        if tokens[0] == "$KV" and len(tokens) > 2:
            return subject_prefix_for(tokens[1])
    return subject_prefix_for(parse_bucket_name(mirror.name) or mirror.name)


def get_write_prefix(bucket: str, config: api.StreamConfig) -> str:
    """Return the beginning of the subjects to which keys are written: a mirror accepts no writes, its upstream does."""
    if not config.mirror:
        return subject_prefix_for(bucket)
    upstream_prefix = subject_prefix_for(parse_bucket_name(config.mirror.name) or config.mirror.name)
    external = config.mirror.external
    return f"{external.api}.{upstream_prefix}" if external and external.api else upstream_prefix
