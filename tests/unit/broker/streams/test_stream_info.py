"""Stream info is bounded, whatever the history of the stream."""

from __future__ import annotations

import pytest

from headrace.broker.handlers import stream_handlers
from headrace.sim import SimDisk
from headrace.sim.sim_broker import SimBroker
from support.small_store import SMALL_JOURNAL


def test_a_list_of_removed_messages_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_handlers, "DELETED_MAX", 5)
    broker = SimBroker(SimDisk(), SMALL_JOURNAL)
    broker.start()
    broker.call("STREAM.CREATE.S", name="S", subjects=["s"])
    broker.publish("s", b"")
    broker.run_until_idle()
    broker.jetstream.streams["S"].log.advance(1 << 50)
    broker.publish("s", b"")
    broker.run_until_idle()
    state = broker.call("STREAM.INFO.S", deleted_details=True)["state"]
    assert state["deleted"] == [2, 3, 4, 5, 6]
    assert state["num_deleted"] == state["last_seq"] - 2
    assert state["last_seq"] > 1 << 50
