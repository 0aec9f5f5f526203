"""Errors of the store: the server starts in spite of damaged data, and no client waits in vain after a failed sync."""

from __future__ import annotations

from headrace.sim import SimClock, SimDisk
from headrace.sim.disk.disk_faults import Fault
from headrace.sim.sim_broker import SimBroker
from headrace.storage import StoreOptions

from .store_sizes import SIZES

OPTIONS = SIZES[0]


def start(
    disk: SimDisk | None = None, options: StoreOptions = OPTIONS, clock: SimClock | None = None
) -> SimBroker:
    broker = SimBroker(disk or SimDisk(), options, clock)
    broker.start()
    broker.run_until_idle()
    return broker


def test_a_rotten_last_message_stops_no_start() -> None:
    broker = start()
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.>"])
    broker.publish("s.a", b"L" * 6000)
    broker.run_until_idle()
    broker.store.close()
    disk = broker.disk.kill()
    path = next(path for path in reversed(list(disk.walk())) if path.endswith(".seg"))
    content = bytearray(disk.read(path, 0, disk.size(path)))
    content[content.rfind(b"LLLL")] ^= 1
    disk.corrupt(path, bytes(content))
    again = start(disk, clock=broker.clock)
    number = again.publish("s.a", b"next")
    again.run_until_idle()
    assert again.replies[number].json["seq"] == 2


def test_after_a_failed_sync_all_clients_get_an_error() -> None:
    broker = start()
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.>"])
    broker.call("STREAM.CREATE.M", name="M", subjects=["m.>"], storage="memory", allow_atomic=True)
    broker.disk.faults.add(Fault(kinds=("sync",), sticky=True))
    lost = broker.publish("s.a", b"x")
    broker.run_until_idle()
    numbers = [broker.publish("s.a", b"x") for _ in range(50)] + [broker.call_nowait("STREAM.INFO.S")]
    numbers += [broker.publish("m.a", b"x"), broker.publish("m.a", b"x", Nats_Msg_Id="1")]
    numbers.append(
        broker.publish("m.a", b"x", Nats_Batch_Id="b", Nats_Batch_Sequence="1", Nats_Batch_Commit="1")
    )
    broker.run_until_idle()
    assert lost not in broker.replies
    assert all(broker.replies[number].json["error"]["err_code"] == 10023 for number in numbers)
    assert not broker.jetstream.group_commit.pending_replies.messages
