"""Shared by the store's tests: a tiny store on real files, and a naive model of a log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from headrace.protocol.subjects import matches
from headrace.storage import FileDisk, Store, StoreOptions, StreamLog, open_store

TINY = StoreOptions(
    journal_bytes=16 << 10,
    block_bytes=1 << 10,
    segment_bytes=8 << 10,
    segment_rows=50,
    large_bytes=2 << 10,
    checkpoint_bytes=32 << 10,
    headroom_bytes=0,
    cache_bytes=16 << 10,
    flush_bytes=4 << 10,
    sparse_rows=8,
    subjects_min=3,
)
#: The default sizes but for the journal: creating a simulated one of 16 MiB takes a tenth of a second.
SMALL_JOURNAL = StoreOptions(journal_bytes=1 << 20, journal_spares=0)


class Ticking:
    """A clock that advances with every call."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000_000_000

    def now_ns(self) -> int:
        self.now += 1
        return self.now


class RecordingObserver:
    """Records which frames are durable, and how often the disk became full."""

    def __init__(self) -> None:
        self.commits: list[int] = []
        self.full_count = 0

    def on_frame_durable(self, frame: int) -> None:
        self.commits.append(frame)

    def on_full(self) -> None:
        self.full_count += 1


def open_small_store(root: Path, options: StoreOptions = TINY) -> Store:
    return open_store(FileDisk(root), Ticking(), options)


def kill(store: Store) -> None:
    """Stop without closing the store, as a killed process does."""
    store.disk.drain()
    store.disk.close()


@contextmanager
def opened(root: Path, options: StoreOptions = TINY) -> Iterator[Store]:
    store = open_small_store(root, options)
    try:
        yield store
    finally:
        if store.poisoned is None:
            store.close()
        store.disk.close()


def commit(store: Store) -> None:
    """Commit the open frames and wait until the disk is idle."""
    if store.memory_frames.dirty:
        store.memory_frames.commit()
    if store.dirty:
        store.commit()
    store.disk.drain()
    if store.poisoned is not None:
        raise store.poisoned


@dataclass
class Naive:
    """A log as a dict: simple, correct and slow."""

    live: dict[int, tuple[int, bytes, bytes, bytes, int]] = field(default_factory=dict)
    last: int = 0

    @property
    def first(self) -> int:
        return min(self.live, default=self.last + 1)

    def append(self, time_ns: int, subject: bytes, header: bytes, payload: bytes, ttl_s: int) -> int:
        self.last += 1
        self.live[self.last] = (time_ns, subject, header, payload, ttl_s)
        return self.last

    def below(self, seq: int) -> int:
        gone = [each for each in self.live if each < seq]
        for each in gone:
            del self.live[each]
        if not self.live:
            self.last = max(self.last, seq - 1)
        return len(gone)

    def wanted(self, patterns: tuple[bytes, ...]) -> list[int]:
        return [
            seq
            for seq in sorted(self.live)
            if not patterns or any(matches(pattern, self.live[seq][1]) for pattern in patterns)
        ]


def compare(log: StreamLog, naive: Naive, filters: tuple[tuple[bytes, ...], ...] = ((),)) -> None:
    """Check that every query of a log returns the model's result."""
    assert (log.messages, log.first_seq, log.last_seq) == (len(naive.live), naive.first, naive.last)
    assert {seq: log.get(seq) for seq in naive.live} == naive.live
    assert log.num_deleted == naive.last + 1 - naive.first - len(naive.live)
    assert log.find_deleted_seqs(log.first_seq, log.last_seq).tolist() == [
        seq for seq in range(naive.first, naive.last + 1) if seq not in naive.live
    ]
    names = sorted({message[1] for message in naive.live.values()})
    assert log.num_subjects == len(names)
    for name in names:
        seqs = [seq for seq in sorted(naive.live) if naive.live[seq][1] == name]
        assert (log.get_first_seq(name), log.get_last_seq(name), log.get_subject_count(name)) == (
            seqs[0],
            seqs[-1],
            len(seqs),
        )
    for patterns in filters:
        compare_filter(log, naive, patterns)


def compare_filter(log: StreamLog, naive: Naive, patterns: tuple[bytes, ...]) -> None:
    wanted = naive.wanted(patterns)
    f = log.get_filter(patterns)
    probes = sorted(
        {0, 1, naive.first, naive.last, naive.last + 1, *wanted[:3], *(seq + 1 for seq in wanted[-3:])}
    )
    for seq in probes:
        later = [each for each in wanted if each >= seq]
        earlier = [each for each in wanted if each <= seq]
        assert log.find_next(f, seq) == (later[0] if later else 0)
        assert log.find_prev(f, seq) == (earlier[-1] if earlier else 0)
        assert log.count_from(f, seq) == len(later)
        assert log.find_seqs(f, seq, naive.last).tolist() == later
        last = {naive.live[each][1]: each for each in earlier}
        assert log.find_last_per_subject(f, seq).tolist() == sorted(last.values())
    counts: dict[bytes, int] = {}
    for seq in wanted:
        counts[naive.live[seq][1]] = counts.get(naive.live[seq][1], 0) + 1
    assert list(log.iter_subject_counts(f)) == sorted(counts.items())
