"""Objects as files in a folder: the default, for one machine or a shared file system.

Written beside, synced, then linked into place, so an object is whole or absent even after a power cut. Metadata sits
in extended attributes, or in a file beside where the file system has none. obstore's LocalStore is not used: it
refuses metadata and does not sync. Blocking calls run in threads, in batches.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from io import FileIO
from pathlib import Path

import msgspec

from headrace.claims.clock import SECOND_NS, SystemClock
from headrace.claims.stores.base import (
    READ,
    Attributes,
    BucketMissing,
    Chunk,
    Denied,
    Metadata,
    ObjectInfo,
    ObjectMissing,
    ObjectThere,
    QuotaExceeded,
    StoreError,
    Upload,
)

_PAGE = 10_000
_HIDDEN = ".headrace"
_NO_SEGMENTS = frozenset(("", ".", ".."))
_ATTRIBUTE = "user.headrace.metadata"
_OUT_OF_SPACE = {28, 122}  # ENOSPC, EDQUOT
_SYNCED_MAX = 10_000


class FolderStore:
    """A bucket that is the folder `root/bucket`; `sync=False` gives durability up for speed."""

    lifecycle = None

    def __init__(
        self, root: str | os.PathLike[str], bucket: str = "claims", *, sync: bool = True, xattrs: bool = True
    ) -> None:
        self.bucket = bucket
        self._root = Path(root) / bucket
        self._hidden = self._root / _HIDDEN
        self._sync = sync
        self._xattrs = xattrs and hasattr(os, "setxattr")
        #: Folders in which all names are durable, with the time of the last change that is.
        self._synced: dict[Path, int] = {}

    async def ensure_bucket(self) -> None:
        with _explained(self.bucket):
            self._hidden.mkdir(parents=True, exist_ok=True)

    async def bucket_exists(self) -> bool:
        return self._hidden.is_dir()

    async def delete_bucket(self) -> None:
        if any(path.name != _HIDDEN for path in self._root.iterdir()):
            raise StoreError(f"bucket {self.bucket!r} is not empty; delete its objects first")
        shutil.rmtree(self._root)

    async def put(self, key: str, data: Chunk, attributes: Attributes, *, replace: bool = False) -> None:
        await asyncio.to_thread(self._put_whole, key, data, attributes, replace)

    async def put_stream(self, key: str, chunks: AsyncIterator[Chunk], attributes: Attributes) -> None:
        temporary = self._temporary()
        with _explained(key):
            file = temporary.open("xb", buffering=0)
        try:
            with file:
                await self._write_all(file.fileno(), chunks, key)
                await asyncio.to_thread(self._finish, file.fileno(), temporary, key, attributes, True)
        finally:
            temporary.unlink(missing_ok=True)

    async def get(self, key: str) -> AsyncIterator[Chunk]:
        with _explained(key):
            file = self._path(key).open("rb", buffering=0)
        return _pieces(file)

    async def head(self, key: str) -> ObjectInfo:
        path = self._path(key)
        with _explained(key):
            status = path.stat()
        return ObjectInfo(key, status.st_size, status.st_mtime_ns, self._metadata(key))

    async def exists(self, key: str) -> bool:
        return self._path(key).is_file()

    async def delete(self, keys: Sequence[str]) -> None:
        await asyncio.to_thread(self._delete, keys)

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        walk = self._walk(prefix.rstrip("/"), start_after)
        while page := await asyncio.to_thread(_take, walk, _PAGE):
            yield page

    async def prefixes(self, prefix: str) -> Sequence[str]:
        try:
            with os.scandir(self._root / prefix) as entries:
                return sorted(
                    f"{prefix}{entry.name}/" for entry in entries if entry.is_dir() and entry.name != _HIDDEN
                )
        except (FileNotFoundError, NotADirectoryError):
            return ()

    async def uploads(self) -> Sequence[Upload]:
        """Files of writers that were cut off, or are at work: then they may go while we look."""
        found: list[Upload] = []
        for path in self._hidden.glob("*.part"):
            with contextlib.suppress(FileNotFoundError):
                found.append(Upload("", str(path), path.stat().st_mtime_ns))
        return found

    async def abort(self, upload: Upload) -> None:
        await asyncio.to_thread(Path(upload.upload_id).unlink, missing_ok=True)

    async def close(self) -> None:
        """Nothing is held open."""

    def _path(self, key: str) -> Path:
        self._check(key)
        return self._root / key

    def _check(self, key: str) -> None:
        """Refuse what would leave the bucket or meet our own files."""
        parts = key.split("/")
        if not _NO_SEGMENTS.isdisjoint(parts) or parts[0] == _HIDDEN or "\0" in key:
            raise StoreError(f"{key!r} is no key: segments are neither empty nor dots")

    def _temporary(self) -> Path:
        if not self._hidden.is_dir():
            raise BucketMissing(f"there is no bucket {self.bucket!r}: {self._root} was not set up")
        return self._hidden / f"{uuid.uuid4().hex}.part"

    def _put_whole(self, key: str, data: Chunk, attributes: Attributes, replace: bool) -> None:
        temporary = self._temporary()
        try:
            with _explained(key), temporary.open("xb", buffering=0) as file:
                _write(file.fileno(), data)
                self._finish(file.fileno(), temporary, key, attributes, replace)
        finally:
            temporary.unlink(missing_ok=True)

    async def _write_all(self, descriptor: int, chunks: AsyncIterator[Chunk], key: str) -> None:
        """Write one chunk while the next is being made, and let the disk begin before the last one is written."""
        writing: asyncio.Future[None] | None = None
        loop = asyncio.get_running_loop()
        write = _write_out if self._sync and hasattr(os, "posix_fadvise") else _write
        try:
            async for chunk in chunks:
                if writing is not None:
                    await writing
                writing = loop.run_in_executor(None, write, descriptor, chunk)
        finally:
            if writing is not None:
                with _explained(key):
                    await writing

    def _finish(
        self, descriptor: int, temporary: Path, key: str, attributes: Attributes, replace: bool
    ) -> None:
        """Metadata, sync, and only then the name."""
        path = self._path(key)
        with _explained(key):
            self._keep_metadata(descriptor, key, attributes.metadata())
            if self._sync:
                os.fdatasync(descriptor)
            self._place(temporary, path, replace)

    def _place(self, temporary: Path, path: Path, replace: bool) -> None:
        while not self._linked(temporary, path, replace):
            with contextlib.suppress(
                FileExistsError, FileNotFoundError
            ):  # a collector removes them meanwhile
                path.parent.mkdir(parents=True, exist_ok=True)
        if self._sync:
            with contextlib.suppress(FileNotFoundError):  # deleted again meanwhile, with what was in it
                _sync_folder(path.parent)
                self._sync_above(path.parent)

    def _sync_above(self, folder: Path) -> None:
        """Make the names of folders durable. Also of those that were there: another writer may have made them a moment
        ago, and not have synced them yet.
        """
        for above in folder.parents:
            changed_ns = above.stat().st_mtime_ns
            if self._synced.get(above) != changed_ns:
                _sync_folder(above)
                self._remember(above, changed_ns)
            if above == self._root:
                return

    def _remember(self, folder: Path, changed_ns: int) -> None:
        """What was synced need not be again until it changes; a change within a tick of the clock could not be seen."""
        if SystemClock().now_ns() - changed_ns > SECOND_NS:
            if len(self._synced) >= _SYNCED_MAX:
                self._synced.clear()
            self._synced[folder] = changed_ns

    def _linked(self, temporary: Path, path: Path, replace: bool) -> bool:
        """Give the file its name; False when the folder for it is missing."""
        try:
            if replace:
                temporary.replace(path)
            else:
                os.link(temporary, path)
        except FileNotFoundError:
            if not temporary.exists():
                raise
            return False
        return True

    def _keep_metadata(self, descriptor: int, key: str, metadata: Metadata) -> None:
        text = json.dumps(dict(metadata)).encode()
        if self._xattrs:
            try:
                os.setxattr(descriptor, _ATTRIBUTE, text)
                return
            except OSError:
                self._xattrs = False  # this file system has none; a file beside serves as well
        beside = self._beside(key)
        beside.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(text)

    def _metadata(self, key: str) -> Metadata:
        """What was kept with an object; nothing where it cannot be read any more, as nobody depends on it."""
        if hasattr(os, "getxattr"):
            with contextlib.suppress(OSError):
                return _parse_metadata(os.getxattr(self._path(key), _ATTRIBUTE))
        with contextlib.suppress(OSError):
            return _parse_metadata(self._beside(key).read_bytes())
        return {}

    def _beside(self, key: str) -> Path:
        return self._hidden / "metadata" / f"{key}.json"

    def _delete(self, keys: Sequence[str]) -> None:
        has_metadata = (self._hidden / "metadata").is_dir()
        root, folders = str(self._root), set()
        for key in keys:
            self._check(key)
            try:
                os.unlink(f"{root}/{key}")
            except FileNotFoundError:
                pass
            except OSError as error:
                raise _translated(error, key) from error
            folders.add(key.rpartition("/")[0])
            if has_metadata:
                self._beside(key).unlink(missing_ok=True)
        for folder in folders:
            self._drop_empty(self._root / folder)

    def _drop_empty(self, folder: Path) -> None:
        """Folders of passed hours go; one that a writer fills meanwhile stays, as rmdir refuses it."""
        while folder != self._root:
            try:
                folder.rmdir()
            except OSError:
                return
            folder = folder.parent

    def _walk(self, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
        """Depth first in key order: `a/b` sorts before `a0`, as `/` does."""
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
            if name == f"{_HIDDEN}/":
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
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _translated(error, what) from error


def _translated(error: OSError, what: str) -> StoreError:
    if isinstance(error, FileNotFoundError):
        return ObjectMissing(f"there is no object {what!r}")
    if isinstance(error, FileExistsError):
        return ObjectThere(f"object {what!r} exists already")
    if isinstance(error, PermissionError):
        return Denied(f"{what!r}: {error}")
    return (QuotaExceeded if error.errno in _OUT_OF_SPACE else StoreError)(f"{what!r}: {error}")


def _write(descriptor: int, data: Chunk) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _write_out(descriptor: int, data: Chunk) -> None:
    """Write, and have the kernel start on it: a hint that it is not needed makes Linux write it back at once."""
    _write(descriptor, data)
    end = os.lseek(descriptor, 0, os.SEEK_CUR)
    os.posix_fadvise(descriptor, end - len(data), len(data), os.POSIX_FADV_DONTNEED)


async def _pieces(file: FileIO) -> AsyncIterator[Chunk]:
    """`file` closes when the iterator does."""
    with file:
        left = os.fstat(file.fileno()).st_size
        while left > 0:
            piece = await asyncio.to_thread(file.read, min(READ, left))
            if not piece:
                return  # cut short meanwhile; whoever reads it counts
            left -= len(piece)
            yield piece


def _take(walk: Iterator[ObjectInfo], count: int) -> list[ObjectInfo]:
    return [info for _, info in zip(range(count), walk, strict=False)]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
