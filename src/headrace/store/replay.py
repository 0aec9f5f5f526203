"""Applies the frames after a checkpoint to logs and facts.

Owns the meaning of entries, and what a missing frame means for each stream. Invariant: a frame is
applied to a log only if the log's section does not hold it already, and applying it twice changes
nothing. Must not know where frames come from.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from zlib import crc32

import numpy as np

from headrace.errors import Corrupt
from headrace.probes import probe
from headrace.store import format as fmt
from headrace.store.facts import SHARDS
from headrace.store.filelog import FileLog
from headrace.store.log import SEQ_END
from headrace.store.report import Damage
from headrace.store.restore import used_generations, used_number
from headrace.store.segments import State
from headrace.store.store import Store

_MARK = struct.Struct("<IQ")
SKIP = 1 << 20  # sequences left out where lost frames may have used some and nothing says how many


class Replay:
    """Frames must come in order of their number."""

    def __init__(
        self, store: Store, logs: dict[int, FileLog], upto: dict[int, int], shards: dict[int, int]
    ) -> None:
        self.store = store
        self.logs = logs
        self.unknown: dict[int, None] = {}
        self.offline: set[int] = set()
        self.touched: set[int] = set()
        self.is_removed: Callable[[int, int, int], bool] = lambda ident, first, last: False
        self._upto = upto
        self._shards = shards
        self._number = 0
        self._suspects: dict[int, FileLog] = {}
        self._handlers: dict[int, Callable[[int, memoryview], None]] = {
            fmt.CREATE: self._create,
            fmt.RECORDS: self._records,
            fmt.LARGE: self._large,
            fmt.REMOVALS: self._removals,
            fmt.TRIM: self._trim,
            fmt.ADVANCE: self._advance,
            fmt.PUT: self._put,
            fmt.NOTE: self._note,
            fmt.FORGET: self._forget,
            fmt.DELETE: self._delete,
        }

    def apply(self, number: int, body: memoryview, missing: int) -> None:
        """One frame; `missing` is how many frames before it are lost."""
        self._number = number
        entries = fmt.entries(body)
        if missing:
            self._suspect(missing, entries, sure=missing == 1)
        for kind, ident, data in entries:
            handler = self._handlers.get(kind)
            if handler is not None:
                handler(ident, data)

    @property
    def spoken_of(self) -> int:
        """The newest frame that a section of the checkpoint holds."""
        return max([*self._upto.values(), *self._shards.values()], default=0)

    def cut_short(self, known: int, missing: int, marks: bytes | None) -> None:
        """The last `missing` frames up to `known` are lost; `marks` are the watermarks of the last, if known."""
        self._number = known + 1
        said = [] if marks is None else [(fmt.WATERMARKS, 0, memoryview(marks))]
        self._suspect(missing, said, sure=missing == 1 and marks is not None)

    def finish(self) -> None:
        """After the last frame: sequences that lost frames may have used are not given again."""
        for log in self._suspects.values():
            log.advance(log.last_seq + SKIP)
        for ident in self.unknown:
            self._lost("a stream's beginning is lost", str(ident))

    def _lost(self, what: str, stream: str = "", first: int = 0, last: int = 0, ident: int = 0) -> None:
        self.store.report().add(Damage(what, stream, first, last, ident=ident))

    # Lost frames

    def _suspect(self, missing: int, entries: list[tuple[int, int, memoryview]], sure: bool) -> None:
        """Lost frames; `sure`: the watermarks among these entries are all that the one lost frame changed."""
        what = f"{missing} frame(s) before {self._number} lost"
        self._lost(what)
        said: set[int] = set()
        for kind, _, data in entries:
            if kind == fmt.WATERMARKS:
                for ident, last in _MARK.iter_unpack(data):
                    said.add(ident)
                    self._log(ident)  # one that nobody knows began in the lost frame
                    self._gap(ident, last, what)
        if not sure:
            lost = self._number - 1
            self._suspects.update(
                (ident, log)
                for ident, log in self.logs.items()
                if ident not in said and self._upto.get(ident, 0) < lost
            )

    def _gap(self, ident: int, last: int, what: str) -> None:
        log = self.logs.get(ident)
        if log is not None and last > log.last_seq:
            self._lost(what, log.name, log.last_seq + 1, last, ident)
            log.lost.append((log.last_seq + 1, last))
            log.advance(last)

    # Entries

    def _log(self, ident: int) -> FileLog | None:
        log = self.logs.get(ident)
        if log is None:
            if ident not in self.offline:
                self.unknown[ident] = None
                self.store.next_ident = max(self.store.next_ident, ident + 1)
            return None
        if self._number <= self._upto.get(ident, 0):
            probe("a section already holds what is replayed")
            return None
        self.touched.add(ident)
        return log

    def _create(self, ident: int, data: memoryview) -> None:
        store = self.store
        store.next_ident = max(store.next_ident, ident + 1)
        if ident in self.logs or ident in self.offline:
            return
        name = bytes(data[8:]).decode()
        first = fmt.read_number(data)
        log = FileLog(store.shelf, ident, name, first, used_number(store.disk, ident))
        log.generations = used_generations(store.disk, ident)
        log.begin_generation()
        log.folder = State.READY if store.disk.exists(log.folder_path) else State.NEW
        self.logs[ident] = log

    def _records(self, ident: int, data: memoryview) -> None:
        log = self._log(ident)
        if log is None:
            return
        if ident in self._suspects:
            del self._suspects[ident]
            first = int.from_bytes(data[16:24], "little")
            self._gap(ident, first - 1, f"frame(s) before {self._number} lost")
        self._load(log, data)

    def _load(self, log: FileLog, data: memoryview) -> None:
        if log.load(data) < 0:
            raise Corrupt(f"frame {self._number}: what it has for stream {log.name} is not records")

    def _large(self, ident: int, data: memoryview) -> None:
        log = self._log(ident)
        if log is None:
            return
        number, offset, length, seq = fmt.read_large(data)
        if seq <= log.last_seq:
            return
        segment = log.segment(number, log.columns)
        disk = self.store.disk
        block = disk.read(segment.path, offset, length) if disk.exists(segment.path) else b""
        if fmt.open_block(block, 0, segment.seed, offset) is None:
            if self.is_removed(ident, seq, seq):
                probe("a large message that is gone was removed")
                log.advance(seq)
                return
            self._gap(ident, seq, f"the large message at {offset} of {segment.path} is damaged")
        else:
            probe("a large message is replayed")
            self._load(log, memoryview(block)[fmt.BLOCK_BYTES :])

    def _removals(self, ident: int, data: memoryview) -> None:
        log = self._log(ident)
        if log is not None:
            runs = np.frombuffer(data, "<u8").reshape(-1, 2)
            if (runs[:, 0] > runs[:, 1]).any() or (runs > np.uint64(SEQ_END)).any():
                raise Corrupt(f"frame {self._number}: removals from stream {log.name} that no log can have")
            log.remove_runs(runs)

    def _trim(self, ident: int, data: memoryview) -> None:
        log = self._log(ident)
        if log is not None:
            seq = fmt.read_number(data)
            if seq > SEQ_END:
                raise Corrupt(
                    f"frame {self._number}: stream {log.name} is trimmed to {seq}, which no log can reach"
                )
            log.remove_below(seq)

    def _advance(self, ident: int, data: memoryview) -> None:
        log = self._log(ident)
        if log is not None:
            log.advance(fmt.read_number(data))

    def _delete(self, ident: int, data: memoryview) -> None:
        self.unknown.pop(ident, None)
        log = self.logs.pop(ident, None)
        self._suspects.pop(ident, None)
        if log is not None:
            log.gone = True
            probe("a deletion is replayed")
            self.store.trash.add_folder(log.folder_path, self.store.frame)
            # Blocks of a stream that is going are not synced any more, so an older section may miss some.
            found = self.store.report()
            found.damage = [each for each in found.damage if not each.file.startswith(f"{log.folder_path}/")]

    def _fresh(self, key: bytes) -> bool:
        return self._number > self._shards.get(crc32(key) % SHARDS, 0)

    def _put(self, ident: int, data: memoryview) -> None:
        key, value = fmt.split_keyed(data)
        if self._fresh(key):
            self.store.facts.apply_put(key, value)

    def _note(self, ident: int, data: memoryview) -> None:
        key, delta = fmt.split_keyed(data)
        if self._fresh(key):
            self.store.facts.apply_note(key, delta)

    def _forget(self, ident: int, data: memoryview) -> None:
        key = bytes(data)
        if self._fresh(key):
            self.store.facts.apply_forget(key)
