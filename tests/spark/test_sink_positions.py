"""Positions of an epoch, and the records of progress: what the next driver starts from is true, however often one died."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from headrace.spark.write import position_keeper, window_sender
from headrace.spark.write.epoch_publisher import EpochPublisher
from headrace.spark.write.progress_log import Position, ProgressLog
from headrace.spark.write.stored_rows import iter_target, parse_place
from headrace.spark.write.window_sender import SentWindow, Window, WindowSender
from headrace.spark.write.write_target import WriteTarget
from spark.conftest import Broker
from spark.sink_cases import DriverDied, epoch_record, forget_connections, rows, stage, stored_numbers, target

ATOMIC = pytest.mark.parametrize("allow_atomic", [True, False], ids=["batches", "single messages"])


Send = Callable[[WindowSender, Window], SentWindow]


def make_faulty_send(loses: set[int], dies_at: int) -> Send:
    """Return a `WindowSender.send` that loses some windows, and ends the driver when a later one is stored."""
    send, count = WindowSender.send, 0

    def faulty(sender: WindowSender, window: Window) -> SentWindow:
        nonlocal count
        count += 1
        if count in loses:
            return SentWindow(window, sender._connection.new_inbox(), True)
        sent = send(sender, window)
        if count == dies_at:
            sender.receive(sent)
            raise DriverDied
        return sent

    return faulty


def commit_and_die(place: WriteTarget, attempts: Any, send: Send, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commit with a driver that may die."""
    with monkeypatch.context() as patch:
        patch.setattr(WindowSender, "send", send)
        try:
            EpochPublisher(place).commit(attempts, has_skipped=not attempts)
        except DriverDied:
            forget_connections(place)


def load_position(broker: Broker, place: WriteTarget) -> Position:
    return ProgressLog(place, broker.link).load_position()


def check_position(broker: Broker, place: WriteTarget) -> None:
    """Check what a position promises: rows before it are stored, and others only after its sequence."""
    position = load_position(broker, place)
    for message in iter_target(broker.link, place, 0):
        found = parse_place(message.header, position.commit_id)
        if found is not None and message.seq <= position.target_seq:
            assert (found.block, found.row) < (position.block, position.row), message


@pytest.fixture
def _every_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Store a position after each window."""
    monkeypatch.setattr(position_keeper, "_WINDOWS", 1)


@pytest.fixture
def _no_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Publish batches without message ids, as if the duplicate window had passed."""
    encode = window_sender.encode_atomic_batch

    def encode_without_id(columns: Any, inbox: bytes, batch_id: bytes, _: bytes) -> bytearray:
        return encode(columns, inbox, batch_id)

    monkeypatch.setattr(window_sender, "encode_atomic_batch", encode_without_id)


@pytest.mark.usefixtures("_every_window", "_no_ids")
def test_rows_that_were_stored_before_earlier_ones_are_found_after_two_deaths(
    broker: Broker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first driver's first window is lost, and later ones are stored; the second driver stores it after them."""
    broker.create(name, allow_atomic=True)
    place = target(broker, name, batch_messages=10)
    attempts = stage(place, rows(60, name))
    commit_and_die(place, attempts, make_faulty_send({1}, 3), monkeypatch)
    assert stored_numbers(broker, name) == list(range(10, 30))
    commit_and_die(place, [], make_faulty_send(set(), 4), monkeypatch)
    position = load_position(broker, place)
    assert (position.row, position.target_seq) == (10, 0), "rows after it begin with sequence 1"
    check_position(broker, place)
    EpochPublisher(place).commit([], has_skipped=True)
    assert stored_numbers(broker, name) == list(range(60))


@pytest.mark.usefixtures("_every_window", "_no_ids")
def test_drivers_that_die_at_random_windows_write_each_row_once(
    broker: Broker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No message id helps: only positions and headers say what is stored. Others publish to the stream, too."""
    broker.create(name, allow_atomic=True)
    seed = random.Random(59)
    monkeypatch.setattr("headrace.spark.write.staged_writer._BLOCK_ROWS", 25)
    for epoch in range(4, 12):
        place = target(broker, name, epoch=epoch, batch_messages=7)
        before = broker.state(name)["messages"]
        attempts = stage(place, rows(60, name, 1000 * epoch), rows(33, name, 1000 * epoch + 60))
        foreign = 0
        for _ in range(5):
            first = seed.randint(1, 4)
            lost = {first, first + 1} if seed.random() < 0.3 else {first}
            commit_and_die(place, attempts, make_faulty_send(lost, first + 2), monkeypatch)
            attempts = []
            check_position(broker, place)
            broker.publish(name, [(f"{name}.other", b"", b"0")])
            foreign += 1
        EpochPublisher(place).commit([], has_skipped=True)
        found = [number for number in stored_numbers(broker, name) if number // 1000 == epoch]
        assert found == [1000 * epoch + number for number in range(93)]
        assert broker.state(name)["messages"] - before == 93 + foreign


@ATOMIC
@pytest.mark.usefixtures("_every_window")
def test_the_search_after_a_failure_begins_where_the_driver_was(
    broker: Broker, name: str, allow_atomic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at the begin of the epoch, which may have millions of rows."""
    broker.create(name, allow_atomic=allow_atomic)
    place = target(broker, name, batch_messages=10)
    commit_and_die(place, stage(place, rows(90, name)), make_faulty_send(set(), 8), monkeypatch)
    position = load_position(broker, place)
    assert position.row >= 50
    assert position.target_seq == position.row
    check_position(broker, place)
    EpochPublisher(place).commit([], has_skipped=True)
    assert stored_numbers(broker, name) == list(range(90))
    assert epoch_record(broker, place).rows == 90
