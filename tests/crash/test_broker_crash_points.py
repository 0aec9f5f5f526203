"""Crashes under the API: a broker on a simulated disk is stopped at every disk operation, with every outcome.

The store must recover to a state that the broker had sealed, not older than the last one it had replied for; so a
batch, an expiry with its marker, and a removal with its ack are recovered completely or not at all. Then the broker
itself starts on it, and no expired message may reappear.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

import pytest

from headrace.sim import OUTCOMES, SimClock, SimDisk
from headrace.sim.checkers.store_invariants import read_state
from headrace.sim.checkers.store_model import StoreState
from headrace.sim.sim_broker import SimBroker
from headrace.sim.workloads.store_driver import CommitHistory
from headrace.storage import Store, StoreObserver

from .crash_points import Checker, Point, Trace
from .store_sizes import TINY

SECOND = 1_000_000_000
Story = Callable[[SimBroker, Random], None]


def limits(broker: SimBroker, rng: Random) -> None:
    """Streams that drop, replace, refuse, purge and delete."""
    broker.call("STREAM.CREATE.A", name="A", subjects=["a.>"], max_msgs=5)
    broker.call("STREAM.CREATE.K", name="K", subjects=["k.>"], max_msgs_per_subject=1, allow_rollup_hdrs=True)
    for turn in range(18):
        broker.publish(f"a.{turn}", b"x" * rng.randrange(200), Nats_Msg_Id=f"m{turn % 12}")
        broker.publish(f"k.{turn % 3}", b"y" * rng.randrange(2000))
        if turn % 4 == 0:
            broker.run_until_idle()
    broker.publish("k.1", b"roll", Nats_Rollup="all")
    broker.call_nowait("STREAM.PURGE.A", keep=2)
    broker.call_nowait("STREAM.MSG.DELETE.A", seq=11)
    broker.run_until_idle()
    broker.call("STREAM.UPDATE.A", name="A", subjects=["a.>", "b.>"], max_msgs=3)
    broker.publish("b.1", b"z")
    broker.run_until_idle()
    broker.call("STREAM.DELETE.K")


def batches(broker: SimBroker, rng: Random) -> None:
    """Atomic batches between other publishes."""
    broker.call("STREAM.CREATE.B", name="B", subjects=["b.>"], allow_atomic=True)
    for turn in range(6):
        size = rng.randrange(1, 9)
        for position in range(1, size + 1):
            commit = {"Nats_Batch_Commit": "1"} if position == size else {}
            broker.publish(
                f"b.{position}",
                b"p" * rng.randrange(900),
                Nats_Batch_Id=f"t{turn}",
                Nats_Batch_Sequence=str(position),
                **commit,
            )
            if rng.random() < 0.3:
                broker.publish("b.other", b"o")
        if rng.random() < 0.5:
            broker.run_until_idle()
    broker.run_until_idle()


def ages(broker: SimBroker, rng: Random) -> None:
    """Messages with a TTL, and delete markers."""
    broker.call(
        "STREAM.CREATE.T",
        name="T",
        subjects=["t.>"],
        subject_delete_marker_ttl=3 * SECOND,
        max_msgs_per_subject=1,
    )
    broker.call("STREAM.CREATE.G", name="G", subjects=["g.>"], allow_msg_ttl=True, max_age=4 * SECOND)
    for turn in range(10):
        broker.publish(f"t.{turn % 4}", b"t%d" % turn, Nats_TTL=str(1 + turn % 3))
        broker.publish(f"g.{turn}", b"m%d" % turn, **({"Nats_TTL": "never"} if turn % 5 == 0 else {}))
        broker.advance(rng.randrange(700_000_000))
    broker.advance(9 * SECOND)


CONFIGS = (
    {},
    {"max_msgs": 4},
    {"max_bytes": 700, "discard": "new"},
    {"max_msgs_per_subject": 1, "allow_rollup_hdrs": True},
    {"max_msgs_per_subject": 2, "subject_delete_marker_ttl": 2 * SECOND},
    {"allow_msg_ttl": True, "max_age": 3 * SECOND},
    {"allow_atomic": True},
)
#: Only A gets message ids: its window is longer than every workload, so that all stored ids are in memory too.
CONFIGS_OF_A = tuple(config for config in CONFIGS if "max_age" not in config)


def anything(broker: SimBroker, rng: Random) -> None:
    """All operations of clients, in random order."""
    for turn in range(45):
        name = rng.choice("ABC")
        ANYTHING[rng.randrange(len(ANYTHING))](broker, rng, name, turn)
        if rng.random() < 0.3:
            broker.run_until_idle()
        if rng.random() < 0.15:
            broker.advance(rng.randrange(2 * SECOND))
    broker.run_until_idle()


def _create(broker: SimBroker, rng: Random, name: str, turn: int) -> None:
    verb = "UPDATE" if rng.random() < 0.3 else "CREATE"
    broker.call_nowait(
        f"STREAM.{verb}.{name}",
        name=name,
        subjects=[f"{name}.>"],
        **rng.choice(CONFIGS_OF_A if name == "A" else CONFIGS),
    )


def _publish(broker: SimBroker, rng: Random, name: str, turn: int) -> None:
    fields = {"Nats_TTL": rng.choice(["1", "3", "never"])} if rng.random() < 0.3 else {}
    if name == "A" and rng.random() < 0.5:
        fields["Nats_Msg_Id"] = f"id{rng.randrange(6)}"
    if rng.random() < 0.2:
        fields["Nats_Rollup"] = rng.choice(["sub", "all"])
    if rng.random() < 0.2:
        fields["Nats_Expected_Last_Sequence"] = str(rng.randrange(turn + 1))
    broker.publish(f"{name}.{rng.randrange(3)}", bytes(rng.randrange(600)), **fields)


def _batch(broker: SimBroker, rng: Random, name: str, turn: int) -> None:
    size = rng.randrange(1, 6)
    for position in range(1, size + 1):
        fields = {"Nats_Batch_Id": f"b{turn}", "Nats_Batch_Sequence": str(position)}
        if position == size and rng.random() < 0.9:
            fields["Nats_Batch_Commit"] = rng.choice(["1", "eob"])
        broker.publish(f"{name}.{position}", b"member", **fields)


def _remove(broker: SimBroker, rng: Random, name: str, turn: int) -> None:
    kind = rng.randrange(4)
    if kind == 0:
        broker.call_nowait(f"STREAM.PURGE.{name}", filter=f"{name}.1")
    elif kind == 1:
        broker.call_nowait(f"STREAM.PURGE.{name}", seq=rng.randrange(1, turn + 2))
    elif kind == 2:
        broker.call_nowait(f"STREAM.MSG.DELETE.{name}", seq=rng.randrange(1, turn + 2))
    else:
        broker.call_nowait(f"STREAM.DELETE.{name}")


ANYTHING = (_create, _create, _publish, _publish, _publish, _publish, _publish, _batch, _remove)
STORIES: dict[str, Story] = {"limits": limits, "batches": batches, "ages": ages, "anything": anything}
#: Random workloads run more often, with a crash at some of their operations.
CHANCES = 24


class Recorded(Trace):
    """A trace with the time at each of its points."""

    times: list[int]


def record(name: str, seed: int, stories: Mapping[str, Story] = STORIES) -> Recorded:
    """Run a workload; record the disk and the time before each of its operations, and the state of each frame."""
    disk, clock, points, times = SimDisk(seed), SimClock(), [], []
    history: CommitHistory | None = None

    def before(op: tuple) -> None:
        acked, admitted = (history.acked_index, history.newest_index) if history else (0, 0)
        points.append(Point(disk.snapshot(), acked, admitted, op))
        times.append(clock.now_ns())

    disk.before_op = before
    broker = SimBroker(disk, TINY, clock)
    history = CommitHistory(read_state(broker.store))
    _watch(broker, history)
    broker.start()
    stories[name](broker, Random(f"{name}/{seed}"))
    before(("end",))
    trace = Recorded(f"broker-{name}/{seed}", history.states, points, TINY)
    trace.times = times
    return trace


def _state(store: Store) -> StoreState:
    """Return everything that the frame makes durable; metadata with merge operands is compacted by its owner."""
    logs, facts = read_state(store)
    folds = [(key, value, store.metadata._find_compactor(key)) for key, value in facts]
    return logs, tuple((key, fold(key) if fold else value) for key, value, fold in folds)


class _CommitRecorder:
    """Records when a frame is durable, before the broker is called."""

    def __init__(self, history: CommitHistory, broker: StoreObserver) -> None:
        self._history = history
        self._broker = broker

    def on_frame_durable(self, frame: int) -> None:
        self._history.record_commit(frame)
        self._broker.on_frame_durable(frame)

    def on_full(self) -> None:
        self._broker.on_full()


def _watch(broker: SimBroker, history: CommitHistory) -> None:
    """Record the content of each frame when it is sealed, and when it becomes durable."""
    store = broker.store
    seal = store.commit

    def sealed() -> int:
        history.record_frame(store.frame_number, _state(store))
        return seal()

    store.commit = sealed  # type: ignore[method-assign]
    store.set_observer(_CommitRecorder(history, broker.jetstream.group_commit))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(CHANCES))
def test_a_crash_in_any_story(seed: int) -> None:
    assert Checker(record("anything", seed)).run(stride=7, offset=seed % 7).total >= 20


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", ["limits", "batches", "ages"])
def test_a_crash_at_every_operation(name: str, seed: int) -> None:
    assert Checker(record(name, seed)).run().total >= 200


@pytest.mark.slow
def test_nothing_overdue_comes_back() -> None:
    """After a crash at any point the broker starts with one marker, never two, for each expired subject."""
    trace = record("ages", 0)
    for number, point in enumerate(trace.points[::3]):
        after = point.snapshot.power_loss(OUTCOMES[number % len(OUTCOMES)], Random(number))
        clock = SimClock(trace.times[number * 3])
        broker = SimBroker(SimDisk(number, snapshot=after), TINY, clock)
        broker.start()
        broker.run_until_idle()
        _check_ages(broker)


def _check_ages(broker: SimBroker) -> None:
    now_ns = broker.clock.now_ns()
    for name, stream in broker.jetstream.streams.items():
        log = stream.log
        for seq in log.find_seqs(None, log.first_seq, log.last_seq).tolist():
            time_ns, subject, header, _, ttl_s = log.get(seq)  # type: ignore[misc]
            never = ttl_s == 0xFFFF_FFFF
            assert never or not ttl_s or time_ns + ttl_s * SECOND > now_ns, (name, seq)
            assert never or not stream.config.max_age or time_ns + stream.config.max_age > now_ns, (name, seq)
            assert not header.startswith(b"NATS/1.0\r\nNats-Marker") or log.get_subject_count(subject) == 1
