"""Opens a store: newest usable checkpoint, replay of the journal, a new checkpoint, and only then service.

Owns the verdicts of `docs/store.md`. Invariant: it never renames, truncates or overwrites anything, and removes only
what neither the proven checkpoint nor the journal above it refers to. What it keeps is written again and synced
before it returns, because after a failed sync the page cache may show what the disk does not have. Crashing
here leaves the old checkpoint and its journal as they were.

Where there is no space for that, the store opens in place: what is replayed stays in memory, the journal goes on
where it ended, and the checkpoint is written when there is space. This needs no space at all.
"""

from __future__ import annotations

import errno
import re
import struct

import msgspec

from headrace.errors import Corrupt, Full, Poisoned, UnknownFeature
from headrace.probes import probe
from headrace.store.disk import Clock, Disk, NoRoom, Op
from headrace.store.features import refusal
from headrace.store.filelog import FileLog
from headrace.store.format import (
    ALIGN,
    FRAME_BYTES,
    SHUTDOWN,
    aligned,
    journal_path,
    stream_folder,
    unknown_kind,
)
from headrace.store.journal import File
from headrace.store.journalscan import NAME as JOURNAL_NAME
from headrace.store.journalscan import Scanned, scan_journal
from headrace.store.leftovers import (
    IDENT_MAX,
    STREAM,
    Leftovers,
    list_files,
    remove_checkpoints,
    remove_new,
    sync_checkpoint,
)
from headrace.store.options import StoreOptions
from headrace.store.replay import Replay
from headrace.store.report import Damage, Report
from headrace.store.restore import NAME as SEGMENT_NAME
from headrace.store.restore import SUBJECTS_NAME, note_lost, restore_log
from headrace.store.roots import NAME as CHECKPOINT_NAME
from headrace.store.roots import Found, find_root, is_new, numbers, repair_copies
from headrace.store.states import FactState, StreamState
from headrace.store.store import Store
from headrace.store.survey import Survey, sort_frames
from headrace.store.synced import PATH as SYNCED
from headrace.store.synced import heard

FOLDERS = ("checkpoints", "journal", "streams")
KNOWN = (*FOLDERS, "lock", "lost", "pins")
JUMP = 1024  # frame numbers left out, so that a torn frame can never pass for a later one
FLUSH_BYTES = 32 << 20
_TORN = re.compile(r"[0-9a-f]{16}\.[0-9]+\.torn")


def recover(disk: Disk, clock: Clock, options: StoreOptions) -> Store:
    """The store in this folder, or a new one where there is none."""
    try:
        before = list_files(disk)
        try:
            return _Recovery(disk, options).run(clock)
        except NoRoom:
            probe("a recovery that found no room is undone")
            remove_new(disk, before)
        try:
            return _Recovery(disk, options, in_place=True, from_proven=True).run(clock)
        except _Incomplete:
            probe("only a checkpoint that is not proven has everything")
        return _Recovery(disk, options, in_place=True).run(clock)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            probe("no room to recover into")
            raise Full(f"no space to recover into: {error}") from error
        probe("a call fails in recovery")
        raise Poisoned(f"recovery could not read or write: {error}") from error
    except (ArithmeticError, LookupError, ValueError, struct.error) as error:
        # Rot does not come here: every part is used only if its checksum holds. Somebody wrote these bytes so.
        raise Corrupt(
            f"the store holds what no store writes, though its checksums hold ({type(error).__name__}: {error}); "
            "nothing that was there was changed"
        ) from error


class _Incomplete(Exception):
    """The proven checkpoint and its journal lack something that a newer checkpoint may have."""


class _Recovery:
    """One attempt. `from_proven`: it starts from the proven checkpoint, and a newer one goes."""

    def __init__(
        self, disk: Disk, options: StoreOptions, in_place: bool = False, from_proven: bool = False
    ) -> None:
        self.disk = disk
        self.options = options
        self.report = Report()
        self.files: list[Scanned] = []
        self.in_place = in_place
        self.from_proven = from_proven
        self.newer: Found | None = None  # not proven, and to be removed
        self.newest_checkpoint = 0
        self.used_idents: list[int] = []
        self.larges: dict[str, tuple[int, int, int]] = {}
        self.changed: set[int] = set()  # streams that are not what their sections say

    def run(self, clock: Clock) -> Store:
        found = self._choose(find_root(self.disk, self.report))
        self.newest_checkpoint = max(numbers(self.disk), default=0)
        used = [int(name, 16) for name in self.disk.list("streams") if STREAM.fullmatch(name)]
        self.used_idents = [ident for ident in used if ident < IDENT_MAX]
        if found is None or (found.bad and is_new(self.disk)):
            if not is_new(self.disk):
                raise Corrupt(
                    "there is data but no checkpoint that can be read; nothing was changed, run fsck"
                )
            if self.disk.list(""):
                probe("a store is begun over an unfinished one")
            found = None  # at most the unfinished beginning of a store
            store = Store(self.disk, self.options, clock.now_ns(), self.report)
        else:
            store = Store(self.disk, self.options, found.store, self.report)
            store.checkpoints.features = found.features
        self._scan(store, found)
        # What is dropped from here on waits for a newer one.
        store.checkpoints.number = self.newest_checkpoint
        self._make_folders()
        last = self._restore(store, found) if found is not None else 0
        self._pass_used_idents(store)
        self._settle(store, found)
        if self.in_place and found is not None:
            self._go_on(store, found, last)
        else:
            self._start_journal(store, last)
            store.checkpoints.run_now()
        self._leftovers(store, found)
        store.ready()
        return store

    def _choose(self, found: Found | None) -> Found | None:
        """The checkpoint to start from; None where a store is begun."""
        if found is None or found.is_proven or not self.from_proven:
            return found
        if found.base is None:
            if not found.is_empty or not is_new(self.disk):
                return found
            remove_checkpoints(self.disk, numbers(self.disk))
            return None
        self.newer, base = found, found.base
        base.base = base
        return base

    def _make_folders(self) -> None:
        missing = [folder for folder in FOLDERS if not self.disk.exists(folder)]
        ops: list[Op] = [("mkdir", folder) for folder in missing]
        self.disk.run([*ops, ("syncdir", "")])

    def _pass_used_idents(self, store: Store) -> None:
        """A stream whose creation never became durable may have files already: nobody is to find them as their own."""
        store.next_ident = max([store.next_ident, *(ident + 1 for ident in self.used_idents)])

    def _scan(self, store: Store, found: Found | None) -> None:
        """Read the journal after the root's frame, before anything is written: frames of an unknown kind are refused."""
        self.files = found.files if found is not None else scan_journal(self.disk, store.ident, 0)
        writer = found.root.writer if found is not None else ""
        for scanned in self.files:
            for frame in scanned.frames:
                if unknown := unknown_kind(scanned.data, frame):
                    raise UnknownFeature(refusal("the journal", unknown, writer))

    # State

    def _restore(self, store: Store, found: Found) -> int:
        root = found.root
        report = self.report
        report.checkpoint = root.number
        report.writer, report.features = root.writer, sorted(found.features)
        report.damage = list(root.damage)
        store.next_ident = root.next_ident
        store.checkpoints.kept = list(root.kept)
        store.checkpoints.offline = list(root.offline)
        logs: dict[int, FileLog] = {}
        for entry in root.streams:
            if entry.ref in found.sections:
                state = msgspec.msgpack.decode(found.sections[entry.ref], type=StreamState)
                log = logs[entry.ident] = restore_log(store.shelf, state, report)
                if len(log.sealed) != len(state.segments) or log.generation != state.generation:
                    self.changed.add(entry.ident)  # its section names files that go with the next checkpoint
            else:
                store.checkpoints.offline.append(entry)
                self._damaged(f"stream {entry.name}: its section has no good copy", entry.name)
        for shard in root.shards:
            if shard.ref in found.sections:
                facts = msgspec.msgpack.decode(found.sections[shard.ref], type=list[FactState])
                store.facts.restore(shard.shard, facts)
            else:
                self._damaged(f"shard {shard.shard} of the facts has no good copy", "")
        for entry in store.checkpoints.offline:
            report.offline[entry.name] = "its section of the checkpoint is damaged"
        if found.bad:
            self._evidence(store)  # frames of what is offline must not be lost
        survey = self._prepare(store, found, logs)
        replay = Replay(
            store,
            logs,
            {entry.ident: entry.frame for entry in root.streams},
            {shard.shard: shard.frame for shard in root.shards},
        )
        replay.is_removed = survey.is_removed
        replay.offline = {entry.ident for entry in store.checkpoints.offline}
        last = self._replay(store, replay, root.frame)
        for log in sorted(replay.logs.values(), key=lambda each: each.ident):
            store.logs[log.name] = log
        self.changed |= replay.touched
        return last

    def _prepare(self, store: Store, found: Found, logs: dict[int, FileLog]) -> Survey:
        """Removes what nothing refers to, before anything is written; NoRoom where there is too little space."""
        report = self.report
        survey = Survey(self.disk, store.ident, sort_frames(self.files), found.root.frame)
        explained = [each for each in report.damage if survey.explains(each)]
        report.damage = [each for each in report.damage if each not in explained]
        for log in (logs[each.ident] for each in explained if each.ident in logs):
            note_lost(log, report)
        is_sound = survey.is_whole and not found.bad and self._is_last(store, found, survey.last)
        if self.newer is not None:
            self._remove_newer(self.newer, found, survey.last, is_sound)
        if is_sound and report.healthy:
            self._remove_leftovers(store, found, survey)
        needed = survey.bytes + 2 * sum(len(section) for section in found.sections.values())
        if is_sound and not self.in_place and self.disk.free() < needed:
            probe("there is too little room to replay into")
            raise NoRoom(errno.ENOSPC, "what is replayed needs more than is free")
        if self.in_place and not is_sound:
            raise Full("no space to recover into, and the journal is damaged; free some space")
        self.larges = survey.larges
        return survey

    def _remove_newer(self, newer: Found, found: Found, last: int, is_sound: bool) -> None:
        """Remove checkpoints that are not proven, if frames up to `last` have everything that is in them.

        Their sync may have failed while the page cache still shows them, and another sync says nothing about that. In
        place they are not written again, so nothing may rely on them. They go for good before a frame follows.
        """
        ahead = newer.root.frame - last
        # A recovery that was not used numbers on from the last frame.
        has_all = ahead <= 0 or ahead % JUMP == 0
        if not is_sound or not has_all or self.report.damage != found.root.damage:
            raise _Incomplete
        probe("a checkpoint that is not proven is removed")
        remove_checkpoints(self.disk, [each for each in numbers(self.disk) if each > found.root.number])

    def _remove_leftovers(self, store: Store, found: Found, survey: Survey) -> None:
        base = found.base
        if base is None or base.bad:
            return
        if base is not found:
            survey = Survey(self.disk, store.ident, sort_frames(base.files), base.root.frame)
        Leftovers(self.disk, found, base, survey).remove()

    def _is_last(self, store: Store, found: Found, last: int) -> bool:
        """Whether nothing says that a frame after `last` was durable, or lies in another file than its own."""
        spoken = [entry.frame for entry in found.root.streams] + [each.frame for each in found.root.shards]
        if self._newest_known(store, last, max(spoken, default=0)) > last:
            return False
        return not any(frame.number > last for scanned in self.files for frame in scanned.moved)

    def _damaged(self, what: str, stream: str) -> None:
        self.report.add(Damage(what, stream))

    def _replay(self, store: Store, replay: Replay, after: int) -> int:
        """Applies all frames above `after` in order of their number; returns the last."""
        previous, crc = after, None
        for frame, scanned in sort_frames(self.files):
            missing = frame.number - previous - 1
            if missing < 0:
                continue
            if missing or (crc is not None and frame.prev != crc):
                self._evidence(store)
            if crc is not None and not missing and frame.prev != crc:
                self._damaged(f"frame {frame.number} does not follow the one before it", "")
            start = frame.offset + FRAME_BYTES
            replay.apply(frame.number, scanned.data[start : start + frame.length], missing)
            previous, crc = frame.number, frame.crc
            self.report.frames_replayed += 1
            self.report.clean = frame.kind == SHUTDOWN
            if store.behind.pending_bytes > FLUSH_BYTES and not self.in_place:
                store.behind.flush_now()
        known = self._known(store, previous, replay)
        replay.finish()
        self._foreign(store, previous)
        if known == previous and not self.in_place:
            self._tears(previous)
        return known

    def _known(self, store: Store, last: int, replay: Replay) -> int:
        """The newest frame that is known to have been synced, `last` or one whose loss is thereby proven."""
        witness = heard(self.disk, store.ident)
        known = self._newest_known(store, last, replay.spoken_of)
        if known > last:
            self._evidence(store)
            marks = witness.marks if witness and witness.number == known else None
            replay.cut_short(known, known - last, marks)
        return known

    def _newest_known(self, store: Store, last: int, spoken_of: int) -> int:
        witness = heard(self.disk, store.ident)
        places = sum(len(scanned.data) for scanned in self.files) // ALIGN
        begun = [number for scanned in self.files for number in scanned.begun if number - last <= places]
        # A frame is begun when the one before it is durable, and a section speaks of durable frames only.
        return max(last, spoken_of, witness.number if witness else 0, *(each - 1 for each in begun))

    def _evidence(self, store: Store) -> None:
        """The journal is damaged: its files are kept until somebody accepts the loss."""
        for scanned in self.files:
            path = journal_path(scanned.file)
            if path not in store.checkpoints.kept:
                store.checkpoints.kept.append(path)

    def _foreign(self, store: Store, last: int) -> None:
        """Frames that are good but lie in another file than they were written to."""
        for scanned in self.files:
            for frame in scanned.moved:
                if frame.number > last:
                    self._evidence(store)
                    self._damaged(f"{journal_path(scanned.file)} holds frames of another file", "")
                    break

    def _tears(self, last: int) -> None:
        for scanned in self.files:
            if scanned.torn is None or (scanned.newest and scanned.newest < last):
                continue
            offset, length = scanned.torn
            path = f"journal/{scanned.file:016x}.{offset}.torn"
            probe("a torn frame is found")
            self.report.tears.append(path)
            if not self.disk.exists(path):
                tail = bytes(scanned.data[offset : offset + length])
                self.disk.run(
                    [("create", path, 0), ("write", path, 0, tail), ("sync", path), ("syncdir", "journal")]
                )

    def _settle(self, store: Store, found: Found | None) -> None:
        """What was replayed is no change of the frame under construction."""
        for log in store.file_logs():
            log.forget()
            log.committed_seq = log.last_seq
            log.changed_frame = 0
        store.gate.dirty = []
        store.gate.pending = 0

    # Files

    def _start_journal(self, store: Store, last: int) -> None:
        journal = store.journal
        newest = last
        for scanned in self.files:
            journal.next_file = max(journal.next_file, scanned.file + 1)
            newest = max(newest, scanned.newest, *(frame.number for frame in scanned.moved), last)
            path = journal_path(scanned.file)
            size = len(scanned.data)
            if path in store.checkpoints.kept:
                continue
            if scanned.newest or scanned.torn or size < aligned(self.options.journal_bytes):
                journal.closed.append(File(scanned.file, size, max(scanned.newest, 0)))
            else:
                journal.spares.append((scanned.file, size))
        self.disk.run([("syncdir", "journal")])
        journal.start(newest + JUMP)
        existing = numbers(self.disk) if self.report.healthy else []
        store.checkpoints.inherit(existing, self.newest_checkpoint)

    def _go_on(self, store: Store, found: Found, last: int) -> None:
        """Opens in place: frames follow the last one, and nothing is written but them until there is space.

        The last frame may be in the page cache only, so it is synced; all others were before the next one began.
        An unfinished frame after it was never acknowledged and is overwritten.
        """
        probe("a store opens in place")
        journal = store.journal
        standard = aligned(self.options.journal_bytes)
        files = found.base.files if found.base is not None else found.files
        current = next((each for each in reversed(sort_frames(files)) if each[0].number == last), None)
        for scanned in self.files:
            journal.next_file = max(journal.next_file, scanned.file + 1)
            size = len(scanned.data)
            if journal_path(scanned.file) in store.checkpoints.kept:
                continue
            if not scanned.newest and size >= standard:
                journal.spares.append((scanned.file, size))
            elif current is None or scanned.file != current[1].file:
                journal.closed.append(File(scanned.file, size, scanned.newest))
        if not found.is_proven:
            self.disk.run(sync_checkpoint(self.disk, found.root.number))
        repair_copies(self.disk, found)
        journal.resume(last, current)
        if found.base is not None:
            journal.release(found.base.root.frame)
        store.checkpoints.resume(found, self.newest_checkpoint, numbers(self.disk))
        store.trash.referred = self.larges
        dropped = store.trash.folders()
        for log in store.file_logs():
            if log.ident not in self.changed and log.folder_path not in dropped:
                log.saved_tick = 0  # its section holds all of it
        store.behind.hold()
        journal.bytes = self.options.checkpoint_bytes  # a checkpoint as soon as there is space

    def _leftovers(self, store: Store, found: Found | None) -> None:
        """Files of the run that crashed, which everything here supersedes, go with the next checkpoint.

        Only where nothing at all is damaged; otherwise, and for what is not ours, they are left and reported.
        """
        disk, report = self.disk, self.report
        report.unknown += [name for name in disk.list("") if name not in KNOWN]
        report.unknown += [
            f"journal/{name}"
            for name in disk.list("journal")
            if not JOURNAL_NAME.fullmatch(name) and not _TORN.fullmatch(name) and f"journal/{name}" != SYNCED
        ]
        report.unknown += [
            f"checkpoints/{name}" for name in disk.list("checkpoints") if not CHECKPOINT_NAME.fullmatch(name)
        ]
        logs = {log.ident: log for log in store.file_logs()}
        offline = {entry.ident for entry in store.checkpoints.offline}
        for name in disk.list("streams"):
            ident = int(name, 16) if STREAM.fullmatch(name) else -1
            if ident in logs:
                self._stream_leftovers(store, logs[ident])
            elif ident in offline:
                continue
            elif report.healthy and 0 < ident < store.next_ident and found is not None:
                probe("a folder is left over")
                store.trash.add_folder(f"streams/{name}", store.frame)
            else:
                report.unknown.append(f"streams/{name}")

    def _stream_leftovers(self, store: Store, log: FileLog) -> None:
        for name in self.disk.list(stream_folder(log.ident)):
            path = f"{stream_folder(log.ident)}/{name}"
            wanted = _is_wanted(log, name)
            if wanted is None or (not wanted and not self.report.healthy):
                self.report.unknown.append(path)
            elif not wanted:
                probe("a file is left over")
                _, first, last = self.larges.get(path, (0, 0, 0)) if self.in_place else (0, 0, 0)
                # No frame above the checkpoint needs it: it goes when that is proven.
                needed = store.checkpoints.next_number if last else self._written(store)
                store.trash.add_copied(log, path, first, last, needed)

    def _written(self, store: Store) -> int:
        """The checkpoint that a crash would be recovered from once it is proven."""
        return self.report.checkpoint if self.in_place else store.checkpoints.number


def _is_wanted(log: FileLog, name: str) -> bool | None:
    """Whether a stream's file is of use, or bad and therefore kept as it was found; None: it is not ours."""
    generations = (log.generation, log.found_generation)
    if subjects := SUBJECTS_NAME.fullmatch(name):
        return int(subjects[1]) in generations
    match = SEGMENT_NAME.fullmatch(name)
    if match is None:
        return None
    named = any(segment.number == int(match[1], 16) for segment in log.files())
    is_segment = name.endswith(".seg")
    return named and (is_segment or (match[2] is not None and int(match[2]) in generations))
