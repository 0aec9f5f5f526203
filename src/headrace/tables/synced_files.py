"""Local files that are on disk when they are closed: a FileIO of pyiceberg for warehouses in a folder.

A catalog's commit is durable, and then the stream may drop its messages: so data files, manifests and metadata must be
durable before it. Object stores do that by themselves. Must not know tables.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from types import TracebackType

from pyiceberg.io import OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

#: How catalogs name this module's FileIO.
FILE_IO = f"{__name__}.SyncedFileIO"


class SyncedFile(io.FileIO):
    """A new file; closing it syncs the file and its folder."""

    def __init__(self, path: str) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        super().__init__(path, "wb")

    def write(self, data: object) -> int:
        """Write all bytes; `io.FileIO` may write fewer."""
        rest = memoryview(data).cast("B")  # type: ignore[arg-type]
        total = len(rest)
        while len(rest):
            rest = rest[super().write(rest) or 0 :]
        return total

    def close(self) -> None:
        if not self.closed:
            os.fsync(self.fileno())
            super().close()
            _sync_folder(os.path.dirname(str(self.name)))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class SyncedOutputFile(PyArrowFile):
    """A local file of pyiceberg that is synced when it is closed."""

    def create(self, overwrite: bool = False) -> OutputStream:
        if not overwrite and self.exists():
            raise FileExistsError(f"{self.location} exists already")
        return SyncedFile(self._path)


class SyncedFileIO(PyArrowFileIO):
    """The FileIO of pyiceberg, with synced local files."""

    def new_output(self, location: str) -> PyArrowFile:
        scheme, netloc, path = self.parse_location(location, self.properties)
        if scheme not in ("", "file"):
            return super().new_output(location)
        return SyncedOutputFile(location, path, self.fs_by_scheme(scheme, netloc))


def _sync_folder(path: str) -> None:
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
