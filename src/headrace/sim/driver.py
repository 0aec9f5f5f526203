"""A store and its model, driven in step. Owns the history: what each frame made of the store, which were
acked.

Invariant: a change reaches the model only after the store took it, and a state is in the history before its
frame can reach the disk. So after any crash the store must equal one of `states[acked:]`. It must not know
why a crash happened.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.errors import Full
from headrace.sim.checks import MEMORY, Violation, difference, observe
from headrace.sim.clock import SimClock
from headrace.sim.disk import SimDisk
from headrace.sim.model import LogModel, State, StoreModel
from headrace.store import Log, Store, StoreOptions, pins

EMPTY: State = ((), ())


class History:
    """The states after each sealed frame, oldest first; `states[acked]` is the newest acknowledged one."""

    def __init__(self, start: State = EMPTY) -> None:
        self.states: list[State] = [start]
        self.frames: list[int] = [0]
        self.acked = 0

    def sealed(self, frame: int, state: State) -> None:
        self.states.append(state)
        self.frames.append(frame)

    def committed(self, frame: int) -> None:
        while self.acked + 1 < len(self.frames) and self.frames[self.acked + 1] <= frame:
            self.acked += 1

    @property
    def admitted(self) -> int:
        return len(self.states) - 1


class Driver:
    """Every change that a store can take, done to the store and to the model."""

    def __init__(self, disk: SimDisk, options: StoreOptions, clock: SimClock | None = None) -> None:
        self.disk = disk
        self.options = options
        self.clock = clock or SimClock()
        self.store, found = self._open()
        self.model = StoreModel.thaw(found)
        self.history = History(found)
        self._marks: dict[int, dict[int, int]] = {}
        self._written = 0
        self._pins: list[pins.Pin] = []

    def _open(self) -> tuple[Store, State]:
        store = Store.open(self.disk, self.clock, self.options)
        found = observe(store)
        store.facts.register(b"", lambda key: self.model.facts.get(key, b""))
        store.on_commit = self._committed
        self._frame = store.frame
        return store, found

    def _sealed(self, frame: int) -> None:
        self.history.sealed(frame, self.model.freeze())
        self._marks[frame] = {log.ident: log.last_seq for log in self.store.logs.values()}

    def _committed(self, frame: int) -> None:
        """A frame is durable: each log's committed watermark is where it was when the frame was sealed."""
        self.history.committed(frame)
        marks = self._marks.pop(frame, {})
        for log in self.store.logs.values():
            if log.committed_seq != marks.get(log.ident, log.committed_seq):
                wanted = marks[log.ident]
                raise Violation(f"{log.name}: committed up to {log.committed_seq}, sealed up to {wanted}")

    # Changes

    def create(self, name: str, first_seq: int = 1) -> None:
        memory = name.startswith(MEMORY)
        self.store.create(name, memory=memory, first_seq=first_seq)
        self.model.create(name, memory=memory, first_seq=first_seq)

    def delete(self, name: str) -> None:
        self.store.delete(self.log(name))
        self.model.delete(name)

    def append(
        self, name: str, subject: bytes = b"a", size: int = 20, header: bytes = b"", ttl_s: int = 0
    ) -> int:
        time_ns = self.clock.advance(1_000_000)
        self._written += 1
        payload = f"{name}:{self._written}:".encode()
        payload += bytes((self._written * 7 + i) & 0xFF for i in range(min(256, size)))
        payload = (payload * (size // len(payload) + 1))[:size]
        seq = self.log(name).append(subject, header, payload, time_ns, ttl_s)
        expected = self.model.logs[name].append(subject, header, payload, time_ns, ttl_s)
        if seq != expected:
            raise AssertionError(f"{name}: the store gave sequence {seq}, the model {expected}")
        return seq

    def replace(self, name: str, subject: bytes, size: int = 20) -> int:
        """Like a rollup: the newest message of a subject, and the older ones go in the same frame."""
        log, model = self.log(name), self.model.logs[name]
        older = [seq for seq, message in model.messages.items() if message[1] == subject]
        seq = self.append(name, subject, size)
        log.remove_many(older)
        for gone in older:
            model.remove(gone)
        return seq

    def remove(self, name: str, seq: int) -> None:
        done = self.log(name).remove(seq)
        if done != self.model.logs[name].remove(seq):
            raise AssertionError(f"{name}: removing {seq} gave {done}")

    def remove_below(self, name: str, seq: int) -> None:
        done = self.log(name).remove_below(seq)
        expected = self.model.logs[name].remove_below(seq)
        if done != expected:
            raise AssertionError(f"{name}: removing below {seq} gave {done}, not {expected}")

    def advance(self, name: str, seq: int) -> None:
        self.log(name).advance(seq)
        self.model.logs[name].advance(seq)

    def put(self, key: bytes, value: bytes) -> None:
        self.store.facts.put(key, value)
        self.model.put(key, value)

    def drop(self, key: bytes) -> None:
        self.store.facts.delete(key)
        self.model.drop(key)

    def note(self, key: bytes, delta: bytes) -> None:
        self.store.facts.note(key, delta)
        self.model.note(key, delta)

    # Time

    def log(self, name: str) -> Log:
        return self.store.logs[name]

    def modelled(self, name: str) -> LogModel:
        return self.model.logs[name]

    def seal(self) -> bool:
        """Seals the frame under construction, after the one in flight; nothing else is stepped."""
        self.wait()
        if not self.store.dirty:
            return False
        self._sealed(self.store.frame)
        self.store.seal()
        self._frame = self.store.frame
        return True

    def step(self) -> bool:
        """One step of the disk. In one the store may seal by itself, for the mark of a checkpoint."""
        stepped = self.disk.step()
        if self.store.frame != self._frame:
            self._sealed(self.store.frame - 1)
            self._frame = self.store.frame
        return stepped

    def wait(self) -> None:
        """Steps the disk until no frame is in flight."""
        self.until(lambda: not self.store.in_flight)

    def tick(self) -> None:
        """Seals, and steps the disk until the frame is durable."""
        if self.seal():
            self.wait()

    def until(self, condition: Callable[[], bool]) -> None:
        """Steps the disk; a frame that finds no room is tried once more."""
        tried = False
        while not condition():
            if self.store.poisoned is not None:
                raise self.store.poisoned
            if self.step():
                continue
            if not self.store.waits:
                raise AssertionError("the disk is idle, yet the store still waits")
            if tried:
                raise Full("a frame waits for room")
            tried = True
            self.store.idle()

    def settle(self) -> None:
        """Seals and lets all work in the background come to rest."""
        self.tick()
        while self.step():
            pass

    def checkpoint(self) -> None:
        """Begins a checkpoint at once, also in the middle of a frame, and goes on until it is proven."""
        done: list[bool] = []
        self.store.checkpoint(lambda *_: done.append(True))
        self.until(lambda: bool(done) or not self.disk.busy())
        self.tick()
        self.until(lambda: bool(done))

    def begin_checkpoint(self) -> None:
        """Begins one and does not wait for it."""
        self.store.checkpoint()

    def compact(self) -> None:
        """Lets merging of sparse segments come to its end."""
        self.store.compactor.step()
        self.until(lambda: not self.store.compactor.busy)

    def pin(self, name: str) -> None:
        """Pins a stream as it is, for a reader; `unpin` lets go of the oldest pin."""
        self.tick()
        self._pins.append(pins.pin(self.store, self.log(name), 60.0, self.clock.now_ns()))

    def unpin(self) -> None:
        pins.unpin(self.store, self._pins.pop(0))

    def restart(self) -> None:
        """Ends in good order and opens again; what is in memory only is gone."""
        self.settle()
        self.store.close()
        self.store, found = self._open()
        for name in [name for name in self.model.logs if name.startswith(MEMORY)]:
            self.model.delete(name)
        if found != self.model.freeze():
            raise Violation(f"after a restart: {difference(found, self.model.freeze())}")
