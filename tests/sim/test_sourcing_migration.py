"""A copy changes how it reads its upstream, with filters, while servers crash and the connection breaks: nothing is lost
or copied twice, and no consumer is left behind. To replay a seed: `pytest tests/sim/test_sourcing_migration.py -k "<name>"`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from headrace.protocol import subjects
from headrace.sim.network.two_servers import TwoServers
from headrace.sim.sim_broker import SimBroker

from .store_sizes import SIZES

SECOND = 1_000_000_000
RETENTIONS = ("limits", "workqueue", "interest")
PLAIN: dict[str, Any] = {}
D: dict[str, Any] = {"consumer": {"name": "D", "server_managed": True}}
E: dict[str, Any] = {"consumer": {"name": "E", "server_managed": True}}
U: dict[str, Any] = {"consumer": {"name": "U", "deliver_subject": "d.u"}}
V: dict[str, Any] = {"consumer": {"name": "V", "deliver_subject": "d.v"}}


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    yield
    for made in Migration.made:
        made.pair.close()
    Migration.made.clear()


class Migration:
    """A stream O on one server and its copy A on the other."""

    made: ClassVar[list[Migration]] = []

    def __init__(self, seed: str, *, retention: str = "limits", mirror: bool = False) -> None:
        random.seed(seed)
        self.pair = TwoServers(seed, SIZES[1])
        self.made.append(self)
        self.rng = self.pair.rng
        self.retention, self.mirror = retention, mirror
        self.allow_atomic = False
        self.published: list[tuple[str, bytes]] = []
        self.pair.connect()
        self.pair.run_until_idle()
        self.call(self.origin, "STREAM.CREATE.O", name="O", subjects=["o.>"], retention=retention)

    @property
    def origin(self) -> SimBroker:
        return self.pair.local

    @property
    def copy(self) -> SimBroker:
        return self.pair.remote

    def call(self, broker: SimBroker, endpoint: str, **body: Any) -> Any:
        answer = self.pair.call(broker, endpoint, **body)
        assert "error" not in answer, answer
        return answer

    def configure(self, *entries: dict[str, Any], create: bool = False) -> None:
        external = {"api": f"$JS.{self.origin.domain}.API", "deliver": ""}
        full = [{"name": "O", "external": external, **entry} for entry in entries]
        copied: dict[str, Any] = {"mirror": full[0]} if self.mirror else {"sources": full}
        if self.allow_atomic:
            copied["allow_atomic"] = True
        self.call(self.copy, f"STREAM.{'CREATE' if create else 'UPDATE'}.A", name="A", **copied)

    def create(self, *entries: dict[str, Any]) -> None:
        self.configure(*entries, create=True)
        self.pair.advance(3 * SECOND)

    def add_consumer(self, name: str, *filters: str, **config: Any) -> None:
        full = {
            "durable_name": name,
            "ack_policy": "flow_control",
            "deliver_subject": f"d.{name.lower()}",
            "filter_subjects": list(filters),
            **config,
        }
        self.call(self.origin, f"CONSUMER.CREATE.O.{name}", stream_name="O", config=full)

    def publish(self, count: int = 1, tokens: str = "abc") -> None:
        for _ in range(count):
            subject, data = f"o.{self.rng.choice(tokens)}", b"%d" % (len(self.published) + 1)
            self.published.append((subject, data))
            self.origin.publish(subject, data)

    def settle(self, seconds: int = 60) -> None:
        if not self.pair.is_connected:
            self.pair.connect()
        self.pair.advance(seconds * SECOND)

    def crash_copy(self) -> None:
        self.pair.crash_remote()
        if not self.pair.is_connected:
            self.pair.connect()

    # Looking

    def copied(self) -> list[bytes]:
        log = self.copy.jetstream.streams["A"].log
        found = [log.get(seq) for seq in log.find_seqs(None, log.first_seq, log.last_seq).tolist()]
        return [message[3] for message in found if message is not None]

    def consumers(self) -> list[str]:
        names: list[str] = self.call(self.origin, "CONSUMER.NAMES.O")["consumers"]
        return sorted(names)

    def check(self, *filters: str, consumers: list[str]) -> None:
        """Exactly what matches a filter is in the copy, in order, and only these consumers are left."""
        wanted = [
            data
            for subject, data in self.published
            if not filters or any(subjects.matches(pattern.encode(), subject.encode()) for pattern in filters)
        ]
        assert self.copied() == wanted
        named = [name for name in self.consumers() if not name.startswith("JS_")]
        assert named == consumers
        if self.retention != "limits":
            left = self.call(self.origin, "STREAM.INFO.O")["state"]["messages"]
            assert left == (len(self.published) - len(wanted) if self.retention == "workqueue" else 0)


@pytest.mark.parametrize(("before", "after"), [(PLAIN, D), (D, PLAIN)], ids=["to durable", "from durable"])
def test_a_work_queue_becomes_empty_although_the_old_consumer_goes_late(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    """While both consumers exist, the queue keeps what only the new one has acknowledged."""
    migration = Migration(f"late/{before}", retention="workqueue")
    migration.create({"filter_subject": "o.*", **before})
    migration.publish(10)
    migration.settle(3)
    deletions: list[bytes] = []

    def lose_first_deletion(subject: bytes, reply: bytes, header: bytes, payload: bytes) -> bool:
        if b".CONSUMER.DELETE." not in subject:
            return False
        deletions.append(subject)
        return len(deletions) == 1

    migration.pair.should_lose = lose_first_deletion
    migration.pair.connect()
    migration.configure({"filter_subject": "o.*", **after})
    migration.settle(3)
    migration.publish(10)
    migration.settle(3)
    assert len(deletions) == 1
    assert len(migration.copied()) == 20
    assert migration.call(migration.origin, "STREAM.INFO.O")["state"]["messages"] == 10
    migration.settle()
    assert len(deletions) == 2
    migration.check("o.*", consumers=["D"] if after == D else [])


class TestCrashes:
    """Power is lost after the update was acknowledged, at any step until the new consumer is in use."""

    @pytest.mark.parametrize("after", ["ephemeral", "renamed"])
    @pytest.mark.parametrize("retention", RETENTIONS)
    @pytest.mark.parametrize("mirror", [False, True], ids=["source", "mirror"])
    def test_the_old_consumer_is_deleted(self, mirror: bool, retention: str, after: str) -> None:
        for steps in range(0, 120, 8):
            migration = Migration(f"crash/{mirror}/{retention}/{steps}", retention=retention, mirror=mirror)
            migration.create(D)
            migration.publish(20)
            for _ in range(migration.rng.randrange(60)):
                migration.pair.step()
            migration.configure(PLAIN if after == "ephemeral" else E)
            for _ in range(steps):
                migration.pair.step()
                migration.pair.pass_time(SECOND // 100)
            migration.crash_copy()
            migration.publish(5)
            migration.settle()
            migration.check(consumers=[] if after == "ephemeral" else ["E"])

    @pytest.mark.parametrize("retention", RETENTIONS)
    @pytest.mark.parametrize("crash", [False, True])
    def test_the_upstream_is_not_reachable(self, crash: bool, retention: str) -> None:
        migration = Migration(f"away/{crash}/{retention}", retention=retention)
        migration.create(D)
        migration.publish(20)
        migration.pair.advance(2 * SECOND)
        migration.pair.disconnect()
        migration.configure(E)
        migration.pair.advance(10 * SECOND)
        if crash:
            migration.crash_copy()
        migration.publish(5)
        migration.settle(200)
        migration.check(consumers=["E"])

    @pytest.mark.parametrize("crash", [False, True])
    def test_a_removed_source_takes_its_consumer_along(self, crash: bool) -> None:
        migration = Migration(f"removed/{crash}", retention="workqueue")
        migration.create(D)
        migration.publish(20)
        migration.pair.advance(3 * SECOND)
        migration.pair.disconnect()
        migration.configure()
        migration.pair.run_until_idle()
        if crash:
            migration.crash_copy()
        migration.settle(200)
        assert migration.consumers() == []

    def test_there_and_back(self) -> None:
        """The consumer that was to be deleted is in use again."""
        migration = Migration("back", retention="interest")
        migration.create(D)
        migration.publish(20)
        migration.pair.advance(3 * SECOND)
        migration.pair.disconnect()
        for entry in (E, D):
            migration.configure(entry)
            migration.pair.advance(SECOND)
        migration.crash_copy()
        migration.settle()
        migration.publish(20)
        migration.settle()
        migration.check(consumers=["D"])

    def test_a_removed_source_comes_back(self) -> None:
        migration = Migration("again")
        migration.create(D)
        migration.pair.disconnect()
        migration.configure()
        migration.pair.advance(SECOND)
        migration.configure(D)
        migration.settle(200)
        migration.publish(20)
        migration.settle()
        migration.check(consumers=["D"])

    def test_a_consumer_of_another_stream_is_not_deleted(self) -> None:
        """The reply to the deletion is lost; meanwhile another stream creates a consumer with that name."""
        migration = Migration("other")
        migration.create(D)
        lost: list[bytes] = []

        def should_lose(subject: bytes, reply: bytes, header: bytes, payload: bytes) -> bool:
            if b"consumer_delete_response" in payload and not lost:
                lost.append(payload)
                return True
            return False

        migration.pair.should_lose = should_lose
        migration.pair.connect()
        migration.pair.advance(3 * SECOND)
        migration.configure()
        migration.pair.run_until_idle()
        assert lost
        migration.call(migration.origin, "STREAM.CREATE.B", name="B", sources=[{"name": "O", **D}])
        migration.settle(300)
        assert migration.consumers() == ["D"]


@pytest.mark.parametrize("after", [E, PLAIN, U], ids=["renamed", "ephemeral", "user-managed"])
@pytest.mark.parametrize("crash", [False, True])
def test_a_batch_that_is_held_back(after: dict[str, Any], crash: bool) -> None:
    """Some of its members have arrived when the consumer changes; none is lost or stored twice."""
    migration = Migration(f"held/{after}/{crash}")
    migration.call(migration.origin, "STREAM.UPDATE.O", name="O", subjects=["o.>"], allow_atomic=True)
    migration.allow_atomic = True
    migration.create(D)
    migration.add_consumer("U")
    migration.pair.should_lose = lambda subject, reply, header, payload: payload == b"3"
    migration.pair.connect()
    migration.pair.advance(3 * SECOND)
    for position in range(1, 4):
        last = {"Nats_Batch_Commit": "1"} if position == 3 else {}
        fields = {"Nats_Batch_Id": "B", "Nats_Batch_Sequence": str(position), **last}
        migration.origin.publish("o.a", b"%d" % position, **fields)
    migration.pair.run_until_idle()
    assert migration.copied() == []
    migration.configure(after)
    migration.pair.run_until_idle()
    if crash:
        migration.pair.crash_remote()
    migration.pair.should_lose = None
    migration.pair.connect()
    migration.pair.advance(60 * SECOND)
    assert migration.copied() == [b"1", b"2", b"3"]


class TestFilters:
    """The filter of a user-managed consumer is in its own configuration, not in the source."""

    @pytest.mark.parametrize("crash", [False, True])
    @pytest.mark.parametrize("way", [PLAIN, D], ids=["ephemeral", "server-managed"])
    @pytest.mark.parametrize(
        "entry",
        [{"filter_subject": "o.a"}, {"subject_transforms": [{"src": "o.a", "dest": ""}]}],
        ids=["filter", "transform"],
    )
    @pytest.mark.parametrize("mirror", [False, True], ids=["source", "mirror"])
    def test_there_and_back(
        self, mirror: bool, entry: dict[str, Any], way: dict[str, Any], crash: bool
    ) -> None:
        migration = Migration(f"filter/{mirror}/{entry}/{way}/{crash}", mirror=mirror)
        kept = {} if "filter_subject" in entry else entry
        migration.create({**entry, **way})
        migration.add_consumer("U", "o.a")
        for turn in range(4):
            migration.publish(20)
            if turn < 3:
                migration.settle(3)
                migration.configure({**kept, **U} if turn % 2 == 0 else {**entry, **way})
                for _ in range(20 * turn):
                    migration.pair.step()
                if crash:
                    migration.crash_copy()
            migration.settle(30)
        migration.check("o.a", consumers=["U"])

    def test_two_filters_become_one_consumer(self) -> None:
        migration = Migration("two")
        migration.create({"filter_subject": "o.a"}, {"filter_subject": "o.b", **D})
        migration.publish(30)
        migration.settle(3)
        migration.pair.disconnect()
        migration.publish(10)
        migration.settle(3)
        migration.add_consumer("U", "o.a", "o.b")
        migration.configure(U)
        migration.publish(10)
        migration.settle()
        copied = migration.copied()
        assert len(set(copied)) == len(copied)
        wanted = [data for subject, data in migration.published if subject != "o.c"]
        assert sorted(copied) == sorted(wanted)
        assert migration.consumers() == ["U"]

    def test_a_wider_consumer_adds_what_the_filter_left_out(self) -> None:
        migration = Migration("wider")
        migration.create({"filter_subject": "o.a"})
        migration.publish(30)
        migration.settle(3)
        migration.add_consumer("U")
        migration.configure(U)
        migration.crash_copy()
        migration.settle(10)
        migration.configure({"filter_subject": "o.b"})
        migration.publish(10, "b")
        migration.settle()
        copied = migration.copied()
        assert len(set(copied)) == len(copied)
        assert sorted(copied) == sorted(data for _, data in migration.published)

    def test_one_user_managed_consumer_after_the_other(self) -> None:
        migration = Migration("chain")
        migration.add_consumer("U", "o.a")
        migration.add_consumer("V", "o.a", "o.b")
        migration.create({"filter_subject": "o.a"})
        migration.publish(30)
        migration.settle(3)
        for entry in (U, V):
            migration.configure(entry)
            migration.pair.run_until_idle()
        migration.settle()
        copied = migration.copied()
        assert len(set(copied)) == len(copied)
        assert sorted(copied) == sorted(data for subject, data in migration.published if subject != "o.c")

    @pytest.mark.parametrize("after", ["recreated", "unfiltered"])
    def test_a_position_counts_only_for_its_filters(self, after: str) -> None:
        """The saved position is that of a consumer that left out what its successor delivers."""
        migration = Migration(f"position/{after}")
        for name in "UV":
            migration.add_consumer(name, "o.a")
        migration.create(U)
        migration.publish(30, "ab")
        migration.settle(3)
        migration.configure(V)
        migration.settle(3)
        migration.call(migration.origin, "CONSUMER.DELETE.O.U")
        migration.add_consumer("U", "o.b")
        migration.configure(U if after == "recreated" else PLAIN)
        migration.publish(10, "b")
        migration.settle()
        copied = migration.copied()
        assert len(set(copied)) == len(copied)
        assert sorted(copied) == sorted(data for _, data in migration.published)

    def test_a_mirror_with_a_start(self) -> None:
        migration = Migration("start", mirror=True)
        migration.publish(10)
        migration.pair.run_until_idle()
        migration.create({"opt_start_seq": 6})
        migration.add_consumer("U", deliver_policy="by_start_sequence", opt_start_seq=6)
        migration.configure(U)
        migration.publish(10)
        migration.settle()
        assert migration.copied() == [data for _, data in migration.published[5:]]
        migration.configure({"opt_start_seq": 6})
        migration.publish(10)
        migration.settle()
        assert migration.copied() == [data for _, data in migration.published[5:]]


@pytest.mark.parametrize("mirror", [False, True], ids=["source", "mirror"])
@pytest.mark.parametrize("retention", ["limits", "interest"])
@pytest.mark.parametrize("seed", range(3))
def test_everything_at_once(seed: int, retention: str, mirror: bool) -> None:
    """Ways of reading alternate under load; the connection breaks and either server loses power."""
    migration = Migration(f"all/{seed}/{retention}/{mirror}", retention=retention, mirror=mirror)
    filtered = {"filter_subject": "o.*"}
    ways = [filtered, {**filtered, **D}, {**filtered, **E}, U, V]
    for name in "UV":
        migration.add_consumer(name, "o.*")
    migration.create(ways[0])
    for _ in range(12):
        migration.publish(migration.rng.randrange(8))
        migration.pair.run_until_idle()  # acknowledged
        for _ in range(migration.rng.randrange(60)):
            migration.pair.step()
        choice = migration.rng.randrange(5)
        if choice == 0:
            migration.pair.disconnect()
        elif choice == 1:
            migration.pair.crash_remote()
        elif choice == 2:
            migration.pair.crash_local()
        else:
            migration.configure(migration.rng.choice(ways))
        if not migration.pair.is_connected and migration.rng.random() < 0.7:
            migration.pair.connect()
        migration.pair.advance(migration.rng.randrange(3 * SECOND))
    if not migration.pair.is_connected:
        migration.pair.connect()
    migration.configure({**filtered, **D})
    migration.publish(5)
    migration.settle(300)
    for name in "UV":
        migration.call(migration.origin, f"CONSUMER.DELETE.O.{name}")
    migration.check(consumers=["D"])


def test_a_copy_continues_beside_a_worker_after_a_restart() -> None:
    """The consumer that exists already may overlap with that of the worker, as a new one may."""
    made = Migration("x", retention="workqueue")
    worker = {"durable_name": "W", "ack_policy": "explicit"}
    made.call(made.origin, "CONSUMER.CREATE.O.W", stream_name="O", config=worker)
    made.create({"filter_subject": "o.*"})
    made.publish(5)
    made.settle(3)
    assert len(made.copied()) == 5
    made.crash_copy()
    made.settle(3)
    made.publish(5)
    made.settle(30)
    assert len(made.copied()) == 10
