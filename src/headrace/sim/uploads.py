"""Uploads in parts, as object stores have them: begun, perhaps never ended, and nothing to see of them until then.

Owns the parts of every upload under way. An upload is completed or aborted once; what comes later for it is refused, as
a store does that knows it no more. Who may do what, and what goes wrong on the way, is the business of `SimObjects`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.claims.stores import StoreError, Upload


@dataclass(slots=True)
class Parted:
    """An upload under way and what it has of its object."""

    upload: Upload
    metadata: dict[str, str]
    parts: list[bytes] = field(default_factory=list)


class Uploads:
    """The uploads of one bucket."""

    def __init__(self) -> None:
        self._open: dict[str, Parted] = {}
        self._count = 0

    def begin(self, key: str, metadata: dict[str, str], initiated_ns: int) -> str:
        """A new upload; its id."""
        self._count += 1
        upload_id = f"upload {self._count}"
        self._open[upload_id] = Parted(Upload(key, upload_id, initiated_ns), metadata)
        return upload_id

    def add(self, upload_id: str, part: bytes) -> None:
        if upload_id not in self._open:
            raise StoreError("no such upload")
        self._open[upload_id].parts.append(part)

    def end(self, upload_id: str) -> Parted | None:
        """Completed or aborted: it is no more; None if it was none already."""
        return self._open.pop(upload_id, None)

    def listed(self) -> list[Upload]:
        """Those under way, in the order in which they were begun."""
        return [parted.upload for parted in self._open.values()]
