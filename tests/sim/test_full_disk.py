"""A full disk: what is refused, what still works, and how the server recovers when there is space again."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from headrace.sim import SimClock, SimDisk
from headrace.sim.disk.disk_faults import Fault
from headrace.sim.sim_broker import SimBroker
from headrace.storage import StoreOptions

from .store_sizes import SIZES

OPTIONS = SIZES[0]
SECOND = 1_000_000_000


def start(
    disk: SimDisk | None = None, options: StoreOptions = OPTIONS, clock: SimClock | None = None
) -> SimBroker:
    broker = SimBroker(disk or SimDisk(), options, clock)
    broker.start()
    broker.run_until_idle()
    return broker


def fill_disk(broker: SimBroker) -> None:
    broker.disk.capacity = broker.disk.used() + 1000
    broker.store.update_space()


def test_while_a_frame_waits_for_space_others_are_refused_and_then_all_continue() -> None:
    broker = start()
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.>"])
    broker.advance(SECOND)
    broker.disk.faults.add(Fault(errno.ENOSPC, kinds=("write",), path="journal/", sticky=True))
    first = broker.publish("s.a", b"x")
    broker.run_until_idle()
    second = broker.publish("s.a", b"y")
    broker.run_until_idle()
    assert first not in broker.replies
    assert broker.replies[second].json["error"]["err_code"] == 10023
    broker.disk.faults.clear()  # there is space again, and no client publishes
    broker.advance(2 * SECOND)
    assert broker.replies[first].json["seq"] == 1
    third = broker.publish("s.a", b"z")
    broker.run_until_idle()
    assert broker.replies[third].json["seq"] == 2


class TestFullDisk:
    def make(self, **config: Any) -> SimBroker:
        broker = start(SimDisk(capacity=64 << 20))
        broker.call("STREAM.CREATE.K", name="K", subjects=["k.>"], allow_direct=True, **config)
        return broker

    def test_service_returns_with_the_space(self) -> None:
        broker = self.make()
        broker.publish("k.a", b"x")
        broker.run_until_idle()
        fill_disk(broker)
        broker.advance(60 * SECOND)
        number = broker.publish("k.a", b"x")
        broker.run_until_idle()
        assert broker.replies[number].json["error"]["err_code"] == 10023
        broker.disk.capacity = 1 << 30
        broker.advance(5 * SECOND)
        number = broker.publish("k.a", b"x")
        broker.run_until_idle()
        assert broker.replies[number].json["seq"] == 2

    def test_what_expires_leaves_its_marker(self) -> None:
        broker = self.make(max_msgs_per_subject=1, subject_delete_marker_ttl=60 * SECOND)
        for number in range(20):
            broker.publish(f"k.{number}", b"v", Nats_TTL="2")
        broker.run_until_idle()
        fill_disk(broker)
        broker.advance(5 * SECOND)
        number = broker.publish("$JS.API.DIRECT.GET.K.k.1")
        broker.run_until_idle()
        assert b"Nats-Marker-Reason: MaxAge" in broker.replies[number].header

    def test_a_batch_is_refused_as_a_whole(self) -> None:
        broker = self.make(allow_atomic=True)
        broker.disk.capacity = broker.disk.used() + OPTIONS.headroom_bytes + 20_000
        broker.store.update_space()
        for position in range(1, 7):
            commit = {"Nats_Batch_Commit": "1"} if position == 6 else {}
            number = broker.publish(
                "k.x", bytes(5000), Nats_Batch_Id="t", Nats_Batch_Sequence=str(position), **commit
            )
        broker.run_until_idle()
        assert broker.replies[number].json["error"]["err_code"] == 10023
        assert broker.jetstream.streams["K"].log.messages == 0

    def test_a_purge_with_markers_is_answered(self) -> None:
        markers = {"headrace.markers": "purge"}
        broker = self.make(subject_delete_marker_ttl=SECOND, max_msgs_per_subject=5, metadata=markers)
        for _ in range(3):
            broker.publish("k.0", b"x")
        broker.run_until_idle()
        fill_disk(broker)
        assert broker.call("STREAM.PURGE.K")["purged"] == 3

    def test_a_restart_with_overdue_messages(self) -> None:
        broker = self.make(max_msgs_per_subject=1, subject_delete_marker_ttl=60 * SECOND)
        broker.publish("k.a", b"v", Nats_TTL="2")
        broker.run_until_idle()
        broker.store.close()
        broker.clock.advance(10 * SECOND)
        again = SimBroker(broker.disk.kill(), OPTIONS, broker.clock)
        fill_disk(again)
        again.start()
        again.run_until_idle()
        assert again.jetstream.streams["K"].log.last_seq == 2


def test_a_batch_of_large_messages_is_stored_whole_although_space_shrinks() -> None:
    broker = start(SimDisk(capacity=64 << 20))
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.>"], allow_atomic=True)
    broker.advance(SECOND)
    payload = b"L" * (2 * OPTIONS.large_bytes)
    for number in (1, 2):
        broker.publish("s.a", payload, Nats_Batch_Id="b", Nats_Batch_Sequence=str(number))
    measured, free = [], SimDisk.free

    def shrink(disk: SimDisk) -> int:
        """Somebody else fills the disk after the first measurement."""
        measured.append(free(disk))
        return measured[0] if len(measured) == 1 else 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimDisk, "free", shrink)
        last = broker.publish(
            "s.a", payload, Nats_Batch_Id="b", Nats_Batch_Sequence="3", Nats_Batch_Commit="1"
        )
        stored = broker.jetstream.streams["S"].log.messages
    broker.advance(2 * SECOND)
    assert stored == 3
    assert broker.replies[last].json["count"] == 3
