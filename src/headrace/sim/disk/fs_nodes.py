"""Files and folders of the simulated disk. Owns what each has synced, what is pending, and what the cache shows.

Invariant: a process always reads the cache; a power loss leaves the synced part plus some of the pending part. A node
that a snapshot may share is cloned before it changes. Must not know queues, faults or outcomes.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.sim.disk.sparse_file import PendingWrite, SparseFile


class SimFile:
    """A file without a name: a synced image and the writes since."""

    __slots__ = ("_cache", "_cache_diverged", "epoch", "image", "links", "pending", "shared", "size")

    def __init__(self, epoch: int, image: SparseFile, links: int = 0) -> None:
        self.epoch = epoch
        self.image = image
        self.shared = False
        self.pending: list[PendingWrite] = []
        self.size = image.size
        self.links = links
        self._cache: bytearray | None = None
        self._cache_diverged = False

    def clone(self, epoch: int, *, move_cache: bool) -> SimFile:
        """Return the same file for another epoch. With `move_cache` existing views become views of the clone."""
        clone = SimFile(epoch, self.image, self.links)
        clone.shared = True
        clone.pending = list(self.pending)
        clone.size = self.size
        clone._cache_diverged = self._cache_diverged
        if move_cache:
            clone._cache, self._cache = self._cache, None
        if self._cache_diverged:  # the cache cannot be rebuilt from the image
            shown = clone._cache if move_cache else self._cache
            self._cache = bytearray(shown or b"")
            clone._cache = clone._cache if move_cache else bytearray(shown or b"")
        return clone

    def write(self, write: PendingWrite) -> None:
        """Apply a write or a reservation: at once in the cache, pending for the disk."""
        if write.data:
            cache = self._get_writable_cache(write.size)
            cache[write.offset : write.offset + len(write.data)] = write.data
        elif self._cache is not None:
            self._get_writable_cache(write.size)
        self.pending.append(write)
        self.size = max(self.size, write.size)

    def sync(self) -> None:
        """Move all pending writes to the disk."""
        if not self.pending:
            return
        self._get_writable_image().apply_writes(self.pending)
        self.pending = []

    def drop_pending(self, *, visible: bool) -> None:
        """Handle a failed sync: pending writes never reach the disk, though the cache may still show them."""
        if visible:
            self._get_writable_cache(self.size)
            self._cache_diverged = True
        else:
            self._cache = None
            self.size = self.image.size
        self.pending = []

    def read(self, offset: int, length: int) -> bytes:
        end = min(offset + length, self.size)
        if offset >= end:
            return b""
        if self._cache is None and not self.pending:
            return self.image.read_all()[offset:end]
        return bytes(memoryview(self._get_writable_cache(self.size))[offset:end])

    def view(self) -> memoryview:
        """Return a mapping: later writes inside the mapped range appear in it."""
        return memoryview(self._get_writable_cache(self.size))[: self.size].toreadonly()

    def _get_writable_image(self) -> SparseFile:
        if self.shared:
            self.image = self.image.copy()
            self.shared = False
        return self.image

    def _get_writable_cache(self, size: int) -> bytearray:
        cache = self._cache
        if cache is None:
            cache = bytearray(self.image.read_all())
            if self.size > len(cache):
                cache.extend(bytes(self.size - len(cache)))
            for write in self.pending:
                cache[write.offset : write.offset + len(write.data)] = write.data
            self._cache = cache
        if size > len(cache):
            try:
                cache.extend(bytes(size - len(cache)))
            except BufferError:  # mapped: existing views keep the old range
                cache = self._cache = cache + bytes(size - len(cache))
        return cache


class NameChange(NamedTuple):
    """A change of a folder's names that no syncdir has covered yet.

    `removed_name` is a name that disappears, `name` one that appears for `node`; a rename within a folder has both and
    is atomic. `depends_on` identifies the change in another folder (folder, operation) without which `removed_name`
    stays.
    """

    op_number: int
    node: int
    name: str = ""
    removed_name: str = ""
    depends_on: tuple[int, int] | None = None


class SimFolder:
    """Names and their nodes."""

    __slots__ = ("epoch", "names", "pending", "synced")

    def __init__(self, epoch: int, names: dict[str, int] | None = None) -> None:
        self.epoch = epoch
        self.synced: dict[str, int] = names or {}
        self.names: dict[str, int] = dict(self.synced)
        self.pending: list[NameChange] = []

    def clone(self, epoch: int, *, move_cache: bool) -> SimFolder:
        clone = SimFolder(epoch, dict(self.synced))
        clone.names = dict(self.names)
        clone.pending = list(self.pending)
        return clone

    def apply_change(self, change: NameChange) -> None:
        apply_name_change(self.names, change)
        self.pending.append(change)


def apply_name_change(names: dict[str, int], change: NameChange) -> None:
    """Apply one change to a name table. A name that refers to another node meanwhile is left alone."""
    if change.removed_name and names.get(change.removed_name) == change.node:
        del names[change.removed_name]
    if change.name:
        names[change.name] = change.node


Node = SimFile | SimFolder
