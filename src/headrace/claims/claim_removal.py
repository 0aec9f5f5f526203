"""Removes claims in the only safe order: compare-and-set on the record, then the object; the record again if it stays.

Used by producers, consumers and collectors. Only the process that wins the compare-and-set on the record deletes the
object: a producer that uses the claim again changes the record before it publishes, so its object stays. A process that
dies in between leaves an object that the sweep finds. When a claim may be removed is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.claims.config import ClaimConfig
from headrace.claims.metrics import Metrics
from headrace.claims.object_deletion import ClaimObjects
from headrace.claims.records import ClaimEntry
from headrace.claims.registry import Registry
from headrace.claims.stores import ObjectStore, ObjectStoreError


class FailedDeletions(Protocol):
    """What a caller does about objects that the store did not delete."""

    async def on_delete_failed(self, entry: ClaimEntry, error: ObjectStoreError) -> None:
        """Report it."""

    async def restore_record(self, entry: ClaimEntry, tombstone: int) -> None:
        """Restore the removed record, so that the deletion is retried."""


@dataclass(frozen=True, slots=True)
class Removal:
    """The outcome of removing claims.

    `deleted`: their objects are gone; `removed`: those of them whose records this call removed. `failed`: the store did
    not delete their objects. `changed`: another process changed their records, so they stay.
    """

    deleted: list[ClaimEntry]
    removed: list[ClaimEntry]
    failed: list[ClaimEntry]
    changed: list[ClaimEntry]


class ClaimRemover:
    """Removes claims of one namespace."""

    def __init__(self, config: ClaimConfig, store: ObjectStore, registry: Registry, metrics: Metrics) -> None:
        self._objects = ClaimObjects(config, store)
        self._registry = registry
        self._metrics = metrics

    async def remove(
        self, entries: Sequence[ClaimEntry], failures: FailedDeletions, *, isolate_failures: bool = False
    ) -> Removal:
        """Remove records and objects; orphans, which have no record, are deleted in any case.

        With `isolate_failures`, objects that could not be deleted together are deleted one by one.
        """
        tombstones = {
            entry.object_key: tombstone for entry, tombstone in await self._registry.remove(entries)
        }
        deletable = [entry for entry in entries if entry.object_key in tombstones or not entry.revision]
        deleted, failed = await self._delete_objects(deletable, failures, isolate_failures)
        await self._restore_records(failed, tombstones, failures)
        return Removal(
            deleted,
            [entry for entry in deleted if entry.object_key in tombstones],
            failed,
            [entry for entry in entries if entry.object_key not in tombstones and entry.revision],
        )

    async def delete_orphan(self, entry: ClaimEntry, failures: FailedDeletions) -> Removal:
        """Delete an object without a record, leaving the registry alone."""
        deleted, failed = await self._delete_objects([entry], failures, False)
        return Removal(deleted, [], failed, [])

    async def _restore_records(
        self, failed: Sequence[ClaimEntry], tombstones: Mapping[str, int], failures: FailedDeletions
    ) -> None:
        for entry in failed:
            if entry.revision:
                await failures.restore_record(entry, tombstones[entry.object_key])

    async def _delete_objects(
        self, entries: Sequence[ClaimEntry], failures: FailedDeletions, isolate_failures: bool
    ) -> tuple[list[ClaimEntry], list[ClaimEntry]]:
        """Delete all at once; return those that are deleted, and those that are not."""
        if not entries:
            return [], []
        try:
            await self._objects.delete(entries)
            return list(entries), []
        except ObjectStoreError as error:
            if isolate_failures:
                return await self._delete_one_by_one(entries, failures)
            for entry in entries:
                await self._report(entry, error, failures)
            return [], list(entries)

    async def _delete_one_by_one(
        self, entries: Sequence[ClaimEntry], failures: FailedDeletions
    ) -> tuple[list[ClaimEntry], list[ClaimEntry]]:
        deleted: list[ClaimEntry] = []
        failed: list[ClaimEntry] = []
        for entry in entries:
            try:
                await self._objects.delete([entry])
                deleted.append(entry)
            except ObjectStoreError as error:
                failed.append(entry)
                await self._report(entry, error, failures)
        return deleted, failed

    async def _report(self, entry: ClaimEntry, error: ObjectStoreError, failures: FailedDeletions) -> None:
        self._metrics.delete_failures.labels(entry.namespace).inc()
        await failures.on_delete_failed(entry, error)
