"""Bugs planted in the archive, one by one; the tests must catch each: `python -m tests.sim.archive_mutants [name ...]`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from headrace.archive import archive_bases, group_writer
from headrace.archive.group_format import GroupHeader
from headrace.archive.group_log import GroupLog, LogFloor
from headrace.archive.group_writer import GroupWriter
from headrace.archive.sequence_reserve import SequenceLimit, SequenceReserve
from headrace.archive.trimming import TrimPlan
from headrace.backup.target import BackupTarget
from headrace.claims.stores import ObjectAlreadyExists
from headrace.storage.journal.journal_writer import Journal
from headrace.storage.maintenance.gc import FileGarbageCollector
from support.mutation import Mutant, Patch, main, trial_of
from unit.archive.test_group_log import (
    test_a_conflict_without_an_object_is_retried,
    test_a_number_below_the_floor_fences_although_it_is_free,
    test_other_bytes_fence,
)
from unit.archive.test_group_writer import (
    test_an_unknown_writer_stops_a_start,
)

from .archive_simulation import run
from .sequence_reserve_simulation import run as lose_server

SEEDS = 150


def simulations() -> Iterator[int]:
    """Archive simulated stores."""
    for seed in range(SEEDS):
        run(seed)
        yield 1


def reserves() -> Iterator[int]:
    """Lose servers with `ack: local` at any moment."""
    for seed in range(SEEDS):
        lose_server(seed)
        yield 1


def the_floor_is_not_read(patch: Patch) -> None:
    def create(old: Any) -> Any:
        async def create_only(log: GroupLog, number: int, data: bytes) -> None:
            read_floor, log.read_floor = log.read_floor, _no_floor  # type: ignore[method-assign]
            try:
                await old(log, number, data)
            finally:
                log.read_floor = read_floor  # type: ignore[method-assign]

        return create_only

    patch(GroupLog, "create", create)


async def _no_floor() -> LogFloor:
    return LogFloor()


def a_base_is_older_than_trimmed_groups(patch: Patch) -> None:
    def find_plan(old: Any) -> Any:
        def find(*arguments: Any) -> TrimPlan:
            plan = old(*arguments)
            return TrimPlan(
                plan.retained, plan.dropped, max((each.group for each in plan.retained), default=0)
            )

        return find

    patch(archive_bases, "find_trim_plan", find_plan)


def a_journal_file_is_reused_before_it_is_archived(patch: Patch) -> None:
    def release(old: Any) -> Any:
        def free(journal: Journal) -> None:
            journal._free_files.extend(journal._unarchived_files)
            journal._unarchived_files = []
            journal.replenish_spares()

        return free

    patch(Journal, "_free_archived", release)


def a_segment_is_removed_before_it_is_archived(patch: Patch) -> None:
    patch(FileGarbageCollector, "_is_archived", lambda old: lambda gc, item: True)


def a_retry_is_taken_for_a_refusal(patch: Patch) -> None:
    def create(old: Any) -> Any:
        async def create_once(target: BackupTarget, key: str, data: bytes) -> bool:
            if await target.has_key(key):
                return False
            return bool(await old(target, key, data))

        return create_once

    patch(BackupTarget, "create", create)


def a_refusal_is_taken_for_a_retry(patch: Patch) -> None:
    def create(old: Any) -> Any:
        async def create_any(target: BackupTarget, key: str, data: bytes) -> bool:
            await old(target, key, data)
            return True

        return create_any

    patch(BackupTarget, "create", create)


def a_conflict_is_taken_for_another_server(patch: Patch) -> None:
    def create(old: Any) -> Any:
        async def create_once(target: BackupTarget, key: str, data: bytes) -> bool:
            from headrace.backup.target import _ATTRIBUTES

            try:
                await target._store.put(target._prefix + key, data, _ATTRIBUTES)
                return True
            except ObjectAlreadyExists:
                return await target.read_any(key) == data

        return create_once

    patch(BackupTarget, "create", create)


def a_takeover_keeps_the_epoch(patch: Patch) -> None:
    def make_header(old: Any) -> Any:
        def make(writer: GroupWriter, *arguments: Any) -> GroupHeader:
            writer.progress.epoch = 1
            header: GroupHeader = old(writer, *arguments)
            return header

        return make

    patch(GroupWriter, "_make_header", make_header)


def an_unknown_writer_is_ignored(patch: Patch) -> None:
    patch(group_writer, "check_last", lambda old: lambda *arguments: None)


def an_error_of_a_create_is_ignored(patch: Patch) -> None:
    def create(old: Any) -> Any:
        async def create_once(writer: GroupWriter, data: bytes) -> None:
            try:
                await writer._log.create(writer.progress.group + 1, data)
            except Exception:
                return
            writer._on_created(data)

        return create_once

    patch(GroupWriter, "_create", create)


def an_incomplete_group_is_applied(patch: Patch) -> None:
    patch(GroupHeader, "is_last_part", lambda old: property(lambda header: True))


def a_base_begins_at_a_later_group(patch: Patch) -> None:
    """Its group is read after the pin, when later frames are archived already."""

    def make_base(old: Any) -> Any:
        async def make(writer: GroupWriter) -> None:
            point = group_writer.ArchivePoint
            group_writer.ArchivePoint = lambda moment, epoch, group: point(  # type: ignore[misc, assignment]
                moment, epoch, writer.progress.group
            )
            try:
                await old(writer)
            finally:
                group_writer.ArchivePoint = point  # type: ignore[misc]

        return make

    patch(GroupWriter, "make_base", make_base)


def a_reserve_counts_before_it_is_announced(patch: Patch) -> None:
    def send_group(old: Any) -> Any:
        async def send(writer: GroupWriter) -> bool:
            writer.reserve.update(await writer._source.read_positions())
            await writer._source.set_reserved(writer.reserve.announced)
            return bool(await old(writer))

        return send

    patch(GroupWriter, "send_group", send_group)


def a_takeover_does_not_look_at_the_disk(patch: Patch) -> None:
    def begin(old: Any) -> Any:
        return lambda reserve, found, highest: old(reserve, found, {} if found else highest)

    patch(SequenceReserve, "begin", begin)


def a_frame_passes_without_a_reserve(patch: Patch) -> None:
    patch(SequenceLimit, "on_synced", lambda old: lambda limit, release: release())


MUTANTS: dict[str, Mutant] = {
    mutant.plant.__name__.replace("_", " "): mutant
    for mutant in (
        Mutant(
            the_floor_is_not_read, (trial_of(test_a_number_below_the_floor_fences_although_it_is_free),), True
        ),
        Mutant(a_base_is_older_than_trimmed_groups, (simulations,), True),
        Mutant(a_journal_file_is_reused_before_it_is_archived, (simulations,), True),
        Mutant(a_segment_is_removed_before_it_is_archived, (simulations,), True),
        Mutant(a_retry_is_taken_for_a_refusal, (simulations,), True),
        Mutant(a_refusal_is_taken_for_a_retry, (trial_of(test_other_bytes_fence),), True),
        Mutant(
            a_conflict_is_taken_for_another_server,
            (trial_of(test_a_conflict_without_an_object_is_retried),),
            True,
        ),
        Mutant(a_takeover_keeps_the_epoch, (simulations,), True),
        Mutant(an_unknown_writer_is_ignored, (trial_of(test_an_unknown_writer_stops_a_start),), True),
        Mutant(an_error_of_a_create_is_ignored, (simulations,), True),
        Mutant(an_incomplete_group_is_applied, (simulations,), True),
        Mutant(a_base_begins_at_a_later_group, (simulations,), True),
        Mutant(a_reserve_counts_before_it_is_announced, (reserves,), True),
        Mutant(a_takeover_does_not_look_at_the_disk, (reserves,), True),
        Mutant(a_frame_passes_without_a_reserve, (reserves,), True),
    )
}

if __name__ == "__main__":
    sys.exit(main(MUTANTS, sys.argv[1:]))
