"""Opens a store: loads the newest usable checkpoint, replays the journal, writes a new checkpoint, then starts service.

Owns the decisions described in `docs/store.md`. Invariant: it never renames, truncates or overwrites anything, and
removes only what neither the marked checkpoint nor the journal after it refers to. Everything it keeps is written again
and synced before it returns, because after a failed sync the page cache may show data that the disk does not have. A
crash during recovery leaves the old checkpoint and its journal as they were.

If there is no space for that, the store opens in place: replayed blocks stay in memory, the journal continues where it
ended, and the checkpoint is written when there is space. Opening in place needs no space at all. It overwrites only bad
copies of a checkpoint, and later frames overwrite a torn tail.
"""

from __future__ import annotations

import errno
import re
import struct

import msgspec

from headrace.clock import Clock
from headrace.code_probes import sometimes
from headrace.errors import CorruptData, StoreFull, StorePoisoned, UnknownFeature
from headrace.storage.checkpoint.load import FILE_NAME as CHECKPOINT_NAME
from headrace.storage.checkpoint.load import (
    LoadedCheckpoint,
    is_new_store,
    list_checkpoints,
    load_newest,
    repair_copies,
)
from headrace.storage.checkpoint_schema import MetadataEntryState, StreamCheckpoint
from headrace.storage.damage_report import Damage, RecoveryReport
from headrace.storage.format import (
    ALIGN,
    FRAME_HEADER_BYTES,
    SHUTDOWN,
    align_up,
    journal_path,
    stream_folder,
    unknown_kind,
)
from headrace.storage.format_features import refusal_message
from headrace.storage.io.disk import Disk, Op, OutOfSpace
from headrace.storage.journal.journal_writer import JournalFile
from headrace.storage.journal.scan import FILE_NAME as JOURNAL_NAME
from headrace.storage.journal.scan import ScannedFile, scan_journal
from headrace.storage.journal.sync_marker import PATH as SYNCED
from headrace.storage.journal.sync_marker import read_latest
from headrace.storage.log.file_log import FileLog
from headrace.storage.options import StoreOptions
from headrace.storage.recovery.load_stream import FILE_NAME as SEGMENT_NAME
from headrace.storage.recovery.load_stream import SUBJECTS_NAME, load_log, note_lost
from headrace.storage.recovery.replay import Replay
from headrace.storage.recovery.segment_references import JournalSurvey, sort_frames
from headrace.storage.recovery.unreferenced_files import (
    IDENT_MAX,
    STREAM,
    UnreferencedFiles,
    list_files,
    remove_checkpoints,
    remove_new,
    sync_checkpoint,
)
from headrace.storage.store import Store

FOLDERS = ("checkpoints", "journal", "streams")
KNOWN_NAMES = (*FOLDERS, "lock", "lost", "pins")
FRAME_JUMP = 1024  # frame numbers to skip, so that a torn frame can never be taken for a later one
FLUSH_BYTES = 32 << 20
_TORN_NAME = re.compile(r"[0-9a-f]{16}\.[0-9]+\.torn")


def recover(disk: Disk, clock: Clock, options: StoreOptions) -> Store:
    """Return the store in this folder, or a new one if there is none."""
    try:
        before = list_files(disk)
        try:
            return _Recovery(disk, options).run(clock)
        except OutOfSpace:
            sometimes("a recovery that found no room is undone")
            remove_new(disk, before)
        try:
            return _Recovery(disk, options, in_place=True, from_proven=True).run(clock)
        except _Incomplete:
            sometimes("only a checkpoint that is not proven has everything")
        return _Recovery(disk, options, in_place=True).run(clock)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            sometimes("no room to recover into")
            raise StoreFull(f"no space to recover into: {error}") from error
        sometimes("a call fails in recovery")
        raise StorePoisoned(f"recovery could not read or write: {error}") from error
    except (ArithmeticError, LookupError, ValueError, struct.error) as error:
        # Bit rot does not get here: every part is used only if its checksum is correct. The bytes were written like
        # this.
        raise CorruptData(
            f"the store holds what no store writes, though its checksums hold ({type(error).__name__}: {error}); "
            "nothing that was there was changed"
        ) from error


class _Incomplete(Exception):
    """The marked checkpoint and its journal lack something that a newer checkpoint may have."""


class _Recovery:
    """One attempt. `from_proven`: start from the marked checkpoint and remove a newer one."""

    def __init__(
        self, disk: Disk, options: StoreOptions, in_place: bool = False, from_proven: bool = False
    ) -> None:
        self.disk = disk
        self.options = options
        self.report = RecoveryReport()
        self.scanned_files: list[ScannedFile] = []
        self.in_place = in_place
        self.from_proven = from_proven
        self.newer: LoadedCheckpoint | None = None  # not marked, to be removed
        self.newest_checkpoint = 0
        self.used_idents: list[int] = []
        self.larges: dict[str, tuple[int, int, int]] = {}
        self.changed: set[int] = set()  # streams that differ from their sections

    def run(self, clock: Clock) -> Store:
        loaded = self._choose(load_newest(self.disk, self.report))
        self.newest_checkpoint = max(list_checkpoints(self.disk), default=0)
        used = [int(name, 16) for name in self.disk.list("streams") if STREAM.fullmatch(name)]
        self.used_idents = [ident for ident in used if ident < IDENT_MAX]
        if loaded is None or (loaded.bad_sections and is_new_store(self.disk)):
            if not is_new_store(self.disk):
                raise CorruptData(
                    "there is data but no checkpoint that can be read; nothing was changed, run fsck"
                )
            if self.disk.list(""):
                sometimes("a store is begun over an unfinished one")
            loaded = None  # at most an unfinished new store
            store = Store(self.disk, self.options, clock.now_ns(), self.report)
        else:
            store = Store(self.disk, self.options, loaded.store_id, self.report)
            store.checkpointer.features = loaded.features
        self._scan_journal(store, loaded)
        # Files dropped from now on wait for a newer checkpoint.
        store.checkpointer.number = self.newest_checkpoint
        self._make_folders()
        last = self._load_state(store, loaded) if loaded is not None else 0
        self._skip_used_idents(store)
        self._clear_changes(store, loaded)
        if self.in_place and loaded is not None:
            self._go_on(store, loaded, last)
        else:
            self._start_journal(store, last)
            store.checkpointer.run_blocking()
        self._collect_leftovers(store, loaded)
        store.on_recovered()
        return store

    def _choose(self, loaded: LoadedCheckpoint | None) -> LoadedCheckpoint | None:
        """Return the checkpoint to start from; None for a new store."""
        if loaded is None or loaded.is_proven or not self.from_proven:
            return loaded
        if loaded.base is None:
            if not loaded.is_empty or not is_new_store(self.disk):
                return loaded
            remove_checkpoints(self.disk, list_checkpoints(self.disk))
            return None
        self.newer, base = loaded, loaded.base
        base.base = base
        return base

    def _make_folders(self) -> None:
        missing = [folder for folder in FOLDERS if not self.disk.exists(folder)]
        ops: list[Op] = [("mkdir", folder) for folder in missing]
        self.disk.run([*ops, ("syncdir", "")])

    def _skip_used_idents(self, store: Store) -> None:
        """Skip idents that have files already: they belong to streams whose creation never became durable."""
        store.next_ident = max([store.next_ident, *(ident + 1 for ident in self.used_idents)])

    def _scan_journal(self, store: Store, loaded: LoadedCheckpoint | None) -> None:
        """Read the journal after the root's frame, before anything is written; reject frames of an unknown kind."""
        self.scanned_files = (
            loaded.files if loaded is not None else scan_journal(self.disk, store.store_id, 0)
        )
        writer = loaded.root.writer if loaded is not None else ""
        for scanned in self.scanned_files:
            for frame in scanned.frames:
                if unknown := unknown_kind(scanned.data, frame):
                    raise UnknownFeature(refusal_message("the journal", unknown, writer))

    # State

    def _load_state(self, store: Store, loaded: LoadedCheckpoint) -> int:
        root = loaded.root
        report = self.report
        report.checkpoint = root.number
        report.writer, report.features = root.writer, sorted(loaded.features)
        report.damage = list(root.damage)
        store.next_ident = root.next_ident
        store.checkpointer.retained_files = list(root.retained_files)
        store.checkpointer.offline_streams = list(root.offline)
        logs: dict[int, FileLog] = {}
        for entry in root.streams:
            if entry.ref in loaded.sections:
                state = msgspec.msgpack.decode(loaded.sections[entry.ref], type=StreamCheckpoint)
                log = logs[entry.ident] = load_log(store.log_context, state, report)
                if len(log.sealed_segments) != len(state.segments) or log.generation != state.generation:
                    self.changed.add(entry.ident)  # its section names files that the next checkpoint removes
            else:
                store.checkpointer.offline_streams.append(entry)
                self._report_damage(f"stream {entry.name}: its section has no good copy", entry.name)
        for shard in root.shards:
            if shard.ref in loaded.sections:
                facts = msgspec.msgpack.decode(loaded.sections[shard.ref], type=list[MetadataEntryState])
                store.metadata.restore_shard(shard.shard, facts)
            else:
                self._report_damage(f"shard {shard.shard} of the facts has no good copy", "")
        for entry in store.checkpointer.offline_streams:
            report.offline_streams[entry.name] = "its section of the checkpoint is damaged"
        if loaded.bad_sections:
            self._retain_journal(store)  # frames of offline streams must not be lost
        survey = self._prepare(store, loaded, logs)
        replay = Replay(
            store,
            logs,
            {entry.ident: entry.frame for entry in root.streams},
            {shard.shard: shard.frame for shard in root.shards},
            survey.is_removed,
        )
        replay.offline_streams = {entry.ident for entry in store.checkpointer.offline_streams}
        last = self._replay_journal(store, replay, root.frame)
        for log in sorted(replay.logs.values(), key=lambda each: each.ident):
            store.logs[log.name] = log
        self.changed |= replay.touched
        return last

    def _prepare(self, store: Store, loaded: LoadedCheckpoint, logs: dict[int, FileLog]) -> JournalSurvey:
        """Remove unreferenced files before anything is written; raise OutOfSpace if there is too little space."""
        report = self.report
        survey = JournalSurvey(self.disk, store.store_id, sort_frames(self.scanned_files), loaded.root.frame)
        explained = [each for each in report.damage if survey.explains(each)]
        report.damage = [each for each in report.damage if each not in explained]
        for log in (logs[each.ident] for each in explained if each.ident in logs):
            note_lost(log, report)
        is_sound = survey.is_whole and not loaded.bad_sections and self._is_last(store, loaded, survey.last)
        if self.newer is not None:
            self._remove_newer(self.newer, loaded, survey.last, is_sound)
        if is_sound and report.healthy:
            self._remove_leftovers(store, loaded, survey)
        needed = survey.bytes + 2 * sum(len(section) for section in loaded.sections.values())
        if is_sound and not self.in_place and self.disk.free() < needed:
            sometimes("there is too little room to replay into")
            raise OutOfSpace(errno.ENOSPC, "what is replayed needs more than is free")
        if self.in_place and not is_sound:
            raise StoreFull("no space to recover into, and the journal is damaged; free some space")
        self.larges = survey.larges
        return survey

    def _remove_newer(
        self, newer: LoadedCheckpoint, loaded: LoadedCheckpoint, last: int, is_sound: bool
    ) -> None:
        """Remove checkpoints that are not marked, if frames up to `last` have everything in them.

        Their sync may have failed while the page cache still shows them, and a second sync would not report that. In
        place they are not written again, so nothing may rely on them. They must be gone before the next frame.
        """
        ahead = newer.root.frame - last
        # An unused recovery continues the numbering from the last frame.
        has_all = ahead <= 0 or ahead % FRAME_JUMP == 0
        if not is_sound or not has_all or self.report.damage != loaded.root.damage:
            raise _Incomplete
        sometimes("a checkpoint that is not proven is removed")
        remove_checkpoints(
            self.disk, [each for each in list_checkpoints(self.disk) if each > loaded.root.number]
        )

    def _remove_leftovers(self, store: Store, loaded: LoadedCheckpoint, survey: JournalSurvey) -> None:
        base = loaded.base
        if base is None or base.bad_sections:
            return
        if base is not loaded:
            survey = JournalSurvey(self.disk, store.store_id, sort_frames(base.files), base.root.frame)
        UnreferencedFiles(self.disk, loaded, base, survey).remove()

    def _is_last(self, store: Store, loaded: LoadedCheckpoint, last: int) -> bool:
        """Return whether nothing indicates a durable frame after `last`, or one in a file other than its own."""
        spoken = [entry.frame for entry in loaded.root.streams] + [each.frame for each in loaded.root.shards]
        if self._newest_known(store, last, max(spoken, default=0)) > last:
            return False
        return not any(
            frame.number > last for scanned in self.scanned_files for frame in scanned.misplaced_frames
        )

    def _report_damage(self, description: str, stream: str) -> None:
        self.report.add_damage(Damage(description, stream))

    def _replay_journal(self, store: Store, replay: Replay, after: int) -> int:
        """Apply all frames after `after` in order of their number; return the last one known to be synced."""
        previous, crc = after, None
        for frame, scanned in sort_frames(self.scanned_files):
            missing = frame.number - previous - 1
            if missing < 0:
                continue
            if missing or (crc is not None and frame.prev_crc != crc):
                self._retain_journal(store)
            if crc is not None and not missing and frame.prev_crc != crc:
                self._report_damage(f"frame {frame.number} does not follow the one before it", "")
            start = frame.offset + FRAME_HEADER_BYTES
            replay.apply(frame.number, scanned.data[start : start + frame.length], missing)
            previous, crc = frame.number, frame.crc
            self.report.frames_replayed += 1
            self.report.clean_shutdown = frame.kind == SHUTDOWN
            if store.flusher.pending_bytes > FLUSH_BYTES and not self.in_place:
                store.flusher.flush_now()
        last_synced = self._find_last_synced(store, previous, replay)
        replay.finish()
        self._report_misplaced(store, previous)
        if last_synced == previous and not self.in_place:
            self._save_torn_tails(previous)
        return last_synced

    def _find_last_synced(self, store: Store, last: int, replay: Replay) -> int:
        """Return the newest frame known to have been synced: `last`, or a later one that is therefore lost."""
        marker = read_latest(self.disk, store.store_id)
        last_synced = self._newest_known(store, last, replay.newest_section_frame)
        if last_synced > last:
            self._retain_journal(store)
            watermarks = marker.watermarks if marker and marker.frame_number == last_synced else None
            replay.truncate_at(last_synced, last_synced - last, watermarks)
        return last_synced

    def _newest_known(self, store: Store, last: int, spoken_of: int) -> int:
        marker = read_latest(self.disk, store.store_id)
        max_frames = sum(len(scanned.data) for scanned in self.scanned_files) // ALIGN
        incomplete = [
            number
            for scanned in self.scanned_files
            for number in scanned.incomplete_frames
            if number - last <= max_frames
        ]
        # A frame is written only when the one before it is durable, and a section contains durable frames only.
        return max(last, spoken_of, marker.frame_number if marker else 0, *(each - 1 for each in incomplete))

    def _retain_journal(self, store: Store) -> None:
        """Keep the files of a damaged journal until somebody accepts the loss."""
        for scanned in self.scanned_files:
            path = journal_path(scanned.file_number)
            if path not in store.checkpointer.retained_files:
                store.checkpointer.retained_files.append(path)

    def _report_misplaced(self, store: Store, last: int) -> None:
        """Report valid frames that are in a file other than the one they were written to."""
        for scanned in self.scanned_files:
            for frame in scanned.misplaced_frames:
                if frame.number > last:
                    self._retain_journal(store)
                    self._report_damage(
                        f"{journal_path(scanned.file_number)} holds frames of another file", ""
                    )
                    break

    def _save_torn_tails(self, last: int) -> None:
        for scanned in self.scanned_files:
            if scanned.torn_tail is None or (scanned.newest_frame and scanned.newest_frame < last):
                continue
            offset, length = scanned.torn_tail
            path = f"journal/{scanned.file_number:016x}.{offset}.torn"
            sometimes("a torn frame is found")
            self.report.torn_tails.append(path)
            if not self.disk.exists(path):
                tail = bytes(scanned.data[offset : offset + length])
                self.disk.run(
                    [("create", path, 0), ("write", path, 0, tail), ("sync", path), ("syncdir", "journal")]
                )

    def _clear_changes(self, store: Store, loaded: LoadedCheckpoint | None) -> None:
        """Clear the changes of the open frame: replayed changes are not part of it."""
        for log in store.iter_file_logs():
            log.reset_changes()
            log.committed_seq = log.last_seq
            log.changed_frame = 0
        store.open_frame.dirty_logs = []
        store.open_frame.pending_bytes = 0

    # Files

    def _start_journal(self, store: Store, last: int) -> None:
        journal = store.journal
        newest = last
        for scanned in self.scanned_files:
            journal.next_file = max(journal.next_file, scanned.file_number + 1)
            newest = max(
                newest, scanned.newest_frame, *(frame.number for frame in scanned.misplaced_frames), last
            )
            path = journal_path(scanned.file_number)
            size = len(scanned.data)
            if path in store.checkpointer.retained_files:
                continue
            if scanned.newest_frame or scanned.torn_tail or size < align_up(self.options.journal_bytes):
                journal.closed_files.append(
                    JournalFile(scanned.file_number, size, max(scanned.newest_frame, 0))
                )
            else:
                journal.spares.append((scanned.file_number, size))
        self.disk.run([("syncdir", "journal")])
        journal.start(newest + FRAME_JUMP)
        existing = list_checkpoints(self.disk) if self.report.healthy else []
        store.checkpointer.restore_state(existing, self.newest_checkpoint)

    def _go_on(self, store: Store, loaded: LoadedCheckpoint, last: int) -> None:
        """Open in place: continue after the last frame, and write nothing but frames until there is space.

        The last frame may be in the page cache only, so it is synced; all others were synced before the next one began.
        An unfinished frame after it was never acknowledged and is overwritten.
        """
        sometimes("a store opens in place")
        journal = store.journal
        standard = align_up(self.options.journal_bytes)
        files = loaded.base.files if loaded.base is not None else loaded.files
        current = next((each for each in reversed(sort_frames(files)) if each[0].number == last), None)
        for scanned in self.scanned_files:
            journal.next_file = max(journal.next_file, scanned.file_number + 1)
            size = len(scanned.data)
            if journal_path(scanned.file_number) in store.checkpointer.retained_files:
                continue
            if not scanned.newest_frame and size >= standard:
                journal.spares.append((scanned.file_number, size))
            elif current is None or scanned.file_number != current[1].file_number:
                journal.closed_files.append(JournalFile(scanned.file_number, size, scanned.newest_frame))
        if not loaded.is_proven:
            self.disk.run(sync_checkpoint(self.disk, loaded.root.number))
        repair_copies(self.disk, loaded)
        journal.resume(last, current)
        if loaded.base is not None:
            journal.release_through(loaded.base.root.frame)
        store.checkpointer.resume(loaded, self.newest_checkpoint, list_checkpoints(self.disk))
        store.file_gc.referred = self.larges
        dropped = store.file_gc.folders()
        for log in store.iter_file_logs():
            if log.ident not in self.changed and log.folder_path not in dropped:
                log.saved_frame = 0  # its section has its whole state
        store.flusher.hold()
        # Triggers a checkpoint as soon as there is space.
        journal.bytes_since_checkpoint = self.options.checkpoint_bytes

    def _collect_leftovers(self, store: Store, loaded: LoadedCheckpoint | None) -> None:
        """Remove files of the crashed run, which this recovery supersedes, with the next checkpoint.

        Only if nothing at all is damaged; otherwise, and if they are not the store's own, they are left and reported.
        """
        disk, report = self.disk, self.report
        report.unknown_files += [name for name in disk.list("") if name not in KNOWN_NAMES]
        report.unknown_files += [
            f"journal/{name}"
            for name in disk.list("journal")
            if not JOURNAL_NAME.fullmatch(name)
            and not _TORN_NAME.fullmatch(name)
            and f"journal/{name}" != SYNCED
        ]
        report.unknown_files += [
            f"checkpoints/{name}" for name in disk.list("checkpoints") if not CHECKPOINT_NAME.fullmatch(name)
        ]
        logs = {log.ident: log for log in store.iter_file_logs()}
        offline = {entry.ident for entry in store.checkpointer.offline_streams}
        for name in disk.list("streams"):
            ident = int(name, 16) if STREAM.fullmatch(name) else -1
            if ident in logs:
                self._collect_stream_leftovers(store, logs[ident])
            elif ident in offline:
                continue
            elif report.healthy and 0 < ident < store.next_ident and loaded is not None:
                sometimes("a folder is left over")
                store.file_gc.add_folder(f"streams/{name}", store.frame_number)
            else:
                report.unknown_files.append(f"streams/{name}")

    def _collect_stream_leftovers(self, store: Store, log: FileLog) -> None:
        for name in self.disk.list(stream_folder(log.ident)):
            path = f"{stream_folder(log.ident)}/{name}"
            in_use = _is_in_use(log, name)
            if in_use is None or (not in_use and not self.report.healthy):
                self.report.unknown_files.append(path)
            elif not in_use:
                sometimes("a file is left over")
                _, first, last = self.larges.get(path, (0, 0, 0)) if self.in_place else (0, 0, 0)
                # No frame after the checkpoint needs it: it is removed when that checkpoint is marked.
                needed = store.checkpointer.next_number if last else self._written(store)
                store.file_gc.add_copied(log, path, first, last, needed)

    def _written(self, store: Store) -> int:
        """Return the checkpoint from which a crash would recover once it is marked."""
        return self.report.checkpoint if self.in_place else store.checkpointer.number


def _is_in_use(log: FileLog, name: str) -> bool | None:
    """Return whether a stream's file is in use, or bad and therefore kept as found; None if it is not the store's own."""
    generations = (log.generation, log.loaded_generation)
    if subjects := SUBJECTS_NAME.fullmatch(name):
        return int(subjects[1]) in generations
    match = SEGMENT_NAME.fullmatch(name)
    if match is None:
        return None
    named = any(segment.number == int(match[1], 16) for segment in log.list_segments())
    is_segment = name.endswith(".seg")
    return named and (is_segment or (match[2] is not None and int(match[2]) in generations))
