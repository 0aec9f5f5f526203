"""A log compared with a simple model: after any operations, every query has the same result."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.storage import Store
from support.small_store import Naive, commit, compare, kill, open_small_store, opened

SUBJECTS = [b"a", b"a.b", b"a.c", b"orders.eu.1", b"orders.us.1", b"orders.us.2"]
FILTERS = ((), (b"a",), (b"a.*",), (b"orders.>",), (b"orders.*.1", b"a"), (b"nothing.here",))

sizes = st.sampled_from([0, 1, 20, 100, 300, 1500, 3000])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from(SUBJECTS), sizes, st.integers(1, 6)),
        st.tuples(st.just("keys"), st.integers(0, 200), st.integers(1, 12)),
        st.tuples(st.just("remove"), st.integers(0, 1000)),
        st.tuples(st.just("remove_many"), st.lists(st.integers(0, 1000), max_size=20)),
        st.tuples(st.just("below"), st.integers(0, 60), st.integers(0, 3)),
        st.tuples(st.just("advance"), st.integers(1, 50)),
        st.tuples(st.just("commit")),
        st.tuples(st.just("checkpoint")),
        st.tuples(st.just("restart")),
        st.tuples(st.just("kill")),
    ),
    max_size=40,
)


class Machine:
    """Applies the same operations to a log and to the model."""

    def __init__(self, root: Path, memory: bool) -> None:
        self.root = root
        self.memory = memory
        self.store: Store = open_small_store(root)
        self.log = self.store.create("S", memory=memory)
        self.naive = Naive()
        self.time = 1

    def run(self, step: tuple) -> None:
        getattr(self, step[0])(*step[1:])

    def append(self, subject: bytes, size: int, count: int) -> None:
        for number in range(count):
            self.time += 1
            header = b"H: 1" if number % 3 == 1 else b""
            payload = bytes([self.time & 255]) * size
            seq = self.log.append(subject, header, payload, self.time, number % 4)
            assert self.naive.append(self.time, subject, header, payload, number % 4) == seq

    def keys(self, first: int, count: int) -> None:
        for number in range(first, first + count):
            self.append(b"orders.us.%d" % number, 10, 1)

    def remove(self, pick: int) -> None:
        seq = pick % (self.naive.last + 2)
        assert self.log.remove(seq) == (self.naive.live.pop(seq, None) is not None)

    def remove_many(self, picks: list[int]) -> None:
        seqs = [pick % (self.naive.last + 2) for pick in picks]
        gone = {seq for seq in seqs if self.naive.live.pop(seq, None) is not None}
        assert self.log.remove_many(seqs) == len(gone)

    def below(self, back: int, ahead: int) -> None:
        seq = max(self.naive.last + ahead - back, 0)
        assert self.log.remove_below(seq) == self.naive.below(seq)

    def advance(self, by: int) -> None:
        self.naive.last += by
        self.log.advance(self.naive.last)

    def commit(self) -> None:
        commit(self.store)
        assert self.log.committed_seq == self.naive.last
        frames = self.store.memory_frames if self.memory else self.store
        assert self.log.changed_frame <= frames.committed_frame

    def checkpoint(self) -> None:
        self.store.checkpoint()
        commit(self.store)

    def restart(self) -> None:
        if not self.memory:
            self.store.close()
            self.store.disk.close()
            self._reopen()

    def kill(self) -> None:
        if not self.memory:
            commit(self.store)
            kill(self.store)
            self._reopen()

    def _reopen(self) -> None:
        self.store = open_small_store(self.root)
        assert self.store.report().healthy
        self.log = self.store.logs["S"]
        assert self.log.committed_seq == self.naive.last
        compare(self.log, self.naive, FILTERS)

    def close(self) -> None:
        self.store.close()
        self.store.disk.close()


@pytest.mark.slow
@pytest.mark.parametrize("memory", [False, True], ids=["file", "memory"])
def test_a_log_answers_as_the_model_does(memory: bool) -> None:
    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(steps)
    def walk(script: list[tuple]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            machine = Machine(Path(folder), memory)
            kept = [machine.log.get_filter(patterns) for patterns in FILTERS]  # live while subjects are added
            for step in script:
                machine.run(step)
            compare(machine.log, machine.naive, FILTERS)
            machine.close()
            del kept

    walk()


@pytest.mark.parametrize("memory", [False, True], ids=["file", "memory"])
def test_subjects_of_which_nothing_lives_are_forgotten(tmp_path: Path, memory: bool) -> None:
    with opened(tmp_path) as store:
        log = store.create("S", memory=memory)
        kept = log.get_filter((b"keep.*",))
        known = []
        for turn in range(20):
            for number in range(100):
                log.append(b"once.%d.%d" % (turn, number), b"", b"x" * 40, 1)
            last = log.append(b"keep.%d" % turn, b"", b"y", 1)
            commit(store)
            log.remove_many([seq for seq in range(last - 100, last) if seq % 50])
            store.checkpoint()
            commit(store)
            known.append(len(log.subject_index))
            assert log.count_from(kept, 0) == turn + 1
            assert log.get_last_seq(b"keep.%d" % turn) == last
            assert log.get_last_seq(b"once.%d.1" % turn) in (0, last - 99)
        assert max(known) < 2 * log.num_subjects + 110
        assert sorted(name for name, _ in log.iter_subject_counts(kept)) == sorted(
            b"keep.%d" % n for n in range(20)
        )


def test_the_caches_of_forgotten_subjects_go_and_new_ones_serve(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        log = store.create("S")
        for number in range(300):
            log.append(b"once.%d" % number, b"", b"x" * 90, 1)
        commit(store)
        log.remove_many(range(1, 280))
        for _ in range(3):
            store.checkpoint()
            commit(store)
        assert len(log.subject_index) == 21
    folder = tmp_path / "streams" / "00000001"
    assert [path.name for path in folder.glob("subjects.*")] == ["subjects.1"]
    assert {path.name.split(".", 1)[1] for path in folder.glob("*.col")} == {"1.col"}
    with opened(tmp_path) as store:
        assert store.report().healthy
        assert not store.report().repaired
        assert len(store.logs["S"].subject_index) <= 22
        assert store.logs["S"].get_last_seq(b"once.299") == 300


@pytest.mark.parametrize("memory", [False, True], ids=["file", "memory"])
def test_filters_follow_new_subjects_and_are_interned(tmp_path: Path, memory: bool) -> None:
    with opened(tmp_path) as store:
        log = store.create("S", memory=memory)
        f = log.get_filter((b"a.*", b"x.>"))
        assert log.get_filter((b"x.>", b"a.*", b"x.>")) is f
        assert log.find_next(f, 1) == 0
        for number in range(200):
            log.append(b"b.%d" % number, b"", b"", 1)
        log.append(b"a.1", b"", b"", 2)
        log.append(b"x.y.z", b"", b"", 2)
        assert log.find_seqs(f, 1, 1 << 40).tolist() == [201, 202]
        assert (log.find_next(f, 1), log.find_prev(f, 201), log.count_from(f, 202)) == (201, 201, 1)


def test_a_search_stops_after_a_number_of_matches(tmp_path: Path) -> None:
    """Also in sealed segments whose few matches are known."""
    with opened(tmp_path) as store:
        log = store.create("S")
        for number in range(1, 5001):
            log.append(b"rare" if number % 500 == 0 else b"often", b"", b"x" * 20, 1)
        store.commit()
        rare, often = log.get_filter((b"rare",)), log.get_filter((b"often",))
        log.remove(1000)
        expected = [500, 1500, 2000, 2500, 3000, 3500, 4000, 4500, 5000]
        for _ in range(2):  # without and with known matches
            for most in (-1, 0, 1, 3, 8, 20):
                found = log.find_seqs(rare, 2, 5000, most).tolist()
                assert found == (expected if most < 0 else expected[:most])
            assert log.find_seqs(rare, 1501, 4499, 2).tolist() == [2000, 2500]
            assert log.find_next(rare, 1) == 500
            assert log.find_next(rare, 4501) == 5000
        assert log.find_seqs(often, 499, 5000, 3).tolist() == [499, 501, 502]
        assert log.find_seqs(None, 998, 5000, 3).tolist() == [998, 999, 1001]


def test_many_short_lived_filters_do_not_pile_up(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        log = store.create("S")
        kept = log.get_filter((b"keep.*",))
        for number in range(400):
            log.append(b"s.%d" % number, b"", b"", 1)
            assert log.count_from(log.get_filter((b"s.%d" % number, b"t.*")), 0) == 1
        log.append(b"keep.me", b"", b"", 1)
        assert log.count_from(kept, 0) == 1


def test_view_gives_records_that_lie_together(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        log = store.create("S")
        for number in range(40):
            log.append(b"a", b"", b"%02d" % number * 20, 1)
        seen = []
        seq = 1
        while seq <= 40:
            view, count = log.read_view(seq, 300)
            assert count * 73 == len(view) <= 300
            seen += [bytes(view[at + 33 : at + 35]) for at in range(0, len(view), 73)]
            seq += count
        assert seen == [b"%02d" % number for number in range(40)]
        assert log.read_view(5, 1)[1] == 1
        log.remove(5)
        assert log.read_view(5, 100) == (b"", 0)


def test_sequences_are_found_by_time(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        log = store.create("S")
        for time in range(100, 400):
            log.append(b"a", b"", b"x" * 50, time)
        assert (
            log.find_seq_at_time(0),
            log.find_seq_at_time(250),
            log.find_seq_at_time(399),
            log.find_seq_at_time(400),
        ) == (1, 151, 300, 0)
        log.remove(151)
        assert log.find_seq_at_time(250) == 152
        assert (log.get_time_ns(152), log.get_time_ns(151)) == (251, 0)
        assert (log.first_time_ns, log.last_time_ns) == (100, 399)
        seqs, times, _ = log.find_times_and_ttls(150, 153)
        assert seqs.tolist() == [150, 152, 153]
        assert times.tolist() == [249, 251, 252]


def test_a_purge_is_quick_and_continues_where_told(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        log = store.create("S")
        log.append_many([(b"a", b"", b"x" * 50)] * 500, 1)
        commit(store)
        assert log.remove_below(1000) == 500
        assert (log.first_seq, log.last_seq, log.messages, log.bytes, log.num_subjects) == (
            1000,
            999,
            0,
            0,
            0,
        )
        assert not log.sealed_segments
        assert log.append(b"a", b"", b"", 1) == 1000
        commit(store)
        assert len(log.find_seqs(None, 0, 1 << 40)) == 1


def test_remove_many_takes_arrays(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        log = store.create("S")
        log.append_many([(b"a", b"", b"x" * 50)] * 300, 1)
        assert log.remove_many(np.arange(1, 301, 2, dtype=np.uint64)) == 150
        assert log.remove_many(np.arange(1, 301, 2, dtype=np.uint64)) == 0
        assert (log.first_seq, log.messages) == (2, 150)


def test_a_filter_over_many_segments_remembers_its_few_rows(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        log = store.create("S")
        for number in range(2000):
            log.append(b"rare" if number in (7, 1500) else b"often", b"", b"x" * 30, 1)
        f = log.get_filter((b"rare",))
        assert log.find_seqs(f, 0, 5000).tolist() == [8, 1501]
        assert (log.find_next(f, 9), log.find_prev(f, 1500), log.count_from(f, 9)) == (1501, 8, 1)
        log.remove(1501)
        assert (log.find_next(f, 9), log.count_from(f, 1), log.get_last_seq(b"rare")) == (0, 1, 8)


def test_damage_is_not_forgotten_with_subjects(tmp_path: Path) -> None:
    """Counts from around a damaged block are not saved as if they were complete."""
    with opened(tmp_path) as store:
        log = store.create("S")
        for number in range(120):
            log.append(b"once.%d" % number, b"", b"x" * 90, 1)
        commit(store)
    folder = tmp_path / "streams" / "00000001"
    segment = min(folder.glob("*.seg"))
    data = bytearray(segment.read_bytes())
    data[700] ^= 1
    segment.write_bytes(data)
    for columns in folder.glob("*.col"):
        columns.unlink()
    with opened(tmp_path) as store:
        assert store.report().damage
        log = store.logs["S"]
        log.remove_many(range(40, 110))
        for _ in range(3):
            store.checkpoint()
            commit(store)
    with opened(tmp_path) as store:
        assert store.report().damage
        store.compactor.start_next()
        commit(store)
        for _ in range(3):
            store.checkpoint()
            commit(store)
    assert segment.exists()


def test_many_rows_are_not_looked_at_for_few_subjects(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        log = store.create("S")
        for number in range(8):
            log.append(b"once.%d" % number, b"", b"", 1)
        log.append_many([(b"a", b"", b"")] * 2_000, 1)
        log.remove_many(range(1, 9))
        assert not log.has_many_dead_subjects
        log.remove_below(1_900)
        commit(store)
        store.checkpoint()
        commit(store)
        assert len(log.subject_index) <= 9
