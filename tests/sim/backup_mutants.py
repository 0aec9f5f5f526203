"""Bugs planted in backups, one by one; the tests must catch each: `python -m tests.sim.backup_mutants [name ...]`."""

from __future__ import annotations

import asyncio
import secrets
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.backup import create, restore, retention
from headrace.backup.create import BackupRun
from headrace.backup.records import ObjectRef
from headrace.backup.retention import BackupRetention
from headrace.backup.target import BackupTarget
from headrace.errors import StoreError
from headrace.storage import FileDisk, open_store
from headrace.storage.checkpoint.checkpoint_writer import Checkpointer
from headrace.storage.log.file_log import FileLog
from headrace.storage.maintenance.gc import FileGarbageCollector
from headrace.storage.snapshot.store_pin import StorePinPlan
from support.mutation import Mutant, Patch, main, trial_of
from support.small_store import Ticking
from support.store_backups import FOLDER, back_up, fill, make_target
from support.store_backups import restore as run_restore
from unit.backup.test_retention import Racers
from unit.backup.test_verify import test_damage_of_every_object_is_found
from unit.storage.snapshot.test_store_pin import test_no_pin_is_made_while_a_checkpoint_ends

from .backup_simulation import run

SEEDS = 200


def simulations() -> Iterator[int]:
    """Back up simulated stores."""
    for seed in range(SEEDS):
        run(seed)
        yield 1


def races() -> Iterator[int]:
    """Run backups and prunes at the same time."""
    retention._DELETE_BATCH = 2
    for seed in range(SEEDS):
        asyncio.run(Racers(seed).run())
        yield 1


def damage() -> Iterator[int]:
    """Damage every object."""
    for kind in ("flip", "truncate"):
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(test_damage_of_every_object_is_found(Path(folder), kind))
        yield 1


def interrupted_restores() -> Iterator[int]:
    """Interrupt restores, and open the store."""

    async def interrupt(folder: Path) -> None:
        fill(folder / "data")
        target = await make_target()
        await back_up(folder / "data", target)
        old, reads = target.read, 0

        async def read_some(ref: ObjectRef) -> bytes:
            nonlocal reads
            reads += 1
            if reads > 3:
                raise InterruptedError
            return await old(ref)

        target.read = read_some  # type: ignore[method-assign]
        try:
            await run_restore(target, folder / "restored")
        except InterruptedError:
            pass

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(interrupt(Path(folder)))
        disk = FileDisk(Path(folder) / "restored" / FOLDER)
        try:
            with pytest.raises(StoreError, match="not completed"):
                open_store(disk, Ticking())
        except pytest.fail.Exception:  # not an Exception
            raise AssertionError("a server opens an unfinished restore") from None
        finally:
            disk.close()
    yield 1


def a_segment_without_a_file_is_left_out(patch: Patch) -> None:
    def start_log(old: Any) -> Any:
        def start(plan: Any, log: FileLog) -> Any:
            segments = old(plan, log)
            plan._next_segments[log.ident] = log.next_segment
            return segments

        return start

    patch(StorePinPlan, "_start_log", start_log)


def files_that_wait_to_be_removed_are_left_out(patch: Patch) -> None:
    patch(FileGarbageCollector, "list_segment_files", lambda old: lambda gc: [])


def a_checkpoint_may_end_while_a_pin_is_made(patch: Patch) -> None:
    patch(Checkpointer, "is_settled", lambda old: property(lambda checkpointer: True))


def bytes_that_no_checkpoint_names_are_not_sent_again(patch: Patch) -> None:
    def find_stable(old: Any) -> Any:
        def find(run: Any, needed: Any, chunk: Any) -> ObjectRef | None:
            parent = run._parents.get((needed.store_id, chunk.file.path))
            number = chunk.offset // create.CHUNK_BYTES
            found = parent.chunks[number] if parent is not None and number < len(parent.chunks) else None
            return found if found is not None and found.length == chunk.length else None

        return find

    patch(BackupRun, "_find_stable", find_stable)


def a_record_names_objects_that_a_prune_removes(patch: Patch) -> None:
    def replace_dead(old: Any) -> Any:
        async def replace(run: Any, needed: Any, entry: Any) -> Any:
            return entry

        return replace

    patch(BackupRun, "_replace_dead", replace_dead)


def the_name_of_a_removed_object_is_used_again(patch: Patch) -> None:
    class Fixed:
        @staticmethod
        def token_hex(count: int) -> str:
            return "0" * 12 if count == 6 else secrets.token_hex(count)

    patch(create, "secrets", lambda old: Fixed)


def a_prune_removes_what_it_did_not_list(patch: Patch) -> None:
    """It removes objects before its record exists."""

    def plan(old: Any) -> Any:
        async def plan_and_remove(self: BackupRetention) -> Any:
            result, removed = await old(self)
            await self._target.delete(list(removed))
            return result, removed

        return plan_and_remove

    patch(BackupRetention, "_plan", plan)


def an_object_is_not_verified(patch: Patch) -> None:
    def read(old: Any) -> Any:
        async def read_any(target: BackupTarget, ref: ObjectRef) -> bytes:
            return (await target.read_any(ref.key) or b"")[: ref.length].ljust(ref.length, b"\0")

        return read_any

    patch(BackupTarget, "read", read)


def a_restore_marks_nothing(patch: Patch) -> None:
    def write_marker(old: Any) -> Any:
        return lambda path, text: None

    patch(restore, "_write_marker", write_marker)


MUTANTS: dict[str, Mutant] = {
    mutant.plant.__name__.replace("_", " "): mutant
    for mutant in (
        Mutant(a_segment_without_a_file_is_left_out, (simulations,), True),
        Mutant(files_that_wait_to_be_removed_are_left_out, (simulations,), True),
        Mutant(
            a_checkpoint_may_end_while_a_pin_is_made,
            (trial_of(test_no_pin_is_made_while_a_checkpoint_ends),),
            True,
        ),
        Mutant(bytes_that_no_checkpoint_names_are_not_sent_again, (simulations,), True),
        Mutant(a_record_names_objects_that_a_prune_removes, (races,), True),
        Mutant(the_name_of_a_removed_object_is_used_again, (races,), True),
        Mutant(a_prune_removes_what_it_did_not_list, (races,), True),
        Mutant(an_object_is_not_verified, (damage,), True),
        Mutant(a_restore_marks_nothing, (interrupted_restores,), True),
    )
}

if __name__ == "__main__":
    sys.exit(main(MUTANTS, sys.argv[1:]))
