"""The target of backups: a folder or a prefix of a bucket, with the few operations that backups need.

Owns URLs of targets, and decides what a refused create means. Invariant: `create` returns True only if the object has
exactly these bytes, also if another run wrote them, and `read` returns only bytes with the right checksum. Must not know
stores.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import cast
from urllib.parse import parse_qs, urlsplit

from headrace.backup.records import ObjectRef, compute_digest
from headrace.claims.stores import (
    FolderStore,
    ObjectAlreadyExists,
    ObjectInfo,
    ObjectMissing,
    ObjectStore,
    StaticAttributes,
    VersionedFolderStore,
    VersionedStore,
)
from headrace.errors import BackupDamaged, BackupError

_ATTRIBUTES = StaticAttributes()
_SETTINGS = ("account", "endpoint", "project", "region")
#: The largest object of a store without a limit.
NO_LIMIT = 1 << 62
_EXTRAS = {"s3": "s3", "gs": "gcs", "az": "azure"}


class BackupTarget:
    """One target. All names are relative to its prefix."""

    def __init__(self, store: ObjectStore, prefix: str = "", name: str = "") -> None:
        self._store = store
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self.name = name

    def open_folder(self, folder: str) -> BackupTarget:
        """Return the part of this target below a prefix; only this target is closed."""
        url, mark, query = self.name.partition("?")
        return BackupTarget(self._store, f"{self._prefix}{folder}", f"{url}/{folder}{mark}{query}")

    async def prepare(self) -> None:
        """Create the folder or the bucket if it is missing."""
        await self._store.ensure_bucket()

    async def exists(self) -> bool:
        """Return whether the folder or the bucket exists."""
        return await self._store.bucket_exists()

    async def create(self, key: str, data: bytes) -> bool:
        """Create an object; return False if another one has this name.

        A store may refuse its own retry, whose first attempt had succeeded: then the object has these bytes. It may also
        refuse although there is no object; the caller's next attempt decides.
        """
        for _ in range(3):
            try:
                await self._store.put(self._prefix + key, data, _ATTRIBUTES)
                return True
            except ObjectAlreadyExists:
                found = await self.read_any(key)
            if found is not None:
                return found == data
        raise BackupError(f"{self.name} refuses to create {key}, which does not exist")

    async def replace(self, key: str, data: bytes) -> None:
        """Write an object, whether or not there is one with this name."""
        await self._store.put(self._prefix + key, data, _ATTRIBUTES, replace=True)

    async def read_version(self, key: str) -> tuple[bytes, str] | None:
        """Return an object's bytes and their version; None if there is none."""
        try:
            return await self._versioned.get_version(self._prefix + key)
        except ObjectMissing:
            return None

    async def replace_version(self, key: str, data: bytes, version: str) -> bool:
        """Replace an object that still has this version, or create it if the version is ""; return False otherwise.

        As with `create`, a store may refuse its own retry: then the object has these bytes.
        """
        if not version:
            return await self.create(key, data)
        try:
            await self._versioned.put_version(self._prefix + key, data, version)
            return True
        except (ObjectAlreadyExists, ObjectMissing):
            return await self.read_any(key) == data

    @property
    def _versioned(self) -> VersionedStore:
        if not hasattr(self._store, "put_version"):
            raise BackupError(f"{self.name} cannot replace an object conditionally")
        return cast("VersionedStore", self._store)

    @property
    def object_bytes_max(self) -> int:
        """The largest object that a create can have; a store without such a limit has none."""
        return getattr(self._store, "object_bytes_max", NO_LIMIT)

    @property
    def warning(self) -> str:
        """What an operator should know about the store, after `prepare`."""
        return getattr(self._store, "warning", "")

    async def has_key(self, key: str) -> bool:
        """Return whether there is an object with this name."""
        return await self._store.exists(self._prefix + key)

    async def list_folders(self, prefix: str = "") -> Sequence[str]:
        """Return the names of the folders below a prefix."""
        found = await self._store.prefixes(self._prefix + prefix)
        return [each.removeprefix(self._prefix + prefix).strip("/") for each in found]

    async def read_any(self, key: str) -> bytes | None:
        """Return an object's bytes, unverified; None if there is none."""
        try:
            chunks = await self._store.get(self._prefix + key)
            return b"".join([bytes(chunk) async for chunk in chunks])
        except ObjectMissing:
            return None

    async def read(self, ref: ObjectRef) -> bytes:
        """Return an object's bytes; raise BackupDamaged if they are missing or wrong."""
        method = getattr(self._store, "get_whole", None)
        digest = ""
        try:
            if method is not None:
                # Copied and hashed in one call of a thread.
                found = await method(self._prefix + ref.key, ref.length)
                data, digest = found if found is not None else (b"", "")
            else:
                data = await self.read_any(ref.key) or b""
                digest = compute_digest(data)
        except ObjectMissing:
            raise BackupDamaged(f"object {ref.key} is missing") from None
        if len(data) != ref.length or digest != ref.sha256:
            raise BackupDamaged(f"object {ref.key} is damaged: its checksum is wrong")
        return bytes(data)

    async def has(self, ref: ObjectRef) -> bool:
        """Return whether there is an object with this name and length."""
        try:
            return (await self._store.head(self._prefix + ref.key)).size == ref.length
        except ObjectMissing:
            return False

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        """Iterate over the objects under a prefix, those after a name; names are relative."""
        after = self._prefix + start_after if start_after else ""
        async for page in self._store.list(self._prefix + prefix, after):
            for info in page:
                yield ObjectInfo(info.key.removeprefix(self._prefix), info.size, info.modified_ns)

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; missing ones are not errors."""
        await self._store.delete([self._prefix + key for key in keys])

    async def remove_partial_uploads(self, before_ns: int) -> None:
        """Remove what interrupted uploads left before this time, in stores that do not do it by themselves."""
        if isinstance(self._store, FolderStore) or hasattr(self._store, "object_bytes_max"):
            for upload in await self._store.uploads():
                if upload.initiated_ns < before_ns:
                    await self._store.abort(upload)

    async def close(self) -> None:
        await self._store.close()


def open_target(url: str) -> BackupTarget:
    """Open `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`, or a folder.

    Credentials come from the environment or the provider's chain. `?endpoint=`, `?region=` (S3), `?account=` (Azure) and
    `?project=` (Google) are the only settings.
    """
    parts = urlsplit(url)
    if parts.scheme not in _EXTRAS:
        if "://" in url and parts.scheme != "file":
            raise BackupError(f"{url!r} is not a target: use a folder, or s3://, gs:// or az://BUCKET/PREFIX")
        if parts.scheme == "file" and (parts.netloc or not parts.path.startswith("/")):
            raise BackupError(f"{url!r} is not a folder: use file:///DIRECTORY, with three slashes")
        path = Path(parts.path if parts.scheme == "file" else url).absolute()
        return BackupTarget(VersionedFolderStore(path.parent, path.name), "", str(path))
    if not parts.netloc or "@" in parts.netloc + parts.query:
        raise BackupError(
            f"{parts.scheme}:// needs a bucket and no credentials: {parts.scheme}://BUCKET/PREFIX"
        )
    settings: dict[str, object] = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    if unknown := settings.keys() - _SETTINGS:
        raise BackupError(
            f"unknown parameter {min(unknown)!r} of {parts.scheme}://; use {', '.join(_SETTINGS)}"
        )
    settings["tags"] = False
    try:
        store = _open_bucket(parts.scheme, parts.netloc, settings)
    except ModuleNotFoundError as error:
        raise BackupError(
            f"{parts.scheme}:// needs additional packages: pip install 'headrace[{_EXTRAS[parts.scheme]}]' ({error})"
        ) from error
    return BackupTarget(store, parts.path, url)


def _open_bucket(scheme: str, bucket: str, settings: dict[str, object]) -> ObjectStore:
    if scheme == "gs":
        from headrace.claims.stores.gcs import make_gcs_store

        return make_gcs_store(bucket, settings)
    if scheme == "az":
        from headrace.claims.stores.azure import make_azure_store

        return make_azure_store(bucket, settings)
    from headrace.claims.stores.s3 import make_s3_store

    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint:
        settings.setdefault("endpoint", endpoint)
    return make_s3_store(bucket, settings)
