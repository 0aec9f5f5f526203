"""Deletes the objects of claims; the only module that calls a store's `delete` (a test checks that).

Claim records are validated when they are decoded. Before each deletion the object is checked again against this
program's own configuration: its bucket, its namespace, and the claim's id in a key of the form that producers make. No
record in the broker, even a forged one, can delete an object that is not the claim's own.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.claims.config import ClaimConfig
from headrace.claims.records import ClaimEntry
from headrace.claims.reference import is_key_for
from headrace.claims.stores import ObjectStore, ObjectStoreError


class ForeignObject(ObjectStoreError):
    """The object is not in the configured bucket, or not an object of this claim."""


class ClaimObjects:
    """Deletes objects of one namespace."""

    def __init__(self, config: ClaimConfig, store: ObjectStore) -> None:
        self._config = config
        self._store = store

    def is_own(self, entry: ClaimEntry) -> bool:
        """Return whether an object is in this namespace and its bucket, and belongs to the claim."""
        namespace = self._config.namespace
        return (
            entry.namespace == namespace
            and entry.bucket in self._config.buckets
            and is_key_for(entry.object_key, namespace, entry.claim_id)
        )

    async def delete(self, entries: Sequence[ClaimEntry]) -> None:
        """Delete the objects of claims; raise `ForeignObject`, deleting nothing, if one of them is not ours."""
        for entry in entries:
            if not self.is_own(entry):
                raise ForeignObject(
                    f"{entry.bucket}/{entry.object_key} is not an object of claim {entry.claim_id} in "
                    f"{self._config.bucket}/{self._config.namespace}/"
                )
        await self._store.delete([entry.object_key for entry in entries])
