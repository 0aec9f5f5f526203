"""What a second outside reviewer found: each defect stays fixed."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from headrace.broker import progress_codec as codec
from headrace.protocol import headers
from headrace.protocol.archives import Entry, Packer
from headrace.sim import SimDisk
from headrace.sim.broker import SimBroker

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


def restored(broker: SimBroker, *entries: Entry) -> Any:
    """What a restore of these entries ends with."""
    packer = Packer()
    data = b"".join(packer.add(entry) for entry in entries) + packer.end()
    subject = broker.call("STREAM.RESTORE.R", config={"name": "R", "subjects": ["r"]})["deliver_subject"]
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
