"""Takes files from an earlier copy of the stores, so that a restore fetches only what is missing there.

Owns what may be taken. Invariant: a file that never changes again is linked, of others each chunk is copied only after its
checksum was compared; so the earlier copy need not be trusted. Must not know where objects are stored.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from headrace.backup.records import CHUNK_BYTES, FileEntry, StoreEntry, compute_digest
from headrace.backup.restore import write_chunk


class FileReuse:
    """An earlier copy in `folder`; `stores` says what was restored there, nothing if a server has used it since."""

    def __init__(self, folder: Path, stores: Iterable[StoreEntry] = ()) -> None:
        self._folder = folder
        self._files = {(store.folder, file.path): file for store in stores for file in store.files}
        self.reused_bytes = 0

    def __call__(self, folder: str, file: FileEntry, target: Path) -> set[int]:
        """Put chunks of a file in place; return their numbers."""
        source = self._folder / folder / file.path
        try:
            size = source.stat().st_size
        except OSError:
            return set()
        target.parent.mkdir(parents=True, exist_ok=True)
        if self._is_same(folder, file, size):
            os.link(source, target)
            found = set(range(len(file.chunks)))
        else:
            found = _copy_chunks(source, file, target)
        self.reused_bytes += sum(file.chunks[number].length for number in found)
        return found

    def _is_same(self, folder: str, file: FileEntry, size: int) -> bool:
        """Return whether the earlier file has the same bytes, and nobody writes to either of them again."""
        earlier = self._files.get((folder, file.path))
        return (
            earlier is not None
            and file.length == earlier.length == file.stable == earlier.stable == size
            and [(ref.sha256, ref.length) for ref in file.chunks]
            == [(ref.sha256, ref.length) for ref in earlier.chunks]
        )


def _copy_chunks(source: Path, file: FileEntry, target: Path) -> set[int]:
    found = set()
    with source.open("rb") as reader:
        for number, ref in enumerate(file.chunks):
            reader.seek(number * CHUNK_BYTES)
            data = reader.read(ref.length)
            if len(data) == ref.length and compute_digest(data) == ref.sha256:
                write_chunk(target, file.length, number * CHUNK_BYTES, data, True)
                found.add(number)
    return found
