"""Rows that tasks publish themselves: deduplicated by their ids, or at least once."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from headrace.spark.write.direct_writer import DirectWriter
from headrace.spark.write.encode_rows import RawMessage
from headrace.spark.write.epoch_publisher import EpochPublisher
from headrace.spark.write.write_batches import WriteError
from spark.conftest import Broker
from spark.sink_cases import rows, stored_messages, stored_numbers, target


def rows_with_ids(count: int, stream: str) -> list[RawMessage]:
    return [
        (subject, b"A: b\r\nNats-Msg-Id: id-%d\r\n" % number, payload)
        for number, (subject, _, payload) in enumerate(rows(count, stream))
    ]


def test_by_ids_rows_may_come_in_any_order_and_division(broker: Broker, name: str) -> None:
    broker.create(name)
    place = target(broker, name, exactly_once="ids")
    every = rows_with_ids(250, name)
    assert DirectWriter(place, needs_ids=True).publish(every[:180]) == 180  # and then the task dies
    random.Random(1).shuffle(every)
    assert DirectWriter(place, needs_ids=True).publish(every[:100]) > 0
    DirectWriter(replace(place, partition=1), needs_ids=True).publish(every[100:])
    assert stored_numbers(broker, name) == list(range(250))


def test_by_ids_a_complete_epoch_is_not_written_again_after_the_duplicate_window(
    broker: Broker, name: str
) -> None:
    broker.create(name, duplicate_window=100_000_000)
    place = target(broker, name, exactly_once="ids")
    assert DirectWriter(place, needs_ids=True).publish(rows_with_ids(9, name)) == 9
    EpochPublisher(place).commit([])
    assert DirectWriter(place, needs_ids=True).publish(rows_with_ids(9, name)) == 0
    EpochPublisher(place).commit([], has_skipped=True)
    assert DirectWriter(replace(place, epoch=5), needs_ids=True).publish([]) == 0
    assert stored_numbers(broker, name) == list(range(9))


def test_by_ids_a_row_without_one_is_an_error(ours: Broker, name: str) -> None:
    ours.create(name)
    place = target(ours, name, exactly_once="ids")
    with pytest.raises(WriteError, match="row 2 of partition 0 has no `msg_id`"):
        DirectWriter(place, needs_ids=True).publish([*rows_with_ids(2, name), *rows(1, name)])


@pytest.mark.parametrize("allow_atomic", [True, False], ids=["batches", "single messages"])
def test_at_least_once_writes_every_row(broker: Broker, name: str, allow_atomic: bool) -> None:
    broker.create(name, allow_atomic=allow_atomic)
    place = target(broker, name)
    assert DirectWriter(place, needs_ids=False).publish(rows(1050, name)) == 1050
    assert stored_numbers(broker, name) == list(range(1050))
    DirectWriter(place, needs_ids=False).publish(rows(10, name))
    assert len(stored_messages(broker, name)) == 1060


@pytest.mark.parametrize("allow_atomic", [True, False], ids=["batches", "single messages"])
@pytest.mark.parametrize("needs_ids", [True, False], ids=["ids", "at least once"])
def test_a_refused_row_is_named_or_becomes_a_dead_letter(
    broker: Broker, name: str, allow_atomic: bool, needs_ids: bool
) -> None:
    broker.create(name, allow_atomic=allow_atomic)
    place = target(broker, name)
    foreign = (b"elsewhere", b"Nats-Msg-Id: f\r\n", b"y")
    some = [*rows_with_ids(120, name)[:105], foreign, *rows_with_ids(120, name)[105:]]
    with pytest.raises(WriteError, match=r"row 105 of partition 0 .*'elsewhere'.*no stream has its subject"):
        DirectWriter(place, needs_ids=needs_ids).publish(some)
    broker.create(f"{name}D", subjects=[f"dead.{name}"])
    DirectWriter(replace(place, dead_letter=f"dead.{name}"), needs_ids=needs_ids).publish(some)
    assert sorted(set(stored_numbers(broker, name))) == list(range(120))
    assert len(stored_messages(broker, f"{name}D")) == 1
