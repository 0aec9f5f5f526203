"""A disk in memory that can lose power. Owns the meaning of the `Disk` protocol: what is visible, what is durable.

Each file has a synced image and the ordered writes since; each folder has a synced name table and the ordered changes
since. `sync` is a barrier for one file's content, `syncdir` for one folder's names; nothing else orders anything.
Queues are FIFOs that advance only when the simulation steps them, in an order fixed by the seed or chosen by the
caller.

Invariant: two runs with the same seed and the same calls are identical. Must not know what is stored.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

from headrace.sim.disk.crash_outcomes import Outcome
from headrace.sim.disk.disk_faults import Fault, FaultInjector
from headrace.sim.disk.disk_snapshot import ROOT, DiskSnapshot
from headrace.sim.disk.fs_nodes import NameChange, Node, SimFile, SimFolder
from headrace.sim.disk.sparse_file import PendingWrite, SparseFile
from headrace.storage.io.disk import compute_data, translate_error

Op = tuple[Any, ...]
Names = list[str]
DoneCallback = Callable[[OSError | None], None]

_UNLIMITED = 1 << 50
_epochs = itertools.count(1)


def _make_error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


class _Submission:
    """Operations in a queue, and how many are done."""

    __slots__ = ("done", "next_op", "ops")

    def __init__(self, ops: Sequence[Op], done: DoneCallback) -> None:
        self.ops = list(ops)
        self.done = done
        self.next_op = 0


class SimDisk:
    """A `Disk` for simulations. `capacity` is a byte budget over all files, None for no limit."""

    def __init__(
        self, seed: int = 0, *, capacity: int | None = None, snapshot: DiskSnapshot | None = None
    ) -> None:
        self._epoch = next(_epochs)
        self._nodes: dict[int, Node] = (
            snapshot.clone_nodes(self._epoch) if snapshot else {ROOT: SimFolder(self._epoch)}
        )
        self._next_node = max(self._nodes) + 1
        self._rng = Random(seed)
        self._queues: dict[str, deque[_Submission]] = {}
        self._completions: deque[tuple[DoneCallback, OSError | None]] = deque()
        self.capacity = capacity
        self.faults = FaultInjector()
        #: Number of changing operations done; crash tests identify their points by it.
        self.ops_done = snapshot.op_number if snapshot else 0
        #: Called before each changing operation; crash tests take their snapshots here.
        self.before_op: Callable[[Op], None] | None = None
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
        self._check_read_fault("list", folder)
        node = self._find(folder)
        return sorted(node.names) if isinstance(node, SimFolder) else []

    def exists(self, path: str) -> bool:
        self._check_read_fault("exists", path)
        return self._find(path) is not None

    def size(self, path: str) -> int:
        self._check_read_fault("size", path)
        return self._get_file(path).size

    def read(self, path: str, offset: int, length: int) -> bytes:
        self._check_read_fault("read", path)
        return self._get_file(path).read(offset, length)

    def map(self, path: str) -> memoryview:
        self._check_read_fault("map", path)
        return self._get_file(path).view()

    def prefetch(self, path: str, offset: int, length: int) -> None:
        """Do nothing: there is nothing to fetch."""

    def free(self) -> int:
        return _UNLIMITED if self.capacity is None else max(0, self.capacity - self.used())

    def used(self) -> int:
        """Return the bytes of all files that have a name."""
        return sum(node.size for node in self._nodes.values() if isinstance(node, SimFile) and node.links)

    # Changing

    def run(self, ops: Sequence[Op]) -> None:
        for op in ops:
            self._execute(op)

    def submit(self, queue_name: str, ops: Sequence[Op], done: DoneCallback) -> None:
        self._queues.setdefault(queue_name, deque()).append(_Submission(ops, done))

    def close(self) -> None:
        """Close as a process that ends normally: queued work is done first."""
        self.drain()
        self.closed = True

    # Stepping

    def get_ready_queues(self) -> Sequence[str]:
        """Return what could happen next: names of queues with work, and "" for a pending completion."""
        queue_names = [queue_name for queue_name, queue in self._queues.items() if queue]
        if len(queue_names) > 1:
            queue_names.sort()
        return [*queue_names, ""] if self._completions else queue_names

    def step(self, choice: str | None = None) -> bool:
        """Run one operation of a queue, or one completion (choice ""); without a choice the seed decides.

        Returns whether there was anything to do.
        """
        choices = self.get_ready_queues()
        if not choices:
            return False
        if choice is None:
            choice = choices[0] if len(choices) == 1 else self._rng.choice(choices)
        elif choice not in choices:
            return False
        if choice:
            self._run_next_op(self._queues[choice])
        else:
            done, error = self._completions.popleft()
            done(error)
        return True

    def drain(self, limit: int = 1_000_000) -> None:
        """Step until nothing is left to do."""
        for _ in range(limit):
            if not self.step():
                return
        raise RuntimeError(f"the disk is still busy after {limit} steps: {self.get_ready_queues()}")

    # Crashing

    def snapshot(self) -> DiskSnapshot:
        """Return the disk as it is now, for later crashes; costs next to nothing."""
        taken = DiskSnapshot(dict(self._nodes), self.ops_done)
        self._epoch = next(_epochs)
        return taken

    def crash(self, outcome: Outcome, seed: int | str = 0) -> SimDisk:
        """Return the disk as found after a power loss now."""
        return SimDisk(snapshot=self.snapshot().power_loss(outcome, Random(seed)), capacity=self.capacity)

    def kill(self) -> SimDisk:
        """Return the disk as found after the process was killed: everything written is visible.

        Nothing is more durable than before: a later power loss may still lose what was not synced.
        """
        return SimDisk(snapshot=self.snapshot(), capacity=self.capacity)

    # Damaging and inspecting

    def walk(self, folder: str = "") -> Iterator[str]:
        """Yield the paths of all files, sorted."""
        node = self._find(folder)
        names = node.names if isinstance(node, SimFolder) else {}
        for name in sorted(names):
            path = f"{folder}/{name}" if folder else name
            if isinstance(self._nodes[names[name]], SimFile):
                yield path
            else:
                yield from self.walk(path)

    def corrupt(self, path: str, content: bytes) -> None:
        """Replace the content of a file on the medium, unnoticed."""
        number = self._find_node_number(path)
        corrupted = SimFile(self._epoch, SparseFile({}, 0), self._get_file(path).links)
        corrupted.write(PendingWrite(self.ops_done, 0, content, len(content)))
        corrupted.sync()
        self._nodes[number] = corrupted

    # Internals

    def _check_read_fault(self, kind: str, path: str) -> None:
        fault = self.faults.on_call(kind, path)
        if fault is not None:
            raise fault.exception(path)

    def _run_next_op(self, queue: deque[_Submission]) -> None:
        submission = queue[0]
        error = None
        if submission.next_op < len(submission.ops):
            try:
                self._execute(submission.ops[submission.next_op])
            except OSError as failure:
                error = failure
            submission.next_op += 1
        if error is not None or submission.next_op >= len(submission.ops):
            queue.popleft()
            self._completions.append((submission.done, error))

    def _execute(self, op: Op) -> None:
        submitted = op
        if op[0] == "write":
            op = (*op[:3], compute_data(op[3]))
        if self.before_op is not None:
            self.before_op(op)
        self.ops_done += 1
        kind, path = op[0], op[1]
        fault = self.faults.on_call(kind, path)
        try:
            if fault is not None:
                self._apply_fault(op, fault)
            self._handlers[kind](*op[1:])
        except OSError as error:
            raise translate_error(submitted, error) from None

    def _apply_fault(self, op: Op, fault: Fault) -> None:
        """Do what a failing call does before it fails."""
        if fault.short and op[0] == "write":
            data = _join_parts(op[3])
            self._write(op[1], op[2], data[: self._rng.randrange(len(data) + 1)])
        elif op[0] == "sync" and fault.lost != "no":
            self._get_writable_file(op[1]).drop_pending(visible=fault.lost == "cached")
        raise fault.exception(op[1])

    def _find(self, path: str) -> Node | None:
        node: Node | None = self._nodes[ROOT]
        for name in path.split("/") if path else ():
            if not isinstance(node, SimFolder) or name not in node.names:
                return None
            node = self._nodes[node.names[name]]
        return node

    def _get_file(self, path: str) -> SimFile:
        node = self._find(path)
        if not isinstance(node, SimFile):
            raise _make_error(errno.EISDIR if node else errno.ENOENT, path)
        return node

    def _find_node_number(self, path: str) -> int:
        """Return the node number of a path; raise if it is missing."""
        number = ROOT
        for name in path.split("/") if path else ():
            node = self._nodes[number]
            if not isinstance(node, SimFolder) or name not in node.names:
                raise _make_error(errno.ENOENT, path)
            number = node.names[name]
        return number

    def _get_writable(self, number: int) -> Node:
        node = self._nodes[number]
        if node.epoch != self._epoch:
            node = self._nodes[number] = node.clone(self._epoch, move_cache=True)
        return node

    def _get_writable_file(self, path: str) -> SimFile:
        node = self._get_writable(self._find_node_number(path))
        if not isinstance(node, SimFile):
            raise _make_error(errno.EISDIR, path)
        return node

    def _get_writable_folder(self, path: str) -> SimFolder:
        node = self._get_writable(self._find_node_number(path))
        if not isinstance(node, SimFolder):
            raise _make_error(errno.ENOTDIR, path)
        return node

    def _resolve_parent(self, path: str, *, must_be_free: bool) -> tuple[SimFolder, str]:
        """Return the folder of a path and the name in it; `must_be_free` requires that the name is free."""
        folder_path, _, name = path.rpartition("/")
        folder = self._get_writable_folder(folder_path)
        if must_be_free and name in folder.names:
            raise _make_error(errno.EEXIST, path)
        if not must_be_free and name not in folder.names:
            raise _make_error(errno.ENOENT, path)
        return folder, name

    def _add_node(self, node: Node) -> int:
        number, self._next_node = self._next_node, self._next_node + 1
        self._nodes[number] = node
        return number

    def _create(self, path: str, size: int) -> None:
        folder, name = self._resolve_parent(path, must_be_free=True)
        if size > self.free():
            raise _make_error(errno.ENOSPC, path)
        file = SimFile(self._epoch, SparseFile({}, 0), links=1)
        folder.apply_change(NameChange(self.ops_done, self._add_node(file), name))
        if size:
            file.write(PendingWrite(self.ops_done, 0, b"", size))

    def _write(self, path: str, offset: int, data: Any) -> None:
        file = self._get_writable_file(path)
        content = _join_parts(data)
        growth = offset + len(content) - file.size
        free_bytes = self.free() if growth > 0 else 0
        if growth > free_bytes:
            content = content[: max(0, len(content) - growth + free_bytes)]
        if content:
            file.write(PendingWrite(self.ops_done, offset, content, offset + len(content)))
        if growth > free_bytes:
            raise _make_error(errno.ENOSPC, path)

    def _copy(self, src: str, src_offset: int, dst: str, dst_offset: int, length: int) -> None:
        data = self._get_file(src).read(src_offset, length)
        if len(data) < length:
            raise _make_error(errno.EIO, src)
        self._write(dst, dst_offset, data)

    def _sync(self, path: str) -> None:
        self._get_writable_file(path).sync()

    def _syncdir(self, path: str) -> None:
        folder = self._get_writable_folder(path)
        unsynced = [
            change for change in folder.pending if change.depends_on and self._is_pending(change.depends_on)
        ]
        synced = dict(folder.names)
        for (
            change
        ) in unsynced:  # the other half of a move is not durable yet, so this half must not be either
            synced[change.removed_name] = change.node
        folder.synced = synced
        folder.pending = unsynced

    def _is_pending(self, depends_on: tuple[int, int]) -> bool:
        other = self._nodes[depends_on[0]]
        return isinstance(other, SimFolder) and any(
            change.op_number == depends_on[1] for change in other.pending
        )

    def _mkdir(self, path: str) -> None:
        folder, name = self._resolve_parent(path, must_be_free=True)
        folder.apply_change(NameChange(self.ops_done, self._add_node(SimFolder(self._epoch)), name))

    def _link(self, path: str, new: str) -> None:
        number = self._find_node_number(path)
        folder, name = self._resolve_parent(new, must_be_free=True)
        self._get_writable_file(path).links += 1
        folder.apply_change(NameChange(self.ops_done, number, name))

    def _rename(self, path: str, new: str) -> None:
        """Rename; as on a real disk here, never over an existing name."""
        source, old = self._resolve_parent(path, must_be_free=False)
        target, name = self._resolve_parent(new, must_be_free=True)
        number = source.names[old]
        if target is source:
            source.apply_change(NameChange(self.ops_done, number, name, old))
        else:
            target.apply_change(NameChange(self.ops_done, number, name))
            depends_on = (self._find_node_number(new.rpartition("/")[0]), self.ops_done)
            source.apply_change(NameChange(self.ops_done, number, "", old, depends_on))

    def _unlink(self, path: str) -> None:
        folder, name = self._resolve_parent(path, must_be_free=False)
        number = folder.names[name]
        if isinstance(self._nodes[number], SimFolder):
            raise _make_error(errno.EISDIR, path)
        self._get_writable_file(path).links -= 1
        folder.apply_change(NameChange(self.ops_done, number, "", name))

    def _rmdir(self, path: str) -> None:
        folder, name = self._resolve_parent(path, must_be_free=False)
        node = self._nodes[folder.names[name]]
        if not isinstance(node, SimFolder):
            raise _make_error(errno.ENOTDIR, path)
        if node.names:
            raise _make_error(errno.ENOTEMPTY, path)
        folder.apply_change(NameChange(self.ops_done, folder.names[name], "", name))


def _join_parts(data: Any) -> bytes:
    return b"".join(data) if isinstance(data, (list, tuple)) else bytes(data)
