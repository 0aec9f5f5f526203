"""Bugs planted in `ack: remote` and takeovers: `python -m tests.sim.two_broker_mutants [name ...]`.

Each must be caught by the simulation of two brokers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from headrace.archive import group_writer, journal_tail
from headrace.archive.commit_gate import StoreGate
from headrace.archive.group_format import LOG_PREFIX, GroupHeader, decode_group, log_key, parse_log_key
from headrace.archive.group_log import GroupLog
from headrace.archive.group_writer import GroupWriter
from headrace.backup.target import BackupTarget
from headrace.storage.checkpoint.checkpoint_writer import Checkpointer
from headrace.storage.frame_builder import FrameBuilder
from headrace.storage.native_records import mark_committed
from support.mutation import Mutant, Patch, main

from .archive_mutants import (
    a_base_is_older_than_trimmed_groups,
    a_conflict_is_taken_for_another_server,
    a_refusal_is_taken_for_a_retry,
    a_retry_is_taken_for_a_refusal,
    an_error_of_a_create_is_ignored,
    an_incomplete_group_is_applied,
    an_unknown_writer_is_ignored,
    the_floor_is_not_read,
)
from .two_brokers.process import MachineClock
from .two_brokers.seeds import run_seed
from .two_brokers.server import SERVER, LeaderServer

SEEDS = 400
_REUSED = (
    the_floor_is_not_read,
    a_retry_is_taken_for_a_refusal,
    a_refusal_is_taken_for_a_retry,
    a_conflict_is_taken_for_another_server,
    an_error_of_a_create_is_ignored,
    a_base_is_older_than_trimmed_groups,
    an_unknown_writer_is_ignored,
    an_incomplete_group_is_applied,
)


def _reuse(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
    """Return a planted bug of the archive as one of this module."""

    def planted(patch: Patch) -> None:
        plant(patch)

    planted.__name__ = plant.__name__
    return planted


def simulations() -> Iterator[int]:
    """Simulate two brokers."""
    for seed in range(SEEDS):
        run_seed(seed)
        yield 1


def an_ack_is_sent_before_the_create(patch: Patch) -> None:
    def on_synced(old: Any) -> Any:
        def pass_at_once(gate: StoreGate, release: Any) -> None:
            old(gate, release)
            gate._let_pass()

        return pass_at_once

    patch(StoreGate, "on_synced", on_synced)


def a_message_is_delivered_before_the_create(patch: Patch) -> None:
    """It counts as committed when its frame is submitted."""

    def seal(old: Any) -> Any:
        def seal_early(builder: FrameBuilder, *arguments: Any, **named: Any) -> Any:
            frame, ops = old(builder, *arguments, **named)
            mark_committed(frame.logs)
            return frame, ops

        return seal_early

    patch(FrameBuilder, "seal", seal)


def a_takeover_keeps_the_epoch(patch: Patch) -> None:
    def proceed(old: Any) -> Any:
        async def keep(writer: GroupWriter, group: Any, earlier: Any) -> None:
            await old(writer, group, earlier)
            writer.progress.epoch -= 1 if group is not None else 0

        return keep

    patch(GroupWriter, "_continue", proceed)


def the_opening_group_is_skipped(patch: Patch) -> None:
    def take_over(old: Any) -> Any:
        async def skip(writer: GroupWriter, *arguments: Any) -> None:
            create, on_created = writer._log.create, writer._on_created

            async def create_nothing(number: int, data: bytes) -> None:
                """Leave the number to others."""

            writer._log.create = create_nothing  # type: ignore[method-assign]
            writer._on_created = lambda data: None  # type: ignore[method-assign]
            try:
                await old(writer, *arguments)
            finally:
                writer._log.create = create  # type: ignore[method-assign]
                writer._on_created = on_created  # type: ignore[method-assign]

        return skip

    patch(GroupWriter, "take_over", take_over)


def the_clock_goes_back_after_a_takeover(patch: Patch) -> None:
    patch(MachineClock, "continue_from", lambda old: lambda clock, time_ns: None)


def a_dropped_number_is_taken_for_a_refusal(patch: Patch) -> None:
    """A create that is refused although there is no object is repeated, whatever the floor is."""

    def check_floor(old: Any) -> Any:
        async def check(log: GroupLog, number: int) -> None:
            if await log._target.has_key(log_key(number)):
                await old(log, number)

        return check

    patch(GroupLog, "_check_floor", check_floor)


def the_end_is_found_by_a_list(patch: Patch) -> None:
    def find_last(old: Any) -> Any:
        async def find(log: GroupLog) -> int:
            found = [parse_log_key(info.key) async for info in log._target.list(LOG_PREFIX)]
            return max([(await log.read_floor()).number, *found])

        return find

    patch(GroupLog, "find_last", find_last)


def a_trimmer_lowers_the_floor(patch: Patch) -> None:
    """It replaces the floor whatever it is meanwhile."""

    def replace(old: Any) -> Any:
        async def replace_any(target: BackupTarget, key: str, data: bytes, version: str) -> bool:
            await target.replace(key, data)
            return True

        return replace_any

    patch(BackupTarget, "replace_version", replace)


def the_last_part_of_a_group_is_left_out(patch: Patch) -> None:
    def create(old: Any) -> Any:
        async def create_parts(writer: GroupWriter, data: bytes) -> None:
            header = decode_group(data, SERVER, writer.progress.group + 1).header
            if header.parts == 1 or not header.is_last_part:
                await old(writer, data)

        return create_parts

    patch(GroupWriter, "_create", create)


def a_retry_has_other_bytes(patch: Patch) -> None:
    """Each attempt has the time of that attempt."""

    def create(old: Any) -> Any:
        async def create_anew(log: GroupLog, number: int, data: bytes) -> None:
            group = decode_group(data, SERVER, number)
            log.attempts = getattr(log, "attempts", 0) + 1  # type: ignore[attr-defined]
            time_ns = group.header.time_ns + log.attempts  # type: ignore[attr-defined]
            header = group_writer.GroupHeader(
                **{name: getattr(group.header, name) for name in group.header.__struct_fields__}
                | {"time_ns": time_ns}
            )
            await old(log, number, group_writer.encode_group(header, group.body))

        return create_anew

    patch(GroupLog, "create", create)


def large_messages_are_left_out(patch: Patch) -> None:
    patch(journal_tail, "LARGE", lambda old: -1)


def a_server_serves_without_an_opening_base(patch: Patch) -> None:
    """What recovery shows of the process before may not be in the archive."""

    def start(old: Any) -> Any:
        async def start_at_once(server: LeaderServer) -> None:
            make_base = server.writer.make_base

            async def make_no_base() -> None:
                """Leave it to later."""

            server.writer.make_base = make_no_base  # type: ignore[method-assign]
            await old(server)
            server.writer.make_base = make_base  # type: ignore[method-assign]

        return start_at_once

    patch(LeaderServer, "_start_remote", start)


def a_fenced_server_goes_on(patch: Patch) -> None:
    def fence(old: Any) -> Any:
        def ignore(server: LeaderServer, error: Exception) -> None:
            """Do nothing: the archiver has ended, the broker goes on."""
            server.gate.open()

        return ignore

    patch(LeaderServer, "_fence", fence)
    patch(LeaderServer, "_send_groups", _ignore_fence)
    patch(LeaderServer, "_make_bases", _ignore_fence)


def _ignore_fence(old: Any) -> Any:
    async def run(server: LeaderServer) -> None:
        try:
            await old(server)
        except group_writer.ArchiveFenced:
            await server.process.sleep(1e9)

    return run


def a_frame_is_archived_before_its_sync(patch: Patch) -> None:
    def make(old: Any) -> Any:
        return property(lambda gate: gate._store.journal.last_frame, lambda gate, frame: None)

    StoreGate.synced_frame = 0
    patch(StoreGate, "synced_frame", make)


def headers_name_too_few_frames(patch: Patch) -> None:
    """The heads of a group lack its own frames."""

    def make_header(old: Any) -> Any:
        def make(writer: GroupWriter, part: int, parts: int, runs: Any, heads: Any) -> GroupHeader:
            header: GroupHeader = old(writer, part, parts, runs, writer._heads)
            return header

        return make

    patch(GroupWriter, "_make_header", make_header)


def an_open_raises_the_frame_that_is_compared(patch: Patch) -> None:
    """The next start takes the jump of the frame numbers for content."""

    def make_root(old: Any) -> Any:
        def forget(checkpointer: Checkpointer, running: Any) -> Any:
            return msgspec.structs.replace(old(checkpointer, running), frame_before_open=None)

        return forget

    patch(Checkpointer, "_make_root", make_root)


def a_takeover_does_not_confirm_the_store(patch: Patch) -> None:
    """What the server writes does not count at its next start."""

    def confirm(old: Any) -> Any:
        def confirm_nothing(checkpointer: Checkpointer, done: Any) -> None:
            done(None)

        return confirm_nothing

    patch(Checkpointer, "confirm_open", confirm)


_QUICK = (an_ack_is_sent_before_the_create, a_message_is_delivered_before_the_create)
_PLANTS = (
    *_QUICK,
    *(_reuse(plant) for plant in _REUSED),
    a_retry_has_other_bytes,
    a_trimmer_lowers_the_floor,
    a_takeover_keeps_the_epoch,
    the_opening_group_is_skipped,
    the_clock_goes_back_after_a_takeover,
    a_dropped_number_is_taken_for_a_refusal,
    the_end_is_found_by_a_list,
    the_last_part_of_a_group_is_left_out,
    large_messages_are_left_out,
    a_server_serves_without_an_opening_base,
    a_fenced_server_goes_on,
    a_frame_is_archived_before_its_sync,
    headers_name_too_few_frames,
    an_open_raises_the_frame_that_is_compared,
    a_takeover_does_not_confirm_the_store,
)
MUTANTS: dict[str, Mutant] = {
    plant.__name__.replace("_", " "): Mutant(plant, (simulations,), plant in _QUICK) for plant in _PLANTS
}

if __name__ == "__main__":
    sys.exit(main(MUTANTS, sys.argv[1:]))
