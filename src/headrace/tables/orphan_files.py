"""Deletes files of a table that nothing refers to.

Owns which files those are. Invariants: a file is deleted only if no snapshot refers to it, it is older than a day, and it
was written after this program created the table; and no file at all is deleted in a folder with the metadata of another
table. Files are listed before the table is loaded: what a commit refers to in between is not deleted. A worker never
commits files that are older than half a day.
"""

from __future__ import annotations

import gzip
import re
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pyiceberg.io.pyarrow import PyArrowFileIO

from headrace.errors import TableError
from headrace.tables.position import CREATED_MS

if TYPE_CHECKING:
    from pyiceberg.table import Table

ORPHAN_AGE_S = 24 * 3600.0
_METADATA_ENDINGS = (".metadata.json", ".metadata.json.gz")
#: Writers put the identifier near the beginning of the metadata, before lists that grow.
_HEAD_BYTES = 64 << 10
_TABLE_UUID = re.compile(rb'"table-uuid"\s*:\s*"([^"]+)"')


class MaintenanceStopped(Exception):
    """Maintenance was stopped before it was complete."""


#: Returns True when the work should end.
IsStopped = Callable[[], bool]


def never_stopped() -> bool:
    return False


def remove_orphans(
    load: Callable[[], Table],
    *,
    age_s: float = ORPHAN_AGE_S,
    dry_run: bool = False,
    is_stopped: IsStopped = never_stopped,
) -> dict[str, int]:
    """Delete the files below a table's location that nothing refers to; return their paths and sizes."""
    table = load()
    created_ms = table.properties.get(CREATED_MS)
    if created_ms is None:
        return {}
    file_system, location = _open_files(table)
    files = list(_list_files(file_system, location, is_stopped))
    after_s, before_s = int(created_ms) / 1000, time.time() - age_s
    orphans = {
        found.path: found.size
        for found in files
        if found.mtime is not None and after_s <= found.mtime.timestamp() < before_s
    }
    if not orphans:
        return {}
    now = load()
    if now.metadata.table_uuid != table.metadata.table_uuid:
        raise TableError(f"table {'.'.join(table.name())} was replaced while its files were listed")
    _check_no_other_table(now, file_system, [found.path for found in files], is_stopped)
    for path in _list_referenced(now, is_stopped):
        orphans.pop(path, None)
    if not dry_run:
        for path in orphans:
            _check_stop(is_stopped)
            file_system.delete_file(path)
    return orphans


def _open_files(table: Table) -> tuple[Any, str]:
    """Return the file system of a table, and the path of its location there."""
    io = table.io
    if not isinstance(io, PyArrowFileIO):
        raise TableError(f"files of {type(io).__name__} cannot be listed: orphan files are not removed")
    scheme, netloc, path = io.parse_location(table.location(), io.properties)
    return io.fs_by_scheme(scheme, netloc), path


def _list_files(file_system: Any, location: str, is_stopped: IsStopped) -> Iterator[Any]:
    """Yield the files of data and metadata. Folders are listed one by one, so that it can be stopped."""
    from pyarrow import fs

    folders = [f"{location}/data", f"{location}/metadata"]
    while folders:
        _check_stop(is_stopped)
        for found in file_system.get_file_info(fs.FileSelector(folders.pop(), allow_not_found=True)):
            if found.type == fs.FileType.File:
                yield found
            elif found.type == fs.FileType.Directory:
                folders.append(found.path)


def _check_no_other_table(table: Table, file_system: Any, paths: list[str], is_stopped: IsStopped) -> None:
    """Raise TableError if one of the files is the metadata of another table: the others may be its files."""
    own = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
    known = {_to_path(table, location) for location in own}
    own_uuid = str(table.metadata.table_uuid)
    for path in paths:
        if path in known or not path.endswith(_METADATA_ENDINGS):
            continue
        _check_stop(is_stopped)
        table_uuid = _read_table_uuid(file_system, path)
        if table_uuid != own_uuid:
            raise TableError(
                f"{path} is the metadata of another table ({table_uuid or 'its table-uuid cannot be read'}): in a folder of "
                "several tables orphan files are not removed. Set remove_orphans: false, or use a new table, which gets "
                "a folder of its own"
            )


def _read_table_uuid(file_system: Any, path: str) -> str:
    """Return the identifier in a metadata file; "" if there is none."""
    is_compressed = path.endswith(".gz") or ".gz." in path
    with file_system.open_input_file(path) as file:
        head = gzip.decompress(file.read()) if is_compressed else file.read(_HEAD_BYTES)
        found = _TABLE_UUID.search(head) or _TABLE_UUID.search(head + file.read())
    return found[1].decode() if found else ""


def _list_referenced(table: Table, is_stopped: IsStopped) -> Iterator[str]:
    """Yield the paths of all files that a table refers to, in any of its snapshots."""
    io, metadata = table.io, table.metadata
    locations = [table.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)]
    locations += [each.statistics_path for each in metadata.statistics]
    locations += [each.statistics_path for each in getattr(metadata, "partition_statistics", ())]
    seen: set[str] = set()
    for snapshot in metadata.snapshots:
        locations.append(snapshot.manifest_list)
        for manifest in snapshot.manifests(io):
            if manifest.manifest_path in seen:
                continue
            _check_stop(is_stopped)
            seen.add(manifest.manifest_path)
            locations.append(manifest.manifest_path)
            entries = manifest.fetch_manifest_entry(io, discard_deleted=False)
            locations += [entry.data_file.file_path for entry in entries]
    for location in locations:
        yield _to_path(table, location)


def _to_path(table: Table, location: str) -> str:
    """Return a location as the file system lists it."""
    return PyArrowFileIO.parse_location(location, table.io.properties)[2]


def _check_stop(is_stopped: IsStopped) -> None:
    if is_stopped():
        raise MaintenanceStopped
