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

#: What is uploaded in one piece, with everything known beforehand; larger payloads are streamed.
SINGLE_PUT_MAX_BYTES = 8 * 1024 * 1024
CHUNK_BYTES = 5 * 1024 * 1024
#: What is read from a file at once. Each thread that reads keeps about two of these; larger ones are no faster.
READ_BYTES = 2 * 1024 * 1024
#: Chunks under way at once; with CHUNK it bounds the memory that an upload of any size takes.
CHUNKS_IN_FLIGHT = 3


class ObjectStoreError(ClaimError):
    """The store did not do what was asked; it may later."""


class ObjectMissing(ObjectStoreError):
    """There is no such object."""


class BucketMissing(ObjectStoreError):
    """There is no such bucket."""


class BucketAlreadyExists(ObjectStoreError):
    """A bucket of that name belongs to someone else."""


class ObjectAlreadyExists(ObjectStoreError):
    """An object of that key exists already."""


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
    """A multipart upload that nobody completed; `key` is empty where a store does not know it."""

    key: str
    upload_id: str
    initiated_ns: int

    def belongs_to(self, namespace: str) -> bool:
        return not self.key or self.key.startswith(f"{namespace}/")


class Attributes(Protocol):
    """What goes with an object. Called late, `metadata` knows more: checksum and size of a stream are known at its
    end, and stores that can attach metadata then do.
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
    """One bucket of an object store."""

    bucket: str

    @property
    def lifecycle(self) -> Lifecycle | None:
        """The bucket's own expiry rules; None where a store has none and our sweeper does all the work."""

    async def ensure_bucket(self) -> None:
        """Create the bucket if it is missing; ObjectStoreError when that is impossible."""

    async def bucket_exists(self) -> bool: ...

    async def delete_bucket(self) -> None:
        """Remove the bucket, which must be empty."""

    async def put(self, key: str, data: Chunk, attributes: Attributes, *, replace: bool = False) -> None:
        """Store an object; `ObjectAlreadyExists` if there is one already, unless it may be replaced."""

    async def put_stream(self, key: str, chunks: AsyncIterator[Chunk], attributes: Attributes) -> None:
        """Store an object at constant memory; when `chunks` raises, nothing is left behind."""

    async def get(self, key: str) -> AsyncIterator[Chunk]:
        """The object's bytes as they come; `ObjectMissing` at once."""

    async def head(self, key: str) -> ObjectInfo:
        """Size, time and metadata, without the bytes."""

    async def exists(self, key: str) -> bool: ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; those that are missing are no error."""

    def list(self, prefix: str, start_after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """Pages of what is there under a prefix that ends in `/`, in the order of keys; without metadata."""

    async def prefixes(self, prefix: str) -> Sequence[str]:
        """The prefixes one level below, each with its closing `/`."""

    async def uploads(self) -> Sequence[MultipartUpload]:
        """Multipart uploads under way or abandoned."""

    async def abort(self, upload: MultipartUpload) -> None:
        """Give up a multipart upload; its parts are freed."""

    async def close(self) -> None: ...
