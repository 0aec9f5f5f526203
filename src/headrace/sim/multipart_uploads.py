"""Multipart uploads of the simulated object store: started, perhaps never finished, and invisible until completed.

Owns the parts of every unfinished upload. An upload is completed or aborted once; later calls for it are rejected, as
by a store that no longer knows it. `SimBucket` decides who may do what and which faults occur.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.claims.stores import MultipartUpload, ObjectStoreError


@dataclass(slots=True)
class OpenUpload:
    """An unfinished upload with its parts so far."""

    upload: MultipartUpload
    metadata: dict[str, str]
    parts: list[bytes] = field(default_factory=list)


class MultipartUploads:
    """The uploads of one bucket."""

    def __init__(self) -> None:
        self._open: dict[str, OpenUpload] = {}
        self._count = 0

    def begin(self, key: str, metadata: dict[str, str], initiated_ns: int) -> str:
        """Start an upload; return its id."""
        self._count += 1
        upload_id = f"upload {self._count}"
        self._open[upload_id] = OpenUpload(MultipartUpload(key, upload_id, initiated_ns), metadata)
        return upload_id

    def add_part(self, upload_id: str, part: bytes) -> None:
        if upload_id not in self._open:
            raise ObjectStoreError("no such upload")
        self._open[upload_id].parts.append(part)

    def finish(self, upload_id: str) -> OpenUpload | None:
        """Remove a completed or aborted upload; return None if there was none."""
        return self._open.pop(upload_id, None)

    def list_open(self) -> list[MultipartUpload]:
        """Return unfinished uploads in the order they were started."""
        return [open_upload.upload for open_upload in self._open.values()]
