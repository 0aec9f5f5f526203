"""Acks that nobody was asked for: no ack moves a consumer beyond what it has delivered."""

from __future__ import annotations

import pytest

from headrace.sim import SimClock, SimDisk

from .broker_harness import Box
from .store_sizes import SIZES


@pytest.mark.parametrize(
    ("seq", "consumer_seq", "floor"),
    [
        (2, 2, [2, 2]),
        (2, (1 << 63) - 1, [2, 2]),
        (3, 3, [0, 0]),
        (1 << 40, 2, [0, 0]),
        ((1 << 63) - 1, (1 << 63) - 1, [0, 0]),
    ],
)
def test_an_ack_of_all_reaches_no_further_than_deliveries(
    seq: int, consumer_seq: int, floor: list[int]
) -> None:
    box = Box(SimDisk(1), SimClock(), SIZES[0])
    client = box.client()
    client.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
    config = {"durable_name": "C", "ack_policy": "all"}
    client.api("CONSUMER.CREATE.S.C", {"stream_name": "S", "config": config})
    for _ in range(4):
        client.publish(b"s")
    box.run()
    client.ask(b"$JS.API.CONSUMER.MSG.NEXT.S.C", b'{"batch":2,"no_wait":true}')
    box.run()
    client.take()
    client.publish(b"$JS.ACK.S.C.1.%d.%d.1.0" % (seq, consumer_seq), b"+ACK")
    box.run()
    info = client.api("CONSUMER.INFO.S.C")
    assert [info["ack_floor"][key] for key in ("consumer_seq", "stream_seq")] == floor
    assert (info["num_ack_pending"], info["num_pending"]) == (2 - floor[1], 2)
