"""Objects as files in a folder: the default, for one machine or a shared file system.

A file is written under a temporary name, synced, then linked into place, so an object is complete or absent even after
a power loss. Metadata is stored in extended attributes, or in a second file if the file system has none. obstore's
LocalStore is not used: it rejects metadata and does not sync. Blocking calls run in threads, in batches.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from io import FileIO
from pathlib import Path

import msgspec

from headrace.claims.stores.object_store import (
    READ_BYTES,
    AccessDenied,
    Attributes,
    BucketMissing,
    Chunk,
    Metadata,
    MultipartUpload,
    ObjectAlreadyExists,
    ObjectInfo,
    ObjectMissing,
    ObjectStoreError,
    QuotaExceeded,
)
from headrace.claims.stores.synced_folders import FolderHandle, SyncedFolders
from headrace.claims.stores.thread_calls import run_to_end
from headrace.os_files import start_write_back, sync_data

_PAGE_SIZE = 10_000
_SYSTEM_FOLDER = ".headrace"
_FORBIDDEN_SEGMENTS = frozenset(("", ".", ".."))
_XATTR_NAME = "user.headrace.metadata"
_NO_SPACE_ERRNOS = {28, 122}  # ENOSPC, EDQUOT
_CREATE_FLAGS = os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0)
_READ_FLAGS = os.O_RDONLY | getattr(os, "O_BINARY", 0)


class FolderStore:
    """A bucket that is the folder `root/bucket`; `sync=False` trades durability for speed."""

    lifecycle = None
    has_late_metadata = True

    def __init__(
        self, root: str | os.PathLike[str], bucket: str = "claims", *, sync: bool = True, xattrs: bool = True
    ) -> None:
        self.bucket = bucket
        self._root = Path(root) / bucket
        self._system_folder = self._root / _SYSTEM_FOLDER
        self._sync = sync
        self._xattrs = xattrs and hasattr(os, "setxattr")
        self._synced_folders = SyncedFolders(str(self._root))

    async def ensure_bucket(self) -> None:
        await asyncio.to_thread(self._create_folders)

    def _create_folders(self) -> None:
        """Create the bucket's folder and those above it, and make their names durable."""
        with _map_errors(self.bucket):
            # The bucket may have been created by a process that was killed before its sync.
            to_sync = [self._root.parent]
            while not to_sync[-1].exists():
                to_sync.append(to_sync[-1].parent)
            self._system_folder.mkdir(parents=True, exist_ok=True)
            if self._sync:
                for folder in to_sync:
                    FolderHandle(str(folder)).sync()

    async def bucket_exists(self) -> bool:
        return self._system_folder.is_dir()

    async def delete_bucket(self) -> None:
        if any(path.name != _SYSTEM_FOLDER for path in self._root.iterdir()):
            raise ObjectStoreError(f"bucket {self.bucket!r} is not empty; delete its objects first")
        shutil.rmtree(self._root)

    async def put(self, key: str, data: Chunk, attributes: Attributes, *, replace: bool = False) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._put_file, key, data, attributes, replace)

    async def put_stream(self, key: str, chunks: AsyncIterator[Chunk], attributes: Attributes) -> None:
        temporary, descriptor = self._create_temporary()
        try:
            await self._write_stream(descriptor, chunks, key)
            await run_to_end(self._commit_file, descriptor, temporary, key, attributes, True)
        finally:
            _discard(descriptor, temporary)

    async def get(self, key: str) -> AsyncIterator[Chunk]:
        with _map_errors(key):
            return _FileChunks(FileIO(self._get_path(key)), key)

    async def get_whole(self, key: str, size: int) -> tuple[bytes, str] | None:
        """Read and hash an object in one call of a thread."""
        return await asyncio.get_running_loop().run_in_executor(None, self._read_whole, key, size)

    async def head(self, key: str) -> ObjectInfo:
        path = self._get_path(key)
        with _map_errors(key):
            status = os.stat(path)
        return ObjectInfo(key, status.st_size, status.st_mtime_ns, self._read_metadata(key))

    async def exists(self, key: str) -> bool:
        self._check_key(key)
        return (self._root / key).is_file()

    async def delete(self, keys: Sequence[str]) -> None:
        await asyncio.to_thread(self._delete, keys)

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        walk = self._walk(prefix.rstrip("/"), start_after)
        while page := await asyncio.to_thread(_take_page, walk, _PAGE_SIZE):
            yield page

    async def prefixes(self, prefix: str) -> Sequence[str]:
        try:
            with os.scandir(self._root / prefix) as entries:
                return sorted(
                    f"{prefix}{entry.name}/"
                    for entry in entries
                    if entry.is_dir() and entry.name != _SYSTEM_FOLDER
                )
        except (FileNotFoundError, NotADirectoryError):
            return ()

    async def uploads(self) -> Sequence[MultipartUpload]:
        """List the files of writers that were interrupted or are still writing; the latter may disappear meanwhile."""
        found: list[MultipartUpload] = []
        for path in self._system_folder.glob("*.part"):
            with contextlib.suppress(FileNotFoundError):
                found.append(MultipartUpload("", str(path), path.stat().st_mtime_ns))
        return found

    async def abort(self, upload: MultipartUpload) -> None:
        await asyncio.to_thread(Path(upload.upload_id).unlink, missing_ok=True)

    async def close(self) -> None:
        """Close the folders."""
        self._synced_folders.close()

    def _get_path(self, key: str) -> str:
        self._check_key(key)
        return f"{self._root}/{key}"

    def _check_key(self, key: str) -> None:
        """Reject keys that would leave the bucket or collide with our own files."""
        parts = key.split("/")
        if not _FORBIDDEN_SEGMENTS.isdisjoint(parts) or parts[0] == _SYSTEM_FOLDER or "\0" in key:
            raise ObjectStoreError(
                f"{key!r} is not a valid key: segments must not be empty or consist of dots"
            )

    def _create_temporary(self) -> tuple[str, int]:
        """Create a temporary file; return its path and descriptor."""
        path = f"{self._system_folder}/{uuid.uuid4().hex}.part"
        try:
            return path, os.open(path, _CREATE_FLAGS, 0o666)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise BucketMissing(f"there is no bucket {self.bucket!r}: {self._root} was not set up") from error
        except OSError as error:
            raise _to_store_error(error, path) from error

    def _put_file(self, key: str, data: Chunk, attributes: Attributes, replace: bool) -> None:
        temporary, descriptor = self._create_temporary()
        try:
            with _map_errors(key):
                self._write_chunk(descriptor, data)
                self._commit_file(descriptor, temporary, key, attributes, replace)
        finally:
            _discard(descriptor, temporary)

    def _read_whole(self, key: str, size: int) -> tuple[bytes, str] | None:
        with _map_errors(key):
            descriptor = os.open(self._get_path(key), _READ_FLAGS)
            try:
                data = os.read(descriptor, size + 1)
            finally:
                os.close(descriptor)
        return (data, hashlib.sha256(data).hexdigest()) if len(data) == size else None

    async def _write_stream(self, descriptor: int, chunks: AsyncIterator[Chunk], key: str) -> None:
        """Write one chunk while the next is prepared, and let the disk start before the last one is written."""
        writing: asyncio.Task[None] | None = None
        try:
            async for chunk in chunks:
                if writing is not None:
                    await writing
                writing = asyncio.create_task(run_to_end(self._write_chunk, descriptor, chunk))
        finally:
            if writing is not None:
                with _map_errors(key):
                    await writing

    def _write_chunk(self, descriptor: int, data: Chunk) -> None:
        """Write, and let the disk start: what is done before the sync takes no additional time."""
        if self._sync and hasattr(os, "posix_fadvise"):
            _write_and_flush(descriptor, data)
        else:
            _write(descriptor, data)

    def _commit_file(
        self, descriptor: int, temporary: str, key: str, attributes: Attributes, replace: bool
    ) -> None:
        """Write metadata, sync, and only then link the name."""
        path = self._get_path(key)
        with _map_errors(key):
            self._write_metadata(descriptor, key, attributes.metadata())
            if self._sync:
                sync_data(descriptor)
            self._link_into_place(temporary, path, replace)

    def _link_into_place(self, temporary: str, path: str, replace: bool) -> None:
        folder = os.path.dirname(path)
        while not self._try_link(temporary, path, replace):
            # A collector may remove them meanwhile.
            with contextlib.suppress(FileExistsError, FileNotFoundError):
                os.makedirs(folder, exist_ok=True)
        if self._sync:
            with contextlib.suppress(FileNotFoundError):  # deleted again meanwhile, with its content
                self._synced_folders.sync(folder)

    def _try_link(self, temporary: str, path: str, replace: bool) -> bool:
        """Link the file to its name; return False if its folder is missing."""
        try:
            if replace:
                os.replace(temporary, path)
            else:
                os.link(temporary, path)
        except FileNotFoundError:
            if not os.path.exists(temporary):
                raise
            return False
        return True

    def _write_metadata(self, descriptor: int, key: str, metadata: Metadata) -> None:
        text = json.dumps(dict(metadata)).encode()
        if self._xattrs:
            try:
                os.setxattr(descriptor, _XATTR_NAME, text)
                return
            except OSError:
                self._xattrs = False  # this file system has none; use a second file instead
        sidecar = self._get_sidecar_path(key)
        sidecar.parent.mkdir(parents=True, exist_ok=True)
        sidecar.write_bytes(text)

    def _read_metadata(self, key: str) -> Metadata:
        """Return an object's metadata; empty if it is no longer readable, because nothing depends on it."""
        if hasattr(os, "getxattr"):
            with contextlib.suppress(OSError):
                return _parse_metadata(os.getxattr(self._get_path(key), _XATTR_NAME))
        with contextlib.suppress(OSError):
            return _parse_metadata(self._get_sidecar_path(key).read_bytes())
        return {}

    def _get_sidecar_path(self, key: str) -> Path:
        return self._system_folder / "metadata" / f"{key}.json"

    def _delete(self, keys: Sequence[str]) -> None:
        has_metadata = (self._system_folder / "metadata").is_dir()
        root, folders = str(self._root), set()
        for key in keys:
            self._check_key(key)
            try:
                os.unlink(f"{root}/{key}")
            except FileNotFoundError:
                pass
            except OSError as error:
                raise _to_store_error(error, key) from error
            folders.add(key.rpartition("/")[0])
            if has_metadata:
                self._get_sidecar_path(key).unlink(missing_ok=True)
        for folder in folders:
            self._remove_empty_folders(self._root / folder)

    def _remove_empty_folders(self, folder: Path) -> None:
        """Remove folders of past hours; one that a writer fills meanwhile stays, because rmdir fails on it."""
        while folder != self._root:
            try:
                folder.rmdir()
            except OSError:
                return
            folder = folder.parent

    def _walk(self, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
        """Walk depth first in key order: `a/b` sorts before `a0`, as `/` does."""
        folder = self._root / prefix
        try:
            with os.scandir(folder) as entries:
                names = sorted(
                    ((f"{entry.name}/" if entry.is_dir() else entry.name), entry) for entry in entries
                )
        except (FileNotFoundError, NotADirectoryError):
            return
        for name, entry in names:
            key = f"{prefix}/{name}" if prefix else name
            if name == f"{_SYSTEM_FOLDER}/":
                continue
            if name.endswith("/"):
                if key.rstrip("/") + "0" > start_after:
                    yield from self._walk(key.rstrip("/"), start_after)
            elif key > start_after:
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat()
                    yield ObjectInfo(key, status.st_size, status.st_mtime_ns)


def _parse_metadata(text: bytes) -> Metadata:
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return {}


@contextlib.contextmanager
def _map_errors(target: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _to_store_error(error, target) from error


def _to_store_error(error: OSError, target: str) -> ObjectStoreError:
    if isinstance(error, FileNotFoundError):
        return ObjectMissing(f"there is no object {target!r}")
    if isinstance(error, FileExistsError):
        return ObjectAlreadyExists(f"object {target!r} exists already")
    if isinstance(error, PermissionError):
        return AccessDenied(f"{target!r}: {error}")
    return (QuotaExceeded if error.errno in _NO_SPACE_ERRNOS else ObjectStoreError)(f"{target!r}: {error}")


def _write(descriptor: int, data: Chunk) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _write_and_flush(descriptor: int, data: Chunk) -> None:
    """Write, and start write-back."""
    _write(descriptor, data)
    end = os.lseek(descriptor, 0, os.SEEK_CUR)
    start_write_back(descriptor, end - len(data), len(data))


class _FileChunks:
    """Chunks of a file, each read in a thread; the file closes at its end, on an error, or with this."""

    def __init__(self, file: FileIO, key: str) -> None:
        self._file, self._key = file, key
        self._remaining = os.fstat(file.fileno()).st_size

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self

    def __del__(self) -> None:
        self._file.close()

    async def __anext__(self) -> Chunk:
        if self._remaining > 0:
            chunk = await asyncio.get_running_loop().run_in_executor(None, self._read)
            if chunk:
                return chunk
        self._file.close()
        raise StopAsyncIteration

    def _read(self) -> bytes:
        """Return the next chunk; nothing if the file was truncated meanwhile: readers check the length."""
        try:
            with _map_errors(self._key):
                chunk = self._file.read(min(READ_BYTES, self._remaining)) or b""
            self._remaining -= len(chunk)
        except BaseException:
            self._file.close()
            raise
        if not self._remaining:
            self._file.close()
        return chunk


def _take_page(walk: Iterator[ObjectInfo], count: int) -> list[ObjectInfo]:
    return [info for _, info in zip(range(count), walk, strict=False)]


def _discard(descriptor: int, temporary: str) -> None:
    """Close a temporary file and remove its name, if it still has it."""
    os.close(descriptor)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
