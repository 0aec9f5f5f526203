"""Mirrors and sources between two servers with two disks, in virtual time: the connection is cut at any byte, messages
are lost, either side loses power, consumers are reset and paused and the upstream is purged, while clients publish.
Afterwards the copy has the upstream's history, in order, without loss or duplicate, and a work queue has exactly what
the copy lacks.

To replay a seed: `pytest tests/sim/test_sourcing_two_servers.py -k "<name>"`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest

from headrace.broker.sourcing.upstream_receiver import UpstreamReceiver
from headrace.sim.network.two_servers import TwoServers
from headrace.sim.sim_broker import SimBroker

from .store_sizes import SIZES

SECOND = 1_000_000_000

WAYS: dict[str, dict[str, Any]] = {
    "ephemeral": {},
    "server-managed": {"consumer": {"name": "D", "server_managed": True}},
    "user-managed": {"consumer": {"name": "U", "deliver_subject": "d.u"}},
}
RETENTIONS = ("limits", "workqueue", "interest")


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    """Remove all state of a test before the next one."""
    yield
    for copying in Copying.made:
        copying.pair.close()
    Copying.made.clear()


class Copying:
    """A stream O on one side and its copy A on the other. `acked` is what O has acknowledged to publishers."""

    made: ClassVar[list[Copying]] = []

    def __init__(self, seed: str, *, way: str, retention: str, mirror: bool, upward: bool) -> None:
        random.seed(seed)  # the broker's own jitter
        self.pair = TwoServers(seed, SIZES[1])
        self.made.append(self)
        self.rng = self.pair.rng
        self.upward = upward  # the copy is where the connection leads to
        self.retention = retention
        self.acked: list[bytes] = []
        self._waiting: dict[int, bytes] = {}
        self._number = 0
        self.pair.connect()
        self.pair.run_until_idle()
        self.call(True, "STREAM.CREATE.O", name="O", subjects=["o.>"], retention=retention)
        if way == "user-managed":
            config = {
                "durable_name": "U",
                "ack_policy": "flow_control",
                "deliver_subject": "d.u",
                "max_ack_pending": 3,
            }
            self.call(True, "CONSUMER.CREATE.O.U", stream_name="O", config=config)
        self.copies("mirror" if mirror else "sources", way, create=True)

    def copies(self, kind: str, way: str, *, create: bool = False) -> None:
        """Configure how A reads O."""
        api = f"$JS.{self.origin.domain}.API"
        entry = {"name": "O", "external": {"api": api, "deliver": ""}, **WAYS[way]}
        verb = "CREATE" if create else "UPDATE"
        body = {kind: entry if kind == "mirror" else [entry]}
        answer = self.call(False, f"STREAM.{verb}.A", name="A", **body)
        assert "error" not in answer, answer

    @property
    def origin(self) -> SimBroker:
        return self.pair.local if self.upward else self.pair.remote

    @property
    def copy(self) -> SimBroker:
        return self.pair.remote if self.upward else self.pair.local

    def call(self, at_origin: bool, endpoint: str, **body: Any) -> Any:
        return self.pair.call(self.origin if at_origin else self.copy, endpoint, **body)

    def publish(self) -> None:
        self._number += 1
        data = b"%d" % self._number
        self._waiting[self.origin.publish(f"o.{self._number % 3}", data)] = data

    def steps(self, most: int) -> None:
        for _ in range(self.rng.randrange(most)):
            self.pair.step()
            if self.rng.random() < 0.1:
                self.pair.pass_time(self.rng.randrange(SECOND // 5))

    def crash(self, *, origin: bool) -> None:
        if origin:
            self._confirm()
            self._waiting.clear()
        if origin == self.upward:
            self.pair.crash_local()
        else:
            self.pair.crash_remote()

    def _confirm(self) -> None:
        answers = self.origin.replies
        self.acked += [self._waiting.pop(number) for number in list(self._waiting) if number in answers]

    def heal(self) -> None:
        """Restore the connection, and wait until everything is copied."""
        self.pair.should_lose = None
        self.pair.connect()
        self.pair.advance(90 * SECOND)
        self._confirm()

    def await_reader(self) -> None:
        """Wait until the upstream has a consumer for the copy: an interest stream would drop earlier messages."""
        for _ in range(120):
            self.pair.advance(SECOND)
            if any(self.origin.jetstream.streams["O"].consumer_set):
                return
        raise AssertionError("the copy never asked")

    # Looking

    def stored(self, *, origin: bool) -> list[bytes]:
        broker, name = (self.origin, "O") if origin else (self.copy, "A")
        log = broker.jetstream.streams[name].log
        found = [log.get(seq) for seq in log.find_seqs(None, log.first_seq, log.last_seq).tolist()]
        return [message[3] for message in found if message is not None]

    def seqs(self, *, origin: bool) -> list[int]:
        broker, name = (self.origin, "O") if origin else (self.copy, "A")
        log = broker.jetstream.streams[name].log
        found: list[int] = log.find_seqs(None, log.first_seq, log.last_seq).tolist()
        return found

    def lost(self) -> list[bytes]:
        """Return what was acknowledged to publishers and is not in the copy."""
        copied = set(self.stored(origin=False))
        return [data for data in self.acked if data not in copied]

    def check(self, *, purged: bool = False) -> None:
        copied = self.stored(origin=False)
        assert len(copied) > 10
        assert copied == sorted(copied, key=int), "out of order"
        assert len(set(copied)) == len(copied), "duplicates"
        if not purged:
            assert not self.lost()
        if self.retention != "limits":
            assert self.stored(origin=True) == []
        elif not purged:
            assert copied == self.stored(origin=True)


def faults(copying: Copying, turns: int, choose: Callable[[int], None]) -> None:
    """Publish and step, and sometimes inject a fault with `choose`."""
    rng = copying.rng
    for turn in range(turns):
        for _ in range(rng.randrange(1, 12)):
            copying.publish()
            copying.steps(12)
        if rng.random() < 0.4:
            copying.pair.advance(rng.randrange(3 * SECOND))
        copying.steps(60)
        choose(turn)
        if not copying.pair.is_connected and rng.random() < 0.8:
            copying.pair.connect()


@pytest.mark.parametrize("upward", [False, True], ids=["down", "up"])
@pytest.mark.parametrize("retention", RETENTIONS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["mirror", "source"])
def test_cuts_and_crashes(kind: str, way: str, retention: str, upward: bool) -> None:
    """The connection is cut at any byte; either side loses power; clients keep publishing."""
    seed = f"cuts/{kind}/{way}/{retention}/{upward}"
    copying = Copying(seed, way=way, retention=retention, mirror=kind == "mirror", upward=upward)
    copying.pair.advance(SECOND)

    def choose(_: int) -> None:
        what = copying.rng.randrange(4)
        if what == 0:
            copying.pair.disconnect()
        elif what == 1:
            copying.crash(origin=False)
        elif what == 2:
            copying.crash(origin=True)

    faults(copying, 10, choose)
    copying.heal()
    copying.check()
    if kind == "mirror" and retention == "limits":
        assert copying.seqs(origin=False) == copying.seqs(origin=True)


@pytest.mark.parametrize("retention", RETENTIONS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["mirror", "source"])
def test_a_copy_is_complete_though_messages_are_lost(kind: str, way: str, retention: str) -> None:
    """One message in ten is lost on the way: data, requests, replies and statuses alike."""
    copying = Copying(
        f"lost/{kind}/{way}/{retention}", way=way, retention=retention, mirror=kind == "mirror", upward=True
    )
    copying.pair.should_lose = lambda *_: copying.rng.random() < 0.1
    copying.pair.connect()
    copying.await_reader()
    faults(copying, 10, lambda _: None)
    copying.heal()
    copying.check()


@pytest.mark.parametrize("way", ["server-managed", "user-managed"])
@pytest.mark.parametrize("kind", ["mirror", "source"])
def test_a_copy_is_complete_though_its_consumer_is_reset_and_paused(kind: str, way: str) -> None:
    """The consumer is reset backward, paused and resumed; the connection is cut meanwhile."""
    copying = Copying(
        f"people/{kind}/{way}", way=way, retention="limits", mirror=kind == "mirror", upward=False
    )
    copying.pair.advance(SECOND)
    name = WAYS[way]["consumer"]["name"]

    def choose(_: int) -> None:
        what = copying.rng.randrange(4)
        if what == 0:  # not beyond what was copied: that would skip messages on purpose
            known = len(copying.stored(origin=False))
            copying.origin.call_nowait(f"CONSUMER.RESET.O.{name}", seq=copying.rng.randrange(known + 1) + 1)
        elif what == 1:
            until = "2099-01-01T00:00:00Z"
            copying.origin.call_nowait(f"CONSUMER.PAUSE.O.{name}", pause_until=until)
        elif what == 2:
            copying.origin.call_nowait(f"CONSUMER.PAUSE.O.{name}")
        else:
            copying.pair.disconnect()

    faults(copying, 14, choose)
    copying.call(True, f"CONSUMER.PAUSE.O.{name}")
    copying.heal()
    copying.check()


@pytest.mark.parametrize("kind", ["mirror", "source"])
def test_a_reset_of_a_consumer_that_is_full_at_once(kind: str) -> None:
    """Redelivered messages are known and not acknowledged again, yet requests and replies do not loop."""
    copying = Copying(
        f"full/{kind}", way="user-managed", retention="limits", mirror=kind == "mirror", upward=False
    )
    copying.pair.advance(SECOND)
    for _ in range(12):
        copying.publish()
    copying.pair.advance(3 * SECOND)
    copying.origin.call_nowait("CONSUMER.RESET.O.U", seq=1)
    (link,) = copying.copy.jetstream.streams["A"].sourcing._replicators.values()
    for _ in range(5000):  # it acknowledges again what it has
        copying.pair.pass_time(SECOND // 100)
        copying.pair.step()
        if link._receiver._stored_position[1] == 6:
            break
    assert link._receiver._stored_position[1] == 6
    copying.origin.call_nowait(
        "CONSUMER.RESET.O.U", seq=10
    )  # beyond its ack floor, but not beyond what it has
    copying.pair.run_until_idle()
    copying.publish()
    copying.heal()
    copying.check()


@pytest.mark.parametrize("kind", ["mirror", "source"])
@pytest.mark.parametrize("way", ["server-managed", "user-managed"])
def test_a_reset_forward_skips_what_it_says(kind: str, way: str) -> None:
    copying = Copying(
        f"forward/{kind}/{way}", way=way, retention="limits", mirror=kind == "mirror", upward=False
    )
    copying.pair.advance(SECOND)
    name = WAYS[way]["consumer"]["name"]
    for _ in range(12):
        copying.publish()
    copying.pair.advance(2 * SECOND)
    copying.call(True, f"CONSUMER.PAUSE.O.{name}", pause_until="2099-01-01T00:00:00Z")
    for _ in range(8):
        copying.publish()
    copying.pair.run_until_idle()
    assert copying.call(True, f"CONSUMER.RESET.O.{name}", seq=18)["reset_seq"] == 18
    copying.call(True, f"CONSUMER.PAUSE.O.{name}")
    copying.heal()
    expected = [b"%d" % n for n in (*range(1, 13), 18, 19, 20)]
    assert copying.stored(origin=False) == expected


@pytest.mark.parametrize("kind", ["mirror", "source"])
def test_an_origin_that_is_purged(kind: str) -> None:
    """What was copied stays, what was not is gone, and later messages are copied."""
    copying = Copying(
        f"purge/{kind}", way="ephemeral", retention="limits", mirror=kind == "mirror", upward=True
    )
    copying.pair.advance(SECOND)

    def choose(turn: int) -> None:
        if turn % 3 == 1:
            copying.origin.call_nowait("STREAM.PURGE.O")
        elif turn % 3 == 2:
            copying.pair.disconnect()

    faults(copying, 9, choose)
    copying.heal()
    copying.check(purged=True)
    left = copying.stored(origin=True)
    assert copying.stored(origin=False)[-len(left) :] == left if left else True


@pytest.mark.parametrize("retention", RETENTIONS)
@pytest.mark.parametrize("kind", ["mirror", "source"])
def test_migration_under_load(kind: str, retention: str) -> None:
    """From one kind of consumer to another and back, with messages in flight and a connection that breaks."""
    copying = Copying(
        f"migrate/{kind}/{retention}",
        way="ephemeral",
        retention=retention,
        mirror=kind == "mirror",
        upward=False,
    )
    copying.pair.advance(SECOND)
    ways = ["server-managed", "ephemeral"]
    if retention != "workqueue":  # if two consumers cannot exist at the same time
        ways += ["user-managed"]
        config = {"durable_name": "U", "ack_policy": "flow_control", "deliver_subject": "d.u"}
        copying.call(True, "CONSUMER.CREATE.O.U", stream_name="O", config=config)

    def choose(turn: int) -> None:
        if turn % 2:
            copying.copies("mirror" if kind == "mirror" else "sources", ways[turn // 2 % len(ways)])
        elif copying.rng.random() < 0.5:
            copying.pair.disconnect()

    faults(copying, 12, choose)
    copying.copies("mirror" if kind == "mirror" else "sources", "server-managed")
    copying.heal()
    if retention == "interest":  # the unused consumer keeps what it has not delivered
        copying.call(True, "CONSUMER.DELETE.O.U")
    copying.check()


def crash_in_mid_write(copying: Copying) -> None:
    """Crash the copy's server while it has changes that are not durable, several times."""
    copying.pair.advance(SECOND)
    for _ in range(12):
        for _ in range(copying.rng.randrange(3, 9)):
            copying.publish()
            copying.steps(20)
        for _ in range(200):
            copying.pair.step()
            store = copying.copy.store
            if (store.dirty or store.in_flight) and copying.rng.random() < 0.05:
                break
        copying.crash(origin=False)
        copying.pair.connect()
        copying.pair.advance(3 * SECOND)
    copying.heal()


class TestMidWrite:
    """Upstream and copy share no disk, so a reply that is sent before the copy is durable loses messages."""

    def copying(self, retention: str, seed: int) -> Copying:
        name = f"mid/{retention}/{seed}"
        return Copying(name, way="user-managed", retention=retention, mirror=False, upward=True)

    @pytest.mark.parametrize("seed", range(4))
    @pytest.mark.parametrize("retention", ["workqueue", "interest"])
    def test_nothing_is_lost(self, retention: str, seed: int) -> None:
        copying = self.copying(retention, seed)
        crash_in_mid_write(copying)
        copying.check()

    @pytest.mark.parametrize("retention", ["workqueue", "interest"])
    def test_a_hasty_answer_is_caught(self, retention: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """A planted bug: the reply to a flow-control request does not wait for the disk."""

        def answer(arrivals: UpstreamReceiver, reply: bytes) -> None:
            block = b"NATS/1.0\r\nNats-Last-Consumer: %d\r\nNats-Last-Stream: %d\r\n\r\n"
            arrivals._group_commit._publisher.publish(reply, b"", block % arrivals._stored_position, b"")

        monkeypatch.setattr(UpstreamReceiver, "_on_flow_request", answer)
        for seed in range(80):
            copying = self.copying(retention, seed)
            crash_in_mid_write(copying)
            if copying.lost():
                return
        pytest.fail("the simulation does not see it")


class TestBatches:
    """A sourced batch becomes visible as a whole, also if it is larger than max_ack_pending."""

    def visible(self, copying: Copying) -> dict[bytes, int]:
        """Return how many members of each batch a reader of the copy could have seen."""
        log = copying.copy.jetstream.streams["A"].log
        counts: dict[bytes, int] = {}
        for seq in log.find_seqs(None, log.first_seq, log.committed_seq).tolist():
            message = log.get(seq)
            assert message is not None
            counts[message[3]] = counts.get(message[3], 0) + 1
        return counts

    def batch(self, copying: Copying, number: int, size: int) -> bytes:
        name = f"b{number}"
        for position in range(1, size + 1):
            last = {"Nats_Batch_Commit": "1"} if position == size else {}
            copying.origin.publish(
                "o.b", name.encode(), Nats_Batch_Id=name, Nats_Batch_Sequence=str(position), **last
            )
        return name.encode()

    @pytest.mark.parametrize("retention", RETENTIONS)
    @pytest.mark.parametrize("way", ["server-managed", "user-managed"])
    def test_never_in_parts(self, way: str, retention: str) -> None:
        copying = Copying(f"batch/{way}/{retention}", way=way, retention=retention, mirror=False, upward=True)
        copying.call(
            True, "STREAM.UPDATE.O", name="O", subjects=["o.>"], retention=retention, allow_atomic=True
        )
        entry = {"name": "O", "external": {"api": "$JS.NEAR.API", "deliver": ""}, **WAYS[way]}
        copying.call(False, "STREAM.UPDATE.A", name="A", sources=[entry], allow_atomic=True)
        copying.pair.advance(SECOND)
        sizes: dict[bytes, int] = {}
        for turn in range(16):
            size = copying.rng.randrange(2, 30)
            sizes[self.batch(copying, turn, size)] = size
            for _ in range(copying.rng.randrange(150)):
                copying.steps(3)
                seen = self.visible(copying)
                assert all(seen[name] == sizes[name] for name in seen), seen
            choice = copying.rng.random()
            if choice < 0.3:
                copying.pair.run_until_idle()
                copying.crash(origin=False)
            elif choice < 0.5:
                copying.pair.disconnect()
            if not copying.pair.is_connected:
                copying.pair.connect()
        copying.heal()
        assert self.visible(copying) == sizes
