"""The protocol of what remembers ids of subjects outside a log. Owns no behaviour."""

from __future__ import annotations

from typing import Protocol

from headrace.storage.native_records import Array


class SubjectIdListener(Protocol):
    """Remembers ids of subjects."""

    def on_subjects_remapped(self, new_ids: Array, kept: Array) -> None:
        """Replace each id by its new one; those that are not `kept` are no longer valid."""
