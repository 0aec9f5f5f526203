"""A pin shows one state of a stream as long as it exists, whatever the store does meanwhile."""

import errno

import pytest

import headrace
from headrace.errors import CorruptData, StoreError
from headrace.storage.io import file_handles
from headrace.storage.io.readonly_disk import ReadonlyDisk
from headrace.storage.snapshot import leases
from headrace.storage.snapshot.arrow import ArrowLayout
from headrace.storage.snapshot.manifest import load
from headrace.storage.snapshot.open_snapshot import open_log
from headrace.storage.snapshot.reader import StreamSnapshot
from headrace.storage.snapshot.selection import Selection
from support.pinned_store import NOW, Opened

FEW = ArrowLayout(columns=("seq", "subject", "data"))


@pytest.fixture
def opened(tmp_path):
    made = Opened(tmp_path)
    yield made
    if not made.disk._closed:
        made.crash()


def rows_of(snapshot):
    found = []
    for batch in snapshot.batches(Selection(), FEW, 50):
        found += [tuple(row.values()) for row in batch.to_pylist()]
    return found


def read(opened, name):
    """Read as another process would: by folder and name of the pin only."""
    disk = ReadonlyDisk(opened.root, exclusive=False)
    return rows_of(StreamSnapshot(disk, load(disk, name)))


def test_all_admitted_messages_are_in_it(opened):
    opened.append(50)
    opened.remove(7)
    held = leases.create_pin(opened.store, opened.log, 60, NOW)
    assert held.frame == opened.store.frame_number
    assert (held.manifest.committed_seq, held.manifest.messages) == (50, 43)
    assert read(opened, held.id) == opened.rows()


def test_an_empty_stream_has_an_empty_pin(opened):
    held = leases.create_pin(opened.store, opened.log, 60, NOW)
    assert read(opened, held.id) == []


def test_pins_keep_no_file_open_that_somebody_would_have_to_sync(opened, monkeypatch):
    opened.append(50)
    opened.checkpoint()
    opened.disk.drain()
    open_before = len(opened.disk._handles)
    synced = []
    monkeypatch.setattr(file_handles, "_fdatasync", synced.append)
    for _ in range(20):
        leases.create_pin(opened.store, opened.log, 60, NOW)
    assert len(opened.disk._handles) == open_before
    assert synced == []


@pytest.mark.parametrize("seed", range(6))
def test_pins_do_not_change_while_the_store_does(tmp_path, seed):
    opened = Opened(tmp_path, seed)
    held = []
    for _ in range(60):
        opened.append(opened.rng.randrange(30), size=opened.rng.choice([60, 400, 400, 9000]))
        if opened.rng.random() < 0.5:
            opened.remove(opened.rng.randrange(25))
        if opened.rng.random() < 0.1:
            opened.trim(opened.log.last_seq - opened.rng.randrange(100))
        # Without waiting: blocks are in memory, being written and written, in any mixture.
        if opened.rng.random() < 0.3:
            held.append((leases.create_pin(opened.store, opened.log, 60, NOW).id, opened.rows()))
        if opened.store.dirty and not opened.store.in_flight:
            opened.store.commit()
        if opened.rng.random() < 0.2:
            opened.checkpoint()
        elif opened.rng.random() < 0.5:
            opened.disk.drain()
    for name, rows in held:
        assert read(opened, name) == rows
        assert read(opened, name) == rows
    for name, _ in held:
        leases.release_pin(opened.store, name)
    assert opened.disk.list("pins") == []
    opened.close()


def test_sealed_segments_come_with_their_columns(opened):
    opened.append(400)
    opened.commit()
    held = leases.create_pin(opened.store, opened.log, 60, NOW)
    assert held.manifest.columns
    assert set(held.manifest.columns) <= {state.number for state in held.manifest.segments}
    assert read(opened, held.id) == opened.rows()


def test_a_memory_stream_is_pinned_too(opened):
    log = opened.store.create("M", memory=True)
    for number in range(300):
        log.append(b"m", b"", b"%d" % number, NOW)
    log.remove(3)
    held = leases.create_pin(opened.store, log, 60, NOW)
    assert [row[0] for row in read(opened, held.id)] == [1, 2, *range(4, 301)]


def test_the_name_of_a_released_pin_is_not_used_again(opened):
    """Nothing is committed when a stream in memory changes, and readers cache what a name showed."""
    first = leases.create_pin(opened.store, opened.log, 60, NOW)
    leases.release_pin(opened.store, first)
    second = leases.create_pin(opened.store, opened.log, 60, NOW + 1)
    third = leases.create_pin(opened.store, opened.log, 60, NOW + 1)
    assert len({first.id, second.id, third.id}) == 3


def test_a_lease_that_is_over_is_swept(opened):
    opened.append(20)
    short = leases.create_pin(opened.store, opened.log, 1, NOW)
    long = leases.create_pin(opened.store, opened.log, 60, NOW)
    assert short.id != long.id
    assert leases.sweep_expired(opened.store, NOW + 10**9 - 1) == []
    assert leases.sweep_expired(opened.store, NOW + 10**9) == [short.id]
    assert opened.disk.list("pins") == [long.id]
    with pytest.raises(StoreError, match="no pin"):
        read(opened, short.id)
    leases.release_pin(opened.store, long)
    leases.release_pin(opened.store, long)
    assert opened.disk.list("pins") == []


def test_a_pin_that_cannot_be_read_for_a_moment_is_not_swept(opened, monkeypatch):
    opened.append(20)
    held = leases.create_pin(opened.store, opened.log, 60, NOW)

    def fail(path, offset, length):
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(opened.disk, "read", fail)
        assert leases.sweep_expired(opened.store, NOW + 1) == []
        with pytest.raises(StoreError, match="cannot be read"):
            load(opened.disk, held.id)
    assert read(opened, held.id) == opened.rows()


def test_a_pin_whose_manifest_is_damaged_is_swept(opened, tmp_path):
    held = leases.create_pin(opened.store, opened.log, 60, NOW)
    (tmp_path / "pins" / held.id / "manifest").write_bytes(b"none")
    assert leases.sweep_expired(opened.store, NOW + 1) == [held.id]


def test_a_crash_leaves_pins_that_can_still_be_read_and_are_swept_later(opened, tmp_path):
    opened.append(80)
    opened.commit()
    held = leases.create_pin(opened.store, opened.log, 60, NOW)
    rows = opened.rows()
    (tmp_path / "pins" / "0000-unfinished").mkdir()
    opened.crash()
    again = Opened(tmp_path)
    assert again.store.report().unknown_files == []
    assert read(again, held.id) == rows
    assert leases.sweep_expired(again.store, NOW) == ["0000-unfinished"]
    assert leases.sweep_expired(again.store, NOW + 61 * 10**9) == [held.id]
    again.close()


def test_a_pin_that_cannot_be_written_leaves_nothing(opened, monkeypatch):
    opened.append(400)
    opened.commit()
    run = opened.disk.run

    def full(ops):
        for op in ops:
            if op[0] == "write":
                raise OSError(errno.ENOSPC, "no space left")
            run([op])

    monkeypatch.setattr(opened.disk, "run", full)
    with pytest.raises(StoreError, match="cannot be pinned"):
        leases.create_pin(opened.store, opened.log, 60, NOW)
    assert opened.disk.list("pins") == []


def test_a_missing_segment_is_said_when_its_rows_are_wanted(opened, tmp_path):
    opened.append(400)
    opened.commit()
    first = opened.log.sealed_segments[0]
    last = first.last_seq
    (tmp_path / first.path).unlink()
    held = leases.create_pin(opened.store, opened.log, 60, NOW)
    with pytest.raises(CorruptData, match="a segment is missing"):
        read(opened, held.id)
    later = headrace.read(tmp_path, "S", pin=held.id, start=last + 1).to_table()
    assert later["seq"].to_pylist() == list(range(last + 1, 401))


def test_in_the_same_process_a_snapshot_is_durable_and_released(opened):
    opened.append(30)
    snapshot = open_log(opened.store, opened.log, NOW)
    assert opened.store.committed_frame >= opened.log.changed_frame
    assert rows_of(snapshot) == opened.rows()
    assert len(opened.disk.list("pins")) == 1
    snapshot.close()
    assert opened.disk.list("pins") == []


def test_a_pin_made_in_steps_survives_segments_that_the_store_removes(opened, monkeypatch):
    monkeypatch.setattr(leases, "SEGMENTS_PER_STEP", 1)
    opened.append(400, size=400)
    opened.checkpoint()
    segments = len(opened.log.sealed_segments)
    assert segments > 3
    steps = leases.iter_create_pin(opened.store, opened.log, 60, NOW)
    next(steps)
    opened.trim(opened.log.last_seq - 20)
    opened.checkpoint()
    assert len(opened.log.sealed_segments) < segments
    expected = opened.rows()
    while True:
        try:
            next(steps)
        except StopIteration as finished:
            pin = finished.value
            break
    assert pin.manifest.lost == []
    assert read(opened, pin.id) == expected
    leases.submit_release(opened.store, pin.id)
    opened.disk.drain()
    assert opened.disk.list("pins") == []
