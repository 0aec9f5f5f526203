"""A consumer's ack state: floors, redelivery, deadlines, and the stored form that survives a crash."""

from __future__ import annotations

import random

import numpy as np
import pytest

from headrace.broker.consumers import ack_state_codec as codec
from headrace.broker.consumers.ack_deadlines import MERGE_WITHIN_NS, AckDeadlines
from headrace.broker.consumers.ack_state import AckState
from headrace.broker.consumers.flow_control import MAX_BYTES, START_BYTES, FlowWindow
from headrace.sim import SimDisk
from headrace.sim.sim_broker import SimBroker
from support.small_store import SMALL_JOURNAL

SECOND = 1_000_000_000


def seqs(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.uint64)


def delivered(*numbers: int, start: int = 1) -> AckState:
    progress = AckState(start)
    progress.record_deliveries(seqs(*numbers), 0, SECOND, acked=False)
    return progress


def reread(*written: bytes) -> AckState:
    progress = AckState(1)
    for delta in written:
        progress.apply_delta(delta)
    return progress


def facts(progress: AckState) -> tuple[object, ...]:
    return (
        progress.consumer_seq,
        progress.stream_seq,
        progress.next_seq,
        progress.get_ack_floor(),
        dict(progress.pending),
        dict(progress.delivery_counts),
        progress.skipped_seq,
    )


def test_the_floor_follows_the_lowest_pending() -> None:
    progress = delivered(1, 2, 3, 4, 5, 6)
    for seq in (1, 2, 3, 6, 5):
        assert progress.ack(seq)
    assert progress.get_ack_floor() == (3, 3)
    assert list(progress.pending) == [4]
    assert progress.ack(4)
    assert progress.get_ack_floor() == (6, 6)
    assert not progress.ack(4)


def test_the_floor_keeps_the_first_delivery_in_mind() -> None:
    progress = delivered(2, 8)
    assert progress.get_ack_floor() == (0, 0)
    progress.ack(8)
    assert progress.get_ack_floor() == (0, 0)
    progress.record_redelivery(2, 0, SECOND)
    progress.record_deliveries(seqs(9), 0, SECOND, acked=False)
    progress.ack(2)
    assert progress.get_ack_floor() == (3, 8)


def test_without_acknowledgements_the_floor_is_what_was_delivered() -> None:
    progress = AckState(1)
    progress.record_deliveries(seqs(1, 2, 3), 0, 0, acked=True)
    assert (progress.get_ack_floor(), progress.pending) == ((3, 3), {})


def test_acknowledging_through_a_message_takes_what_came_before() -> None:
    progress = delivered(1, 2, 3, 4, 5)
    assert progress.ack_through(3, 3) == [1, 2, 3]
    assert progress.get_ack_floor() == (3, 3)
    assert progress.ack_through(5, 5) == [4, 5]
    assert progress.get_ack_floor() == (5, 5)


def test_the_queue_keeps_its_order_and_forgets_what_is_done() -> None:
    progress = delivered(1, 2, 3)
    for seq in (3, 1, 2, 3):
        progress.enqueue(seq)
    progress.ack(1)
    assert progress.dequeue() == 3
    progress.requeue(3)
    assert [progress.dequeue(), progress.dequeue(), progress.dequeue()] == [3, 2, 0]


def test_a_message_given_up_stays_known_and_does_not_move_the_shown_floor() -> None:
    progress = delivered(1, 2)
    progress.stop_redelivery(1, 3)
    progress.stop_redelivery(2, 3)
    assert progress.get_ack_floor() == (0, 0)
    assert progress.compute_ack_floor() == (2, 2)
    assert progress.delivery_counts == {1: 3, 2: 3}
    progress.remove(1)
    assert progress.delivery_counts == {2: 3}


def test_a_purge_moves_everything_to_the_new_beginning() -> None:
    progress = delivered(1, 2, 3)
    progress.advance_to(11)
    assert (progress.next_seq, progress.stream_seq, progress.get_ack_floor(), progress.pending) == (
        11,
        10,
        (3, 10),
        {},
    )


def test_last_ones_first_then_everything_after() -> None:
    progress = AckState(8)
    progress.last_per_subject_queue, progress.resume_seq = seqs(8, 9, 15), 20
    progress.record_deliveries(seqs(8, 9), 0, SECOND, acked=False)
    assert (progress.next_seq, progress.last_per_subject_queue.tolist()) == (10, [15])
    progress.record_deliveries(seqs(15), 0, SECOND, acked=False)
    assert (progress.next_seq, len(progress.last_per_subject_queue)) == (21, 0)


@pytest.mark.parametrize(
    "numbers", [(), (5,), (1, 2, 3), (1, 3, 9), (7, 1 << 40), tuple(range(0, 4000, 3)), tuple(range(9))]
)
def test_sets_of_sequences_survive(numbers: tuple[int, ...]) -> None:
    assert codec.unpack_set(codec.pack_set(seqs(*numbers))).tolist() == list(numbers)


def test_sets_are_written_small() -> None:
    assert len(codec.pack_set(np.arange(1, 100_001, dtype=np.uint64))) < 20
    some = np.array(sorted(random.Random(1).sample(range(1, 10_001), 7000)), dtype=np.uint64)
    assert len(codec.pack_set(some)) < 1300
    assert len(codec.pack_set(some * np.uint64(1000))) < 7000 * 4


def test_progress_is_read_back_as_it_was_written() -> None:
    progress = delivered(1, 2, 3, 4)
    written = [progress.encode_delta()]
    progress.ack(2)
    progress.set_delivery_count(3, 2)
    progress.record_redelivery(3, 5 * SECOND, SECOND)
    progress.record_deliveries(seqs(7, 9), 6 * SECOND, SECOND, acked=False)
    written.append(progress.encode_delta())
    progress.ack(9)
    progress.stop_redelivery(3, 2)
    written.append(progress.encode_delta())
    assert facts(reread(*written)) == facts(progress)
    assert facts(reread(progress.encode_snapshot())) == facts(progress)
    assert reread(*written).ack_deadlines.next_deadline() == progress.ack_deadlines.next_deadline()


def test_a_snapshot_between_two_deltas_changes_nothing() -> None:
    progress = delivered(1, 2)
    progress.encode_delta()
    progress.record_deliveries(seqs(3), 0, SECOND, acked=False)
    snapshot = progress.encode_snapshot()
    progress.ack(3)
    progress.ack(1)
    assert facts(reread(snapshot, progress.encode_delta())) == facts(progress)


def test_random_histories_survive() -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    choice = random.Random(seed)
    progress = AckState(1)
    written = [progress.encode_delta()]
    for _ in range(300):
        what = choice.random()
        if what < 0.4:
            start = progress.next_seq + choice.randrange(3)
            run = seqs(*range(start, start + choice.randrange(1, 20), choice.randrange(1, 3)))
            progress.record_deliveries(run, 0, SECOND, acked=False)
        elif what < 0.8 and progress.pending:
            for seq in choice.sample(list(progress.pending), min(5, len(progress.pending))):
                progress.ack(seq)
        elif what < 0.85 and progress.pending:
            seq = choice.choice(list(progress.pending))
            progress.set_delivery_count(seq, progress.get_delivery_count(seq) + 1)
            progress.record_redelivery(seq, 0, SECOND)
        elif what < 0.9:
            written = [progress.encode_snapshot()]
        elif what < 0.92:
            progress.reset_to(choice.randrange(1, progress.next_seq + 5))
        else:
            written.append(progress.encode_delta())
    written.append(progress.encode_delta())
    assert facts(reread(*written)) == facts(progress)


def test_seventy_thousand_acks_a_second_stay_below_five_gigabytes_a_day() -> None:
    """Random order, a flush every tenth of a second, five thousand pending."""
    choice = random.Random(7)
    progress = AckState(1)
    total = 0
    for _ in range(10):
        for _ in range(14):
            run = np.arange(progress.next_seq, progress.next_seq + 500, dtype=np.uint64)
            progress.record_deliveries(run, 0, SECOND, acked=False)
            if len(progress.pending) > 5000:
                for seq in choice.sample(list(progress.pending), 500):
                    progress.ack(seq)
        total += len(progress.encode_delta())
    assert total * 86_400 < 5_000_000_000


@pytest.mark.parametrize("step", [1, 3, 40])
def test_many_messages_become_due_in_parts(step: int) -> None:
    """In dense runs, in sparse ones, and with deadlines of their own."""
    deadlines = AckDeadlines()
    pending = dict.fromkeys([*range(1, 200), *range(200, 900, step)], 1)
    deadlines.add_run(SECOND, 1, 199)
    deadlines.add_run(2 * SECOND, 200, 900)
    for seq in range(50, 60):
        deadlines.set_individual(seq, 3 * SECOND)
    due: list[int] = []
    while 0 < deadlines.next_deadline() <= 2 * SECOND:
        part = deadlines.pop_due(2 * SECOND, pending, 10)
        assert len(part) <= 10
        due += part
    assert due == [seq for seq in pending if not 50 <= seq < 60]
    deadlines.expire_all(4 * SECOND, pending)
    assert deadlines.pop_due(4 * SECOND, pending, 9_999) == list(pending)


def test_runs_share_a_deadline_and_singles_leave_them() -> None:
    deadlines = AckDeadlines()
    pending = dict.fromkeys(range(1, 7), 1)
    deadlines.add_run(10 * SECOND, 1, 3)
    deadlines.add_run(10 * SECOND + MERGE_WITHIN_NS - 1, 4, 4)
    deadlines.add_run(20 * SECOND, 5, 6)
    deadlines.set_individual(2, 15 * SECOND)
    assert deadlines.next_deadline() == 10 * SECOND + MERGE_WITHIN_NS - 1
    del pending[3]
    assert deadlines.pop_due(10 * SECOND + MERGE_WITHIN_NS, pending, 99) == [1, 4]
    assert deadlines.next_deadline() == 15 * SECOND
    deadlines.set_individual(2, 17 * SECOND)
    assert deadlines.pop_due(16 * SECOND, pending, 99) == []
    assert deadlines.pop_due(30 * SECOND, pending, 99) == [2, 5, 6]
    assert deadlines.next_deadline() == 0


def test_a_shorter_wait_counts_for_what_is_under_way() -> None:
    deadlines = AckDeadlines()
    deadlines.add_run(30 * SECOND, 1, 3)
    deadlines.shift_runs(-20 * SECOND)
    assert deadlines.next_deadline() == 10 * SECOND


def test_a_new_wait_is_written_down() -> None:
    broker = SimBroker(SimDisk(), SMALL_JOURNAL)
    broker.start()
    broker.call("STREAM.CREATE.S", name="S", subjects=["s"])

    def wait(seconds: int) -> None:
        config = {"durable_name": "C", "ack_policy": "explicit", "ack_wait": seconds * SECOND}
        broker.call("CONSUMER.CREATE.S.C", stream_name="S", config=config)
        broker.run_until_idle()

    def due_s() -> dict[int, int]:
        progress = broker.jetstream.streams["S"].consumers["C"].ack_state
        return {seq: round((progress.ack_deadlines.find_deadline(seq) - start_ns) / SECOND) for seq in (1, 2)}

    for _ in range(2):
        broker.publish("s", b"x")
    wait(5)
    start_ns = broker.jetstream.timers.now_ns()
    progress = broker.jetstream.streams["S"].consumers["C"].ack_state
    progress.record_deliveries(seqs(1, 2), start_ns, 5 * SECOND, acked=False)
    progress.set_deadline(2, start_ns + 7 * SECOND)
    wait(60)
    assert due_s() == {1: 60, 2: 62}
    broker = SimBroker(broker.disk.kill(), SMALL_JOURNAL, broker.clock)
    broker.start()
    assert due_s() == {1: 60, 2: 62}


def test_the_window_doubles_with_every_answer() -> None:
    """Vector 9 of the sourcing specification: 10 kB messages of 10,051 bytes."""
    window, size, sent = FlowWindow(), 10_051, []
    for _ in range(3):
        count = 0
        while window.has_room:
            count += 1
            if window.on_sent(size):
                window.on_request_sent(b"fc")
        sent.append(count)
        assert not window.on_reply(b"other")
        assert window.on_reply(b"fc")
    assert sent == [209, 314, 626]
    for _ in range(9):
        window.on_request_sent(b"fc")
        window.on_reply(b"fc")
    assert (START_BYTES, window.size) == (2 << 20, MAX_BYTES)
