"""Opens a store: loads the newest usable checkpoint, replays the journal, writes a new checkpoint, then starts service.

Owns the decisions of `docs/explanation/storage-format.md`. Invariant: it never renames, truncates or overwrites anything,
and removes only what neither the durable checkpoint nor the journal after it refers to. Everything it keeps is written again
and synced before it returns, because after a failed sync the page cache may show data that the disk does not have. A
crash during recovery leaves the old checkpoint and its journal as they were.

If there is no space for that, the store opens in place: replayed blocks stay in memory, the journal continues where it
ended, and the checkpoint is written when there is space. Opening in place needs no space at all. It overwrites only bad
copies of a checkpoint, and later frames overwrite a torn tail. See ADR 15.
"""

from __future__ import annotations

import errno
import struct

import msgspec

from headrace.clock import Clock
from headrace.code_probes import sometimes
from headrace.errors import CorruptData, StoreError, StoreFull, StorePoisoned
from headrace.storage.checkpoint.load import (
    LoadedCheckpoint,
    is_new_store,
    list_checkpoints,
    load_newest,
    repair_copies,
)
from headrace.storage.checkpoint_schema import MetadataEntryState, StreamCheckpoint
from headrace.storage.damage_report import Damage, RecoveryReport
from headrace.storage.format import align_up, journal_path
from headrace.storage.io.disk import Disk, Op, OutOfSpace
from headrace.storage.journal.journal_file import JournalFile
from headrace.storage.journal.scan import scan_journal
from headrace.storage.log.file_log import FileLog
from headrace.storage.options import StoreOptions
from headrace.storage.recovery.leftover_files import FOLDERS, LeftoverFiles
from headrace.storage.recovery.load_stream import load_log, note_lost
from headrace.storage.recovery.replay import Replay
from headrace.storage.recovery.scanned_journal import ScannedJournal
from headrace.storage.recovery.segment_references import JournalSurvey, find_used_numbers, sort_frames
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

RESTORE_MARKER = "restoring"  # a file in the store's folder while a restore of a backup writes the others
FRAME_JUMP = 1024  # frame numbers to skip, so that a torn frame can never be taken for a later one
_DEFAULT_OPTIONS = StoreOptions()


def open_store(disk: Disk, clock: Clock, options: StoreOptions = _DEFAULT_OPTIONS) -> Store:
    """Recover the store on the disk, or create one if there is none. Raises `StoreError`.

    When this returns, everything in the store is durable.
    """
    if disk.exists(RESTORE_MARKER):
        if disk.read(RESTORE_MARKER, 0, 8) == b"archive ":
            raise StoreError(
                "a restore of an archive was not completed here: remove the store directory, and run "
                "`headrace archive restore` again"
            )
        raise StoreError(
            "a restore of a backup was not completed here: run the same `headrace restore` again, or remove the folder"
        )
    try:
        before = list_files(disk)
        try:
            return _Recovery(disk, options).run(clock)
        except OutOfSpace:
            sometimes("a recovery is undone for lack of space")
            remove_new(disk, before)
        try:
            return _Recovery(disk, options, in_place=True, from_proven=True).run(clock)
        except _Incomplete:
            sometimes("only a checkpoint without a mark has everything")
        return _Recovery(disk, options, in_place=True).run(clock)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            sometimes("no space for recovery")
            raise StoreFull(f"no disk space for recovery: {error}") from error
        sometimes("an I/O operation fails in recovery")
        raise StorePoisoned(f"recovery failed to read or write: {error}") from error
    except (ArithmeticError, LookupError, ValueError, struct.error) as error:
        # Not bit rot, because every part is used only if its checksum is correct: the bytes were written like this.
        raise CorruptData(
            f"the store has invalid data although its checksums are correct ({type(error).__name__}: {error}); "
            "no existing file was changed"
        ) from error


class _Incomplete(Exception):
    """The durable checkpoint and its journal lack something that a newer checkpoint may have."""


class _Recovery:
    """One attempt. `from_proven`: start from the durable checkpoint and remove a newer one."""

    def __init__(
        self, disk: Disk, options: StoreOptions, in_place: bool = False, from_proven: bool = False
    ) -> None:
        self.disk = disk
        self.options = options
        self.report = RecoveryReport()
        self.in_place = in_place
        self.from_proven = from_proven
        self.newer: LoadedCheckpoint | None = None  # not durable, to be removed
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
                    "there is data but no readable checkpoint; nothing was changed; run headrace fsck"
                )
            if self.disk.list(""):
                sometimes("a store is created over an unfinished one")
            loaded = None  # at most an unfinished new store
            store = Store(self.disk, self.options, clock.now_ns(), self.report)
        else:
            store = Store(self.disk, self.options, loaded.store_id, self.report)
            store.checkpointer.features = loaded.features
            store.log_context.features.add_ready(loaded.features)
        journal = self._scan_journal(store, loaded)
        # Files dropped from now on wait for a newer checkpoint.
        store.checkpointer.number = self.newest_checkpoint
        self._make_folders()
        last = self._load_state(store, loaded, journal) if loaded is not None else 0
        self._note_open(store, loaded)
        self._skip_used_idents(store)
        self._clear_changes(store, loaded)
        if self.in_place and loaded is not None:
            self._resume_in_place(store, loaded, journal, last)
        else:
            self._start_journal(store, journal, last)
            store.checkpointer.run_blocking()
        # The checkpoint from which a crash would recover once it is durable.
        written = self.report.checkpoint if self.in_place else store.checkpointer.number
        larges = self.larges if self.in_place else {}
        LeftoverFiles(self.disk, store, self.report, written, larges).collect(is_new=loaded is None)
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

    def _note_open(self, store: Store, loaded: LoadedCheckpoint | None) -> None:
        """Keep the last frame of an earlier process: the checkpoint that follows has a higher number."""
        recorded = loaded.root.frame_before_open if loaded is not None else None
        frame = self.report.last_frame if recorded is None else recorded
        self.report.frame_before_open = store.checkpointer.frame_before_open = frame
        store.checkpointer.is_open_recorded = recorded is not None

    def _skip_used_idents(self, store: Store) -> None:
        """Skip idents that have files already: they belong to streams whose creation never became durable."""
        store.next_ident = max([store.next_ident, *(ident + 1 for ident in self.used_idents)])

    def _scan_journal(self, store: Store, loaded: LoadedCheckpoint | None) -> ScannedJournal:
        """Read the journal after the root's frame, before anything is written; reject frames of an unknown kind."""
        files = loaded.files if loaded is not None else scan_journal(self.disk, store.store_id, 0)
        journal = ScannedJournal(self.disk, store, files, self.report, self.in_place)
        journal.check_kinds(loaded.root.writer if loaded is not None else "")
        return journal

    # State

    def _load_state(self, store: Store, loaded: LoadedCheckpoint, journal: ScannedJournal) -> int:
        """Load the checkpoint and replay the journal; return the last frame known to be synced."""
        root = loaded.root
        report = self.report
        report.checkpoint = root.number
        report.writer, report.features = root.writer, sorted(loaded.features)
        report.damage = list(root.damage)
        store.next_ident = root.next_ident
        store.checkpointer.retained_files = list(root.retained_files)
        store.checkpointer.offline_streams = list(root.offline)
        used_numbers = find_used_numbers(sort_frames(journal.files))
        logs = self._load_sections(store, loaded, used_numbers)
        for entry in store.checkpointer.offline_streams:
            report.offline_streams[entry.name] = "its section of the checkpoint is damaged"
        if loaded.bad_sections:
            journal.retain()  # frames of offline streams must not be lost
        survey = self._prepare(store, loaded, journal, logs)
        replay = Replay(
            store,
            logs,
            {entry.ident: entry.frame for entry in root.streams},
            {shard.shard: shard.frame for shard in root.shards},
            survey.is_removed,
            used_numbers,
        )
        replay.offline_streams = {entry.ident for entry in store.checkpointer.offline_streams}
        last = journal.replay(replay, root.frame)
        for log in sorted(replay.logs.values(), key=lambda each: each.ident):
            store.logs[log.name] = log
        self.changed |= replay.touched
        return last

    def _load_sections(
        self, store: Store, loaded: LoadedCheckpoint, used_numbers: dict[int, int]
    ) -> dict[int, FileLog]:
        """Load streams and metadata from the sections of a checkpoint; streams without a good one go offline."""
        logs: dict[int, FileLog] = {}
        for entry in loaded.root.streams:
            if entry.ref in loaded.sections:
                state = msgspec.msgpack.decode(loaded.sections[entry.ref], type=StreamCheckpoint)
                if (entry.ident, entry.name) != (state.ident, state.name) or entry.ident in logs:
                    raise CorruptData(f"stream {entry.name}: the checkpoint's root and its section disagree")
                used_number = used_numbers.get(entry.ident, -1)
                log = logs[entry.ident] = load_log(store.log_context, state, self.report, used_number)
                if len(log.sealed_segments) != len(state.segments) or log.generation != state.generation:
                    self.changed.add(entry.ident)  # its section names files that the next checkpoint removes
            else:
                store.checkpointer.offline_streams.append(entry)
                self._report_damage(
                    f"stream {entry.name}: both copies of its section are damaged or missing", entry.name
                )
        for shard in loaded.root.shards:
            if shard.ref in loaded.sections:
                entries = msgspec.msgpack.decode(loaded.sections[shard.ref], type=list[MetadataEntryState])
                store.metadata.restore_shard(shard.shard, entries)
            else:
                self._report_damage(f"both copies of metadata shard {shard.shard} are damaged or missing", "")
        return logs

    def _prepare(
        self, store: Store, loaded: LoadedCheckpoint, journal: ScannedJournal, logs: dict[int, FileLog]
    ) -> JournalSurvey:
        """Remove unreferenced files before anything is written; raise OutOfSpace if there is too little space."""
        report = self.report
        survey = JournalSurvey(self.disk, store.store_id, sort_frames(journal.files), loaded.root.frame)
        explained = [each for each in report.damage if survey.explains(each)]
        report.damage = [each for each in report.damage if each not in explained]
        for log in (logs[each.ident] for each in explained if each.ident in logs):
            note_lost(log, report)
        is_sound = survey.is_whole and not loaded.bad_sections and journal.is_last(loaded.root, survey.last)
        is_sound = is_sound and not survey.has_unknown_streams(loaded.root)
        if self.newer is not None:
            self._remove_newer(self.newer, loaded, survey.last, is_sound)
        if is_sound and report.healthy:
            self._remove_leftovers(store, loaded, survey)
        needed = survey.bytes + 2 * sum(len(section) for section in loaded.sections.values())
        if is_sound and not self.in_place and self.disk.free() < needed:
            sometimes("too little space for replay")
            raise OutOfSpace(errno.ENOSPC, "replaying the journal needs more space than is free")
        if self.in_place and not is_sound:
            raise StoreFull("no disk space for recovery, and the journal is damaged; free some space")
        self.larges = survey.larges
        return survey

    def _remove_newer(
        self, newer: LoadedCheckpoint, loaded: LoadedCheckpoint, last: int, is_sound: bool
    ) -> None:
        """Remove checkpoints that are not durable, if frames up to `last` have everything in them.

        Their sync may have failed while the page cache still shows them, and a second sync would not report that. In
        place they are not written again, so nothing may rely on them. They must be gone before the next frame.
        """
        ahead = newer.root.frame - last
        # An unused recovery continues the numbering from the last frame.
        has_all = ahead <= 0 or ahead % FRAME_JUMP == 0
        if not is_sound or not has_all or self.report.damage != loaded.root.damage:
            raise _Incomplete
        sometimes("a checkpoint without a mark is removed")
        remove_checkpoints(
            self.disk, [each for each in list_checkpoints(self.disk) if each > loaded.root.number]
        )

    def _remove_leftovers(self, store: Store, loaded: LoadedCheckpoint, survey: JournalSurvey) -> None:
        base = loaded.base
        if base is None or base.bad_sections:
            return
        if base is not loaded:
            survey = JournalSurvey(self.disk, store.store_id, sort_frames(base.files), base.root.frame)
            if survey.has_unknown_streams(base.root):
                return
        UnreferencedFiles(self.disk, loaded, base, survey).remove()

    def _report_damage(self, description: str, stream: str) -> None:
        self.report.add_damage(Damage(description, stream))

    def _clear_changes(self, store: Store, loaded: LoadedCheckpoint | None) -> None:
        """Clear the changes of the open frame: replayed changes are not part of it."""
        for log in store.iter_file_logs():
            log.reset_changes()
            log.committed_seq = log.last_seq
            log.changed_frame = 0
        store.open_frame.dirty_logs = []
        store.open_frame.pending_bytes = 0

    # Files

    def _start_journal(self, store: Store, found: ScannedJournal, last: int) -> None:
        journal = store.journal
        newest = last
        for scanned in found.files:
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

    def _resume_in_place(
        self, store: Store, loaded: LoadedCheckpoint, found: ScannedJournal, last: int
    ) -> None:
        """Open in place: continue after the last frame, and write nothing but frames until there is space.

        The last frame may be in the page cache only, so it is synced; all others were synced before the next one began.
        An unfinished frame after it was never acknowledged and is overwritten.
        """
        sometimes("a store opens in place")
        journal = store.journal
        standard = align_up(self.options.journal_bytes)
        files = loaded.base.files if loaded.base is not None else loaded.files
        current = next((each for each in reversed(sort_frames(files)) if each[0].number == last), None)
        for scanned in found.files:
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
