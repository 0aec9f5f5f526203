"""Interface to object storage, and its errors.

A store is one bucket. Contract (tests/claims/test_stores.py runs it on every backend): an object exists completely or
not at all; when `put` returns, the object is as durable as the store can promise; deleting a missing object is no
error; listings are in key order. Neither a vendor's library nor its errors are visible outside of the vendor's module.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from headrace.errors import ClaimError

if TYPE_CHECKING:
    from headrace.claims.stores.lifecycle import Lifecycle

Metadata = Mapping[str, str]
Chunk = bytes | memoryview

#: Payloads up to this size are uploaded in one piece, with everything known beforehand; larger ones are streamed.
SINGLE_PUT_MAX_BYTES = 8 * 1024 * 1024
CHUNK_BYTES = 5 * 1024 * 1024
#: Bytes read from a file at once. Each reading thread uses about two of these; larger ones are no faster.
READ_BYTES = 2 * 1024 * 1024
#: Chunks in flight; with CHUNK it bounds the memory of an upload of any size.
CHUNKS_IN_FLIGHT = 3


class ObjectStoreError(ClaimError):
    """The store failed; it may work later."""


class ObjectMissing(ObjectStoreError):
    """There is no such object."""


class BucketMissing(ObjectStoreError):
    """There is no such bucket."""


class BucketAlreadyExists(ObjectStoreError):
    """A bucket of that name belongs to another account."""


class ObjectAlreadyExists(ObjectStoreError):
    """An object with that key exists already."""


class AccessDenied(ObjectStoreError):
    """The credentials do not allow it."""


class QuotaExceeded(ObjectStoreError):
    """No space is left."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    key: str
    size: int
    modified_ns: int
    metadata: Metadata = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MultipartUpload:
    """A multipart upload that was not completed; `key` is empty if a store does not know it."""

    key: str
    upload_id: str
    initiated_ns: int

    def belongs_to(self, namespace: str) -> bool:
        return not self.key or self.key.startswith(f"{namespace}/")


class Attributes(Protocol):
    """Attributes of an object.

    The later `metadata` is called, the more it has: checksum and size of a stream are known at its end, and stores that
    can attach metadata then do so.
    """

    def metadata(self) -> Metadata: ...
    @property
    def content_type(self) -> str: ...
    @property
    def tags(self) -> Metadata: ...


@dataclass(frozen=True, slots=True)
class StaticAttributes:
    """Attributes that are known beforehand."""

    static_metadata: Metadata = field(default_factory=dict)
    content_type: str = "application/octet-stream"
    tags: Metadata = field(default_factory=dict)
    make_metadata: Callable[[], Metadata] | None = None

    def metadata(self) -> Metadata:
        return self.make_metadata() if self.make_metadata else self.static_metadata


class ObjectStore(Protocol):
    """One bucket of an object store.

    A store with `has_late_metadata` calls `Attributes.metadata` of a `put` in a thread, after the data was written and
    before it is durable. A store may have `get_whole`: see the function of that name.
    """

    bucket: str

    @property
    def lifecycle(self) -> Lifecycle | None:
        """The bucket's own expiry rules; None if the store has none and our sweeper does all the work."""

    async def ensure_bucket(self) -> None:
        """Create the bucket if it is missing; raise ObjectStoreError if that is impossible."""

    async def bucket_exists(self) -> bool: ...

    async def delete_bucket(self) -> None:
        """Remove the bucket, which must be empty."""

    async def put(self, key: str, data: Chunk, attributes: Attributes, *, replace: bool = False) -> None:
        """Store an object; raise `ObjectAlreadyExists` if it exists, unless it may be replaced."""

    async def put_stream(self, key: str, chunks: AsyncIterator[Chunk], attributes: Attributes) -> None:
        """Store an object at constant memory; if `chunks` raises, nothing is left."""

    async def get(self, key: str) -> AsyncIterator[Chunk]:
        """Return the object's bytes as they arrive; raise `ObjectMissing` at once."""

    async def head(self, key: str) -> ObjectInfo:
        """Return size, time and metadata, without the bytes."""

    async def exists(self, key: str) -> bool: ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; missing ones are no error."""

    def list(self, prefix: str, start_after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """Yield pages of the objects under a prefix that ends in `/`, in key order; without metadata."""

    async def prefixes(self, prefix: str) -> Sequence[str]:
        """Return the prefixes one level below, each with its closing `/`."""

    async def uploads(self) -> Sequence[MultipartUpload]:
        """List unfinished or abandoned multipart uploads."""

    async def abort(self, upload: MultipartUpload) -> None:
        """Abort a multipart upload; its parts are freed."""

    async def close(self) -> None: ...


class VersionedStore(Protocol):
    """An object store that can replace an object only if it has not changed since it was read.

    A version must never be that of an earlier state again: objects must not get bytes again that they had before.
    """

    async def get_version(self, key: str) -> tuple[bytes, str]:
        """Return an object's bytes and their version; raise `ObjectMissing` if there is none."""

    async def put_version(self, key: str, data: Chunk, version: str) -> None:
        """Replace an object that still has this version; raise `ObjectAlreadyExists` or `ObjectMissing` otherwise."""


async def get_whole(store: ObjectStore, key: str, size: int) -> tuple[bytes, str] | None:
    """Return a small object with the SHA-256 of its bytes, both made in one call of a thread.

    None if the store cannot do that, or if the object does not have this size: use `ObjectStore.get` then.
    """
    method = getattr(store, "get_whole", None)
    found: tuple[bytes, str] | None = await method(key, size) if method is not None else None
    return found
