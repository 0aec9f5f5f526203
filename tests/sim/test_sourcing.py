"""Mirrors and sources in virtual time, on a simulated disk: a simulated upstream loses, duplicates and skips messages;
the server crashes at any point. Afterwards the copy has the upstream's history, in order, without loss or duplicate.

Every test of this kind names its seed; to replay one: `pytest tests/sim/test_sourcing.py -k "<name>"`.
"""

from __future__ import annotations

import json
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from headrace.protocol import headers
from headrace.sim import OUTCOMES, SimClock, SimDisk
from headrace.sim.sim_broker import SimBroker
from headrace.storage import StoreOptions

from .store_sizes import SIZES

OPTIONS = StoreOptions(journal_bytes=1 << 20, segment_bytes=1 << 18)
SECOND = 1_000_000_000


class Played:
    """A simulated upstream in the router of a broker; `requests` are those it received: subject, reply, header, body."""

    def __init__(self, broker: SimBroker, api: bytes = b"X.API") -> None:
        self.broker = broker
        self.requests: list[tuple[bytes, bytes, bytes, dict[str, Any]]] = []
        self.answers: list[bytes] = []
        self.deliver = self.consumer = b""
        broker.router.subscribe_internal(api + b".CONSUMER.>", self)
        broker.router.subscribe_internal(b"$JS.FC.>", self)

    def on_message(
        self, session: object, subject: bytes, reply: bytes, header: bytes, payload: bytes
    ) -> None:
        if subject.startswith(b"$JS.FC."):
            self.answers.append(header)
        else:
            self.requests.append((subject, reply, header, json.loads(payload) if payload else {}))

    def accept(self, seq: int = 0, identity: str = "", **config: Any) -> dict[str, Any]:
        """Accept the newest request; return its configuration."""
        _, reply, _, body = self.requests[-1]
        asked: dict[str, Any] = {**body.get("config", {}), **config}
        self.deliver, self.consumer = asked["deliver_subject"].encode(), asked["name"].encode()
        answer = {"name": asked["name"], "config": asked, "delivered": {"stream_seq": seq}}
        block = headers.build([(b"Nats-Stream-Identity", identity.encode())]) if identity else b""
        self.broker.router.publish(reply, b"", block, json.dumps(answer).encode())
        self.broker.run_until_idle()
        return asked

    def refuse(self, err_code: int) -> None:
        error = {"code": 400, "err_code": err_code, "description": "no"}
        self.broker.router.publish(self.requests[-1][1], b"", b"", json.dumps({"error": error}).encode())
        self.broker.run_until_idle()

    def send(self, seq: int, dseq: int, *, pending: int = 0, times: int = 1, consumer: bytes = b"") -> None:
        name = consumer or self.consumer
        reply = b"$JS.ACK.O.%s.%d.%d.%d.%d.%d" % (name, times, seq, dseq, 10**18 + seq, pending)
        self.broker.router.deliver(self.deliver, b"o.x", reply, b"", b"m%d" % seq)
        self.broker.run_until_idle()

    def status(self, text: bytes, reply: bytes = b"", **fields: object) -> None:
        pairs = [(key.replace("_", "-").encode(), str(value).encode()) for key, value in fields.items()]
        self.broker.router.publish(self.deliver, reply, headers.build(pairs, b"100 " + text), b"")
        self.broker.run_until_idle()

    def beat(self, dseq: int) -> None:
        self.status(b"Idle Heartbeat", Nats_Last_Consumer=dseq, Nats_Last_Stream=dseq)


def started(disk: SimDisk | None = None, clock: SimClock | None = None) -> SimBroker:
    broker = SimBroker(disk or SimDisk(1), SIZES[1], clock or SimClock())
    broker.start()
    broker.run_until_idle()
    return broker


def stored(broker: SimBroker, name: str) -> list[bytes]:
    log = broker.jetstream.streams[name].log
    return [log.get(seq)[3] for seq in log.find_seqs(None, log.first_seq, log.last_seq).tolist()]  # type: ignore[index]


def seqs(broker: SimBroker, name: str) -> list[int]:
    log = broker.jetstream.streams[name].log
    found: list[int] = log.find_seqs(None, log.first_seq, log.last_seq).tolist()
    return found


class TestGaps:
    """Gap detection for both kinds of copies; vectors of the sourcing specification."""

    @pytest.fixture(params=["source", "mirror"])
    def origin(self, request: pytest.FixtureRequest) -> Played:
        """Three messages have been copied into A."""
        broker = started()
        origin = Played(broker)
        self.mirror = request.param == "mirror"
        entry = {"name": "O", "external": {"api": "X.API", "deliver": ""}}
        copies: dict[str, Any] = {"mirror": entry} if self.mirror else {"sources": [entry]}
        broker.call("STREAM.CREATE.A", name="A", **copies)
        broker.advance(SECOND // 10)
        origin.accept()
        for seq in (1, 2, 3):
            origin.send(seq, seq)
        return origin

    def start_of_next(self, origin: Played, after_ns: int = 3 * SECOND) -> int:
        """Return where the next request within this time starts; 0 if there is none."""
        before = len(origin.requests)
        origin.broker.advance(after_ns)
        if len(origin.requests) == before:
            return 0
        start: int = origin.requests[-1][3]["config"]["opt_start_seq"]
        return start

    def test_messages_in_order_need_no_new_consumer(self, origin: Played) -> None:
        assert stored(origin.broker, "A") == [b"m1", b"m2", b"m3"]
        assert self.start_of_next(origin) == 0

    def test_a_delivery_is_missing(self, origin: Played) -> None:
        """Vector 10."""
        origin.send(5, 5)
        assert self.start_of_next(origin) == 4
        assert stored(origin.broker, "A") == [b"m1", b"m2", b"m3"]

    def test_a_jump_in_stream_sequences_is_no_gap(self, origin: Played) -> None:
        origin.send(9, 4)
        assert seqs(origin.broker, "A") == ([1, 2, 3, 9] if self.mirror else [1, 2, 3, 4])
        assert self.start_of_next(origin) == 0

    def test_the_next_sequence_under_another_count(self, origin: Played) -> None:
        origin.send(4, 7)
        taken = stored(origin.broker, "A")[3:] == [b"m4"]
        assert taken == self.mirror
        assert self.start_of_next(origin) == (0 if self.mirror else 4)

    def test_known_ones_are_dropped_and_counted(self, origin: Played) -> None:
        origin.send(2, 4)
        origin.send(4, 5)
        assert stored(origin.broker, "A") == [b"m1", b"m2", b"m3", b"m4"]

    def test_the_count_goes_back(self, origin: Played) -> None:
        origin.send(7, 1)
        assert self.start_of_next(origin) == 4

    def test_others_are_dropped(self, origin: Played) -> None:
        origin.send(4, 4, consumer=b"OTHER")
        origin.send(4, 4, times=2)
        assert stored(origin.broker, "A") == [b"m1", b"m2", b"m3"]
        assert self.start_of_next(origin) == 0

    @pytest.mark.parametrize(("count", "start"), [(0, 0), (3, 0), (9, 4), (2, 4)])
    def test_a_heartbeat_with_a_missing_sequence_starts_a_new_consumer(
        self, origin: Played, count: int, start: int
    ) -> None:
        """Vector 11."""
        origin.beat(count)
        assert self.start_of_next(origin) == start

    def test_missing_heartbeats_start_a_new_consumer(self, origin: Played) -> None:
        assert self.start_of_next(origin, 9 * SECOND) == 0
        assert self.start_of_next(origin, 12 * SECOND) == 4

    def test_flow_control_requests_are_answered(self, origin: Played) -> None:
        origin.status(b"FlowControl Request", reply=b"$JS.FC.O.x.abcd")
        assert origin.answers == [b"NATS/1.0\r\nNats-Last-Consumer: 3\r\nNats-Last-Stream: 3\r\n\r\n"]
        origin.status(b"Idle Heartbeat", Nats_Last_Consumer=3, Nats_Consumer_Stalled="$JS.FC.O.x.abcd")
        assert origin.answers[1:] == [b""]
        # After a reset the consumer counts from one again, and still waits for its earlier request.
        origin.status(b"Idle Heartbeat", Nats_Last_Consumer=0, Nats_Consumer_Stalled="$JS.FC.O.x.abcd")
        assert origin.answers[2:] == [b""]

    def test_the_answer_waits_for_the_disk(self, origin: Played) -> None:
        broker = origin.broker
        reply = b"$JS.ACK.O.%s.1.4.4.%d.0" % (origin.consumer, 10**18)
        broker.router.deliver(origin.deliver, b"o.x", reply, b"", b"m4")
        block = headers.build([], b"100 FlowControl Request")
        broker.router.publish(origin.deliver, b"$JS.FC.O.x.abcd", block, b"")
        log = broker.jetstream.streams["A"].log
        while not origin.answers:
            assert broker.step()
        assert log.committed_seq == 4

    def test_info_shows_the_lag_of_a_copy(self, origin: Played) -> None:
        origin.send(4, 4, pending=5)
        info = origin.broker.call("STREAM.INFO.A")
        assert (info["mirror"] if self.mirror else info["sources"][0])["lag"] == 4


class TestRetries:
    def test_with_growing_timeouts(self) -> None:
        """Vector 12: after 12 s, then 22 s, at most two minutes."""
        broker = started()
        origin = Played(broker)
        entry = {"name": "O", "external": {"api": "X.API", "deliver": ""}}
        broker.call("STREAM.CREATE.A", name="A", sources=[entry])
        times = []
        while len(times) < 15:
            before = len(origin.requests)
            while len(origin.requests) == before:
                broker.advance(SECOND // 10)
            times.append(broker.clock.now_ns())
            origin.refuse(10059)
        waits = [(later - earlier) / SECOND for earlier, later in pairwise(times)]
        assert all(abs(wait - (2.15 + min(10 * n, 120))) < 0.25 for n, wait in enumerate(waits, 1)), waits

    def test_a_missing_consumer_is_noticed_by_what_it_sends(self) -> None:
        broker = started()
        origin = Played(broker)
        consumer = {"name": "D", "deliver_subject": "d.x"}
        entry = {"name": "O", "external": {"api": "X.API", "deliver": ""}, "consumer": consumer}
        broker.call("STREAM.CREATE.A", name="A", sources=[entry])
        broker.advance(6 * SECOND)
        assert [request[0] for request in origin.requests] == [b"X.API.CONSUMER.RESET.O.D"]
        assert "error" not in broker.call("STREAM.INFO.A")["sources"][0]
        origin.deliver = b"d.x"
        origin.beat(1)
        broker.advance(SECOND // 4)
        assert len(origin.requests) == 2
        origin.accept(name="D", deliver_subject="d.x", ack_policy="flow_control")
        origin.send(1, 1)
        assert stored(broker, "A") == [b"m1"]


def _crashed(broker: SimBroker, rng: Random) -> SimBroker:
    """Lose power; start the server again on what the disk has."""
    image = broker.disk.snapshot().power_loss(OUTCOMES[rng.randrange(len(OUTCOMES))], rng)
    return started(SimDisk(rng.randrange(1 << 30), snapshot=image), SimClock(broker.clock.now_ns()))


KINDS: dict[str, dict[str, Any]] = {
    "mirror": {"mirror": {"name": "O"}},
    "source": {"sources": [{"name": "O"}]},
    "server-managed": {"sources": [{"name": "O", "consumer": {"name": "D", "server_managed": True}}]},
    "mirror-managed": {"mirror": {"name": "O", "consumer": {"name": "D", "server_managed": True}}},
    "user-managed": {"sources": [{"name": "O", "consumer": {"name": "U", "deliver_subject": "d.u"}}]},
}


@pytest.mark.parametrize("retention", ["limits", "workqueue", "interest"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(2))
def test_a_copy_has_every_message_once_after_crashes(kind: str, retention: str, seed: int) -> None:
    """Publish, crash at any point, continue: the copy has everything acknowledged once, and a work queue has the rest."""
    rng = Random(f"{kind}/{retention}/{seed}")
    broker = started(SimDisk(seed))
    broker.call("STREAM.CREATE.O", name="O", subjects=["o.>"], retention=retention)
    if kind == "user-managed":
        config = {
            "durable_name": "U",
            "ack_policy": "flow_control",
            "deliver_subject": "d.u",
            "max_ack_pending": 7,
        }
        broker.call("CONSUMER.CREATE.O.U", stream_name="O", config=config)
    broker.call("STREAM.CREATE.A", name="A", **KINDS[kind])
    broker.advance(SECOND)
    acked: list[bytes] = []
    number = 0
    for _ in range(6):
        waiting: dict[int, bytes] = {}
        for _ in range(rng.randrange(1, 40)):
            number += 1
            waiting[broker.publish(f"o.{number % 3}", b"%d" % number)] = b"%d" % number
            for _ in range(rng.randrange(12)):
                broker.step()
        if rng.random() < 0.5:
            broker.advance(rng.randrange(2 * SECOND))
        for _ in range(rng.randrange(60)):
            broker.step()
        acked += [data for request, data in waiting.items() if request in broker.replies]
        broker = _crashed(broker, rng)
    broker.advance(40 * SECOND)
    copied = stored(broker, "A")
    assert len(set(copied)) == len(copied)
    assert copied == sorted(copied, key=int)
    assert set(acked) <= set(copied)
    if retention == "limits":
        assert copied == stored(broker, "O")
    else:
        assert stored(broker, "O") == []
    if "mirror" in kind and retention == "limits":
        assert seqs(broker, "A") == seqs(broker, "O")


@pytest.mark.parametrize("seed", range(3))
def test_everything_at_once(seed: int) -> None:
    """Resets, pauses, migrations, purges of the copy and crashes while publishing goes on."""
    rng = Random(f"all/{seed}")
    broker = started(SimDisk(seed))
    broker.call("STREAM.CREATE.O", name="O", subjects=["o.>"])
    config = {"durable_name": "U", "ack_policy": "flow_control", "deliver_subject": "d.u"}
    broker.call("CONSUMER.CREATE.O.U", stream_name="O", config=config)
    ways = [KINDS[kind]["sources"] for kind in ("source", "server-managed", "user-managed")]
    broker.call("STREAM.CREATE.A", name="A", sources=ways[0])
    for number in range(1, 200):
        broker.publish(f"o.{number % 3}", b"%d" % number)
        for _ in range(rng.randrange(30)):
            broker.step()
        choice = rng.randrange(40)
        if choice == 0:
            broker.run_until_idle()
            broker = _crashed(broker, rng)
        elif choice == 1:
            broker.call("STREAM.UPDATE.A", name="A", sources=ways[rng.randrange(3)])
        elif choice == 2:
            for consumer in ("D", "U"):  # not beyond what was copied: that would skip messages on purpose
                broker.call_nowait(
                    f"CONSUMER.RESET.O.{consumer}", seq=rng.randrange(len(stored(broker, "A")) + 1) + 1
                )
        elif choice < 8:
            broker.advance(rng.randrange(SECOND))
    broker.advance(60 * SECOND)
    copied = stored(broker, "A")
    assert len(set(copied)) == len(copied)
    assert copied == stored(broker, "O")


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
@pytest.mark.parametrize("kind", ["source", "mirror"])
def test_migration_of_a_queue(kind: str, retention: str) -> None:
    """From the consumer that the upstream made durable to a server-managed one and back, with pending messages."""
    broker = started()
    broker.call("STREAM.CREATE.O", name="O", subjects=["o.>"], retention=retention)
    managed = KINDS["server-managed" if kind == "source" else "mirror-managed"]
    broker.call("STREAM.CREATE.A", name="A", **KINDS[kind])
    broker.advance(SECOND)
    for number in range(1, 61):
        broker.publish("o.x", b"%d" % number)
        if number % 15 == 0:
            broker.call("STREAM.UPDATE.A", name="A", **(managed if number % 30 else KINDS[kind]))
            broker.publish("o.x", b"%d" % (1000 + number))
        if number % 7 == 0:
            broker.advance(SECOND // 20)
    broker.advance(30 * SECOND)
    expected = [b"%d" % n for n in range(1, 61)] + [b"%d" % (1000 + n) for n in range(15, 61, 15)]
    assert sorted(stored(broker, "A"), key=int) == expected
    assert stored(broker, "O") == []
    assert len(broker.call("CONSUMER.NAMES.O")["consumers"]) == 1


def test_a_missing_position_is_derived_from_the_copies() -> None:
    """A restored stream has this state: a backup contains messages but no source positions."""
    broker = started()
    broker.call("STREAM.CREATE.O", name="O", subjects=["o.>"])
    broker.call("STREAM.CREATE.A", name="A", subjects=["a"], sources=KINDS["source"]["sources"])
    for number in range(5):
        broker.publish("o.x", b"%d" % number)
    broker.advance(SECOND)
    broker.publish("a", b"own")
    broker.run_until_idle()
    stream = broker.jetstream.streams["A"]
    broker.store.metadata.delete(b"origins/%d" % stream.log.ident)
    broker.publish("o.x", b"5")
    broker.run_until_idle()
    assert stored(broker, "A")[-1] == b"5"
    broker.store.metadata.delete(b"origins/%d" % stream.log.ident)
    broker.jetstream.group_commit.schedule()
    broker.run_until_idle()
    again = _crashed(broker, Random(3))
    again.advance(5 * SECOND)
    assert stored(again, "A") == [b"0", b"1", b"2", b"3", b"4", b"own", b"5"]


class TestBatches:
    """A stream that allows batches shows a sourced batch as a whole."""

    def publish(self, broker: SimBroker, name: str, size: int, commit: str = "1") -> None:
        for position in range(1, size + 1):
            last = {"Nats_Batch_Commit": commit} if position == size else {}
            broker.publish(
                "o.b", name.encode(), Nats_Batch_Id=name, Nats_Batch_Sequence=str(position), **last
            )

    def seen(self, broker: SimBroker) -> dict[bytes, int]:
        """Return how many members of each batch a reader of A could have seen."""
        log = broker.jetstream.streams["A"].log
        counts: dict[bytes, int] = {}
        for seq in log.find_seqs(None, log.first_seq, log.committed_seq).tolist():
            message = log.get(seq)
            assert message is not None
            assert b"Nats-Batch" not in message[2]
            counts[message[3]] = counts.get(message[3], 0) + 1
        return counts

    @pytest.mark.parametrize("managed", [False, True])
    def test_never_in_parts(self, managed: bool) -> None:
        rng = Random(f"batches/{managed}")
        broker = started()
        broker.call("STREAM.CREATE.O", name="O", subjects=["o.>"], allow_atomic=True)
        sources = KINDS["server-managed" if managed else "source"]["sources"]
        broker.call("STREAM.CREATE.A", name="A", sources=sources, allow_atomic=True)
        sizes: dict[bytes, int] = {}
        for turn in range(30):
            size = rng.randrange(2, 60)
            sizes[b"b%d" % turn] = size
            self.publish(broker, f"b{turn}", size)
            sizes[b"single"] = sizes.get(b"single", 0) + 1
            broker.publish("o.s", b"single")
            for _ in range(rng.randrange(200)):
                broker.step()
                seen = self.seen(broker)
                assert all(seen[name] == sizes[name] for name in seen if name != b"single")
            if rng.random() < 0.2:
                broker.run_until_idle()
                broker = _crashed(broker, rng)
        broker.advance(30 * SECOND)
        assert self.seen(broker) == sizes

    def test_members_that_came_singly_wait_for_each_other(self) -> None:
        broker = started()
        origin = Played(broker)
        entry = {"name": "O", "external": {"api": "X.API", "deliver": ""}}
        broker.call("STREAM.CREATE.A", name="A", sources=[entry], allow_atomic=True)
        broker.advance(SECOND // 10)
        origin.accept()
        self.member(origin, 1)
        self.member(origin, 2)
        origin.status(b"FlowControl Request", reply=b"$JS.FC.O.x.abcd")
        # They are durable, though not visible: the upstream may remove them.
        assert origin.answers == [b"NATS/1.0\r\nNats-Last-Consumer: 2\r\nNats-Last-Stream: 2\r\n\r\n"]
        assert stored(broker, "A") == []
        self.member(origin, 3, commit=True)
        assert stored(broker, "A") == [b"m1", b"m2", b"m3"]
        origin.status(b"FlowControl Request", reply=b"$JS.FC.O.x.abcd")
        assert origin.answers[1] == b"NATS/1.0\r\nNats-Last-Consumer: 3\r\nNats-Last-Stream: 3\r\n\r\n"

    def test_what_is_kept_back_survives_a_crash(self) -> None:
        broker = started()
        origin = Played(broker)
        entry = {"name": "O", "external": {"api": "X.API", "deliver": ""}}
        broker.call("STREAM.CREATE.A", name="A", sources=[entry], allow_atomic=True)
        broker.advance(SECOND // 10)
        origin.accept()
        origin.send(1, 1)
        self.member(origin, 2)
        self.member(origin, 3)
        broker = _crashed(broker, Random(1))
        origin = Played(broker)
        broker.advance(SECOND // 3)
        assert origin.accept()["opt_start_seq"] == 4
        assert stored(broker, "A") == [b"m1"]
        self.member(origin, 4, dseq=1, commit=True)
        assert stored(broker, "A") == [b"m1", b"m2", b"m3", b"m4"]
        assert stored(_crashed(broker, Random(2)), "A") == [b"m1", b"m2", b"m3", b"m4"]

    def test_what_is_kept_back_is_shown_when_its_source_goes(self) -> None:
        broker = started()
        origin = Played(broker)
        entry = {"name": "O", "external": {"api": "X.API", "deliver": ""}}
        broker.call("STREAM.CREATE.A", name="A", sources=[entry], allow_atomic=True)
        broker.advance(SECOND // 10)
        origin.accept()
        self.member(origin, 1)
        self.member(origin, 2)
        broker.call("STREAM.UPDATE.A", name="A", subjects=["a"], allow_atomic=True)
        assert stored(broker, "A") == [b"m1", b"m2"]

    @pytest.mark.parametrize("pending", [0, 3])
    def test_a_heartbeat_in_mid_batch(self, pending: int) -> None:
        """While the upstream has more to send, a heartbeat, as of a paused consumer, does not break a batch."""
        broker = started()
        origin = Played(broker)
        entry = {"name": "O", "external": {"api": "X.API", "deliver": ""}}
        broker.call("STREAM.CREATE.A", name="A", sources=[entry], allow_atomic=True)
        broker.advance(SECOND // 10)
        origin.accept()
        self.member(origin, 1, pending=pending)
        origin.beat(1)
        assert stored(broker, "A") == ([] if pending else [b"m1"])
        for _ in range(11):
            broker.advance(SECOND)
            origin.beat(1)
        assert stored(broker, "A") == [b"m1"]

    @pytest.mark.parametrize("end", ["another message", "a heartbeat"])
    def test_one_that_stays_incomplete_is_not_lost(self, end: str) -> None:
        broker = started()
        origin = Played(broker)
        entry = {"name": "O", "external": {"api": "X.API", "deliver": ""}}
        broker.call("STREAM.CREATE.A", name="A", sources=[entry], allow_atomic=True)
        broker.advance(SECOND // 10)
        origin.accept()
        self.member(origin, 1)
        self.member(origin, 2)
        if end == "a heartbeat":
            origin.beat(2)
            assert stored(broker, "A") == [b"m1", b"m2"]
        else:
            origin.send(3, 3)
            assert stored(broker, "A") == [b"m1", b"m2", b"m3"]

    def member(
        self, origin: Played, seq: int, *, dseq: int = 0, pending: int = 0, commit: bool = False
    ) -> None:
        pairs = [(b"Nats-Batch-Id", b"b"), (b"Nats-Batch-Sequence", b"%d" % seq)]
        block = headers.build(pairs + ([(b"Nats-Batch-Commit", b"1")] if commit else []))
        reply = b"$JS.ACK.O.%s.1.%d.%d.%d.%d" % (origin.consumer, seq, dseq or seq, 10**18, pending)
        origin.broker.router.deliver(origin.deliver, b"o.x", reply, block, b"m%d" % seq)
        origin.broker.run_until_idle()


@pytest.mark.parametrize("limit", [{"max_msgs_per_subject": 1}, {"max_age": 3600 * SECOND}])
def test_a_mirror_with_limits_of_its_own_takes_plain_messages(limit: dict[str, Any]) -> None:
    broker = started()
    broker.call("STREAM.CREATE.O", name="O", subjects=["o.>"])
    assert "error" not in broker.call("STREAM.CREATE.M", name="M", mirror={"name": "O"}, **limit)
    for _ in range(5):
        broker.publish("o.a", b"x")
    broker.advance(10 * SECOND)
    log = broker.jetstream.streams["M"].log
    assert (log.last_seq, log.messages) == (5, 1 if "max_msgs_per_subject" in limit else 5)


@pytest.mark.parametrize("dest", ["x.{{ SplitFromLeft( 1 , 2 ) }}", "x.{{\r\nwildcard(1)\r\n}}"])
def test_blanks_in_a_transform_of_a_source_are_no_words(dest: str) -> None:
    """The stream was created but not registered: there was no reply, and the next start of the server failed."""
    broker = SimBroker(SimDisk(), OPTIONS)
    broker.start()
    broker.call("STREAM.CREATE.O", name="O", subjects=["o.*"])
    sources = [{"name": "O", "subject_transforms": [{"src": "o.*", "dest": dest}]}]
    made = broker.call("STREAM.CREATE.N", name="N", sources=sources)
    broker.publish("o.abcd", b"x")
    broker.run_until_idle()
    broker.advance(20_000_000_000)
    found = broker.jetstream.streams["N"].log.get(1) if "error" not in made else None
    if found is not None:
        assert bytes(found[2]).count(b"\r\n") == 3
    again = SimBroker(broker.disk.kill(), OPTIONS, broker.clock)
    again.start()
    assert ("N" in again.jetstream.streams) == ("error" not in made)
