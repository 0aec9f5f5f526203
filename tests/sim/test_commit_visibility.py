"""Clients see nothing that is not committed: the disk here accepts writes and never completes a sync."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.sim import SimDisk
from headrace.sim.sim_broker import SimBroker
from headrace.storage import StoreOptions

from .store_sizes import SIZES

OPTIONS: StoreOptions = SIZES[0]
SECOND = 1_000_000_000


@pytest.fixture
def broker() -> SimBroker:
    made = SimBroker(SimDisk(), OPTIONS)
    made.start()
    made.call(
        "STREAM.CREATE.S",
        name="S",
        subjects=["s.>"],
        allow_direct=True,
        allow_atomic=True,
        allow_msg_ttl=True,
    )
    made.call("STREAM.CREATE.Q", name="Q", subjects=["q"], allow_direct=True, allow_msg_ttl=True)
    made.publish("s.a", b"old", Nats_Msg_Id="1")
    made.run_until_idle()
    return made


def turn(broker: SimBroker) -> None:
    """Run everything that is due in the broker, without completing any disk operation."""
    while broker._pending_calls:
        broker._pending_calls.popleft()()


CHANGES: dict[str, Callable[[SimBroker], int]] = {
    "publish": lambda broker: broker.publish("s.a", b"new"),
    "publish with an id": lambda broker: broker.publish("s.a", b"new", Nats_Msg_Id="2"),
    "purge": lambda broker: broker.call_nowait("STREAM.PURGE.S"),
    "delete a message": lambda broker: broker.call_nowait("STREAM.MSG.DELETE.S", seq=1),
    "batch": lambda broker: broker.publish(
        "s.b", b"new", Nats_Batch_Id="b", Nats_Batch_Sequence="1", Nats_Batch_Commit="1"
    ),
}
LOOKS: dict[str, Callable[[SimBroker], int]] = {
    "info": lambda broker: broker.call_nowait("STREAM.INFO.S"),
    "list": lambda broker: broker.call_nowait("STREAM.LIST"),
    "get": lambda broker: broker.call_nowait("STREAM.MSG.GET.S", last_by_subj="s.a"),
    "direct get": lambda broker: broker.publish("$JS.API.DIRECT.GET.S.s.a"),
    "batch get": lambda broker: broker.call_nowait("DIRECT.GET.S", seq=1, batch=5),
    "duplicate": lambda broker: broker.publish("s.a", b"again", Nats_Msg_Id="2"),
    "wrong last sequence": lambda broker: broker.publish("s.a", b"x", Nats_Expected_Last_Sequence="99"),
}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("change", CHANGES)
def test_answers_wait_for_the_disk(broker: SimBroker, change: str, look: str) -> None:
    changed = CHANGES[change](broker)
    turn(broker)
    looked = LOOKS[look](broker)
    turn(broker)
    assert changed not in broker.replies
    assert looked not in broker.replies
    broker.run_until_idle()
    assert changed in broker.replies
    assert looked in broker.replies


@pytest.mark.parametrize("look", ["direct get"])
def test_other_streams_do_not_wait(broker: SimBroker, look: str) -> None:
    broker.publish("q", b"x")
    broker.run_until_idle()
    broker.publish("s.a", b"new")
    turn(broker)
    number = broker.publish("$JS.API.DIRECT.GET.Q.q")
    assert number in broker.replies


def test_a_message_that_was_not_answered_is_not_served_either(broker: SimBroker) -> None:
    """A get that starts before the sync is answered after it: a crash in between loses both."""
    broker.publish("s.a", b"new")
    turn(broker)
    looked = broker.publish("$JS.API.DIRECT.GET.S.s.a")
    turn(broker)
    assert looked not in broker.replies
    after = SimBroker(broker.disk.kill(), OPTIONS, broker.clock)
    after.start()
    assert after.call("STREAM.INFO.S")["state"]["last_seq"] in (1, 2)


def test_an_answer_about_age_waits_too(broker: SimBroker) -> None:
    broker.publish("s.t", b"short", Nats_TTL="1")
    broker.run_until_idle()
    broker.clock.advance(2 * SECOND)
    number = broker.publish("$JS.API.DIRECT.GET.S.s.t")
    turn(broker)
    assert number not in broker.replies
    broker.run_until_idle()
    assert broker.replies[number].header.startswith(b"NATS/1.0 404")


def test_unless_the_stream_asks_for_answers_at_once(broker: SimBroker) -> None:
    broker.call("STREAM.CREATE.F", name="F", subjects=["f"], persist_mode="async")
    number = broker.publish("f", b"x")
    assert broker.replies[number].json == {"stream": "F", "seq": 1}
