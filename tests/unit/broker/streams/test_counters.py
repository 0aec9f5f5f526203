"""The arithmetic of counters of any length, and values that are no longer counters."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.streams.counters import CounterTotals
from headrace.errors import RequestError
from headrace.sim import SimDisk
from headrace.sim.sim_broker import SimBroker
from support.small_store import SMALL_JOURNAL

NUMBERS = st.one_of(st.integers(-100, 100), st.integers(-(10**60), 10**60))


def counting() -> SimBroker:
    broker = SimBroker(SimDisk(), SMALL_JOURNAL)
    broker.start()
    broker.call("STREAM.CREATE.C", name="C", subjects=["c.>"], allow_msg_counter=True)
    return broker


def add(broker: SimBroker, value: object, subject: str = "c.a", **fields: str) -> Any:
    number = broker.publish(subject, Nats_Incr=str(value), **fields)
    broker.run_until_idle()
    return broker.replies[number].json


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), NUMBERS), max_size=12))
def test_sums_are_exact(steps: list[tuple[str, int]]) -> None:
    broker = counting()
    sums = {"a": 0, "b": 0}
    for subject, value in steps:
        sums[subject] += value
        assert add(broker, value, f"c.{subject}")["val"] == str(sums[subject])


@settings(max_examples=40, deadline=None)
@given(st.lists(NUMBERS, min_size=1, max_size=10))
def test_a_copy_receives_values_and_adds_differences(values: list[int]) -> None:
    """Regardless of how many of the upstream's messages are missed or repeated."""
    broker = counting()
    totals = CounterTotals(broker.jetstream.streams["C"])
    for value in [*values, values[-1]]:
        block = b"NATS/1.0\r\nNats-Incr: 1\r\n\r\n"
        payload = b'{"val":"%d"}' % value
        header, stored = totals.apply_copy(b"c.a", block, payload, {b"Nats-Incr": b"1"}, "O", "o.a")
        assert stored == payload
        assert b'Nats-Counter-Sources: {"O":{"o.a":"%d"}}' % value in header


@pytest.mark.parametrize(
    ("header", "payload"),
    [
        (b"", b"no json"),
        (b"", b'{"val":1}'),
        (b"NATS/1.0\r\nNats-Counter-Sources: [1]\r\n\r\n", b'{"val":"1"}'),
    ],
)
def test_a_broken_counter_says_so(header: bytes, payload: bytes) -> None:
    broker = counting()
    stream = broker.jetstream.streams["C"]
    stream.store(b"c.a", header, payload, stream.clock.now_ns())
    assert add(broker, 1)["error"]["err_code"] == 10172
    assert add(broker, 1, "c.b")["val"] == "1"


def test_a_copy_of_something_else_is_not_counted() -> None:
    totals = CounterTotals(counting().jetstream.streams["C"])
    with pytest.raises(RequestError) as refusal:
        totals.apply_copy(b"c.a", b"", b"x", {}, "O", "o.a")
    assert refusal.value.err_code == 10169
    with pytest.raises(RequestError) as refusal:
        totals.apply_copy(b"c.a", b"", b"x", {b"Nats-Incr": b"1"}, "O", "o.a")
    assert refusal.value.err_code == 10172


def test_a_client_cannot_forge_counter_sources() -> None:
    broker = counting()
    add(broker, 1, **{"Nats-Counter-Sources": "broken"})
    assert add(broker, 1)["val"] == "2"
    message = broker.jetstream.streams["C"].log.get(1)
    assert message is not None
    assert b"Nats-Counter-Sources" not in message[2]
