"""What a second outside reviewer found: each defect stays fixed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from headrace.api.limits import Limits
from headrace.broker import Permissions
from headrace.broker import progress_codec as codec
from headrace.broker.leaf_interest import Leaves
from headrace.broker.room import Room
from headrace.protocol import headers, leaf
from headrace.protocol.archives import Entry, Packer
from headrace.sim import SimDisk
from headrace.sim.broker import SimBroker
from headrace.sim.pair import End

from .options import SIZES

SECOND = 1_000_000_000


def start() -> SimBroker:
    broker = SimBroker(SimDisk(), SIZES[0])
    broker.start()
    broker.settle()
    return broker


# Restoring


def state(last_seq: int, consumers: int = 0) -> Entry:
    fields = {"first_seq": 1, "last_seq": last_seq, "messages": last_seq, "consumer_count": consumers}
    return Entry(b"state.json", 0, 0, b"", json.dumps(fields).encode())


def restored(broker: SimBroker, *entries: Entry, **config: Any) -> Any:
    """What a restore of these entries ends with."""
    packer = Packer()
    data = b"".join(packer.add(entry) for entry in entries) + packer.end()
    wanted = {"name": "R", "subjects": ["r"], **config}
    subject = broker.call("STREAM.RESTORE.R", config=wanted)["deliver_subject"]
    broker.publish(subject, data)
    number = broker.publish(subject, b"")
    broker.settle()
    return broker.answers[number].json


def test_a_message_that_cannot_be_stored_fails_the_restore() -> None:
    broker = start()
    answer = restored(
        broker, state(2), Entry(b"r" * 70_000, 1, 1, b"", b"lost?"), Entry(b"r", 2, 2, b"", b"")
    )
    assert answer["error"]["err_code"] == 10062
    assert broker.jetstream.streams == broker.jetstream.restores == broker.store.logs == {}


@pytest.mark.parametrize("seq", ["²", "9" * 30, "9" * 5000])
def test_a_copy_that_names_no_position_is_a_message_like_others(seq: str) -> None:
    broker = start()
    block = headers.build([(b"Nats-Stream-Source", f"S {seq} x > >".encode())])
    assert "error" not in restored(broker, state(1), Entry(b"r", 1, 1, block, b"x"))
    number = broker.publish("r", b"more")
    broker.settle()
    assert broker.answers[number].json["seq"] == 2


@pytest.mark.parametrize("consumer", [[10, 13, 12], [5, 4, 6, 9, 8, 7], [3, 2, 1], [1, 2, 3]])
def test_pairs_in_any_order_are_written_down(consumer: list[int]) -> None:
    stream = list(range(1, len(consumer) + 1))
    packed = codec.pack_pairs(np.array(stream, dtype=np.uint64), np.array(consumer, dtype=np.uint64))
    assert codec.unpack_pairs(*packed) == list(zip(stream, consumer, strict=True))


def test_a_schedule_that_asks_for_nonsense_does_not_stop_the_others() -> None:
    broker = start()
    bad = [(b"Nats-Schedule", b"@every 1s"), (b"Nats-Schedule-Target", b"r.t"), (b"Nats-Schedule-TTL", b"?")]
    entry = Entry(b"r.bad", broker.clock.now_ns(), 1, headers.build(bad), b"")
    config = {
        "subjects": ["r.>"],
        "allow_msg_schedules": True,
        "allow_msg_ttl": True,
        "allow_rollup_hdrs": True,
    }
    assert "error" not in restored(broker, state(1), entry, **config)
    broker.publish("r.good", b"", Nats_Schedule="@every 2s", Nats_Schedule_Target="r.told")
    broker.advance(5 * SECOND)
    assert broker.jetstream.streams["R"].log.count_of(b"r.told") == 2


# Publishing


@pytest.mark.parametrize("text", ["9" * 5000 + "s", "1s" * 30_000])
def test_a_lifetime_beyond_reason_is_refused(text: str) -> None:
    broker = start()
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.>"], allow_msg_ttl=True, allow_msg_schedules=True)
    number = broker.publish("s.a", b"", Nats_TTL=text)
    other = broker.publish("s.b", b"", Nats_Schedule=f"@every {text}", Nats_Schedule_Target="s.c")
    broker.settle()
    assert broker.answers[number].json["error"]["err_code"] == 10165
    assert broker.answers[other].json["error"]["err_code"] == 10189


def test_a_batch_stays_within_what_its_account_may_keep() -> None:
    broker = start()
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.>"], allow_atomic=True)
    broker.jetstream.adopt_limits(Limits(max_storage=5000))
    fields = {"Nats_Batch_Id": "b"}
    for position in (1, 2):
        broker.publish("s.a", bytes(2000), Nats_Batch_Sequence=f"{position}", **fields)
    number = broker.publish("s.a", bytes(2000), Nats_Batch_Sequence="3", Nats_Batch_Commit="1", **fields)
    broker.settle()
    assert broker.answers[number].json["error"]["err_code"] == 10002
    assert broker.jetstream.streams["S"].log.messages == 0


# Leafnodes


class Narrow:
    """Somebody who may publish to one place only."""

    user, account, permissions = "edge", "$G", Permissions(publish_allow=[b"allowed.>"])


class Door(End):
    def authenticate(self, fields: Mapping[str, Any]) -> Narrow:
        return Narrow()


@pytest.mark.parametrize("shown", [b"secret.x", b"bad..*", b""])
def test_a_leafnode_stores_nothing_where_it_may_not_publish(shown: bytes) -> None:
    broker = start()
    broker.call("STREAM.CREATE.S", name="S", subjects=["allowed.>"])
    end = Door(broker, Leaves(broker.hub), dialled=False, losing=None)
    end.feed(b'CONNECT {"name":"edge","headers":true}\r\n')
    end.feed(b"LMSG allowed.x $JS.ACK.S.C.1.1.1.1.0@%b 2\r\nhi\r\n" % shown)
    broker.settle()
    log = broker.jetstream.streams["S"].log
    assert [subject for subject, _ in log.subjects(None)] == [b"allowed.x"]


@pytest.mark.parametrize("consumer", [b"C", b"me@home", b"7@8"])
@pytest.mark.parametrize("shown", [b"a.b", b"mail.me@home"])
def test_names_and_subjects_may_have_the_mark_of_what_is_shown(consumer: bytes, shown: bytes) -> None:
    ack = b"$JS.ACK.S.%b.1.2.3.4.5" % consumer
    assert leaf.split_shown(ack) == (ack, b"")
    assert leaf.split_shown(leaf.with_shown(ack, shown)) == (ack, shown)
    assert leaf.with_shown(leaf.with_shown(ack, shown), b"other") == leaf.with_shown(ack, shown)


def test_a_restore_stays_within_what_the_server_may_keep() -> None:
    broker = start()
    jetstream = broker.jetstream
    jetstream.room.leave(jetstream)
    jetstream.room = Room(storage=5000)
    jetstream.room.join(jetstream)
    messages = [Entry(b"r", seq, seq, b"", bytes(1000)) for seq in range(1, 11)]
    assert restored(broker, state(10), *messages)["error"]["err_code"] == 10062
    assert broker.store.logs == {}
    assert "error" not in restored(broker, state(3), *messages[:3])
