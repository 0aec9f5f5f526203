"""Drives a store and its model in step. Owns the history: the state after each frame, and which frames were
acknowledged.

Invariant: a change reaches the model only after the store accepted it, and a state is in the history before its frame
can reach the disk. So after any crash the store must equal one of `states[acked_index:]`. Must not know why a crash
happened.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from headrace.errors import StoreFull
from headrace.sim.checkers.store_invariants import MEMORY_PREFIX, Violation, describe_difference, read_state
from headrace.sim.checkers.store_model import LogModel, StoreModel, StoreState
from headrace.sim.clock import SimClock
from headrace.sim.disk.sim_disk import SimDisk
from headrace.storage import Store, StoreOptions, StreamLog, open_store, release_idle_resources
from headrace.storage.snapshot import leases

EMPTY_STATE: StoreState = ((), ())
#: Compacted values of this size are encoded in slices.
SLICED_BYTES = 24


class CommitHistory:
    """The states after each submitted frame, oldest first; `states[acked_index]` is the newest acknowledged one."""

    def __init__(self, start: StoreState = EMPTY_STATE) -> None:
        self.states: list[StoreState] = [start]
        self.frame_numbers: list[int] = [0]
        self.acked_index = 0

    def record_frame(self, frame: int, state: StoreState) -> None:
        self.states.append(state)
        self.frame_numbers.append(frame)

    def record_commit(self, frame: int) -> None:
        while (
            self.acked_index + 1 < len(self.frame_numbers)
            and self.frame_numbers[self.acked_index + 1] <= frame
        ):
            self.acked_index += 1

    @property
    def newest_index(self) -> int:
        return len(self.states) - 1


def _iter_encode(value: bytes) -> Generator[None, None, bytes]:
    yield
    yield
    return value


class StoreDriver:
    """Applies every possible change of a store to the store and to the model."""

    def __init__(self, disk: SimDisk, options: StoreOptions, clock: SimClock | None = None) -> None:
        self.disk = disk
        self.options = options
        self.clock = clock or SimClock()
        self.store, found = self._open()
        self.model = StoreModel.from_state(found)
        self.history = CommitHistory(found)
        self._watermarks: dict[int, dict[int, int]] = {}
        self._append_count = 0
        self._pins: list[leases.SnapshotPin] = []

    def _open(self) -> tuple[Store, StoreState]:
        store = open_store(self.disk, self.clock, self.options)
        found = read_state(store)
        store.metadata.register_compactor(b"", self._compact)
        store.set_observer(self)
        self._frame_number = store.frame_number
        return store, found

    def _compact(self, key: bytes) -> bytes | Generator[None, None, bytes]:
        """Return the value of a key; long ones in slices."""
        value = self.model.metadata.get(key, b"")
        return _iter_encode(value) if len(value) >= SLICED_BYTES else value

    def _on_sealed(self, frame: int) -> None:
        self.history.record_frame(frame, self.model.to_state())
        self._watermarks[frame] = {log.ident: log.last_seq for log in self.store.iter_file_logs()}

    def on_frame_durable(self, frame: int) -> None:
        """Check a durable frame: each file log's committed sequence is that of when the frame was submitted."""
        self.history.record_commit(frame)
        watermarks = self._watermarks.pop(frame, {})
        for log in self.store.iter_file_logs():
            if log.committed_seq != watermarks.get(log.ident, log.committed_seq):
                watermark = watermarks[log.ident]
                raise Violation(f"{log.name}: committed up to {log.committed_seq}, sealed up to {watermark}")

    def on_full(self) -> None:
        """Nothing to do: the driver calls `Store.on_idle` now and then."""

    # Changes

    def create(self, name: str, first_seq: int = 1) -> None:
        memory = name.startswith(MEMORY_PREFIX)
        self.store.create(name, memory=memory, first_seq=first_seq)
        self.model.create(name, memory=memory, first_seq=first_seq)

    def delete(self, name: str) -> None:
        self.store.delete(self.log(name))
        self.model.delete(name)

    def append(
        self, name: str, subject: bytes = b"a", size: int = 20, header: bytes = b"", ttl_s: int = 0
    ) -> int:
        time_ns = self.clock.advance(1_000_000)
        self._append_count += 1
        payload = f"{name}:{self._append_count}:".encode()
        payload += bytes((self._append_count * 7 + i) & 0xFF for i in range(min(256, size)))
        payload = (payload * (size // len(payload) + 1))[:size]
        seq = self.log(name).append(subject, header, payload, time_ns, ttl_s)
        expected = self.model.logs[name].append(subject, header, payload, time_ns, ttl_s)
        if seq != expected:
            raise AssertionError(f"{name}: the store returned sequence {seq}, the model {expected}")
        return seq

    def replace(self, name: str, subject: bytes, size: int = 20) -> int:
        """Like a rollup: append the newest message of a subject, and remove the older ones in the same frame."""
        log, model = self.log(name), self.model.logs[name]
        older = [seq for seq, message in model.messages.items() if message[1] == subject]
        seq = self.append(name, subject, size)
        log.remove_many(older)
        for old_seq in older:
            model.remove(old_seq)
        return seq

    def remove(self, name: str, seq: int) -> None:
        done = self.log(name).remove(seq)
        if done != self.model.logs[name].remove(seq):
            raise AssertionError(f"{name}: removing {seq} returned {done}")

    def remove_below(self, name: str, seq: int) -> None:
        done = self.log(name).remove_below(seq)
        expected = self.model.logs[name].remove_below(seq)
        if done != expected:
            raise AssertionError(f"{name}: removing below {seq} returned {done}, not {expected}")

    def advance(self, name: str, seq: int) -> None:
        self.log(name).advance(seq)
        self.model.logs[name].advance(seq)

    def compress(self, name: str, enabled: bool = True) -> None:
        """Compress new blocks of a stream, or stop that; it changes nothing that a reader sees."""
        self.log(name).set_compression(enabled)

    def put(self, key: bytes, value: bytes) -> None:
        self.store.metadata.put(key, value)
        self.model.put(key, value)

    def delete_key(self, key: bytes) -> None:
        self.store.metadata.delete(key)
        self.model.delete_key(key)

    def merge(self, key: bytes, operand: bytes) -> None:
        self.store.metadata.merge(key, operand)
        self.model.merge(key, operand)

    # Time

    def log(self, name: str) -> StreamLog:
        return self.store.logs[name]

    def get_model(self, name: str) -> LogModel:
        return self.model.logs[name]

    def commit(self) -> bool:
        """Submit the open frame, after the one in flight; nothing else is stepped."""
        if self.store.memory_frames.dirty:
            self.store.memory_frames.commit()
        self.wait_for_commit()
        if not self.store.dirty:
            return False
        self._on_sealed(self.store.frame_number)
        self.store.commit()
        self._frame_number = self.store.frame_number
        return True

    def step(self) -> bool:
        """Run one step of the disk, in which the store may commit by itself, for the mark of a checkpoint."""
        stepped = self.disk.step()
        if self.store.frame_number != self._frame_number:
            self._on_sealed(self.store.frame_number - 1)
            self._frame_number = self.store.frame_number
        return stepped

    def wait_for_commit(self) -> None:
        """Step the disk until no frame is in flight."""
        self.run_until(lambda: not self.store.in_flight)

    def commit_and_wait(self) -> None:
        """Commit, and step the disk until the frame is durable."""
        if self.commit():
            self.wait_for_commit()

    def run_until(self, condition: Callable[[], bool]) -> None:
        """Step the disk until the condition is true; a frame that finds no space is retried once."""
        retried = False
        while not condition():
            if self.store.poisoned is not None:
                raise self.store.poisoned
            if self.step():
                continue
            if not self.store.waiting_for_space:
                raise AssertionError("the disk is idle, but the store still waits")
            if retried:
                raise StoreFull("a frame waits for space")
            retried = True
            self.store.on_idle()

    def run_until_idle(self) -> None:
        """Commit, and let all background work finish."""
        self.commit_and_wait()
        while self.step():
            pass

    def checkpoint(self) -> None:
        """Start a checkpoint at once, even in the middle of a frame, and run until it is marked."""
        done: list[bool] = []
        self.store.checkpoint(lambda *_: done.append(True))
        self.run_until(lambda: bool(done) or not self.disk.get_ready_queues())
        self.commit_and_wait()
        self.run_until(lambda: bool(done))

    def start_checkpoint(self) -> None:
        """Start a checkpoint without waiting for it."""
        self.store.checkpoint()

    def compact(self) -> None:
        """Let compaction finish."""
        self.store.compactor.start_next()
        self.run_until(lambda: not self.store.compactor.busy)

    def release_idle_resources(self) -> None:
        """Give back what only a burst needed, as after a long idle time."""
        self.run_until_idle()
        release_idle_resources(self.store)
        self.run_until_idle()

    def pin(self, name: str) -> None:
        """Pin a stream as it is, for a reader; `unpin` releases the oldest pin."""
        self.commit_and_wait()
        self._pins.append(leases.create_pin(self.store, self.log(name), 60.0, self.clock.now_ns()))

    def unpin(self) -> None:
        leases.release_pin(self.store, self._pins.pop(0))

    def restart(self) -> None:
        """Close normally and open again; data that is only in memory is gone."""
        self.run_until_idle()
        self.store.close()
        self.store, found = self._open()
        for name in [name for name in self.model.logs if name.startswith(MEMORY_PREFIX)]:
            self.model.delete(name)
        if found != self.model.to_state():
            raise Violation(f"after a restart: {describe_difference(found, self.model.to_state())}")
