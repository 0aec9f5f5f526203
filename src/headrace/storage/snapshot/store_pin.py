"""Pins a whole store for a backup: links to its checkpoints and segments, and a copy of its journal.

Owns the folder of such a pin. Invariant: the pin has everything that a recovery up to frame `StorePin.frame` reads, and
nothing in it changes below the lengths that a reader takes from the pinned checkpoint and frames. It does not survive a
restart: without a manifest of a stream, the next start removes it. Must not know where backups go.

The disk's background queue makes the links, after everything that it was given before and before anything that it is
given later. So a file that was there when the pin was submitted is still there when its link is made, and a journal
file cannot be reused before it is copied: both wait for a newer checkpoint, which that queue writes (see
`StorePinPlan.is_current`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from dataclasses import dataclass

from headrace.errors import StoreError
from headrace.storage.checkpoint.load import COPIES
from headrace.storage.format import checkpoint_path, journal_path, segment_path
from headrace.storage.io.disk import Op
from headrace.storage.log.file_log import FileLog
from headrace.storage.segments.segment import FileSegment, FileState
from headrace.storage.snapshot.leases import FOLDER
from headrace.storage.store import Store

#: Has a token of each of the newest pins, one in each line, the newest last. A token in it says that the store has gone
#: on from that pin: a copy of the files from before the pin, or a restored store, does not have it.
LINEAGE_PATH = "lineage"
LINEAGE_TOKENS = 40
_TOKEN = re.compile(r"([0-9a-f]{16})\n")
#: Number of segments that are listed in one step: about 1 ms.
SEGMENTS_PER_STEP = 200
#: Number of files that one submission unlinks, so that other work of the queue waits for a moment only.
UNLINKS_PER_STEP = 256


@dataclass(frozen=True, slots=True)
class StorePin:
    """A pinned store: checkpoint `checkpoint` and the frames after it, up to `frame`.

    `lineage` is the token of this pin; `ancestors` are those of earlier pins that this store descends from.
    `journal` has for each copied journal file its number and length; frames above `frame` in it do not count. `files` are
    the paths of everything in the pin.
    """

    name: str
    store_id: int
    lineage: str
    checkpoint: int
    frame: int
    journal: tuple[tuple[int, int], ...]
    files: tuple[str, ...]
    ancestors: tuple[str, ...] = ()


class StorePinPlan:
    """The pin of a store that has checkpoint `checkpoint`: prepared in steps, submitted in one."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self.checkpoint = store.checkpointer.durable_number
        self._name = name
        self._folder = f"{FOLDER}/{name}"
        self._segment_ops: dict[str, Op] = {}
        self._next_segments: dict[int, int] = {}

    def iter_collect(self) -> Generator[None, None, None]:
        """List the segments, some in each step."""
        left = SEGMENTS_PER_STEP
        for log in list(self._store.iter_file_logs()):
            segments = self._start_log(log)
            for start in range(0, len(segments), SEGMENTS_PER_STEP):
                for segment in segments[start : start + SEGMENTS_PER_STEP]:
                    self._add_segment(segment)
                left -= min(SEGMENTS_PER_STEP, len(segments) - start)
                if left <= 0:
                    left = SEGMENTS_PER_STEP
                    yield

    @property
    def is_current(self) -> bool:
        """Return whether the store still recovers from the same checkpoint, so that nothing listed is gone, and will do so
        until the pin is made: a journal file that a newer one releases is reused by the commit queue.
        """
        checkpointer = self._store.checkpointer
        return 0 < self.checkpoint == checkpointer.durable_number and checkpointer.is_settled

    def submit(self, lineage: str, done: Callable[[OSError | None], None]) -> StorePin:
        """Pin what is durable now; `done` is called when the pin is complete, or could not be made.

        `lineage` is a new token.
        """
        store = self._store
        assert self.is_current
        self._add_changes()
        ancestors = _read_lineage(store)
        ops = self._make_folder_ops((*ancestors, lineage))
        first = len(ops)
        ops += self._segment_ops.values()
        ops += [self._make_link(path) for path in store.checkpointer.list_files(self.checkpoint)]
        files = tuple(op[2] for op in ops[first:])
        # The journal numbers frames on its own; the newest one may be in flight.
        frame = store.journal.last_frame - (1 if store.in_flight else 0)
        extents = tuple(store.journal.list_extents(frame))
        for number, length in extents:
            target = f"{self._folder}/{pinned_name(journal_path(number))}"
            # The rename closes the file. Nobody syncs it, so it would stay open and delay other syncs.
            ops += [("create", f"{target}.new", 0)]
            ops += [("copy", journal_path(number), 0, f"{target}.new", 0, length)]
            ops += [("rename", f"{target}.new", target)]
            files += (target,)
        store.disk.submit("behind", ops, done)
        return StorePin(
            self._name, store.store_id, lineage, self.checkpoint, frame, extents, files, ancestors
        )

    def _make_folder_ops(self, tokens: tuple[str, ...]) -> list[Op]:
        ops: list[Op] = [] if self._store.disk.exists(FOLDER) else [("mkdir", FOLDER)]
        ops.append(("mkdir", self._folder))
        if self._store.disk.exists(LINEAGE_PATH):  # a power loss before the next sync costs tokens only
            ops.append(("unlink", LINEAGE_PATH))
        data = "".join(f"{token}\n" for token in tokens).encode()
        ops += [("create", LINEAGE_PATH, 0), ("write", LINEAGE_PATH, 0, data)]
        return [*ops, ("sync", LINEAGE_PATH), ("syncdir", "")]

    def _make_link(self, path: str) -> Op:
        return ("link", path, f"{self._folder}/{pinned_name(path)}")

    def _add_log(self, log: FileLog) -> None:
        for segment in self._start_log(log):
            self._add_segment(segment)

    def _start_log(self, log: FileLog) -> list[FileSegment]:
        """Return the segments of a log; those created since are noticed by `_add_changes`."""
        segments = log.list_segments()
        # Files that do not exist yet may exist when the pin is made, and not only that of the active segment.
        is_complete = all(segment.state is FileState.READY for segment in segments[:-1])
        self._next_segments[log.ident] = log.next_segment if is_complete else -1
        return segments

    def _add_segment(self, segment: FileSegment) -> None:
        """Add a segment that has a file; of a damaged one the file may be missing."""
        if segment.state is FileState.READY and not (
            segment.damaged and not self._store.disk.exists(segment.path)
        ):
            self._segment_ops[segment.path] = self._make_link(segment.path)

    def _add_changes(self) -> None:
        """Add what was created since the steps, and files that wait to be removed: the checkpoint may name them."""
        for log in self._store.iter_file_logs():
            if self._next_segments.get(log.ident) != log.next_segment:
                self._add_log(log)
            elif isinstance(log.active_segment, FileSegment):
                self._add_segment(log.active_segment)
        for path in self._store.file_gc.list_segment_files():
            self._segment_ops[path] = self._make_link(path)


def pinned_name(path: str) -> str:
    """Return the name that a file of the store has in a pin: its path, with dots instead of slashes."""
    return path.replace("/", ".")


def parse_pinned_name(name: str) -> str:
    """Return the path in the store of a file in a pin; "" if no pin has such a file."""
    parts = name.split(".")
    try:
        if parts[0] == "streams" and len(parts) == 4 and parts[3] == "seg":
            path = segment_path(int(parts[1], 16), int(parts[2], 16))
        elif parts[0] == "checkpoints" and len(parts) == 3 and parts[2] in COPIES:
            path = checkpoint_path(int(parts[1], 16), parts[2])
        elif parts[0] == "journal" and len(parts) == 3 and parts[2] == "jnl":
            path = journal_path(int(parts[1], 16))
        else:
            return ""
    except ValueError:
        return ""
    return path if pinned_name(path) == name else ""


def submit_release(store: Store, pin: StorePin, *, is_partial: bool = False) -> None:
    """Remove a pin in the background, some files at a time; of a partial one only those that are there."""
    folder = f"{FOLDER}/{pin.name}"
    paths = [f"{folder}/{name}" for name in store.disk.list(folder)] if is_partial else pin.files
    remaining = iter(paths)

    def unlink_more(error: OSError | None) -> None:
        if error is not None:
            return  # the next start removes the rest
        batch = [path for _, path in zip(range(UNLINKS_PER_STEP), remaining, strict=False)]
        if batch:
            store.disk.submit("behind", [("unlink", path) for path in batch], unlink_more)
        elif store.disk.exists(folder):
            store.disk.submit("behind", [("rmdir", folder)], lambda error: None)

    unlink_more(None)


def needs_checkpoint(store: Store, journaled_max: int) -> bool:
    """Return whether a pin should wait for a checkpoint: there is none, or too much was journaled since."""
    if store.poisoned is not None:
        raise StoreError(f"the store cannot be pinned: {store.poisoned}")
    return not store.checkpointer.durable_number or store.journal.bytes_since_checkpoint > journaled_max


def _read_lineage(store: Store) -> tuple[str, ...]:
    """Return the tokens of earlier pins, as many as remain beside a new one."""
    if not store.disk.exists(LINEAGE_PATH):
        return ()
    text = store.disk.read(LINEAGE_PATH, 0, 17 * LINEAGE_TOKENS).decode("ascii", "replace")
    return tuple(_TOKEN.findall(text))[1 - LINEAGE_TOKENS :]
