"""A folder of objects in which an object is replaced only if it has not changed since it was read.

Owns the lock file in the system folder of the bucket. Invariant: between the comparison and the replacement no other
process on this machine, or on a shared file system with locks, replaces an object in this way. The version of an object
is the checksum of its bytes, so an object must never get bytes again that it had before.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import time
from collections.abc import Iterator

from headrace.claims.stores.folder import FolderStore
from headrace.claims.stores.object_store import (
    Chunk,
    ObjectAlreadyExists,
    ObjectMissing,
    ObjectStoreError,
    StaticAttributes,
)
from headrace.os_files import lock_exclusive

_LOCK_NAME = "replace.lock"
_LOCK_TIMEOUT_S = 5.0
_LOCK_PAUSE_S = 0.005
_ATTRIBUTES = StaticAttributes()


class VersionedFolderStore(FolderStore):
    """`FolderStore` with conditional replacement; implements `VersionedStore`."""

    async def get_version(self, key: str) -> tuple[bytes, str]:
        data = b"".join([bytes(chunk) async for chunk in await self.get(key)])
        return data, _compute_version(data)

    async def put_version(self, key: str, data: Chunk, version: str) -> None:
        await asyncio.to_thread(self._replace_version, key, data, version)

    def _replace_version(self, key: str, data: Chunk, version: str) -> None:
        with self._locked(key):
            try:
                with open(self._get_path(key), "rb") as file:
                    found = file.read()
            except FileNotFoundError:
                raise ObjectMissing(f"there is no object {key!r}") from None
            if _compute_version(found) != version:
                raise ObjectAlreadyExists(f"object {key!r} was replaced")
            self._put_file(key, data, _ATTRIBUTES, True)

    @contextlib.contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        """Acquire the lock; another process has it for a moment only, unless it was suspended."""
        try:
            descriptor = os.open(
                self._system_folder / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666
            )
        except OSError as error:
            raise ObjectStoreError(f"{key!r}: {error.strerror}") from error
        try:
            deadline = time.monotonic() + _LOCK_TIMEOUT_S
            while True:
                try:
                    lock_exclusive(descriptor)
                    break
                except OSError as error:
                    if time.monotonic() > deadline:
                        raise ObjectStoreError(
                            f"{key!r}: another process is replacing it: {error.strerror}"
                        ) from error
                time.sleep(_LOCK_PAUSE_S)
            yield
        finally:
            os.close(descriptor)


def _compute_version(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
