"""The gate of `ack: remote` in front of a store on a simulated disk."""

from __future__ import annotations

import errno

import pytest

from headrace.archive.commit_gate import StoreGate
from headrace.errors import StoreError, StorePoisoned
from headrace.sim import Fault, SimDisk
from headrace.storage import Store, open_store
from headrace.storage.io.latency import LatencyHistogram
from headrace.storage.log.log import StreamLog
from headrace.storage.snapshot import open_snapshot
from support.small_store import TINY, RecordingObserver, Ticking, commit


class GatedStore:
    """A store whose gate is closed, with one stream that is committed."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.store: Store = open_store(self.disk, Ticking(), TINY)
        self.log: StreamLog = self.store.create("S")
        commit(self.store)
        self.observer = RecordingObserver()
        self.store.set_observer(self.observer)
        self.waiting: list[int] = []
        self.latency = LatencyHistogram()
        self.times = iter(range(0, 1_000_000_000, 5_000_000))
        self.gate = StoreGate(self.store, self._on_waiting, self.latency, lambda: next(self.times))
        self.gate.close()

    def _on_waiting(self) -> None:
        self.waiting.append(self.gate.synced_frame)

    def write(self, payload: bytes = b"x") -> int:
        """Append a message, and write its frame."""
        self.log.append(b"a", b"", payload, 1)
        frame = self.store.commit()
        self.disk.drain()
        return frame


def test_a_synced_frame_is_not_committed_before_it_is_confirmed() -> None:
    gated = GatedStore()
    before = gated.gate.synced_frame
    frame = gated.write()
    assert (gated.store.in_flight, gated.log.committed_seq, gated.observer.commits) == (True, 0, [])
    assert gated.waiting == [gated.gate.synced_frame] == [before + 1]
    gated.gate.confirm(before)
    assert gated.store.in_flight
    gated.log.append(b"a", b"", b"2", 1)
    with pytest.raises(StoreError, match="a frame is being written"):
        gated.store.commit()
    gated.gate.confirm(before + 1)
    assert (gated.log.committed_seq, gated.observer.commits[0]) == (1, frame)
    assert gated.store.committed_frame >= frame
    assert (gated.latency.count, gated.latency.sum_us) == (1, 5000)


def test_a_large_message_waits_too() -> None:
    gated = GatedStore()
    gated.write(b"x" * 100_000)
    assert (gated.log.last_seq, gated.log.committed_seq) == (1, 0)
    gated.gate.confirm(gated.gate.synced_frame)
    assert gated.log.committed_seq == 1
    assert gated.log.get(1) is not None


def test_a_confirmation_that_came_before_lets_a_frame_pass_at_once() -> None:
    gated = GatedStore()
    gated.gate.confirm(gated.gate.synced_frame + 1)
    gated.write()
    assert (gated.log.committed_seq, gated.waiting) == (1, [])


def test_a_failed_sync_is_not_held_back_by_the_gate() -> None:
    gated = GatedStore()
    gated.disk.faults.add(Fault(errno.EIO, kinds=("sync",), path="journal"))
    gated.write()
    assert isinstance(gated.store.poisoned, StorePoisoned)
    assert gated.waiting == []
    gated.gate.confirm(1 << 60)
    assert (gated.log.committed_seq, gated.observer.commits) == (0, [])


def test_nothing_is_committed_after_the_store_has_failed() -> None:
    """A fenced server: the frame that waits stays unconfirmed, also if a confirmation is on its way."""
    gated = GatedStore()
    gated.write()
    gated.store.fail(StorePoisoned("fenced"))
    gated.gate.confirm(gated.gate.synced_frame)
    gated.gate.open()
    assert (gated.log.committed_seq, gated.observer.commits) == (0, [])
    with pytest.raises(StorePoisoned, match="fenced"):
        gated.store.close()


def test_a_store_is_closed_with_an_open_gate() -> None:
    gated = GatedStore()
    gated.write()
    assert gated.gate.is_waiting
    gated.gate.open()
    assert gated.log.committed_seq == 1
    gated.log.append(b"a", b"", b"2", 1)
    gated.store.close()
    reopened = open_store(gated.disk.kill(), Ticking(), TINY)
    assert reopened.logs["S"].last_seq == 2


def test_a_crash_before_the_confirmation_leaves_the_frame_on_the_disk() -> None:
    gated = GatedStore()
    gated.write()
    reopened = open_store(gated.disk.kill(), Ticking(), TINY)
    assert reopened.logs["S"].committed_seq == 1


def test_a_checkpoint_and_its_mark_wait_for_confirmations() -> None:
    gated = GatedStore()
    done: list[OSError | None] = []
    for _ in range(50):
        gated.write(b"x" * 300)
        gated.gate.confirm(gated.gate.synced_frame)
    number = gated.store.checkpointer.durable_number
    gated.store.checkpoint(done.append)
    while not gated.gate.is_waiting:
        gated.disk.drain()
    gated.disk.drain()
    assert (done, gated.store.checkpointer.durable_number) == ([], number)
    while not done:
        gated.gate.confirm(gated.gate.synced_frame)
        gated.disk.drain()
    assert done == [None]
    assert gated.store.checkpointer.durable_number > number


def test_a_snapshot_in_the_process_does_not_wait_for_the_archive() -> None:
    """It would block the event loop that brings the confirmation."""
    gated = GatedStore()
    gated.write()
    with pytest.raises(StoreError, match="ack: remote"):
        open_snapshot.open_log(gated.store, gated.log, 1)
