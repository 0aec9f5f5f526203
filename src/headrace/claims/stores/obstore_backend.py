"""Common part of S3, Google Cloud Storage and Azure Blob: the data path, on obstore.

A vendor's module creates the obstore client and adds what obstore lacks (buckets, lifecycle, abandoned uploads) with
the vendor's own library. Errors of obstore are translated here and nowhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal

import obstore
from obstore import exceptions

from headrace.claims.clock import SECOND_NS
from headrace.claims.stores.lifecycle import Lifecycle
from headrace.claims.stores.object_store import (
    CHUNK_BYTES,
    CHUNKS_IN_FLIGHT,
    AccessDenied,
    Attributes,
    BucketMissing,
    Chunk,
    MultipartUpload,
    ObjectAlreadyExists,
    ObjectInfo,
    ObjectMissing,
    ObjectStoreError,
)

_PAGE_SIZE = 1000
_READ_BYTES = 4 * 1024 * 1024
_DELETE_BATCH = 1000
_CREATE_ATTEMPTS = 4
_CREATE_PAUSE_S = 0.1


class CloudStore:
    """One bucket, through obstore."""

    lifecycle: Lifecycle | None = None
    #: Conversion of metadata names to the vendor's allowed form, and back.
    to_vendor: Callable[[str], str] = staticmethod(str)
    from_vendor: Callable[[str], str] = staticmethod(str)
    supports_tags = True

    def __init__(self, bucket: str, client: Any) -> None:
        self.bucket = bucket
        self._client = client

    async def ensure_bucket(self) -> None:
        if not await self.bucket_exists():
            raise BucketMissing(
                f"there is no bucket {self.bucket!r}; create it, or install the vendor's extra"
            )

    async def bucket_exists(self) -> bool:
        try:
            with map_errors(self.bucket):
                await obstore.list(self._client, chunk_size=1).__anext__()
        except StopAsyncIteration:
            return True
        except (ObjectMissing, BucketMissing):
            return False
        return True

    async def delete_bucket(self) -> None:
        raise ObjectStoreError(f"bucket {self.bucket!r} can only be deleted with the vendor's tools")

    async def put(self, key: str, data: Chunk, attributes: Attributes, *, replace: bool = False) -> None:
        mode: Literal["create", "overwrite"] = "overwrite" if replace else "create"
        with map_errors(key):
            await obstore.put_async(
                self._client, key, data, mode=mode, use_multipart=False, **self._make_put_options(attributes)
            )

    async def get_version(self, key: str) -> tuple[bytes, str]:
        """Return an object with the version that the vendor reports; implements `VersionedStore`."""
        with map_errors(key):
            found = await obstore.get_async(self._client, key)
            meta = found.meta
            known = {name: meta[name] for name in ("e_tag", "version") if meta[name] is not None}
            return bytes(await found.bytes_async()), json.dumps(known)

    async def put_version(self, key: str, data: Chunk, version: str) -> None:
        """Replace an object that still has this version."""
        with map_errors(key):
            await obstore.put_async(self._client, key, data, mode=json.loads(version), use_multipart=False)

    async def put_stream(self, key: str, chunks: AsyncIterator[Chunk], attributes: Attributes) -> None:
        failed: list[BaseException] = []
        try:
            with map_errors(key):
                await obstore.put_async(
                    self._client,
                    key,
                    _capture_error(chunks, failed),
                    chunk_size=CHUNK_BYTES,
                    max_concurrency=CHUNKS_IN_FLIGHT,
                    **self._make_put_options(attributes),
                )
        except ObjectStoreError:
            if failed:  # obstore wraps the source's exception; the caller wants the original
                raise failed[0] from None
            raise

    async def get(self, key: str) -> AsyncIterator[Chunk]:
        with map_errors(key):
            found = await obstore.get_async(self._client, key)
        return _iter_chunks(found, key)

    async def get_whole(self, key: str, size: int) -> tuple[bytes, str] | None:
        """Fetch an object on the event loop, then copy and hash it in one call of a thread."""
        with map_errors(key):
            found = await obstore.get_async(self._client, key)
            if found.meta["size"] != size:
                return None
            data = await found.bytes_async()
        return await asyncio.get_running_loop().run_in_executor(None, _copy_and_hash, data)

    async def head(self, key: str) -> ObjectInfo:
        with map_errors(key):
            found = await obstore.get_async(self._client, key, options={"head": True})
        known = {self.from_vendor(name): value for name, value in found.attributes.items()}
        return _make_info(
            found.meta, {name: value for name, value in known.items() if name.startswith("prism-")}
        )

    async def exists(self, key: str) -> bool:
        try:
            await self.head(key)
        except ObjectMissing:
            return False
        return True

    async def delete(self, keys: Sequence[str]) -> None:
        for start in range(0, len(keys), _DELETE_BATCH):
            await self._delete(list(keys[start : start + _DELETE_BATCH]))

    async def _delete(self, keys: list[str]) -> None:
        try:
            with map_errors(keys[0]):
                await obstore.delete_async(self._client, keys)
        except ObjectMissing:
            # Vendors that report missing objects may have stopped there: delete one by one.
            for key in keys:
                with contextlib.suppress(ObjectMissing), map_errors(key):
                    await obstore.delete_async(self._client, key)

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        pages = obstore.list(
            self._client, prefix.rstrip("/") or None, offset=start_after or None, chunk_size=_PAGE_SIZE
        )
        while True:
            try:
                with map_errors(prefix):
                    page = await pages.__anext__()
            except StopAsyncIteration:
                return
            yield [_make_info(meta, {}) for meta in page]

    async def prefixes(self, prefix: str) -> Sequence[str]:
        with map_errors(prefix):
            found = await obstore.list_with_delimiter_async(self._client, prefix.rstrip("/") or None)
        return sorted(f"{name.rstrip('/')}/" for name in found["common_prefixes"])

    async def uploads(self) -> Sequence[MultipartUpload]:
        return ()

    async def abort(self, upload: MultipartUpload) -> None:
        raise ObjectMissing(f"there is no upload of {upload.key!r}")

    async def close(self) -> None:
        """Do nothing: obstore closes its connections itself."""

    def _make_put_options(self, attributes: Attributes) -> dict[str, Any]:
        vendor_metadata = {self.to_vendor(name): value for name, value in attributes.metadata().items()}
        put_options: dict[str, Any] = {
            "attributes": {"Content-Type": attributes.content_type, **vendor_metadata}
        }
        if self.supports_tags and attributes.tags:
            put_options["tags"] = dict(attributes.tags)
        return put_options


def make_client_options(settings: Mapping[str, Any], endpoint: str) -> dict[str, Any]:
    """Return the client's timeouts and retries; plain HTTP is allowed only for an `http` endpoint."""
    options: dict[str, Any] = {
        "timeout": timedelta(seconds=settings.get("timeout", 300)),
        "connect_timeout": timedelta(seconds=settings.get("connect_timeout", 5)),
        "allow_http": endpoint.startswith("http://"),
    }
    retries = {
        "max_retries": settings.get("retries", 5),
        "retry_timeout": timedelta(seconds=settings.get("retry_timeout", 60)),
    }
    return {"client_options": options, "retry_config": retries}


async def create_once(create: Callable[[], Awaitable[Any]], exists: Callable[[], Awaitable[bool]]) -> None:
    """Create a bucket, unless another program does so at the same time: then wait until it exists."""
    for attempt in range(_CREATE_ATTEMPTS):
        try:
            await create()
            return
        except ObjectStoreError:
            if await exists():
                return
            if attempt == _CREATE_ATTEMPTS - 1:
                raise
        await asyncio.sleep(_CREATE_PAUSE_S * 2**attempt)


@contextlib.contextmanager
def map_errors(target: str) -> Iterator[None]:
    """Translate obstore's errors to ours."""
    try:
        yield
    except FileNotFoundError as error:
        text = str(error)
        if "NoSuchBucket" in text or "ContainerNotFound" in text:
            raise BucketMissing(f"{target!r}: the bucket does not exist") from error
        raise ObjectMissing(f"there is no object {target!r}") from error
    except (exceptions.AlreadyExistsError, exceptions.PreconditionError) as error:
        raise ObjectAlreadyExists(f"object {target!r} exists already") from error
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
        raise AccessDenied(f"{target!r}: the credentials do not allow it") from error
    except (exceptions.BaseError, OSError, ValueError) as error:
        raise ObjectStoreError(f"{target!r}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:300]


def _make_info(meta: Any, metadata: Mapping[str, str]) -> ObjectInfo:
    modified_ns = round(meta["last_modified"].timestamp() * SECOND_NS)
    return ObjectInfo(meta["path"], meta["size"], modified_ns, metadata)


async def _capture_error(chunks: AsyncIterator[Chunk], failed: list[BaseException]) -> AsyncIterator[Chunk]:
    try:
        async for chunk in chunks:
            yield chunk
    except GeneratorExit:  # the store failed first: not an error of the source
        raise
    except BaseException as error:
        failed.append(error)
        raise


def _copy_and_hash(data: obstore.Bytes) -> tuple[bytes, str]:
    copy = data.to_bytes()
    return copy, hashlib.sha256(copy).hexdigest()


async def _iter_chunks(found: Any, key: str) -> AsyncIterator[Chunk]:
    if found.meta["size"] <= _READ_BYTES:
        with map_errors(key):
            data = await found.bytes_async()
        yield memoryview(data)
        return
    stream = found.stream(min_chunk_size=_READ_BYTES)
    while True:
        try:
            with map_errors(key):
                chunk = await stream.__anext__()
        except StopAsyncIteration:
            return
        yield memoryview(chunk)
