"""The stores to back up: their files, read from a local pin, over HTTP, or from the folder of a stopped server.

Owns how bytes are fetched. Invariant: what is read below the lengths that `needed_files` computes does not change while
the source is open. Must not know targets.
"""

from __future__ import annotations

import http.client
import os
import ssl
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from headrace.errors import BackupError
from headrace.storage.io.readonly_disk import ReadonlyDisk
from headrace.storage.recovery.recovery import RESTORE_MARKER
from headrace.storage.snapshot.store_pin import pinned_name

#: The account of a server without accounts; its store is directly below the store directory.
GLOBAL_ACCOUNT = "$G"
_TIMEOUT_S = 60.0
#: The longest response that a server sends.
_RANGE_BYTES = 8 << 20


class StoreFiles(Protocol):
    """The files of one store, by their paths in it. Threads may share it."""

    def list(self, folder: str) -> list[str]: ...
    def exists(self, path: str) -> bool: ...
    def size(self, path: str) -> int: ...
    def read(self, path: str, offset: int, length: int) -> bytes: ...
    def map(self, path: str) -> memoryview: ...


@dataclass(frozen=True, slots=True)
class SourceStore:
    """A store to back up. `checkpoint` 0: that of a stopped server, whose newest frame counts.

    `lineage` is the token of its pin, `ancestors` are those of the pins that it descends from.
    """

    account: str
    folder: str
    files: StoreFiles
    lineage: str = ""
    checkpoint: int = 0
    frame: int = 0
    ancestors: tuple[str, ...] = ()


class LocalPin:
    """The files of a pin that this machine can read."""

    def __init__(self, folder: Path, journal: Iterable[tuple[int, int]]) -> None:
        self._folder = folder
        self._journal = [f"{number:016x}.jnl" for number, _ in journal]

    def list(self, folder: str) -> list[str]:
        return self._journal if folder == "journal" else []

    def exists(self, path: str) -> bool:
        return (self._folder / pinned_name(path)).exists()

    def size(self, path: str) -> int:
        return (self._folder / pinned_name(path)).stat().st_size

    def read(self, path: str, offset: int, length: int) -> bytes:
        try:
            descriptor = os.open(self._folder / pinned_name(path), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise _make_gone_error(path) from None
        try:
            return os.pread(descriptor, length, offset)
        finally:
            os.close(descriptor)

    def map(self, path: str) -> memoryview:
        return memoryview(self.read(path, 0, self.size(path)))


class HttpPin:
    """The files of a pin, fetched from the server's monitoring port; one connection for each thread."""

    def __init__(
        self, url: str, pin: str, token: str, journal: Iterable[tuple[int, int]], tls_ca: str = ""
    ) -> None:
        self._url = urlsplit(url)
        self._pin = pin
        self._headers = {"Authorization": f"Bearer {token}"}
        self._journal = [f"{number:016x}.jnl" for number, _ in journal]
        self._tls_ca = tls_ca
        self._threads = threading.local()
        self._sizes: dict[str, int | None] = {}

    def list(self, folder: str) -> list[str]:
        return self._journal if folder == "journal" else []

    def exists(self, path: str) -> bool:
        return self._find_size(path) is not None

    def size(self, path: str) -> int:
        size = self._find_size(path)
        if size is None:
            raise FileNotFoundError(path)
        return size

    def read(self, path: str, offset: int, length: int) -> bytes:
        data = bytearray()
        while len(data) < length:
            part, size = self._fetch(path, offset + len(data), min(length - len(data), _RANGE_BYTES))
            if size is None:
                raise _make_gone_error(path)
            data += part
            if not part or offset + len(data) >= size:
                break
        return bytes(data)

    def map(self, path: str) -> memoryview:
        return memoryview(self.read(path, 0, self.size(path)))

    def _find_size(self, path: str) -> int | None:
        if path not in self._sizes:
            self._sizes[path] = self._fetch(path, 0, 1)[1]
        return self._sizes[path]

    def _fetch(self, path: str, offset: int, length: int) -> tuple[bytes, int | None]:
        """Return some bytes and the file's size; None if the pin has no such file. Retries once."""
        try:
            return self._request(path, offset, length)
        except (OSError, http.client.HTTPException):
            self._threads.connection = None
        try:
            return self._request(path, offset, length)
        except (OSError, http.client.HTTPException) as error:
            self._threads.connection = None
            raise BackupError(f"{self._url.geturl()} does not serve {path}: {error}") from error

    def _request(self, path: str, offset: int, length: int) -> tuple[bytes, int | None]:
        connection = getattr(self._threads, "connection", None) or self._connect()
        self._threads.connection = connection
        headers = {**self._headers, "Range": f"bytes={offset}-{offset + length - 1}"}
        connection.request("GET", f"/pins/{self._pin}/{pinned_name(path)}", headers=headers)
        response = connection.getresponse()
        body = response.read()
        if response.status == http.client.PARTIAL_CONTENT:
            return body, int(response.headers["Content-Range"].rpartition("/")[2])
        if response.status == http.client.NOT_FOUND:
            return b"", None
        if response.status in (http.client.GONE, http.client.UNAUTHORIZED):
            raise _make_gone_error(path)
        text = body.decode(errors="replace").strip()
        raise BackupError(f"{self._url.geturl()} does not serve {path}: {response.status} {text}")

    def _connect(self) -> http.client.HTTPConnection:
        host = self._url.hostname or "127.0.0.1"
        if self._url.scheme == "https":
            context = ssl.create_default_context(cafile=self._tls_ca or None)
            return http.client.HTTPSConnection(
                host, self._url.port or 443, timeout=_TIMEOUT_S, context=context
            )
        return http.client.HTTPConnection(host, self._url.port or 8222, timeout=_TIMEOUT_S)


def _make_gone_error(path: str) -> BackupError:
    return BackupError(
        f"the server no longer pins {path}: it was restarted, or the lease of the pin ended; run the backup again, "
        "it continues with what was not sent yet"
    )


def open_pinned_stores(data: dict[str, Any], monitor_url: str, tls_ca: str = "") -> list[SourceStore]:
    """Return the stores of a pin: their files on this machine if it has them, otherwise over HTTP."""
    found = []
    for store in data["stores"]:
        journal = [(int(file), int(length)) for file, length in store["journal"]]
        folder = Path(store["folder"]) / "pins" / store["pin"]
        files: StoreFiles = LocalPin(folder, journal)
        if not os.access(folder, os.R_OK | os.X_OK):
            if not monitor_url:
                raise BackupError(
                    f"{folder} is not readable here, and the server has no monitoring port: run the backup on the "
                    "server's machine, or start the server with --http_port"
                )
            files = HttpPin(monitor_url, store["pin"], data["token"], journal, tls_ca)
        account, home = store["account"], folder.parents[1]
        found.append(
            SourceStore(
                account,
                home.name if account == GLOBAL_ACCOUNT else f"{home.parent.name}/{home.name}",
                files,
                store["lineage"],
                store["checkpoint"],
                store["frame"],
                tuple(store.get("ancestors", ())),
            )
        )
    return found


class OfflineStores:
    """The stores of a stopped server, locked against a start until they are closed."""

    def __init__(self, stores: Iterable[tuple[str, str, Path]]) -> None:
        self._disks: list[ReadonlyDisk] = []
        self.stores: list[SourceStore] = []
        try:
            for account, folder, path in stores:
                disk = ReadonlyDisk(path, exclusive=True)
                self._disks.append(disk)
                if disk.exists(RESTORE_MARKER):
                    raise BackupError(f"a restore into {path} was not completed: there is nothing to back up")
                self.stores.append(SourceStore(account, folder, disk))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the locks."""
        for disk in self._disks:
            disk.unlock()
