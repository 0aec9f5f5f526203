"""Bugs planted in the store, one by one; the harness must catch each: `python -m tests.crash.mutants [name ...]`.

A mutant is a small patch of the real store, applied in a separate process, and the trials that should detect it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from headrace.sim import Fault, SimDisk
from headrace.sim.checkers.store_invariants import require
from headrace.sim.workloads.store_driver import StoreDriver
from headrace.storage import compressed_block, format, frame_builder
from headrace.storage.checkpoint import checkpoint_writer, load, running_checkpoint
from headrace.storage.journal import journal_writer, sync_marker
from headrace.storage.log import file_log
from headrace.storage.log.log import StreamLog
from headrace.storage.maintenance import compaction, flush, gc
from headrace.storage.recovery import load_stream, recovery, replay, scanned_journal
from headrace.storage.segments import column_file
from headrace.storage.segments import segment as segments
from headrace.storage.store import Store
from support.mutation import Mutant, Patch, main

from .bit_rot import build, examine, flipped
from .crash_points import Checker, trace_of
from .disk_fault_runs import calls, goes_silent, run, survives
from .store_sizes import TINY
from .workloads import live, some, words

Op = tuple[Any, ...]


def without(ops: list[Op], *kinds: str, path: str = "") -> list[Op]:
    return [op for op in ops if not (op[0] in kinds and op[1].startswith(path))]


# Trials


def points(*labels: str) -> Iterator[int]:
    """Crash at every operation of some workloads."""
    for label in labels:
        checker = Checker(trace_of(label))
        yield from (checker.run(1, 0).total for _ in range(1))


def all_points() -> Iterator[int]:
    """Crash in every way, small workloads first."""
    for word in list(words(2))[::3]:
        yield Checker(trace_of(f"small/{word}")).run().total
    yield from points("checkpoint/0", "rotate/1", "compact/0", "lifetimes/0", "everything/1", "everything/2")


def faults() -> Iterator[int]:
    """Make syncs fail and lose what they should have written."""
    for word in ("abc", "cac", "alr"):
        for lost in ("cached", "gone"):
            for number in range(1, calls(word, ("sync",)) + 1):
                outcome = run(word, Fault(nth=number, kinds=("sync",), lost=lost))
                goes_silent(outcome)
                survives(outcome, Random(number))
                yield 1


def rot() -> Iterator[int]:
    """Flip bits in every file, then swap files."""
    for kind in ("idle", "closed", "killed"):
        rotten = build(kind)
        for path, content in rotten.files.items():
            heads = [at for at in range(0, len(content), 512) if content[at : at + 2] == b"HR"]
            for offset in (*(at + byte for at in heads for byte in range(48)), *range(0, len(content), 23)):
                examine(rotten, {path: flipped(content, offset, offset % 8)})
                yield 1
    files = build().files
    for one in files:
        for other in files:
            if one < other:
                examine(build(), {one: files[other], other: files[one]}, confined=False)
                yield 1


def removed_while_compacted() -> Iterator[int]:
    """Remove a message between the copy of its segment and the end of the compaction."""
    for seed in range(8):
        driver, rng = StoreDriver(SimDisk(seed), TINY), Random(seed)
        driver.create("A")
        for _ in range(5):
            some(driver, rng, "A", 8, 1_200)
            driver.commit()
        driver.run_until_idle()
        for seq in [seq for seq in live(driver, "A") if seq % 8]:
            driver.remove("A", seq)
        driver.commit()
        driver.run_until(lambda: driver.store.compactor.busy)  # noqa: B023 - called at once
        removed = live(driver, "A")[0]
        driver.remove("A", removed)
        driver.compact()
        require(driver.log("A").get(removed) is None, f"{removed} exists again after compaction")
        yield 1


def block_headers() -> Iterator[int]:
    """Flip each bit of a block's header."""
    data = b"records" * 9
    header = format.encode_block_header(7, 512, 3, 9, data)
    require(format.parse_block(header + data, 0, 7, 512) is not None, "an intact block is refused")
    for bit in range(8 * len(header)):
        damaged = flipped(header + data, bit // 8, bit % 8)
        require(format.parse_block(damaged, 0, 7, 512) is None, f"bit {bit} of a header is not covered")
        yield 1


# Patches


def ack_before_sync(patch: Patch) -> None:
    patch(
        journal_writer.Journal, "make_frame_ops", lambda old: lambda self, *a: without(old(self, *a), "sync")
    )


def witness_before_sync(patch: Patch) -> None:
    """The sync marker is written before the frame is synced."""

    def mutate(old: Any) -> Any:
        def ops(self: Any, *a: Any) -> list[Any]:
            found = old(self, *a)
            witness = [op for op in found if op[1] == sync_marker.PATH]
            return [*found[:-2], *witness, found[-2]] if witness else found

        return ops

    patch(journal_writer.Journal, "make_frame_ops", mutate)


def witness_not_heard(patch: Patch) -> None:
    """Treat a bad frame at the end as a torn tail, although the sync marker says that it was synced."""
    patch(scanned_journal, "read_latest", lambda old: lambda *a: None)


def head_outside_the_checksum(patch: Patch) -> None:
    """Length, first sequence and count of a block are not covered."""

    def seal(seed: int, offset: int, first_seq: int, records: int, data: Any) -> bytes:
        head = format._BLOCK.pack(format.BLOCK_MAGIC, len(data), offset, first_seq, records, 0)
        return head[:-4] + format._U32.pack(format.crc32(data, seed))

    def check(data: Any, at: int, seed: int, offset: int) -> format.BlockHeader | None:
        block = _unverified(data, at, seed, offset)
        if block is None:
            return None
        start = at + format.BLOCK_HEADER_BYTES
        (crc,) = format._U32.unpack_from(data, start - 4)
        return block if format.crc32(memoryview(data)[start : start + block.length], seed) == crc else None

    patch(format, "encode_block_header", lambda old: seal)
    patch(format, "parse_block", lambda old: check)


def _unverified(data: Any, at: int, seed: int, offset: int) -> format.BlockHeader | None:
    """Read the header of a block without verifying its checksum."""
    if at + format.BLOCK_HEADER_BYTES > len(data):
        return None
    magic, length, place, first_seq, records, _ = format._BLOCK.unpack_from(data, at)
    if magic != format.BLOCK_MAGIC or place != offset or at + format.BLOCK_HEADER_BYTES + length > len(data):
        return None
    return format.BlockHeader(offset, length, first_seq, records)


def cut_in_mid_log(patch: Patch) -> None:
    """Recovery stops at the first bad frame, even if valid frames follow."""

    def mutate(old: Any) -> Any:
        def replayed(self: Any, replay: Any, after: int) -> int:
            numbers = sorted(frame.number for scanned in self.files for frame in scanned.frames)
            good = after
            for number in numbers:
                if number == good + 1 or (good == after and number == numbers[0]):
                    good = number
            for scanned in self.files:
                scanned.frames = [frame for frame in scanned.frames if frame.number <= good]
            return int(old(self, replay, after))

        return replayed

    patch(scanned_journal.ScannedJournal, "replay", mutate)


def journal_folder_not_synced(patch: Patch) -> None:
    patch(journal_writer, "create_ops", lambda old: lambda *a: without(old(*a), "syncdir"))
    patch(
        journal_writer.Journal, "_switch_file", lambda old: lambda self, *a: without(old(self, *a), "syncdir")
    )
    patch(
        recovery._Recovery,
        "_start_journal",
        lambda old: lambda self, *a: _without_in_run(self, old, "journal", *a),
    )


def _without_in_run(self: Any, old: Any, folder: str, *arguments: Any) -> None:
    """Calls a method of recovery whose disk ignores syncing one folder."""
    disk = self.disk
    real = disk.run
    disk.run = lambda ops: real(without(ops, "syncdir", path=folder))
    try:
        old(self, *arguments)
    finally:
        disk.run = real


def streams_folder_not_synced(patch: Patch) -> None:
    patch(checkpoint_writer, "sync_ops", lambda old: lambda unsynced: without(old(unsynced), "syncdir"))
    patch(frame_builder, "large_message_ops", lambda old: lambda *a: without(old(*a), "syncdir"))


def sequence_reuse(patch: Patch) -> None:
    """The last sequence is computed from the live messages."""

    def mutate(old: Any) -> Any:
        def restored(*arguments: Any) -> Any:
            log = old(*arguments)
            log.last_seq = log.find_prev(None, log.last_seq) or log.last_seq
            return log

        return restored

    patch(recovery, "load_log", mutate)


def snapshot_over_journal(patch: Patch) -> None:
    """Live bits of the checkpoint are used; removals in the journal after it are ignored."""
    patch(replay.Replay, "_apply_removals", lambda old: lambda self, ident, data: None)


def retried_sync(patch: Patch) -> None:
    """A failed sync is retried, and its success is trusted."""

    def mutate(old: Any) -> Any:
        def done(self: Any, frame: Any, error: OSError | None) -> None:
            if error is None:
                old(self, frame, None)
            else:
                again = [("sync", format.journal_path(self.journal._current_file))]
                self.disk.submit("commit", again, lambda _: old(self, frame, None))

        return done

    patch(Store, "_on_committed", mutate)


def error_ignored(patch: Patch) -> None:
    """Continue after a failed sync in the background."""
    patch(Store, "fail", lambda old: lambda self, error: None)


def unlinked_too_early(patch: Patch) -> None:
    """Delete dropped files at once, although a checkpoint still names them."""

    def add(self: Any, path: str) -> None:
        disk = self._store.disk
        if disk.exists(path):
            disk.submit("behind", [("unlink", path)], lambda error: None)

    patch(gc.FileGarbageCollector, "add", lambda old: add)


def bitmap_of_another_generation(patch: Patch) -> None:
    """Reuse packed live bits forever."""
    patch(segments.Segment, "live_bits", lambda old: lambda self: self.cached_live_bits or old(self))


def predecessor_ignored(patch: Patch) -> None:
    """Do not notice a missing frame before a good one."""
    patch(replay.Replay, "apply", lambda old: lambda self, number, body, missing: old(self, number, body, 0))


def serving_before_synced(patch: Patch) -> None:
    """Write the checkpoint of recovery, but do not wait for the disk."""

    def mutate(old: Any) -> Any:
        def run_now(self: Any) -> None:
            disk = self._store.disk
            real = disk.run
            disk.run = lambda ops: real(without(ops, "sync", "syncdir"))
            try:
                old(self)
            finally:
                disk.run = real

        return run_now

    patch(checkpoint_writer.Checkpointer, "run_blocking", mutate)


def mark_before_synced(patch: Patch) -> None:
    """The mark goes to the journal while the checkpoint's files are only written."""
    patch(
        checkpoint_writer.Checkpointer,
        "_make_write_ops",
        lambda old: lambda self, running: without(old(self, running), "sync", "syncdir"),
    )


def segments_not_synced(patch: Patch) -> None:
    """A checkpoint names blocks that are only in the cache."""
    patch(checkpoint_writer, "sync_ops", lambda old: lambda unsynced: without(old(unsynced), "sync"))


def journal_released_too_early(patch: Patch) -> None:
    """Journal files are reused when a checkpoint starts, not when it is durable."""

    def mutate(old: Any) -> Any:
        def begin(self: Any, *arguments: Any, **options: Any) -> None:
            old(self, *arguments, **options)
            self._store.journal.release_through(self._store.journal.last_frame)

        return begin

    patch(checkpoint_writer.Checkpointer, "start", mutate)


def block_not_verified(patch: Patch) -> None:
    patch(compressed_block, "parse_block", lambda old: _unverified)


def large_not_synced(patch: Patch) -> None:
    """The frame that refers to a large message is durable before the message."""
    patch(frame_builder, "large_message_ops", lambda old: lambda *a: without(old(*a), "sync"))


def checkpoint_of_an_open_frame(patch: Patch) -> None:
    """Sections are captured from logs that the open frame has changed."""

    def take(self: Any, running: Any) -> None:
        while running.to_capture:
            self._capturer.capture_whole(running, running.to_capture.popleft())
        running.captured_frame = self._store.frame_number - 1
        running.flush_target = self._store.flusher.added_count

    patch(checkpoint_writer.Checkpointer, "_capture_sections", lambda old: take)


def replayed_twice(patch: Patch) -> None:
    """Frames that a section already holds are applied again."""
    patch(replay.Replay, "_is_newer_than_shard", lambda old: lambda self, key: True)


def identity_outside_the_checksum(patch: Patch) -> None:
    """A block is valid at any position, so files can be swapped."""
    patch(segments, "compute_segment_seed", lambda old: lambda store, ident, segment: 0)
    patch(load_stream, "is_segment_header", lambda old: lambda *a: True)


def compressed_file_too_short(patch: Patch) -> None:
    """The file ends with the compressed bytes of its last block, before the end that the checkpoint names."""

    def mutate(old: Any) -> Any:
        def append(ops: list[Op], *a: Any) -> None:
            old(ops, *a)
            ops.pop()

        return append

    patch(flush, "_append_compressed_write", mutate)


def watermarks_left_out(patch: Patch) -> None:
    """A frame does not contain the watermarks of the one before it."""

    def mutate(old: Any) -> Any:
        def seal(self: Any, kind: int, *, is_full: bool) -> Any:
            self._prev_watermarks = b""
            return old(self, kind, is_full=is_full)

        return seal

    patch(frame_builder.FrameBuilder, "seal", mutate)


def deleted_at_once(patch: Patch) -> None:
    """Delete the files of a deleted stream before the deletion is durable."""

    def add_folder(self: Any, folder: str, ended: int) -> None:
        disk = self._store.disk
        names = [f"{folder}/{name}" for name in disk.list(folder)]
        disk.submit("behind", [("unlink", name) for name in names], lambda error: None)

    patch(gc.FileGarbageCollector, "add_folder", lambda old: add_folder)


def sections_not_verified(patch: Patch) -> None:
    def mutate(old: Any) -> Any:
        def read(disk: Any, store: int, ref: Any, report: Any) -> bytes | None:
            path = format.checkpoint_path(ref.checkpoint, "a")
            return (
                bytes(disk.read(path, ref.offset, ref.length))
                if disk.exists(path)
                else old(disk, store, ref, report)
            )

        return read

    patch(load, "_read_section", mutate)


def dead_again_alive(patch: Patch) -> None:
    """A message removed during compaction is live in the compacted segment."""
    patch(compaction._CompactionJob, "_tombstone_removed", lambda old: lambda self, old_segments: None)


def stale_columns_trusted(patch: Patch) -> None:
    """Trust a cache without its checksum."""
    patch(column_file, "crc32", lambda old: lambda data, start=0: 0)


def ids_of_another_generation(patch: Patch) -> None:
    """Give subjects new ids, and accept columns with the old ones."""
    patch(file_log.FileLog, "on_subjects_renumbered", lambda real: StreamLog.on_subjects_renumbered)


def counted_before_its_turn(patch: Patch) -> None:
    """An obsolete item of the flush queue counts as written while the items before it are not written yet."""

    def mutate(old: Any) -> Any:
        def take(self: Any) -> Any:
            taken = old(self)
            while self._queue and (
                self._queue[0].log.is_deleted
                or (self._queue[0].block is None and not self._needs_columns(self._queue[0]))
            ):
                self._skip(self._queue.popleft())
            return taken

        return take

    patch(flush.SegmentFlusher, "_take_batch", mutate)


def deletion_before_its_frame(patch: Patch) -> None:
    """A checkpoint without a stream is durable before the frame that deletes the stream."""
    patch(running_checkpoint.RunningCheckpoint, "get_delete_frame", lambda old: lambda self: 0)


def scripted(*labels: str) -> Callable[[], Iterator[int]]:
    return lambda: points(*labels)


MUTANTS: dict[str, Mutant] = {
    mutant.plant.__name__.replace("_", " "): mutant
    for mutant in (
        Mutant(ack_before_sync, (scripted("small/a"),), True),
        Mutant(witness_before_sync, (scripted("small/a"),), True),
        Mutant(witness_not_heard, (rot,)),
        Mutant(head_outside_the_checksum, (block_headers,), True),
        Mutant(cut_in_mid_log, (rot,), True),
        Mutant(journal_folder_not_synced, (scripted("append/0", "rotate/0"),), True),
        Mutant(streams_folder_not_synced, (scripted("large/0", "checkpoint/0"),), True),
        Mutant(sequence_reuse, (scripted("small/ec", "remove/0"),), True),
        Mutant(snapshot_over_journal, (scripted("small/r"),), True),
        Mutant(retried_sync, (faults,), True),
        Mutant(error_ignored, (faults,)),
        Mutant(unlinked_too_early, (scripted("compact/0"), all_points)),
        Mutant(bitmap_of_another_generation, (scripted("compact/0"), all_points)),
        Mutant(predecessor_ignored, (rot,)),
        Mutant(serving_before_synced, (scripted("small/a"),), True),
        Mutant(mark_before_synced, (scripted("small/cc", "checkpoint/0"),), True),
        Mutant(segments_not_synced, (scripted("checkpoint/0", "rotate/0"),)),
        Mutant(journal_released_too_early, (scripted("rotate/0", "rotate/1"), all_points)),
        Mutant(block_not_verified, (rot,)),
        Mutant(large_not_synced, (scripted("small/l"),), True),
        Mutant(checkpoint_of_an_open_frame, (scripted("everything/1", "everything/2"), all_points)),
        Mutant(replayed_twice, (scripted("facts/0", "small/nc"), all_points)),
        Mutant(identity_outside_the_checksum, (rot,)),
        Mutant(watermarks_left_out, (rot,)),
        Mutant(compressed_file_too_short, (scripted("squeezed/0"),), True),
        Mutant(deleted_at_once, (scripted("lifetimes/0"),)),
        Mutant(sections_not_verified, (rot,)),
        Mutant(dead_again_alive, (removed_while_compacted,), True),
        Mutant(stale_columns_trusted, (rot,)),
        Mutant(ids_of_another_generation, (scripted("keys/0", "keys/1", "keys/2"),), True),
        Mutant(counted_before_its_turn, (scripted("crowd/32", "crowd/35"),)),
        Mutant(deletion_before_its_frame, (scripted("crowd/22"),)),
    )
}

if __name__ == "__main__":
    sys.exit(main(MUTANTS, sys.argv[1:]))
