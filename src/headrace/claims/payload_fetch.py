"""Fetches the payload of a reference from a store, and verifies it.

Owns the checks of sizes and checksums: what `fetch_whole` returns is what was published, and `fetch` raises after the
last piece if it is not. A small payload is read, hashed and checked without a detour over the event loop. It knows no
messages, and it trusts the reference, which the caller has checked.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.claims.compression import Chunk, Decompressor
from headrace.claims.errors import ChecksumMismatch, ClaimFailure, ClaimNotFound, StoreUnavailable
from headrace.claims.reference import Reference
from headrace.claims.stores import ObjectMissing, ObjectStore, ObjectStoreError
from headrace.claims.stores.object_store import READ_BYTES, get_whole
from headrace.claims.streaming_upload import NO_THREAD_MAX_BYTES, prefetch, run_in_thread_if_large

if TYPE_CHECKING:
    from hashlib import _Hash as Hash


async def fetch_whole(store: ObjectStore, reference: Reference) -> bytes:
    """Return the payload of a checked reference, verified."""
    if reference.compression == "none" and (found := await _get_small(store, reference)) is not None:
        data, checksum = found
        _check_stored(reference, len(data), checksum)
        _check_original(reference, len(data), checksum)
        return data
    chunks = [chunk async for chunk in fetch(store, reference)]
    return await run_in_thread_if_large(sum(map(len, chunks)), b"".join, chunks)


async def fetch(store: ObjectStore, reference: Reference) -> AsyncIterator[Chunk]:
    """Yield the payload of a checked reference in pieces; it is verified only after the last piece."""
    with _store_errors(reference):
        stored = await store.get(reference.object_key)
    stored_hash = hashlib.sha256()
    chunks = _hash_chunks(_map_store_errors(stored, reference), reference.stored_size, stored_hash)
    async for chunk in _verify(reference, chunks, stored_hash):
        yield chunk


async def _get_small(store: ObjectStore, reference: Reference) -> tuple[bytes, str] | None:
    """Return a small object and its checksum; None if it must be fetched in chunks, or has another size."""
    if not 0 <= reference.stored_size <= READ_BYTES:
        return None
    with _store_errors(reference):
        return await get_whole(store, reference.object_key, reference.stored_size)


@contextmanager
def _store_errors(reference: Reference) -> Iterator[None]:
    claim_id = reference.claim_id
    try:
        yield
    except ObjectMissing as error:
        raise ClaimNotFound(f"claim {claim_id} is not in the store: {error}", claim_id) from error
    except ObjectStoreError as error:
        raise StoreUnavailable(f"claim {claim_id}: {error}", claim_id) from error


async def _hash_chunks(
    chunks: AsyncIterator[Chunk], stored_size: int, stored_hash: Hash
) -> AsyncIterator[Chunk]:
    """Yield the same chunks, hashed; the next one is fetched meanwhile."""
    if stored_size > NO_THREAD_MAX_BYTES:
        chunks = prefetch(chunks)  # in one piece there is nothing to prefetch
    async for chunk in chunks:
        await run_in_thread_if_large(len(chunk), stored_hash.update, chunk)
        yield chunk


async def _map_store_errors(stored: AsyncIterator[Chunk], reference: Reference) -> AsyncIterator[Chunk]:
    claim_id = reference.claim_id
    try:
        async for chunk in stored:
            yield chunk
    except ObjectStoreError as error:
        raise StoreUnavailable(f"reading claim {claim_id} failed: {error}", claim_id) from error


async def _verify(
    reference: Reference, stored: AsyncIterator[Chunk], stored_hash: Hash
) -> AsyncIterator[Chunk]:
    """Count stored bytes, which are hashed already, and hash original bytes; both must match the reference."""
    claim_id = reference.claim_id
    original_hash = hashlib.sha256()
    is_uncompressed = reference.compression == "none"
    decompressor = Decompressor(reference.compression, reference.original_size)
    size = stored_size = 0
    try:
        async for data in stored:
            stored_size += len(data)
            if is_uncompressed:
                chunks = _check_size(decompressor, data)
            else:
                chunks = _decompress(decompressor.feed(data), original_hash)
            async for chunk in chunks:
                size += len(chunk)
                yield chunk
    except ClaimFailure as error:
        error.claim_id = error.claim_id or claim_id
        raise
    _check_stored(reference, stored_size, stored_hash.hexdigest())
    _check_original(reference, size, (stored_hash if is_uncompressed else original_hash).hexdigest())


def _check_stored(reference: Reference, size: int, checksum: str) -> None:
    if checksum != reference.stored_checksum or size != reference.stored_size:
        raise ChecksumMismatch(
            f"claim {reference.claim_id}: the object ({size} bytes) is not what was stored "
            f"({reference.stored_size} bytes)",
            reference.claim_id,
        )


def _check_original(reference: Reference, size: int, checksum: str) -> None:
    if checksum != reference.checksum or size != reference.original_size:
        raise ChecksumMismatch(
            f"claim {reference.claim_id}: the payload ({size} bytes) is not what was published",
            reference.claim_id,
        )


async def _check_size(decompressor: Decompressor, data: Chunk) -> AsyncIterator[Chunk]:
    for chunk in decompressor.feed(data):
        yield chunk


async def _decompress(chunks: Iterator[Chunk], original_hash: Hash) -> AsyncIterator[Chunk]:
    """Yield what a stored piece decompresses to, in threads: each chunk is hashed while the next is decompressed."""
    loop = asyncio.get_running_loop()
    hashing: asyncio.Future[None] | None = None
    try:
        while (chunk := await loop.run_in_executor(None, next, chunks, None)) is not None:
            if hashing is not None:
                await hashing
            hashing = loop.run_in_executor(None, original_hash.update, chunk)
            yield chunk
    finally:
        if hashing is not None:
            await hashing
