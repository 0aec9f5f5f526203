"""What an outside reviewer found: each defect stays fixed."""

from __future__ import annotations

import errno
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from headrace.kernel.wire_pure import reserved
from headrace.protocol import headers
from headrace.sim import OUTCOMES, SimClock, SimDisk
from headrace.sim.broker import SimBroker
from headrace.sim.faults import Fault
from headrace.store import StoreOptions

from .options import SIZES

OPTIONS = SIZES[0]
SECOND = 1_000_000_000


def start(
    disk: SimDisk | None = None, options: StoreOptions = OPTIONS, clock: SimClock | None = None
) -> SimBroker:
    broker = SimBroker(disk or SimDisk(), options, clock)
    broker.start()
    broker.settle()
    return broker


def fill_disk(broker: SimBroker) -> None:
    broker.disk.capacity = broker.disk.used() + 1000
    broker.store._measure()


@pytest.mark.parametrize("seq", [2**64 - 1, 2**62 + 1])
def test_a_sequence_beyond_counting_is_refused(seq: int) -> None:
    broker = start()
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.>"])
    assert broker.call("STREAM.PURGE.S", seq=seq)["error"]["err_code"] == 10003
    assert (
        broker.call("STREAM.CREATE.F", name="F", subjects=["f"], first_seq=seq)["error"]["err_code"] == 10052
    )
    number = broker.publish("s.a", b"x")
    broker.settle()
    assert broker.answers[number].json["seq"] == 1


def test_while_a_frame_waits_for_room_others_are_refused_at_once_and_then_all_go_on() -> None:
    broker = start()
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.>"])
    broker.advance(SECOND)
    broker.disk.faults.add(Fault(errno.ENOSPC, kinds=("write",), path="journal/", sticky=True))
    first = broker.publish("s.a", b"x")
    broker.settle()
    second = broker.publish("s.a", b"y")
    broker.settle()
    assert first not in broker.answers
    assert broker.answers[second].json["error"]["err_code"] == 10023
    broker.disk.faults.clear()  # somebody made room, and nobody publishes
    broker.advance(2 * SECOND)
    assert broker.answers[first].json["seq"] == 1
    third = broker.publish("s.a", b"z")
    broker.settle()
    assert broker.answers[third].json["seq"] == 2


def test_publishers_go_on_when_the_disk_has_caught_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.broker.pressure.PENDING_BYTES_MAX", 20_000)
    broker = start()
    relieved: list[bool] = []
    broker.jetstream.pressure.on_relief(lambda: relieved.append(True))
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.>"])
    while not broker.jetstream.pressure.high():
        broker.publish("s.a", bytes(1000))
    broker.settle()
    broker.advance(SECOND)
    assert relieved


def test_one_streams_trouble_is_not_anothers() -> None:
    broker = start()
    republish = {"src": "a.x", "dest": "$JS.API.INFO"}
    broker.call("STREAM.CREATE.A", name="A", subjects=["a.>"], republish=republish)
    broker.call("STREAM.CREATE.T", name="T", subjects=["t.>"])
    broker.publish("a.x", b"", Nats_Required_Api_Level="9" * 5000)
    numbers = [broker.publish("t.x", b"1")]
    broker.settle()
    numbers.append(broker.publish("t.x", b"2"))
    broker.settle()
    assert all(number in broker.answers for number in numbers)


class TestFullDisk:
    def make(self, **config: Any) -> SimBroker:
        broker = start(SimDisk(capacity=64 << 20))
        broker.call("STREAM.CREATE.K", name="K", subjects=["k.>"], allow_direct=True, **config)
        return broker

    def test_service_returns_with_the_space(self) -> None:
        broker = self.make()
        broker.publish("k.a", b"x")
        broker.settle()
        fill_disk(broker)
        broker.advance(60 * SECOND)
        number = broker.publish("k.a", b"x")
        broker.settle()
        assert broker.answers[number].json["error"]["err_code"] == 10023
        broker.disk.capacity = 1 << 30
        broker.advance(5 * SECOND)
        number = broker.publish("k.a", b"x")
        broker.settle()
        assert broker.answers[number].json["seq"] == 2

    def test_what_expires_leaves_its_marker(self) -> None:
        broker = self.make(max_msgs_per_subject=1, subject_delete_marker_ttl=60 * SECOND)
        for number in range(20):
            broker.publish(f"k.{number}", b"v", Nats_TTL="2")
        broker.settle()
        fill_disk(broker)
        broker.advance(5 * SECOND)
        number = broker.publish("$JS.API.DIRECT.GET.K.k.1")
        broker.settle()
        assert b"Nats-Marker-Reason: MaxAge" in broker.answers[number].header

    def test_a_batch_is_refused_as_a_whole(self) -> None:
        broker = self.make(allow_atomic=True)
        broker.disk.capacity = broker.disk.used() + OPTIONS.headroom_bytes + 20_000
        broker.store._measure()
        for position in range(1, 7):
            commit = {"Nats_Batch_Commit": "1"} if position == 6 else {}
            number = broker.publish(
                "k.x", bytes(5000), Nats_Batch_Id="t", Nats_Batch_Sequence=str(position), **commit
            )
        broker.settle()
        assert broker.answers[number].json["error"]["err_code"] == 10023
        assert broker.jetstream.streams["K"].log.messages == 0

    def test_a_purge_with_markers_is_answered(self) -> None:
        markers = {"headrace.markers": "purge"}
        broker = self.make(subject_delete_marker_ttl=SECOND, max_msgs_per_subject=5, metadata=markers)
        for _ in range(3):
            broker.publish("k.0", b"x")
        broker.settle()
        fill_disk(broker)
        assert broker.call("STREAM.PURGE.K")["purged"] == 3

    def test_a_restart_with_overdue_messages(self) -> None:
        broker = self.make(max_msgs_per_subject=1, subject_delete_marker_ttl=60 * SECOND)
        broker.publish("k.a", b"v", Nats_TTL="2")
        broker.settle()
        broker.store.close()
        broker.clock.advance(10 * SECOND)
        again = SimBroker(broker.disk.kill(), OPTIONS, broker.clock)
        fill_disk(again)
        again.start()
        again.settle()
        assert again.jetstream.streams["K"].log.last_seq == 2


def test_a_rotten_last_message_stops_no_start() -> None:
    broker = start()
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.>"])
    broker.publish("s.a", b"L" * 6000)
    broker.settle()
    broker.store.close()
    disk = broker.disk.kill()
    path = next(path for path in reversed(list(disk.walk())) if path.endswith(".seg"))
    content = bytearray(disk.read(path, 0, disk.size(path)))
    content[content.rfind(b"LLLL")] ^= 1
    disk.rot(path, bytes(content))
    again = start(disk, clock=broker.clock)
    number = again.publish("s.a", b"next")
    again.settle()
    assert again.answers[number].json["seq"] == 2


def test_after_a_failed_sync_everybody_is_told() -> None:
    broker = start()
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.>"])
    broker.disk.faults.add(Fault(kinds=("sync",), sticky=True))
    lost = broker.publish("s.a", b"x")
    broker.settle()
    numbers = [broker.publish("s.a", b"x") for _ in range(50)] + [broker.api("STREAM.INFO.S")]
    broker.settle()
    assert lost not in broker.answers
    assert all(broker.answers[number].json["error"]["err_code"] == 10023 for number in numbers)
    assert not broker.jetstream.ticker.outbox.held


def test_an_id_is_remembered_only_with_its_message() -> None:
    """A checkpoint that is taken while a message is on its way must not know its id already."""
    options = replace(OPTIONS, checkpoint_bytes=1 << 30)
    broker = start(options=options)
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.>"])
    broker.publish("s.a", b"0", Nats_Msg_Id="0")
    broker.settle()
    broker.publish("s.a", b"precious", Nats_Msg_Id="one")
    stream = broker.jetstream.streams["S"]
    assert stream.duplicates is not None
    assert b"one" not in stream.duplicates.snapshot()
    broker.settle()
    assert b"one" in stream.duplicates.snapshot()


@pytest.mark.parametrize("seed", range(8))
def test_a_checkpoint_between_ticks(seed: int) -> None:
    """Whatever a checkpoint seals, a message and its id are durable together."""
    broker = start(SimDisk(seed))
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.>"])
    broker.publish("s.a", b"0")
    broker.settle()
    broker.store.checkpoint()
    rng = Random(seed)
    for turn in range(12):
        broker.publish("s.a", b"once", Nats_Msg_Id=f"id{turn}")
        for _ in range(rng.randrange(4)):
            broker.disk.step()
        if rng.random() < 0.5:
            broker.step()
    after = start(broker.disk.crash(rng.choice(OUTCOMES), seed), clock=broker.clock)
    for turn in range(12):
        after.publish("s.a", b"once", Nats_Msg_Id=f"id{turn}")
    after.settle()
    log = after.jetstream.streams["S"].log
    assert log.messages == 13


def test_a_reply_cannot_call_the_api() -> None:
    """The parser refuses replies under `$JS.API.`; so an answer can never be a request."""
    assert reserved(b"$JS.API.STREAM.DELETE.Y")


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00Z", "9999-01-01T00:00:00Z", "2099-01-01T00:00:00Z"])
def test_any_time_is_answered(time: str) -> None:
    broker = start()
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.>"], allow_direct=True)
    broker.publish("s.a", b"x")
    broker.settle()
    number = broker.api("DIRECT.GET.S", start_time=time, batch=10)
    got = broker.call("STREAM.MSG.GET.S", start_time=time)
    broker.settle()
    early = time.startswith("0001")
    assert broker.answers[number].header.startswith(b"NATS/1.0 404") != early
    assert ("message" in got) == early


def test_a_key_of_any_bytes_is_answered() -> None:
    broker = start()
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.>"], allow_direct=True)
    broker.hub.publish(b"s.\xff", b"_SIM.900", b"", b"x")
    broker.hub.publish(b"$JS.API.DIRECT.GET.S.s.\xff", b"_SIM.901", b"", b'{"no_hdr":true}')
    broker.settle()
    assert broker.answers[901].payload == b"x"


def test_long_digits_are_no_number() -> None:
    broker = start()
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.>"], allow_atomic=True)
    long = "1" * 5000
    codes = []
    for fields in (
        {"Nats_Expected_Last_Sequence": long},
        {"Nats_Expected_Last_Subject_Sequence": long},
        {"Nats_Batch_Id": "b", "Nats_Batch_Sequence": long},
    ):
        number = broker.publish("s.a", b"x", **fields)
        broker.settle()
        codes.append(broker.answers[number].json["error"]["err_code"])
    assert codes == [10071, 10071, 10175]


def test_a_sweep_comes_in_slices() -> None:
    broker = start(options=StoreOptions())
    broker.call(
        "STREAM.CREATE.K",
        name="K",
        subjects=["k.>"],
        max_msgs_per_subject=1,
        subject_delete_marker_ttl=60 * SECOND,
    )
    block = headers.build([(b"Nats-TTL", b"2")])
    for number in range(5_000):
        broker.hub.publish(b"k.%d" % number, b"", block, b"v")
    broker.settle()
    broker.clock.advance(3 * SECOND)
    broker.timers.run_due()
    log = broker.jetstream.streams["K"].log
    assert 0 < log.last_seq - 5_000 <= 1_024
    broker.advance(SECOND)
    assert log.last_seq == 10_000


def test_what_was_about_to_be_delivered_again_is_so_after_a_restart() -> None:
    """Overdue, queued for whoever asks next, and then the server ends: it must not be forgotten (World 6, 36, 38)."""
    disk, clock = SimDisk(7), SimClock()
    broker = SimBroker(disk, SIZES[0], clock)
    broker.start()
    broker.call("STREAM.CREATE.S", name="S", subjects=["s"])
    config = {"durable_name": "c", "ack_policy": "explicit", "ack_wait": SECOND}
    broker.call("CONSUMER.CREATE.S.c", stream_name="S", config=config)
    broker.publish("s", b"once")
    pull(broker)
    broker.advance(2 * SECOND)  # overdue: it waits for the next pull
    broker.store.checkpoint()
    broker.advance(SECOND)
    again = SimBroker(broker.disk.kill(), SIZES[0], clock)
    again.start()
    assert pull(again) == [b"once"]


def pull(broker: SimBroker) -> list[bytes]:
    """What a consumer gives at once to somebody who asks."""

    class Inbox:
        def offer(self, session: object, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
            found.append(payload)

    found: list[bytes] = []
    broker.hub.subscribe_internal(b"inbox", Inbox())
    broker.hub.publish(b"$JS.API.CONSUMER.MSG.NEXT.S.c", b"inbox", b"", b'{"batch":1}')
    broker.settle()
    return found


@pytest.mark.parametrize("limit", [{"max_msgs_per_subject": 1}, {"max_age": 3600 * SECOND}])
def test_a_mirror_with_limits_of_its_own_takes_plain_messages(limit: dict[str, Any]) -> None:
    broker = start()
    broker.call("STREAM.CREATE.O", name="O", subjects=["o.>"])
    assert "error" not in broker.call("STREAM.CREATE.M", name="M", mirror={"name": "O"}, **limit)
    for _ in range(5):
        broker.publish("o.a", b"x")
    broker.advance(10 * SECOND)
    log = broker.jetstream.streams["M"].log
    assert (log.last_seq, log.messages) == (5, 1 if "max_msgs_per_subject" in limit else 5)
