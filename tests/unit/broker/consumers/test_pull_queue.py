"""Pull requests beyond the limit cost a consumer next to nothing."""

from __future__ import annotations

import pytest

from headrace.broker.consumers.pull_queue import PullQueue
from headrace.sim import SimDisk
from headrace.sim.sim_broker import SimBroker
from headrace.storage import StoreOptions

OPTIONS = StoreOptions(journal_bytes=1 << 20, segment_bytes=1 << 18)


def test_a_full_consumer_does_not_go_through_its_requests_for_each_one_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each pull beyond the limit used to cost the server half a millisecond, during which all clients waited."""
    looked = 0
    look = PullQueue.check_timeouts

    def counted(pulls: PullQueue, now_ns: int, *, caught_up: bool) -> None:
        nonlocal looked
        looked += 1
        look(pulls, now_ns, caught_up=caught_up)

    monkeypatch.setattr(PullQueue, "check_timeouts", counted)
    broker = SimBroker(SimDisk(), OPTIONS)
    broker.start()
    broker.call("STREAM.CREATE.Q", name="Q", subjects=["q"])
    config = {"durable_name": "C", "ack_policy": "explicit"}
    broker.call("CONSUMER.CREATE.Q.C", stream_name="Q", config=config)
    body = b'{"batch":1000000,"expires":60000000000}'
    numbers = [broker.publish("$JS.API.CONSUMER.MSG.NEXT.Q.C", body) for _ in range(2_000)]
    broker.run_until_idle()
    refused = [number for number in numbers if number in broker.replies]
    assert len(refused) == 2_000 - 512
    assert looked < 600
    broker.advance(60_000_000_000)
    assert broker.publish("$JS.API.CONSUMER.MSG.NEXT.Q.C", body) not in broker.replies
