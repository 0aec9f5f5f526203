"""A disk in memory that can lose power. Owns what the `Disk` protocol means: what is visible, what durable.

Per file there is a synced image and the ordered writes since; per folder a synced name table and the ordered
changes since. `sync` is a barrier for one file's content, `syncdir` for one folder's names; nothing else
orders anything. Lanes are FIFOs that move only when the simulation steps them, in an order fixed by the seed
or chosen by the caller.

Invariant: two runs with the same seed and the same calls are identical. It must not know what is stored.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

from headrace.sim.faults import Fault, Faults
from headrace.sim.image import Image, Write
from headrace.sim.nodes import File, Folder, NameChange, Node
from headrace.sim.outcome import Outcome
from headrace.sim.snapshot import ROOT, Snapshot
from headrace.store.disk import told

Op = tuple[Any, ...]
Names = list[str]
Done = Callable[[OSError | None], None]

_UNLIMITED = 1 << 50
_epochs = itertools.count(1)


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


class _Submission:
    """Operations queued on a lane, and how many are done."""

    __slots__ = ("done", "next", "ops")

    def __init__(self, ops: Sequence[Op], done: Done) -> None:
        self.ops = list(ops)
        self.done = done
        self.next = 0


class SimDisk:
    """A `Disk` for simulations. `capacity` is a byte budget over all files, None for no limit."""

    def __init__(
        self, seed: int = 0, *, capacity: int | None = None, snapshot: Snapshot | None = None
    ) -> None:
        self._epoch = next(_epochs)
        self._nodes: dict[int, Node] = (
            snapshot.copies(self._epoch) if snapshot else {ROOT: Folder(self._epoch)}
        )
        self._next_node = max(self._nodes) + 1
        self._rng = Random(seed)
        self._lanes: dict[str, deque[_Submission]] = {}
        self._finished: deque[tuple[Done, OSError | None]] = deque()
        self.capacity = capacity
        self.faults = Faults()
        #: Number of changing operations done; crash tests name their points by it.
        self.ops_done = snapshot.at if snapshot else 0
        #: Called before each changing operation; crash tests take their snapshots here.
        self.before: Callable[[Op], None] | None = None
        self.closed = False
        self._handlers: dict[str, Callable[..., None]] = {
            "create": self._create,
            "write": self._write,
            "copy": self._copy,
            "sync": self._sync,
            "syncdir": self._syncdir,
            "mkdir": self._mkdir,
            "link": self._link,
            "rename": self._rename,
            "unlink": self._unlink,
            "rmdir": self._rmdir,
        }

    # Reading

    def list(self, folder: str) -> Names:
        self._reading("list", folder)
        node = self._find(folder)
        return sorted(node.names) if isinstance(node, Folder) else []

    def exists(self, path: str) -> bool:
        self._reading("exists", path)
        return self._find(path) is not None

    def size(self, path: str) -> int:
        self._reading("size", path)
        return self._file(path).size

    def read(self, path: str, offset: int, length: int) -> bytes:
        self._reading("read", path)
        return self._file(path).read(offset, length)

    def map(self, path: str) -> memoryview:
        self._reading("map", path)
        return self._file(path).view()

    def prefetch(self, path: str, offset: int, length: int) -> None:
        """A hint; there is nothing to fetch from."""

    def free(self) -> int:
        return _UNLIMITED if self.capacity is None else max(0, self.capacity - self.used())

    def used(self) -> int:
        """Bytes of all files that have a name."""
        return sum(node.size for node in self._nodes.values() if isinstance(node, File) and node.links)

    # Changing

    def run(self, ops: Sequence[Op]) -> None:
        for op in ops:
            self._execute(op)

    def submit(self, lane: str, ops: Sequence[Op], done: Done) -> None:
        self._lanes.setdefault(lane, deque()).append(_Submission(ops, done))

    def close(self) -> None:
        """Like a process that ends in good order: what it queued is done first."""
        self.drain()
        self.closed = True

    # Stepping

    def busy(self) -> Sequence[str]:
        """What could happen next: names of lanes with work, and "" for a completion that waits."""
        lanes = [lane for lane, queue in self._lanes.items() if queue]
        if len(lanes) > 1:
            lanes.sort()
        return [*lanes, ""] if self._finished else lanes

    def step(self, choice: str | None = None) -> bool:
        """One operation of a lane, or one completion (choice ""); without a choice the seed decides.

        Returns whether anything was left to do.
        """
        choices = self.busy()
        if not choices:
            return False
        if choice is None:
            choice = choices[0] if len(choices) == 1 else self._rng.choice(choices)
        elif choice not in choices:
            return False
        if choice:
            self._advance(self._lanes[choice])
        else:
            done, error = self._finished.popleft()
            done(error)
        return True

    def drain(self, limit: int = 1_000_000) -> None:
        """Steps until nothing is left to do."""
        for _ in range(limit):
            if not self.step():
                return
        raise RuntimeError(f"the disk is still busy after {limit} steps: {self.busy()}")

    # Crashing

    def snapshot(self) -> Snapshot:
        """The disk as it is now, for crashes later on; costs next to nothing."""
        taken = Snapshot(dict(self._nodes), self.ops_done)
        self._epoch = next(_epochs)
        return taken

    def crash(self, outcome: Outcome, seed: int | str = 0) -> SimDisk:
        """The disk that is found after a power loss now."""
        return SimDisk(snapshot=self.snapshot().power_loss(outcome, Random(seed)), capacity=self.capacity)

    def kill(self) -> SimDisk:
        """The disk that is found after the process ended without warning: all that was written is visible.

        Nothing is more durable than before: a power loss later on may take what was not synced.
        """
        return SimDisk(snapshot=self.snapshot(), capacity=self.capacity)

    # Damaging, looking

    def walk(self, folder: str = "") -> Iterator[str]:
        """Paths of all files, sorted."""
        node = self._find(folder)
        names = node.names if isinstance(node, Folder) else {}
        for name in sorted(names):
            path = f"{folder}/{name}" if folder else name
            if isinstance(self._nodes[names[name]], File):
                yield path
            else:
                yield from self.walk(path)

    def rot(self, path: str, content: bytes) -> None:
        """The medium now holds `content` for this file, and nobody was told."""
        number = self._number(path)
        rotten = File(self._epoch, Image({}, 0), self._file(path).links)
        rotten.write(Write(self.ops_done, 0, content, len(content)))
        rotten.sync()
        self._nodes[number] = rotten

    # Inside

    def _reading(self, kind: str, path: str) -> None:
        fault = self.faults.hit(kind, path)
        if fault is not None:
            raise fault.exception(path)

    def _advance(self, queue: deque[_Submission]) -> None:
        submission = queue[0]
        error = None
        if submission.next < len(submission.ops):
            try:
                self._execute(submission.ops[submission.next])
            except OSError as failure:
                error = failure
            submission.next += 1
        if error is not None or submission.next >= len(submission.ops):
            queue.popleft()
            self._finished.append((submission.done, error))

    def _execute(self, op: Op) -> None:
        if self.before is not None:
            self.before(op)
        self.ops_done += 1
        kind, path = op[0], op[1]
        fault = self.faults.hit(kind, path)
        try:
            if fault is not None:
                self._fail(op, fault)
            self._handlers[kind](*op[1:])
        except OSError as error:
            raise told(op, error) from None

    def _fail(self, op: Op, fault: Fault) -> None:
        """What a failing call does before it fails."""
        if fault.short and op[0] == "write":
            data = _joined(op[3])
            self._write(op[1], op[2], data[: self._rng.randrange(len(data) + 1)])
        elif op[0] == "sync" and fault.lost != "no":
            self._own_file(op[1]).lose(visible=fault.lost == "cached")
        raise fault.exception(op[1])

    def _find(self, path: str) -> Node | None:
        node: Node | None = self._nodes[ROOT]
        for name in path.split("/") if path else ():
            if not isinstance(node, Folder) or name not in node.names:
                return None
            node = self._nodes[node.names[name]]
        return node

    def _file(self, path: str) -> File:
        node = self._find(path)
        if not isinstance(node, File):
            raise _error(errno.EISDIR if node else errno.ENOENT, path)
        return node

    def _number(self, path: str) -> int:
        """The node number of a path; raises when it is missing."""
        number = ROOT
        for name in path.split("/") if path else ():
            node = self._nodes[number]
            if not isinstance(node, Folder) or name not in node.names:
                raise _error(errno.ENOENT, path)
            number = node.names[name]
        return number

    def _own(self, number: int) -> Node:
        node = self._nodes[number]
        if node.epoch != self._epoch:
            node = self._nodes[number] = node.clone(self._epoch, move_cache=True)
        return node

    def _own_file(self, path: str) -> File:
        node = self._own(self._number(path))
        if not isinstance(node, File):
            raise _error(errno.EISDIR, path)
        return node

    def _own_folder(self, path: str) -> Folder:
        node = self._own(self._number(path))
        if not isinstance(node, Folder):
            raise _error(errno.ENOTDIR, path)
        return node

    def _place(self, path: str, *, fresh: bool) -> tuple[Folder, str]:
        """The folder of a path and the name in it; `fresh` demands that the name is free."""
        folder_path, _, name = path.rpartition("/")
        folder = self._own_folder(folder_path)
        if fresh and name in folder.names:
            raise _error(errno.EEXIST, path)
        if not fresh and name not in folder.names:
            raise _error(errno.ENOENT, path)
        return folder, name

    def _add(self, node: Node) -> int:
        number, self._next_node = self._next_node, self._next_node + 1
        self._nodes[number] = node
        return number

    def _create(self, path: str, size: int) -> None:
        folder, name = self._place(path, fresh=True)
        if size > self.free():
            raise _error(errno.ENOSPC, path)
        file = File(self._epoch, Image({}, 0), links=1)
        folder.change(NameChange(self.ops_done, self._add(file), name))
        if size:
            file.write(Write(self.ops_done, 0, b"", size))

    def _write(self, path: str, offset: int, data: Any) -> None:
        file = self._own_file(path)
        content = _joined(data)
        growth = offset + len(content) - file.size
        room = self.free() if growth > 0 else 0
        if growth > room:
            content = content[: max(0, len(content) - growth + room)]
        if content:
            file.write(Write(self.ops_done, offset, content, offset + len(content)))
        if growth > room:
            raise _error(errno.ENOSPC, path)

    def _copy(self, src: str, src_offset: int, dst: str, dst_offset: int, length: int) -> None:
        data = self._file(src).read(src_offset, length)
        if len(data) < length:
            raise _error(errno.EIO, src)
        self._write(dst, dst_offset, data)

    def _sync(self, path: str) -> None:
        self._own_file(path).sync()

    def _syncdir(self, path: str) -> None:
        folder = self._own_folder(path)
        waiting = [change for change in folder.pending if change.needs and self._is_pending(change.needs)]
        synced = dict(folder.names)
        for change in waiting:  # the other half of a move is not durable yet, so this half cannot be either
            synced[change.gone] = change.node
        folder.synced = synced
        folder.pending = waiting

    def _is_pending(self, needs: tuple[int, int]) -> bool:
        other = self._nodes[needs[0]]
        return isinstance(other, Folder) and any(change.at == needs[1] for change in other.pending)

    def _mkdir(self, path: str) -> None:
        folder, name = self._place(path, fresh=True)
        folder.change(NameChange(self.ops_done, self._add(Folder(self._epoch)), name))

    def _link(self, path: str, new: str) -> None:
        number = self._number(path)
        folder, name = self._place(new, fresh=True)
        self._own_file(path).links += 1
        folder.change(NameChange(self.ops_done, number, name))

    def _rename(self, path: str, new: str) -> None:
        """As on the real one, never over an existing name."""
        source, old = self._place(path, fresh=False)
        target, name = self._place(new, fresh=True)
        number = source.names[old]
        if target is source:
            source.change(NameChange(self.ops_done, number, name, old))
        else:
            target.change(NameChange(self.ops_done, number, name))
            needs = (self._number(new.rpartition("/")[0]), self.ops_done)
            source.change(NameChange(self.ops_done, number, "", old, needs))

    def _unlink(self, path: str) -> None:
        folder, name = self._place(path, fresh=False)
        number = folder.names[name]
        if isinstance(self._nodes[number], Folder):
            raise _error(errno.EISDIR, path)
        self._own_file(path).links -= 1
        folder.change(NameChange(self.ops_done, number, "", name))

    def _rmdir(self, path: str) -> None:
        folder, name = self._place(path, fresh=False)
        node = self._nodes[folder.names[name]]
        if not isinstance(node, Folder):
            raise _error(errno.ENOTDIR, path)
        if node.names:
            raise _error(errno.ENOTEMPTY, path)
        folder.change(NameChange(self.ops_done, folder.names[name], "", name))


def _joined(data: Any) -> bytes:
    return b"".join(data) if isinstance(data, (list, tuple)) else bytes(data)
