"""Resets of consumers in virtual time, also after a restart: each message that is due comes again, and no other."""

from __future__ import annotations

import pytest

from headrace.sim import SimClock, SimDisk

from .broker_harness import Box, Client
from .store_sizes import SIZES

SECOND = 1_000_000_000


def fetch(client: Client, count: int) -> list[int]:
    """Pull messages; return their sequences."""
    client.ask(b"$JS.API.CONSUMER.MSG.NEXT.S.P", b'{"batch":%d,"no_wait":true}' % count)
    client.box.run()
    return [int(each.reply.split(b".")[5]) for each in client.take() if each.reply]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("acked", [0, 1, 2, 3])
def test_a_last_per_subject_consumer_never_gets_other_messages(acked: int, restarts: bool) -> None:
    clock = SimClock()
    box = Box(SimDisk(1), clock, SIZES[1])
    client = box.client()
    client.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.*"]})
    for token in (b"a", b"b", b"b", b"c", b"c"):
        client.publish(b"s." + token)
    config = {
        "durable_name": "P",
        "deliver_policy": "last_per_subject",
        "filter_subject": "s.*",
        "ack_policy": "explicit",
        "ack_wait": 600 * SECOND,
    }
    answer = client.api("CONSUMER.CREATE.S.P", {"stream_name": "S", "config": config})
    assert "error" not in answer, answer

    def restart() -> None:
        nonlocal box, client
        if restarts:
            box.advance(SECOND)
            box = Box(box.disk.kill(), clock, SIZES[1])
            client = box.client()

    assert fetch(client, 3) == [1, 3, 5]
    for seq in (1, 3, 5)[:acked]:
        client.publish(b"$JS.ACK.S.P.1.%d.%d.1.0" % (seq, (1, 3, 5).index(seq) + 1), b"+ACK")
    box.run()
    left = [1, 3, 5][acked:]
    for turn in range(3):
        restart()
        assert client.api("CONSUMER.RESET.S.P")["num_pending"] == len(left) + (turn == 2)
        restart()
        if turn == 1:
            client.publish(b"s.b")
            box.run()
        assert fetch(client, 9) == left + ([6] if turn else [])
        assert client.api("CONSUMER.INFO.S.P")["num_pending"] == 0
