"""The format of a backup: records of the log, indexes of files, names of objects.

Owns the bytes of records and indexes. Invariant: what decodes is what was written; a checksum covers all of it. An object
of a backup is never changed, and its name is never used again after it was removed. Must not know where objects are
stored. See ADR 90.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec

from headrace.errors import BackupDamaged, BackupError

CHUNK_BYTES = 8 << 20
LOG_PREFIX, OBJECTS_PREFIX, DONE_PREFIX = "log/", "objects/", "done/"
_MAGIC = b"headrace-backup-1"


class ObjectRef(msgspec.Struct, frozen=True, array_like=True):
    """An object: SHA-256 and length of its bytes, and the run that wrote it."""

    sha256: str
    length: int
    run: str

    @property
    def key(self) -> str:
        """The object's name."""
        return f"{OBJECTS_PREFIX}{self.sha256[:2]}/{self.sha256}.{self.run}"


class FileEntry(msgspec.Struct, frozen=True, array_like=True):
    """A file of a store: its bytes are those of `chunks`, one after the other.

    The first `stable` bytes are the same in all later backups of a store that descends from this one, if the file
    exists.
    """

    path: str
    length: int
    stable: int
    chunks: list[ObjectRef]


class StoreEntry(msgspec.Struct, frozen=True):
    """The store of an account: what a recovery from `checkpoint` up to `frame` reads.

    `lineage` is the token of its pin, which the store keeps: see `headrace.storage.snapshot.store_pin`.
    """

    account: str
    folder: str
    store_id: int
    lineage: str
    checkpoint: int
    frame: int
    files: list[FileEntry]


class BackupIndex(msgspec.Struct, frozen=True):
    """All files of a backup."""

    stores: list[StoreEntry]

    def list_objects(self) -> set[ObjectRef]:
        """Return the objects that it names."""
        return {chunk for store in self.stores for file in store.files for chunk in file.chunks}


class BackupRecord(msgspec.Struct, frozen=True, tag="backup"):
    """A complete backup. `sent_bytes` of its `bytes` were uploaded by its own run.

    In an archive: it was pinned at `moment_ns`, and the groups of `epoch` after `group` continue it.
    """

    id: str
    created_ns: int
    server: str
    writer: str
    index: ObjectRef
    files: int
    bytes: int
    sent_bytes: int
    streams: int
    messages: int
    moment_ns: int = 0
    epoch: int = 0
    group: int = 0


class PruneRecord(msgspec.Struct, frozen=True, tag="prune"):
    """Backups with numbers up to `floor` are dropped, and those in `thinned`, which are above it.

    `removed` is the object with the names of dead objects.
    """

    id: str
    created_ns: int
    floor: int
    removed: ObjectRef
    thinned: list[int] = []


LogRecord = BackupRecord | PruneRecord


def log_key(number: int) -> str:
    """Return the name of a record."""
    return f"{LOG_PREFIX}{number:016x}"


def done_key(number: int) -> str:
    """Return the name of the object that says that all objects which this prune removes are gone."""
    return f"{DONE_PREFIX}{number:016x}"


def parse_log_key(key: str) -> int:
    """Return the number of a record; 0 if the name is not one of a record."""
    text = key.removeprefix(LOG_PREFIX)
    try:
        number = int(text, 16)
    except ValueError:
        return 0
    return number if log_key(number) == key else 0


def parse_object_key(key: str, length: int) -> ObjectRef | None:
    """Return what the name of an object says; None if it is not one."""
    digest, _, run = key.rpartition("/")[2].partition(".")
    found = ObjectRef(digest, length, run)
    return found if len(digest) == 64 and run and found.key == key else None


def compute_digest(data: bytes | memoryview) -> str:
    """Return the SHA-256 of some bytes, in hexadecimal."""
    return sha256(data).hexdigest()


def encode_record(record: LogRecord) -> bytes:
    """Return the bytes of a record."""
    body = msgspec.json.encode(record)
    return b"%b %b\n%b\n" % (_MAGIC, compute_digest(body).encode(), body)


def decode_record(data: bytes, key: str) -> LogRecord:
    """Decode a record; raise BackupDamaged if it is not what was written."""
    head, _, rest = data.partition(b"\n")
    magic, _, digest = head.partition(b" ")
    body = rest.removesuffix(b"\n")
    if magic.startswith(b"headrace-backup-") and magic != _MAGIC:
        raise BackupError(f"{key} has the format {magic.decode(errors='replace')}: a newer version wrote it")
    if magic != _MAGIC or not rest.endswith(b"\n") or compute_digest(body).encode() != digest:
        raise BackupDamaged(f"record {key} is damaged")
    record: LogRecord = msgspec.json.decode(body, type=LogRecord)
    return record


def encode_index(index: BackupIndex) -> bytes:
    """Return the bytes of an index."""
    return msgspec.json.encode(index)


def decode_index(data: bytes) -> BackupIndex:
    """Decode an index whose checksum is correct."""
    return msgspec.json.decode(data, type=BackupIndex)


def encode_names(keys: list[str]) -> bytes:
    """Return the bytes of a list of objects to remove."""
    return msgspec.json.encode(keys)


def decode_names(data: bytes) -> list[str]:
    """Decode a list of objects whose checksum is correct."""
    return msgspec.json.decode(data, type=list[str])
