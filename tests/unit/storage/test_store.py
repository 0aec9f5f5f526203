"""The store as a whole: frames, metadata, checkpoints, failed syncs, full disks, restarts."""

import errno
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from headrace.errors import CorruptData, StoreError, StoreFull, StorePoisoned
from headrace.sim import OUTCOMES_BY_NAME, Fault, SimDisk
from headrace.storage import FileDisk, Store, StoreOptions, open_store
from headrace.storage.checkpoint.load import COPIES, list_checkpoints, load_root
from headrace.storage.damage_report import RecoveryReport
from headrace.storage.format import checkpoint_path
from headrace.storage.io import file_handles
from headrace.storage.io.disk import DoneCallback, Op
from headrace.storage.journal import journal_writer
from headrace.storage.snapshot import open_snapshot
from support.small_store import TINY, RecordingObserver, Ticking, commit, kill, open_small_store, opened


def test_nothing_is_committed_before_the_disk_says_so(tmp_path: Path) -> None:
    disk = SimDisk()
    store = open_store(disk, Ticking(), TINY)
    observer = RecordingObserver()
    commits = observer.commits
    store.set_observer(observer)
    log = store.create("S")
    log.append(b"a", b"", b"1", 1)
    assert (store.dirty, log.last_seq, log.committed_seq, log.changed_frame) == (
        True,
        1,
        0,
        store.frame_number,
    )
    frame = store.commit()
    assert store.in_flight
    assert not store.dirty
    log.append(b"a", b"", b"2", 1)
    with pytest.raises(StoreError):
        store.commit()
    disk.drain()
    assert commits[0] == frame
    assert store.committed_frame == frame
    assert (log.last_seq, log.committed_seq) == (2, 1)
    assert log.changed_frame > store.committed_frame


def test_one_write_and_one_sync_a_frame_whatever_the_number_of_streams() -> None:
    disk = SimDisk()
    store = open_store(disk, Ticking(), StoreOptions(journal_bytes=1 << 20, headroom_bytes=0))
    logs = [store.create(f"S{number}") for number in range(50)]
    commit(store)
    seen: list[str] = []
    submit = disk.submit
    disk.submit = lambda lane, ops, done: (seen.extend(op[0] for op in ops), submit(lane, ops, done))[1]
    for log in logs:
        log.append(b"a", b"", b"x", 1)
    commit(store)
    assert seen == [
        "write",
        "sync",
        "write",
    ]  # the last one is the sync marker, whose write is not awaited


def test_a_deleted_stream_is_gone_and_its_name_free(tmp_path: Path) -> None:
    store = open_small_store(tmp_path)
    for turn in range(3):
        log = store.create("S", first_seq=10 * turn + 1)
        log.append_many([(b"a", b"", b"x" * 100)] * 100, 1)
        commit(store)
        store.delete(log)
        commit(store)
    assert "S" not in store.logs
    store.checkpoint()
    commit(store)
    assert FileDisk.list(store.disk, "streams") == []
    kept = store.create("S", first_seq=7)
    assert kept.append(b"a", b"", b"", 1) == 7
    commit(store)
    kill(store)
    with opened(tmp_path) as store:
        assert (store.logs["S"].first_seq, store.logs["S"].messages) == (7, 1)
        assert store.create("T").ident > kept.ident


def test_a_stream_deleted_right_after_a_purge_goes_with_its_files(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        log = store.create("S")
        log.append_many([(b"a", b"", b"x" * 100)] * 200, 1)
        commit(store)
        log.remove_below(150)
        commit(store)
        store.delete(log)
        for _ in range(2):
            store.checkpoint()
            commit(store)
        assert store.disk.list("streams") == []


def test_a_stream_is_deleted_while_files_of_it_are_unlinked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk thread unlinks them between two listings of the folder."""
    disk = SimDisk(1)
    store = open_store(disk, Ticking(), TINY)
    log = store.create("S")
    log.append_many([(b"a", b"", b"x" * 100)] * 200, 1)
    commit(store)
    log.remove_below(150)
    commit(store)
    queued: list[Sequence[Op]] = []
    submit = disk.submit

    def watched(lane: str, ops: Sequence[Op], done: DoneCallback) -> None:
        queued.append(ops)
        submit(lane, ops, done)

    monkeypatch.setattr(disk, "submit", watched)
    store.checkpoint()
    while not any(op[0] == "unlink" and op[1].startswith(log.folder_path) for ops in queued for op in ops):
        assert disk.step()
    listed = disk.list

    def listed_late(folder: str) -> list[str]:
        names = listed(folder)
        while disk.step("behind"):
            pass
        return names

    with monkeypatch.context() as patched:
        patched.setattr(disk, "list", listed_late)
        store.delete(log)
    for _ in range(2):
        commit(store)
        store.checkpoint()
        commit(store)
    assert disk.list("streams") == []


def test_facts_survive_in_order(tmp_path: Path) -> None:
    store = open_small_store(tmp_path)
    facts = store.metadata
    facts.put(b"c/1", b"one")
    facts.put(b"c/2", b"two")
    facts.merge(b"c/1", b"+1")
    facts.merge(b"c/1", b"+2")
    facts.put(b"d", b"three")
    facts.delete(b"d")
    facts.put(b"c/2", b"new")
    facts.merge(b"only", b"noted")
    commit(store)
    for end in (kill, lambda store: (store.close(), store.disk.close())):
        end(store)
        store = open_small_store(tmp_path)
        facts = store.metadata
        assert list(facts.items(b"c/")) == [(b"c/1", b"one"), (b"c/2", b"new")]
        assert facts.get_operands(b"c/1") == [b"+1", b"+2"]
        assert (facts.get(b"d"), facts.get(b"only"), facts.get_operands(b"only")) == (None, None, [b"noted"])
        assert list(facts.keys(b"")) == [b"c/1", b"c/2", b"only"]
    facts.put(b"c/1", b"again")
    assert facts.get_operands(b"c/1") == []
    commit(store)
    kill(store)
    with opened(tmp_path) as store:
        assert (store.metadata.get(b"c/1"), store.metadata.get_operands(b"c/1")) == (b"again", [])


def test_notes_are_folded_at_checkpoints(tmp_path: Path) -> None:
    store = open_small_store(tmp_path)
    total = {b"n/x": 0}
    store.metadata.register_compactor(b"n/", lambda key: b"%d" % total[key])
    store.metadata.put(b"n/x", b"0")
    for step in range(1, 50):
        total[b"n/x"] += step
        store.metadata.merge(b"n/x", b"%d" % step)
        commit(store)
        if step % 20 == 0:
            store.checkpoint()
            commit(store)
    kill(store)
    with opened(tmp_path) as store:
        notes = store.metadata.get_operands(b"n/x")
        assert len(notes) == 9
        assert int(store.metadata.get(b"n/x")) + sum(int(note) for note in notes) == total[b"n/x"]


def test_large_messages_go_to_the_segment_once(tmp_path: Path) -> None:
    store = open_small_store(tmp_path)
    log = store.create("S")
    before = store.journal.bytes_since_checkpoint
    payloads = [bytes([number]) * 10_000 for number in range(5)]
    for payload in payloads:
        log.append(b"small", b"", b"s", 1)
        log.append(b"big", b"head", payload, 1)
        commit(store)
    assert (
        store.journal.bytes_since_checkpoint - before < 60_000
    )  # the payloads count for the checkpoint, but once
    assert [log.get(seq)[3] for seq in (2, 4, 6, 8, 10)] == payloads
    kill(store)
    with opened(tmp_path) as store:
        log = store.logs["S"]
        assert [log.get(seq)[2:4] for seq in (2, 4, 6, 8, 10)] == [(b"head", payload) for payload in payloads]
        assert log.get(9)[3] == b"s"


def test_a_damaged_large_message_is_reported_and_its_sequence_not_reused(tmp_path: Path) -> None:
    store = open_small_store(tmp_path)
    log = store.create("S")
    log.append(b"big", b"", b"x" * 10_000, 1)
    commit(store)
    kill(store)
    path = next((tmp_path / "streams").rglob("*.seg"))
    data = bytearray(path.read_bytes())
    data[5_000] ^= 1
    path.write_bytes(data)
    with opened(tmp_path) as store:
        log = store.logs["S"]
        [damage] = store.report().damage
        assert (damage.stream, damage.first_seq, damage.last_seq) == ("S", 1, 1)
        with pytest.raises(CorruptData):
            log.get(1)
        assert log.append(b"a", b"", b"", 1) == 2
    with opened(tmp_path) as store:
        assert not store.report().healthy
        store.accept_loss()
    with opened(tmp_path) as store:
        assert store.report().healthy


def test_memory_logs_have_frames_of_their_own(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        log, frames = store.create("M", memory=True), store.memory_frames
        frames.commit()
        before = store.journal.last_frame
        log.append(b"a", b"", b"x", 1)
        assert log.changed_frame == frames.frame_number
        assert not store.dirty
        frames.commit()
        assert (log.committed_seq, log.changed_frame) == (1, frames.committed_frame)
        assert store.journal.last_frame == before
    with opened(tmp_path) as store:
        assert store.logs == {}


def test_memory_of_dead_messages_comes_back(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        log = store.create("M", memory=True)
        for number in range(5_000):
            previous = log.get_last_seq(b"key.%d" % (number % 10))
            log.append(b"key.%d" % (number % 10), b"", b"x" * 100, 1)
            if previous:
                log.remove(previous)
        held = sum(len(block.data) for segment in log.sealed_segments for block in segment.pending.values())
        assert log.messages == 10
        assert held < 3 * TINY.segment_bytes


@pytest.mark.parametrize("kind", ["write", "sync"])
def test_a_failed_commit_poisons(kind: str) -> None:
    disk = SimDisk()
    store = open_store(disk, Ticking(), TINY)
    observer = RecordingObserver()
    log = store.create("S")
    commit(store)
    store.set_observer(observer)
    disk.faults.add(Fault(errno.EIO, kinds=(kind,), path="journal"))
    log.append(b"a", b"", b"x", 1)
    with pytest.raises(StorePoisoned):
        commit(store)
    disk.faults.clear()
    assert observer.commits == []
    for attempt in (
        lambda: log.append(b"a", b"", b"x", 1),
        lambda: store.create("T"),
        store.commit,
        store.checkpoint,
        store.close,
    ):
        with pytest.raises(StorePoisoned):
            attempt()
    assert log.committed_seq == 0


def test_a_frame_larger_than_a_journal_file_is_committed(tmp_path: Path) -> None:
    options = StoreOptions(journal_bytes=4096, headroom_bytes=0, checkpoint_bytes=64 << 10)
    store = open_small_store(tmp_path, options)
    log = store.create("S")
    for _ in range(3):
        log.append_many([(b"a", b"", b"x" * 200)] * 100, 1)
        commit(store)
    kill(store)
    with opened(tmp_path, options) as store:
        assert store.logs["S"].messages == 300


def test_a_frame_larger_than_what_is_free_is_refused() -> None:
    disk = SimDisk()
    store = open_store(disk, Ticking(), TINY)
    log = store.create("S")
    commit(store)
    disk.capacity = disk.used() + 20_000
    with pytest.raises(StoreFull):
        log.append_many([(b"a", b"", b"x" * 1000)] * 1_000, 1)
    commit(store)
    assert log.committed_seq == log.last_seq > 0


def test_the_journal_is_recycled_and_bounded(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        log = store.create("S")
        for number in range(300):
            log.append_many([(b"a", b"", b"x" * 100)] * 10, 1)
            if number % 3 == 0:
                log.remove_below(log.last_seq - 50)
            commit(store)
        files = [name for name in store.disk.list("journal") if name.endswith(".jnl")]
        assert len(files) <= 6
        assert len(store.disk.list("checkpoints")) <= 2 * 10
        assert int(files[-1].split(".")[0], 16) > 10


def test_sparse_segments_are_merged_and_their_files_go(tmp_path: Path) -> None:
    store = open_small_store(tmp_path)
    log = store.create("S")
    for number in range(1_000):
        log.append(b"s.%d" % (number % 7), b"h", b"%d" % number * 20, 1)
    commit(store)
    many = len(log.sealed_segments)
    for seq in range(1, 1_001):
        if seq % 10:
            log.remove(seq)
    for _ in range(6):
        commit(store)
        store.checkpoint()
    commit(store)
    assert len(log.sealed_segments) < many / 3
    on_disk = [name for name in store.disk.list("streams/00000001") if name.endswith(".seg")]
    assert len(on_disk) <= len(log.sealed_segments) + 1
    expected = {seq: log.get(seq) for seq in range(10, 1_001, 10)}
    kill(store)
    with opened(tmp_path) as store:
        log = store.logs["S"]
        assert {seq: log.get(seq) for seq in log.find_seqs(None, 0, 2_000).tolist()} == expected
        assert store.report().healthy


def test_a_growing_segment_does_not_keep_the_rows_of_the_dead(tmp_path: Path) -> None:
    """Short-lived messages among a few that stay: memory use follows the live ones."""
    options = replace(TINY, segment_bytes=1 << 20, segment_rows=100_000, sparse_rows=64)
    store = open_small_store(tmp_path, options)
    log = store.create("S")
    most = 0
    for turn in range(40):
        for number in range(50):
            log.append(b"s.%d" % (number % 7), b"", b"%d.%d" % (turn, number), 1)
        commit(store)
        log.remove_many(range(turn * 50 + 1, turn * 50 + 50))
        store.checkpoint()
        commit(store)
        most = max(most, log.columns.rows)
    assert most < 200
    assert len(log.sealed_segments) <= 4, "the few that stay are brought together"
    expected = {seq: log.get(seq) for seq in range(50, 2_001, 50)}
    kill(store)
    with opened(tmp_path, options) as store:
        log = store.logs["S"]
        assert {seq: log.get(seq) for seq in log.find_seqs(None, 0, 3_000).tolist()} == expected
        assert store.report().healthy


def test_a_growing_segment_of_which_nothing_lives_goes_whole(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        log = store.create("S")
        for _ in range(20):
            log.append(b"s", b"", b"x", 1)
        commit(store)
        log.remove_below(21)
        store.checkpoint()
        commit(store)
        assert (log.columns.rows, log.sealed_segments) == (0, [])
        for _ in range(2):  # the file is deleted when a checkpoint that does not name it is proven
            log.append(b"s", b"", b"y", 1)
            commit(store)
            store.checkpoint()
            commit(store)
        assert [name for name in store.disk.list("streams/00000001") if name.endswith(".seg")] == []
    with opened(tmp_path) as store:
        log = store.logs["S"]
        assert (log.first_seq, log.last_seq, log.messages) == (21, 22, 2)


def _seal_alone(store: Store, disk: SimDisk) -> None:
    """Commit while nothing is written in the background."""
    store.commit()
    while store.in_flight:
        assert disk.step("commit") or disk.step("")


def test_a_checkpoint_waits_for_every_block_before_it() -> None:
    """Obsolete items in the queue do not count as written before the items before them are."""
    disk = SimDisk(1)
    store = open_store(disk, Ticking(), replace(TINY, checkpoint_bytes=1 << 30, headroom_bytes=0))
    kept, doomed, other = (store.create(name) for name in ("KEPT", "DOOMED", "OTHER"))
    doomed.append(b"s", b"", b"x", 1)
    commit(store)
    other.append(b"s", b"", b"x" * 500, 1)
    other.finish_block()
    store.flusher.submit_next()  # being written: later items wait in the queue
    kept.append(b"s", b"", b"acknowledged", 1)
    _seal_alone(store, disk)
    kept.finish_block()
    store.checkpoint()
    doomed.finish_block()
    store.delete(doomed)
    _seal_alone(store, disk)
    running = store.checkpointer.running
    assert running is not None
    while not running.is_syncing and (disk.step("") or disk.step("behind")):
        pass
    assert running.is_syncing
    assert not kept.active_segment.pending, (
        "a checkpoint is made durable before a block that it names is written"
    )


def test_a_checkpoint_waits_for_the_end_of_a_stream_it_does_not_name() -> None:
    disk = SimDisk(1)
    store = open_store(disk, Ticking(), TINY)
    log = store.create("S")
    log.append(b"s", b"", b"acknowledged", 1)
    commit(store)
    store.delete(log)  # with the open frame, which is never sealed
    store.checkpoint()
    disk.drain()
    assert list(open_store(disk.kill(), Ticking(), TINY).logs) == ["S"]


def test_what_is_wanted_before_it_is_written_is_merged_later(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        log = store.create("S")
        log.append_many([(b"a", b"", b"x" * 100)] * 45, 1)
        log.remove_many(range(3, 45))
        log.append_many([(b"a", b"", b"x" * 100)] * 30, 1)
        assert log.sealed_segments
        assert log.sealed_segments[0].pending
        log.remove(1)
        number = log.sealed_segments[0].number
        store.compactor.start_next()
        for _ in range(3):
            commit(store)
            store.compactor.start_next()
        assert log.sealed_segments[0].number != number


def test_nothing_is_merged_after_the_last_word(tmp_path: Path) -> None:
    store = open_small_store(tmp_path)
    log = store.create("S")
    for _ in range(20):
        log.append(b"s", b"", b"x" * 90, 1)
    commit(store)
    log.remove_many(range(2, 21))
    commit(store)
    store.close()
    store.disk.close()
    named = {f"{segment.number:08x}.seg" for segment in log.list_segments()}
    assert {path.name for path in (tmp_path / "streams" / "00000001").glob("*.seg")} <= named


def test_flush_brings_everything_into_segment_files(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        log = store.create("S")
        log.append_many([(b"a", b"", b"x" * 10)] * 5, 1)
        commit(store)
        done: list[bool] = []
        store.flush(log, lambda: done.append(True))
        store.disk.drain()
        assert done == [True]
        assert log.tail_used == 0
        assert not log.active_segment.pending


def test_two_processes_never_open_one_store(tmp_path: Path) -> None:
    with opened(tmp_path), pytest.raises(StoreError, match="in use"):
        FileDisk(tmp_path)


def test_a_folder_with_data_but_no_checkpoint_is_not_touched(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.create("S").append(b"a", b"", b"", 1)
        commit(store)
    for path in (tmp_path / "checkpoints").iterdir():
        path.unlink()
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    disk = FileDisk(tmp_path)
    with pytest.raises(CorruptData):
        open_store(disk, Ticking(), TINY)
    disk.close()
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before


def test_an_idle_mark_proves_the_last_frame(tmp_path: Path) -> None:
    store = open_small_store(tmp_path)
    log = store.create("S")
    commit(store)
    log.append(b"a", b"", b"x" * 50, 1)
    store.create("lost with the frame")
    commit(store)
    store.on_idle()
    store.disk.drain()
    number = store.journal.last_frame
    store.on_idle()
    assert store.journal.last_frame == number  # one mark is enough
    kill(store)
    [path] = [path for path in (tmp_path / "journal").iterdir() if b"x" * 50 in path.read_bytes()]
    data = bytearray(path.read_bytes())
    data[data.index(b"x" * 50)] ^= 1
    path.write_bytes(data)
    with opened(tmp_path) as store:
        report = store.report()
        assert not report.torn_tails
        assert ("S", 1, 1) in [(damage.stream, damage.first_seq, damage.last_seq) for damage in report.damage]
        assert ("2", 0, 0) in [(damage.stream, damage.first_seq, damage.last_seq) for damage in report.damage]
        assert store.logs["S"].append(b"a", b"", b"", 1) == 2
        assert store.create("T").ident == 3
    assert path.exists()


def killed_with_a_bad_last_frame(root: Path) -> bytes:
    """The message of the second frame cannot be read; returns the witness as it was before that frame."""
    store = open_small_store(root)
    log = store.create("S")
    commit(store)
    witness = (root / "journal/synced").read_bytes()
    log.append(b"a", b"", b"y" * 50, 1)
    commit(store)
    kill(store)
    [path] = [path for path in (root / "journal").iterdir() if b"y" * 50 in path.read_bytes()]
    data = bytearray(path.read_bytes())
    data[data.index(b"y" * 50)] ^= 1
    path.write_bytes(data)
    return witness


def test_a_bad_last_frame_that_was_synced_is_damage(tmp_path: Path) -> None:
    killed_with_a_bad_last_frame(tmp_path)
    with opened(tmp_path) as store:
        report = store.report()
        assert not report.torn_tails
        assert ("S", 1, 1) in [(damage.stream, damage.first_seq, damage.last_seq) for damage in report.damage]
        assert store.logs["S"].append(b"a", b"", b"", 1) == 2
    with opened(tmp_path) as store:
        assert not store.report().healthy  # until the user accepts the loss
        assert store.logs["S"].last_seq == 2


def test_damage_is_not_left_to_the_next_stream_of_that_name(tmp_path: Path) -> None:
    killed_with_a_bad_last_frame(tmp_path)
    with opened(tmp_path) as store:
        store.delete(store.logs["S"])
        log = store.create("S")
        log.append_many([(b"a", b"", b"x")] * 3, 1)
        log.remove(1)
        commit(store)
    with opened(tmp_path) as store:
        assert not store.report().healthy
        assert store.logs["S"].get(1) is None


@pytest.mark.parametrize("ident", [True, False])
def test_losses_are_reported_after_every_restart(tmp_path: Path, ident: bool) -> None:
    """Also if an older version recorded it, by the stream's name alone."""
    killed_with_a_bad_last_frame(tmp_path)
    with opened(tmp_path) as store:
        found = store.report()
        if not ident:
            found.damage = [msgspec.structs.replace(damage, ident=0) for damage in found.damage]
    for _ in range(2):
        with opened(tmp_path) as store, pytest.raises(CorruptData, match="was lost"):
            store.logs["S"].get(1)


def test_frames_that_a_checkpoint_speaks_of_are_missed_when_they_are_gone(tmp_path: Path) -> None:
    store = open_small_store(tmp_path)
    log = store.create("S")
    other = store.create("T")
    commit(store)
    log.append(b"a", b"", b"x", 1)
    store.checkpoint()  # the section of S must wait for this frame
    other.append(b"a", b"", b"x", 1)
    commit(store)
    kill(store)
    for path in (tmp_path / "journal").iterdir():
        path.write_bytes(bytes(path.stat().st_size))
    with opened(tmp_path) as store:
        assert [damage for damage in store.report().damage if "lost" in damage.description]


def test_a_witness_without_a_checkpoint_is_no_new_store(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.create("S")
    for path in [*(tmp_path / "checkpoints").iterdir(), *(tmp_path / "journal").glob("*.jnl")]:
        path.unlink()
    with pytest.raises(CorruptData):
        open_small_store(tmp_path)


def test_a_folder_of_before_the_witness_gets_one(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.create("S").append(b"a", b"", b"x", 1)
    (tmp_path / "journal/synced").unlink()
    with opened(tmp_path) as store:
        assert store.report().healthy
        assert store.logs["S"].messages == 1
    assert (tmp_path / "journal/synced").exists()


@pytest.mark.parametrize("streams", [1, 40, 41])
def test_a_witness_of_many_streams(tmp_path: Path, streams: int) -> None:
    store = open_small_store(tmp_path)
    logs = [store.create(f"S{number}") for number in range(streams)]
    commit(store)
    for log in logs:
        log.append(b"a", b"", b"z" * 50, 1)
    commit(store)
    kill(store)
    [path] = [path for path in (tmp_path / "journal").iterdir() if b"z" * 50 in path.read_bytes()]
    path.write_bytes(path.read_bytes().replace(b"z" * 50, b"Z" * 50))
    with opened(tmp_path) as store:
        assert not store.report().healthy
        least = 1 if streams <= 40 else 1 << 20  # if they did not fit, sequences are skipped
        assert all(log.last_seq == least for log in store.logs.values())


def test_a_torn_last_frame_is_cut_and_kept_aside(tmp_path: Path) -> None:
    witness = killed_with_a_bad_last_frame(tmp_path)
    (tmp_path / "journal/synced").write_bytes(witness)  # the sync had not returned
    with opened(tmp_path) as store:
        assert store.report().healthy
        [torn] = store.report().torn_tails
        assert b"y" * 49 in (tmp_path / torn).read_bytes()
        assert store.logs["S"].last_seq == 0


def test_either_copy_of_a_checkpoint_is_enough(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.create("S").append_many([(b"a", b"", b"x")] * 10, 1)
    for path in (tmp_path / "checkpoints").glob("*.a"):
        path.write_bytes(b"")
    with opened(tmp_path) as store:
        assert store.logs["S"].messages == 10
        assert store.report().healthy
        assert store.report().repaired


def spoil_section(disk: SimDisk, name: str) -> int:
    """Corrupt the newest section of a stream in both copies; return its checkpoint."""
    found = load_root(disk, list_checkpoints(disk)[0], RecoveryReport())
    assert found is not None
    [ref] = [entry.ref for entry in found.root.streams if entry.name == name]
    for copy in COPIES:
        path = checkpoint_path(ref.checkpoint, copy)
        data = bytearray(disk.read(path, 0, disk.size(path)))
        data[ref.offset + 3] ^= 1
        disk.corrupt(path, bytes(data))
    return ref.checkpoint


@pytest.mark.parametrize("recycled", [False, True])
def test_a_section_without_a_good_copy_costs_its_own_stream_only(recycled: bool) -> None:
    """An older checkpoint, kept for the section of A, does not help: files that it needs may be gone."""
    disk = SimDisk(1)
    store = open_store(disk, Ticking(), TINY)
    store.create("A").append(b"s", b"", b"a" * 50, 1)
    damaged = store.create("B")
    commit(store)
    store.checkpoint()
    commit(store)
    other = store.create("C")
    for number in range(300 if recycled else 20):
        damaged.append(b"s", b"", b"b" * 50, 1)
        other.append(b"s", b"", b"%d" % number * 20, 1)
        if number < 15:
            other.remove(other.first_seq)
        commit(store)
    store.checkpoint()
    commit(store)
    other.append(b"s", b"", b"after the checkpoint", 1)
    commit(store)
    expected = {seq: other.get(seq) for seq in range(1, other.last_seq + 1)}
    disk = disk.kill()
    newest = spoil_section(disk, "B")
    assert len(disk.list("checkpoints")) > 2
    store = open_store(disk, Ticking(), TINY)
    assert store.report().checkpoint == newest
    assert sorted(store.logs) == ["A", "C"]
    assert list(store.report().offline_streams) == ["B"]
    assert {seq: store.logs["C"].get(seq) for seq in expected} == expected


def test_a_checkpoint_that_is_not_proven_gives_way_to_the_one_before() -> None:
    """Also if recovery wrote it, which skips frame numbers."""
    disk = SimDisk(1)
    store = open_store(disk, Ticking(), TINY)
    log = store.create("S")
    log.append_many([(b"a", b"", b"x")] * 10, 1)
    commit(store)
    disk = disk.kill()
    open_store(disk, Ticking(), TINY)
    disk = disk.kill()
    newest = spoil_section(disk, "S")
    store = open_store(disk, Ticking(), TINY)
    assert store.report().checkpoint < newest
    assert store.report().healthy
    assert store.logs["S"].messages == 10


def test_a_damaged_block_is_never_served(tmp_path: Path) -> None:
    store = open_small_store(tmp_path)
    log = store.create("S")
    for number in range(100):
        log.append(b"a", b"", b"%03d" % number * 30, 1)
    commit(store)
    store.checkpoint()
    commit(store)
    kill(store)
    path = sorted((tmp_path / "streams").rglob("*.seg"))[0]
    data = bytearray(path.read_bytes())
    data[700] ^= 1
    path.write_bytes(data)
    with opened(tmp_path) as store:
        log = store.logs["S"]
        read, bad = [], []
        for seq in range(1, 101):
            try:
                read.append(log.get(seq)[3])
            except CorruptData:
                bad.append(seq)
        assert 0 < len(bad) < 15
        assert len(read) == 100 - len(bad)
        assert not store.report().healthy
    assert path.read_bytes() == data


def test_caches_are_rebuilt(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        log = store.create("S")
        for number in range(300):
            log.append(b"s.%d" % (number % 9), b"", b"x" * 60, number)
        commit(store)
        log.remove_many(range(5, 200, 3))
        commit(store)
        expected = [log.get(seq) for seq in range(1, 301)]
        counts = list(log.iter_subject_counts(None))
    caches = [
        path for path in (tmp_path / "streams").rglob("*") if path.suffix == ".col" or "subjects" in path.name
    ]
    assert len(caches) > 3
    for turn, path in enumerate(caches):
        path.write_bytes(path.read_bytes()[:-1]) if turn % 2 else path.unlink()
    for _ in range(2):
        with opened(tmp_path) as store:
            log = store.logs["S"]
            assert [log.get(seq) for seq in range(1, 301)] == expected
            assert list(log.iter_subject_counts(None)) == counts
            assert store.report().healthy


def test_columns_stay_in_memory_and_are_not_read_back() -> None:
    disk = SimDisk(1)
    store = open_store(disk, Ticking(), TINY)
    log = store.create("S")
    disk.faults.add(Fault(errno.EMFILE, 1, ("map",), "streams/"))
    disk.faults.add(Fault(errno.EIO, 1, ("read",), "streams/"))
    log.append_many([(b"a", b"", b"x" * 100)] * 200, 1)
    commit(store)
    assert disk.faults.injected_count == 0
    assert len(log.sealed_segments) > 1
    assert log.get_subject_count(b"a") == 200
    disk.faults.clear()
    log.append_many([(b"a", b"", b"x" * 100)] * 200, 1)
    commit(store)
    log = open_store(disk.kill(), Ticking(), TINY).logs["S"]
    assert all(log.get(seq) for seq in range(1, 401))


def test_a_deleted_log_takes_nothing_more(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        log = store.create("S")
        commit(store)
        store.delete(log)
        with pytest.raises(StoreError, match="deleted"):
            log.append(b"a", b"", b"", 1)
        commit(store)
    with opened(tmp_path) as store:
        assert store.report().healthy


def test_removals_are_replayed_whatever_their_shape(tmp_path: Path) -> None:
    store = open_small_store(tmp_path)
    log = store.create("S")
    log.append_many([(b"s.%d" % (number % 5), b"", b"x" * 30) for number in range(1_000)], 1)
    commit(store)
    log.remove_many([*range(3, 500, 7), *range(600, 900)])
    log.remove_many(range(950, 960))
    log.remove_below(20)
    commit(store)
    expected = log.find_seqs(None, 0, 2_000).tolist()
    counts = list(log.iter_subject_counts(None))
    kill(store)
    with opened(tmp_path) as store:
        log = store.logs["S"]
        assert log.find_seqs(None, 0, 2_000).tolist() == expected
        assert list(log.iter_subject_counts(None)) == counts


def test_small_segments_left_by_restarts_are_merged(tmp_path: Path) -> None:
    options = StoreOptions(journal_bytes=64 << 10, block_bytes=512, segment_bytes=1 << 20, headroom_bytes=0)
    for _ in range(8):
        store = open_small_store(tmp_path, options)
        log = store.logs.get("S") or store.create("S")
        log.append_many([(b"a", b"", b"x" * 100)] * 20, 1)
        commit(store)
        store.checkpoint()
        commit(store)
        kill(store)
    with opened(tmp_path, options) as store:
        log = store.logs["S"]
        store.metadata.put(b"k", b"v")
        commit(store)
        assert len(log.sealed_segments) <= 2
        assert log.find_seqs(None, 0, 1_000).tolist() == list(range(1, 161))
        assert all(log.get(seq) is not None for seq in range(1, 161))


def test_a_stream_that_never_became_durable_leaves_its_files_to_nobody() -> None:
    disk = SimDisk()
    store = open_store(disk, Ticking(), TINY)
    other = store.create("other")
    commit(store)
    other.append(b"s", b"", b"x", 1)
    store.commit()
    lost = store.create("lost")
    for number in range(110):
        lost.append(b"old.%d" % (number % 8), b"", b"x" * 20, 5, 7)
    while disk.step():
        pass  # the frame in progress is committed; of the stream, only what is behind the journal is written
    assert disk.list(f"streams/{lost.ident:08x}")
    disk = disk.kill()
    store = open_store(disk, Ticking(), TINY)
    made = store.create("made")
    assert made.ident > lost.ident
    commit(store)
    for _ in range(2):
        for number in range(110):
            made.append(b"new.%d" % (number % 8), b"", b"y" * 20, 9_000)
        commit(store)
    store.close()
    assert not disk.list(f"streams/{lost.ident:08x}")
    found = open_store(disk, Ticking(), TINY).logs["made"]
    assert {found.get_time_ns(seq) for seq in (1, 64, 220)} == {9_000}


def test_a_merge_that_cannot_read_is_given_up_and_the_frame_counts() -> None:
    disk = SimDisk()
    store = open_store(disk, Ticking(), replace(TINY, cache_bytes=0))
    observer = RecordingObserver()
    store.set_observer(observer)
    log = store.create("S")
    for _ in range(200):
        log.append(b"s", b"", b"x" * 200, 1)
        commit(store)
    thinned = log.sealed_segments[1]
    disk.faults.add(Fault(errno.EIO, 1, ("read",), "streams/"))
    log.remove_many([seq for seq in range(thinned.columns.base, thinned.last_seq) if seq % 8])
    frame = store.commit()
    disk.drain()
    assert disk.faults.injected_count == 1
    assert frame in observer.commits
    assert not store.compactor.busy
    assert store.poisoned is None


def fill_up(disk: SimDisk) -> None:
    """Use up the remaining space with another file."""
    disk.run([("create", "filler", 0), ("write", "filler", 0, bytes(disk.free()))])


def turn_over(store: Store) -> None:
    """Publish until there is no space for another journal file, nor for a checkpoint that would release one."""
    for number in range(2_000):
        store.metadata.put(b"consumer", b"%d" % number)
        store.metadata.put(b"consumer/%d" % number, b"x" * 200)
        store.commit()
        store.disk.drain()
        if store.waiting_for_space:
            return
    raise AssertionError("there is always room")


def on_a_full_disk() -> tuple[SimDisk, Store]:
    disk = SimDisk(capacity=1 << 20)
    store = open_store(disk, Ticking(), replace(TINY, headroom_bytes=64 << 10))
    log = store.create("S")
    for _ in range(100):
        log.append(b"a", b"", b"x" * 100, 1)
        commit(store)
    fill_up(disk)
    return disk, store


def test_a_frame_that_finds_no_room_waits_for_it() -> None:
    disk, store = on_a_full_disk()
    log = store.logs["S"]
    observer = RecordingObserver()
    commits = observer.commits
    store.set_observer(observer)
    turn_over(store)
    before = list(commits)
    log.remove(1)
    for _ in range(3):  # still no space: it is retried, without a notification
        store.on_idle()
        disk.drain()
    assert commits == before
    assert store.poisoned is None
    assert observer.full_count == 1
    with pytest.raises(StoreFull):
        log.append(b"a", b"", b"x", 1)
    disk.run([("unlink", "filler")])
    store.on_idle()
    disk.drain()
    assert not store.waiting_for_space
    assert len(commits) == len(before) + 1
    log.append(b"a", b"", b"again", 1)
    commit(store)
    again = open_store(disk.kill(), Ticking(), TINY)
    assert again.metadata.get(b"consumer") == store.metadata.get(b"consumer")
    assert again.logs["S"].first_seq == 2
    assert again.logs["S"].last_seq == 101
    assert again.report().healthy


def test_a_frame_that_waits_for_room_was_never_promised() -> None:
    disk, store = on_a_full_disk()
    turn_over(store)
    newest = int(store.metadata.get(b"consumer") or b"")
    after = disk.kill()
    after.capacity = None
    assert open_store(after, Ticking(), TINY).metadata.get(b"consumer") == b"%d" % (newest - 1)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize(
    ("kind", "path"),
    [("mkdir", "streams"), ("create", "streams"), ("write", "streams"), ("write", "journal")],
)
def test_a_large_message_that_finds_no_room_waits_for_it(kind: str, path: str, error: int) -> None:
    disk = SimDisk()
    store = open_store(disk, Ticking(), TINY)
    log = store.create("S")
    commit(store)
    disk.faults.add(Fault(error, kinds=(kind,), path=path, short=True))
    log.append(b"a", b"", b"x" * 10_000, 1)
    commit(store)
    assert (store.waiting_for_space, log.committed_seq) == (True, 0)
    store.on_idle()
    disk.drain()
    assert (store.waiting_for_space, log.committed_seq) == (False, 1)
    log.append(b"a", b"", b"y" * 10_000, 1)
    commit(store)
    again = open_store(disk.crash(OUTCOMES_BY_NAME["drop"]), Ticking(), TINY)
    assert [again.logs["S"].get(seq) for seq in (1, 2)] == [log.get(1), log.get(2)]
    assert again.report().healthy


def test_a_frame_that_waited_writes_nothing_again_that_was_synced() -> None:
    disk = SimDisk()
    store = open_store(disk, Ticking(), TINY)
    log = store.create("S")
    commit(store)
    disk.faults.add(Fault(errno.ENOSPC, kinds=("write",), path="journal/synced"))
    log.append(b"a", b"", b"x" * 10_000, 1)
    commit(store)
    assert store.waiting_for_space
    seen: list[tuple[str, str]] = []
    disk.before_op = lambda op: seen.append(op[:2])
    store.on_idle()
    disk.drain()
    assert seen[0] == ("write", "journal/synced")
    assert not [path for _, path in seen if path.endswith((".seg", ".jnl"))]
    assert log.committed_seq == 1


def test_a_sync_that_fails_for_a_frame_that_waited_poisons() -> None:
    disk, store = on_a_full_disk()
    turn_over(store)
    committed = store.committed_frame
    disk.run([("unlink", "filler")])
    disk.faults.add(Fault(errno.ENOSPC, kinds=("sync",), path="journal"))
    store.on_idle()
    disk.drain()
    assert store.poisoned is not None
    assert store.committed_frame == committed


@pytest.mark.parametrize("room", [False, True])
def test_closing_tries_a_frame_that_waits_once_more(room: bool) -> None:
    disk, store = on_a_full_disk()
    turn_over(store)
    newest = int(store.metadata.get(b"consumer") or b"")
    if room:
        disk.run([("unlink", "filler")])
        store.close()
    else:
        with pytest.raises(StorePoisoned, match="No space left"):
            store.close()
    after = disk.kill()
    after.capacity = None
    found = open_store(after, Ticking(), TINY).metadata.get(b"consumer")
    assert found == b"%d" % (newest if room else newest - 1)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_where_no_file_can_be_made_messages_are_refused_though_bytes_are_free(error: int) -> None:
    disk = SimDisk()
    store = open_store(disk, Ticking(), TINY)
    log = store.create("S")
    commit(store)
    disk.faults.add(Fault(error, kinds=("create", "mkdir"), sticky=True))
    taken = refused = 0
    for _ in range(1_000):
        try:
            log.append(b"a", b"", b"x" * 100, 1)
            taken += 1
        except StoreFull:
            refused += 1
        if store.dirty and not store.in_flight:
            store.commit()
        disk.drain()
    assert store.poisoned is None
    assert taken < 2 * TINY.journal_bytes // 100
    assert refused > 500
    disk.faults.clear()
    store.on_idle()
    disk.drain()
    log.append(b"a", b"", b"x", 1)
    commit(store)
    assert log.committed_seq == taken + 1


def test_a_write_behind_that_finds_no_room_keeps_the_store_full_until_one_succeeds() -> None:
    disk = SimDisk()
    store = open_store(disk, Ticking(), TINY)
    log = store.create("S")
    commit(store)
    disk.faults.add(Fault(errno.ENOSPC, kinds=("create",), path="streams", sticky=True))
    log.append_many([(b"a", b"", b"x" * 100)] * 20, 1)
    commit(store)
    for _ in range(3):
        with pytest.raises(StoreFull):
            log.append(b"a", b"", b"x", 1)
        assert store.full  # the current attempt has not succeeded yet
        disk.drain()
    disk.faults.clear()
    store.on_idle()
    disk.drain()
    assert not store.full
    assert store.flusher.pending_bytes == 0


def test_removing_everything_frees_a_disk_on_which_blocks_found_no_room() -> None:
    disk = SimDisk(capacity=1 << 20)
    store = open_store(disk, Ticking(), replace(TINY, headroom_bytes=64 << 10))
    log = store.create("S")
    for _ in range(1_500):
        log.append(b"a", b"", b"x" * 100, 1)
        commit(store)
    log.append_many([(b"a", b"", b"y" * 200)] * 60, 1)
    fill_up(disk)
    commit(store)
    assert store.flusher.out_of_space
    disk.capacity = 1_060 << 10  # enough for the queue and a checkpoint, less than the headroom
    log.remove_below(log.last_seq + 1)
    commit(store)
    for _ in range(3):
        store.on_idle()
        disk.drain()
    assert not store.flusher.out_of_space
    assert sum(disk.size(path) for path in disk.walk("streams")) < 50_000
    assert not store.full
    log.append(b"a", b"", b"z", 1)


def test_a_journal_file_that_finds_no_room_for_its_new_name_is_used_later() -> None:
    disk = SimDisk()
    store = open_store(disk, Ticking(), TINY)
    log = store.create("S")
    disk.faults.add(Fault(errno.ENOSPC, kinds=("rename",), path="journal"))
    for _ in range(600):
        log.append(b"a", b"", b"x" * 100, 1)
        commit(store)
    assert disk.faults.injected_count == 1
    journal = store.journal
    known = {journal._current_file, *(number for number, _ in journal.spares)}
    known |= {file.number for file in (*journal.closed_files, *journal._free_files)}
    assert {int(name[:16], 16) for name in disk.list("journal") if name.endswith(".jnl")} == known


def test_the_spare_that_a_frame_fits_into_is_taken() -> None:
    disk = SimDisk()
    store = open_store(disk, Ticking(), TINY)
    log = store.create("S")
    commit(store)
    store.journal.spares.append((99, 4 * TINY.journal_bytes))  # as recovery finds them, behind a smaller one
    disk.run([("create", "journal/0000000000000063.jnl", 4 * TINY.journal_bytes)])
    assert store.journal.get_guaranteed_bytes() > 3 * TINY.journal_bytes
    made = store.journal.next_file
    log.append_many([(b"a", b"", b"x" * 1_000)] * (2 * TINY.journal_bytes // 1_000), 1)
    store.commit()
    assert store.journal._current_file == 99
    assert store.journal.next_file == made
    disk.drain()
    assert log.committed_seq == log.last_seq


def test_a_sync_that_fails_in_passing_poisons_before_the_journal_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_handles, "DESCRIPTORS_MAX", 8)
    store = open_store(FileDisk(tmp_path), Ticking(), replace(TINY, checkpoint_bytes=1 << 30))
    logs = [store.create(f"S{number}") for number in range(16)]
    commit(store)
    failed: list[int] = []
    real = file_handles._fdatasync

    def sync(fd: int) -> None:
        number = os.fstat(fd).st_ino
        if not failed and number in {path.stat().st_ino for path in tmp_path.rglob("*.seg")}:
            failed.append(number)
            raise OSError(errno.ENOSPC, "write-back failed")
        real(fd)

    monkeypatch.setattr(file_handles, "_fdatasync", sync)
    for log in logs:
        log.append_many([(b"a", b"", b"x" * 200)] * 8, 1)
    commit(store)
    assert failed
    proven = store.checkpointer.durable_number
    store.checkpoint()
    with pytest.raises(StorePoisoned):
        commit(store)
    assert store.checkpointer.durable_number == proven
    store.disk.close()


def test_a_poisoned_store_tries_nothing_again() -> None:
    disk, store = on_a_full_disk()
    turn_over(store)
    store.fail(OSError(errno.EIO, "a sync failed on the other lane"))
    disk.run([("unlink", "filler")])
    before = disk.ops_done
    store.on_idle()
    disk.drain()
    with pytest.raises(StorePoisoned):
        store.close()
    assert disk.ops_done == before


def test_a_snapshot_of_what_waits_for_room_is_refused() -> None:
    disk = SimDisk()
    store = open_store(disk, Ticking(), TINY)
    log = store.create("S")
    commit(store)
    disk.faults.add(Fault(errno.ENOSPC, kinds=("write",), path="journal", sticky=True))
    log.append(b"a", b"", b"x", 1)
    with pytest.raises(StoreFull):
        open_snapshot.open_log(store, log, 1)


@pytest.mark.parametrize("large_frame_bytes", [0, 1 << 30])
def test_a_frame_with_thousands_of_removals(
    tmp_path: Path, large_frame_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checksum is computed when it is written, and its removals are not copied."""
    monkeypatch.setattr(journal_writer, "LARGE_FRAME_BYTES", large_frame_bytes)
    options = StoreOptions(journal_bytes=1 << 20, headroom_bytes=0)
    store = open_store(FileDisk(tmp_path), Ticking(), options)
    log = store.create("S")
    log.append_many([(b"a", b"", b"x")] * 6_000, 1)
    commit(store)
    removed = range(1, 6_000, 2)
    assert log.remove_many(removed) == 3_000
    log.append(b"b", b"", b"after", 1)
    commit(store)
    assert log.remove(2)
    commit(store)
    kill(store)
    again = open_store(FileDisk(tmp_path), Ticking(), options)
    found = again.logs["S"]
    assert found.find_seqs(None, 1, found.last_seq).tolist() == [*range(4, 6_001, 2), 6_001]
    kill(again)


def test_prepared_deletes_are_in_one_frame(tmp_path: Path) -> None:
    store = open_small_store(tmp_path)
    keys = [b"k/%d" % number for number in range(100)]
    for key in keys[:90]:
        store.metadata.put(key, b"v")
    commit(store)
    deletes = [store.metadata.prepare_delete(key) for key in keys[10:]]
    store.metadata.put(b"k/50", b"newer")
    store.metadata.delete_prepared(deletes)
    assert list(store.metadata.keys(b"k/")) == sorted(keys[:10])
    commit(store)
    store.metadata.delete_prepared(deletes)
    assert not store.dirty, "there is nothing left to delete"
    kill(store)
    again = open_small_store(tmp_path)
    assert list(again.metadata.keys(b"k/")) == sorted(keys[:10])
    kill(again)
