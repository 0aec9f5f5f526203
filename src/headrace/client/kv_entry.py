"""Entry of a bucket: interprets a stored message of a key.

Owns the names of keys and buckets, and recognises tombstones and limit markers; must not know connections.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

import nats.js.errors as theirs
from nats.js.kv import KeyValue as NatsKeyValue

from headrace.client.codecs import Codec, decode_value
from headrace.errors import HeadraceError

OPERATION_HEADER = "KV-Operation"
MARKER_REASON_HEADER = "Nats-Marker-Reason"
#: Names from earlier drafts of the markers.
LIMIT_HEADERS = ("Nats-Applied-Limit", "Nats-Limit-Applied")

_BUCKET = re.compile(r"[a-zA-Z0-9_-]+")
_KEY = re.compile(r"[-/_=.a-zA-Z0-9]+")
_PATTERN = re.compile(r"[-/_=.a-zA-Z0-9*>]+")


class InvalidName(HeadraceError, theirs.InvalidKeyError, theirs.InvalidBucketNameError, ValueError):
    """An invalid name of a key, key pattern or bucket."""

    def __str__(self) -> str:
        return str(self.args[0])


class Operation(StrEnum):
    """What happened to a key."""

    PUT = "PUT"
    DEL = "DEL"
    PURGE = "PURGE"


_OPERATION_BY_REASON = {"MaxAge": Operation.PURGE, "Purge": Operation.PURGE, "Remove": Operation.DEL}


@dataclass
class Entry(NatsKeyValue.Entry):
    """A revision of a key. `delta` is how many entries of a watcher or history are still to come."""

    bucket: str
    key: str
    value: bytes
    revision: int
    delta: int
    created: datetime  # type: ignore[assignment]
    operation: Operation

    @property
    def deleted(self) -> bool:
        """Whether the key has no value: deleted, purged or expired."""
        return self.operation is not Operation.PUT


class DecodedEntry(Entry):
    """An entry of a bucket that was opened with a codec.

    `value` is decoded when it is read, and raises `DecodeFailed` if that is not possible; it is None for a key that was
    deleted. `data` has the bytes.
    """

    def __init__(self, entry: Entry, codec: Codec) -> None:
        vars(self).update(vars(entry), data=entry.value)
        self._codec = codec

    data: bytes

    @property
    def value(self) -> Any:  # type: ignore[override]
        if self.deleted:
            return None
        source = f"key {self.key!r} of bucket {self.bucket!r}, revision {self.revision},"
        return decode_value(self.data, self._codec, source)

    def __repr__(self) -> str:
        names = ("bucket", "key", "data", "revision", "delta", "created", "operation")
        return f"DecodedEntry({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


def parse_operation(headers: Mapping[str, str] | None) -> Operation | None:
    """Return what a stored message did to its key; None for a marker with an unknown reason.

    A client's own operation takes precedence over the server's reason for a marker.
    """
    if not headers:
        return Operation.PUT
    if operation := headers.get(OPERATION_HEADER):
        return Operation(operation) if operation in Operation.__members__ else Operation.PUT
    if reason := headers.get(MARKER_REASON_HEADER):
        return _OPERATION_BY_REASON.get(reason)
    for name in LIMIT_HEADERS:
        if limit := headers.get(name):
            return Operation.PURGE if limit == "MaxAge" else None
    return Operation.PUT


def check_bucket(name: str) -> str:
    if not _BUCKET.fullmatch(name):
        raise InvalidName(f"{name!r} is not a valid bucket name: use letters, digits, - and _")
    return name


def check_key(key: str) -> str:
    if not _KEY.fullmatch(key) or key[0] == "." or key[-1] == "." or ".." in key:
        raise InvalidName(
            f"{key!r} is not a valid key: use letters, digits and - / _ =, with dots in between"
        )
    return key


def check_pattern(pattern: str) -> str:
    """Check a key filter: a key in which `*` stands for one part and a final `>` for all others; empty means all."""
    if not pattern:
        return ">"
    if not _PATTERN.fullmatch(pattern) or pattern[0] == "." or pattern[-1] == "." or ".." in pattern:
        raise InvalidName(f"{pattern!r} is not a valid key pattern: use for example 'orders.*' or 'orders.>'")
    return pattern
