"""Rows that are staged and then published: each once, at whatever point something fails."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.reader.blocking_connection import BlockingConnection, ConnectionFailed
from headrace.spark.write.epoch_publisher import EpochPublisher
from headrace.spark.write.position_keeper import PositionKeeper
from headrace.spark.write.progress_log import DONE, LOST
from headrace.spark.write.staged_writer import StagedWriter
from headrace.spark.write.window_sender import SentWindow, Window, WindowSender
from headrace.spark.write.write_batches import WriteError
from headrace.spark.write.write_target import WriteTarget
from spark.conftest import Broker
from spark.sink_cases import (
    DriverDied,
    epoch_record,
    forget_connections,
    rows,
    stage,
    stored_messages,
    stored_numbers,
    target,
    write_epoch,
)

ATOMIC = pytest.mark.parametrize("allow_atomic", [True, False], ids=["batches", "single messages"])


@ATOMIC
def test_an_epoch_is_written_once_whatever_spark_repeats(
    broker: Broker, name: str, allow_atomic: bool
) -> None:
    broker.create(name, allow_atomic=allow_atomic)
    place = target(broker, name)
    stage(place, rows(30, name))  # an attempt that does not count
    write_epoch(place, rows(130, name), rows(120, name, 130))
    assert stored_numbers(broker, name) == list(range(250))
    write_epoch(place, rows(250, name))
    EpochPublisher(place).commit(stage(place, rows(3, name)), has_skipped=True)
    assert stored_numbers(broker, name) == list(range(250)), "it is done, whatever is staged"
    write_epoch(replace(place, epoch=5), rows(10, name, 250), [])
    assert stored_numbers(broker, name) == list(range(260))
    assert epoch_record(broker, place).state == DONE
    assert broker.state(place.staging_stream)["messages"] == 0


def test_no_reader_of_the_stream_sees_records(broker: Broker, name: str) -> None:
    broker.create(name, allow_atomic=True)
    write_epoch(target(broker, name), rows(10, name))
    assert {each["subject"] for each in stored_messages(broker, name)} == {f"{name}.x"}
    for stream, days in ((f"SPARK_PROGRESS_{name}", 90), (f"SPARK_STAGING_{name}", 7)):
        config = broker.api(f"STREAM.INFO.{stream}")["config"]
        assert config["max_age"] == days * 86_400 * 10**9
    assert broker.state(f"SPARK_PROGRESS_{name}")["messages"] == 2, "the epoch and the position"


class FailingDriver:
    """Ends the driver at one of the points where it sends something: before it, or after the server handled it."""

    def __init__(self, dies_at: int, is_sent: bool) -> None:
        self.dies_at = dies_at
        self.is_sent = is_sent
        self.count = 0
        self.is_dead = False

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        send = BlockingConnection.send

        def counted(link: BlockingConnection, data: bytes | bytearray) -> None:
            if data.startswith((b"SUB", b"PING", b"PONG")):
                return send(link, data)
            self.count += 1
            if self.count == self.dies_at:
                self.is_dead = True
                if self.is_sent:
                    send(link, data)
                    answered = BlockingConnection(link.address)
                    answered.request("$JS.API.INFO")
                    answered.close()
                raise DriverDied
            return send(link, data)

        monkeypatch.setattr(BlockingConnection, "send", counted)


def make_dying_send(dies_at: int) -> Callable[[WindowSender, Window], SentWindow]:
    """Return a `WindowSender.send` with which the driver dies after it has sent a number of windows."""
    send, sent = WindowSender.send, 0

    def dying(sender: WindowSender, window: Window) -> SentWindow:
        nonlocal sent
        sent += 1
        found = send(sender, window)
        if sent == dies_at:
            sender.receive(found)
            raise DriverDied
        return found

    return dying


def commit_with_deaths(
    place: WriteTarget, attempts: Any, monkeypatch: pytest.MonkeyPatch, dies_at: int, is_sent: bool
) -> bool:
    """Commit; return whether the driver died."""
    failing = FailingDriver(dies_at, is_sent)
    with monkeypatch.context() as patch:
        failing.install(patch)
        try:
            EpochPublisher(place).commit(attempts)
        except DriverDied:
            forget_connections(place)
    return failing.is_dead


@ATOMIC
@pytest.mark.parametrize("is_sent", [True, False], ids=["after the step", "before the step"])
def test_a_driver_that_dies_at_any_step_continues_with_other_rows(
    broker: Broker, name: str, allow_atomic: bool, is_sent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The epoch is repeated with the same rows in another order and division, by a new process."""
    broker.create(name, allow_atomic=allow_atomic)
    seed = random.Random(7)
    written = 0
    for step in range(1, 100):
        place = target(broker, name, epoch=step, batch_messages=8)
        every = rows(40, name, written)
        written += 40
        attempts = stage(place, every[:25], every[25:])
        died = commit_with_deaths(place, attempts, monkeypatch, step, is_sent)
        if not died:
            break
        seed.shuffle(every)
        cut = seed.randrange(41)
        again = [StagedWriter(replace(place, partition=n)) for n in range(2)]
        attempts = [
            found
            for writer, part in zip(again, (every[:cut], every[cut:]), strict=True)
            if (found := writer.publish(part)) is not None
        ]
        EpochPublisher(place).commit(attempts, has_skipped=any(each.has_skipped for each in again))
        assert stored_numbers(broker, name) == list(range(written)), f"it died at step {step}"
    assert step > 12, "the steps of a commit"
    assert stored_numbers(broker, name) == list(range(written))


@ATOMIC
def test_lost_replies_are_resolved_by_reading_the_stream(
    broker: Broker, name: str, allow_atomic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create(name, allow_atomic=allow_atomic)
    place = target(broker, name, batch_messages=10)
    attempts = stage(place, rows(100, name))
    fill, count = BlockingConnection.fill_buffer, 0
    losses: list[str] = []

    def losing(link: BlockingConnection, deadline: float, operation: str) -> None:
        nonlocal count
        fill(link, deadline, operation)
        count += 1
        if count in (6, 13, 22, 35, 60):
            losses.append(operation)
            link.buffer.clear()
            link.close()
            raise ConnectionFailed("the connection broke after the server replied")

    with monkeypatch.context() as patch:
        patch.setattr(BlockingConnection, "fill_buffer", losing)
        EpochPublisher(place).commit(attempts)
    assert len(losses) >= 2
    assert stored_numbers(broker, name) == list(range(100))


def test_a_second_driver_takes_over_and_the_first_one_stops(
    broker: Broker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one is suspended while it publishes; the second one finishes the epoch."""
    broker.create(name, allow_atomic=True)
    place = target(broker, name, batch_messages=10, is_volatile=True)
    attempts = stage(place, rows(100, name))
    send, sent = WindowSender.send, 0

    def suspended(sender: WindowSender, window: Window) -> SentWindow:
        nonlocal sent
        sent += 1
        if sent == 4:
            EpochPublisher(place).commit([])
            assert stored_numbers(broker, name) == list(range(100))
        return send(sender, window)

    monkeypatch.setattr(WindowSender, "send", suspended)
    with pytest.raises(WriteError, match="another driver publishes the rows"):
        EpochPublisher(place).commit(attempts)
    assert stored_numbers(broker, name) == list(range(100)), "the id of its window is known"


def test_two_drivers_that_commit_other_attempts_publish_the_same_rows(broker: Broker, name: str) -> None:
    broker.create(name, allow_atomic=True)
    place = target(broker, name)
    first, second = stage(place, rows(50, name)), stage(place, rows(20, name, 20), rows(30, name))
    EpochPublisher(place).commit(second)
    EpochPublisher(place).commit(first)
    assert stored_numbers(broker, name) == sorted([*range(20, 40), *range(30)])


@pytest.mark.parametrize("way", ["purged", "deleted", "replaced"])
def test_an_epoch_whose_staged_rows_are_gone_is_staged_again(
    broker: Broker, name: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some rows were published; the repeated epoch has all of them in another order and division."""
    broker.create(name, allow_atomic=True)
    place = target(broker, name, batch_messages=10)
    every = [*rows(45, name), *rows(5, name)]  # five rows are there twice
    with monkeypatch.context() as patch:
        patch.setattr(WindowSender, "send", make_dying_send(3))
        with pytest.raises(DriverDied):
            EpochPublisher(place).commit(stage(place, every))
    published = stored_numbers(broker, name)
    assert 0 < len(published) < 50
    if way == "purged":
        broker.api(f"STREAM.PURGE.{place.staging_stream}")
    else:
        broker.api(f"STREAM.DELETE.{place.staging_stream}")
        target(broker, name)  # a new query creates it again
    if way == "replaced":
        stage(replace(place, query="other"), rows(30, name))
    assert StagedWriter(place).publish(every) is None, "the epoch is committed"
    with pytest.raises(WriteError, match="Start the query again"):
        EpochPublisher(place).commit([], has_skipped=True)
    assert epoch_record(broker, place).state == LOST
    random.Random(3).shuffle(every)
    write_epoch(place, every[:13], every[13:])
    assert stored_numbers(broker, name) == sorted([*range(45), *range(5)])
    write_epoch(place, every)
    assert len(stored_numbers(broker, name)) == 50


def test_an_epoch_that_was_committed_for_its_tasks_and_is_not_for_the_driver_fails(
    ours: Broker, name: str
) -> None:
    """Otherwise it would be recorded without rows."""
    ours.create(name, allow_atomic=True)
    place = target(ours, name)
    write_epoch(place, rows(3, name))
    assert StagedWriter(place).publish(rows(3, name)) is None
    ours.api(f"STREAM.PURGE.{place.progress_stream}")
    with pytest.raises(WriteError, match="Start the query again: it repeats the epoch"):
        EpochPublisher(place).commit([], has_skipped=True)


@pytest.mark.parametrize("retention", ["interest", "workqueue"])
def test_rows_that_consumers_remove_at_once_are_written_once(
    broker: Broker, name: str, retention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message ids protect the window in doubt."""
    broker.create(name, retention=retention, allow_atomic=True)
    config = {"durable_name": "c", "ack_policy": "explicit", "filter_subject": f"{name}.x"}
    broker.api(f"CONSUMER.DURABLE.CREATE.{name}.c", {"stream_name": name, "config": config})
    for step in range(1, 100):
        place = target(broker, name, epoch=step, batch_messages=10)
        before = broker.state(name)["last_seq"]
        died = commit_with_deaths(place, stage(place, rows(30, name)), monkeypatch, step, True)
        broker.api(f"STREAM.PURGE.{name}")
        write_epoch(place, rows(30, name))
        assert broker.state(name)["last_seq"] - before == 30, f"it died at step {step}"
        if not died:
            break
    assert step > 12, "the steps of a commit"


def commit_and_die_after_window(
    place: WriteTarget, attempts: Any, count: int, patch: pytest.MonkeyPatch
) -> None:
    """Commit; the driver dies when a number of windows is stored, and before the position of the last one is."""
    advance, done = PositionKeeper.advance, 0

    def dying(keeper: PositionKeeper, *place_and_seq: int) -> None:
        nonlocal done
        done += 1
        if done == count:
            raise DriverDied
        advance(keeper, *place_and_seq)

    with patch.context() as during:
        during.setattr(PositionKeeper, "advance", dying)
        with pytest.raises(DriverDied):
            EpochPublisher(place).commit(attempts)
    forget_connections(place)


def test_a_window_of_which_consumers_removed_a_part_is_written_once(
    broker: Broker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create(name, retention="workqueue", allow_atomic=True)
    config = {"durable_name": "c", "ack_policy": "explicit", "filter_subject": f"{name}.x"}
    broker.api(f"CONSUMER.DURABLE.CREATE.{name}.c", {"stream_name": name, "config": config})
    place = target(broker, name, batch_messages=10)
    commit_and_die_after_window(place, stage(place, rows(30, name)), 2, monkeypatch)
    broker.api(f"STREAM.PURGE.{name}", {"seq": 16})
    EpochPublisher(place).commit([], has_skipped=True)
    assert stored_numbers(broker, name) == list(range(15, 30))
    assert broker.state(name)["last_seq"] == 30


def test_an_older_row_does_not_replace_a_newer_one_of_its_subject(
    broker: Broker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create(name, max_msgs_per_subject=1, allow_atomic=True)
    place = target(broker, name, batch_messages=10)
    some = [(f"{name}.{n % 4}".encode(), b"", b"%d" % n) for n in range(10)]
    commit_and_die_after_window(place, stage(place, some), 1, monkeypatch)
    EpochPublisher(place).commit([], has_skipped=True)
    assert stored_numbers(broker, name) == [6, 7, 8, 9]
    assert broker.state(name)["last_seq"] == 10


@pytest.mark.parametrize("tail", [b"a b", b".a", b"a.", b"a\r\nPUB evil 1\r\nx", b"y" * 5000])
def test_a_row_with_an_invalid_subject_is_a_dead_letter(broker: Broker, name: str, tail: bytes) -> None:
    broker.create(name, allow_atomic=True)
    broker.create(f"{name}D", subjects=[f"dead.{name}"])
    bad = (f"{name}.".encode() + tail, b"", b"9")
    place = target(broker, name)
    with pytest.raises(WriteError, match=r"row 3 of partition 0 .*not a subject"):
        stage(place, [*rows(3, name), bad])
    write_epoch(replace(place, dead_letter=f"dead.{name}"), [*rows(3, name), bad])
    assert stored_numbers(broker, name) == [0, 1, 2]
    assert broker.state(f"{name}D")["messages"] == 1


@ATOMIC
def test_rows_with_own_ids_keep_them_and_duplicates_are_dropped(
    broker: Broker, name: str, allow_atomic: bool
) -> None:
    broker.create(name, allow_atomic=allow_atomic)
    some = [(f"{name}.x".encode(), b"Nats-Msg-Id: %d\r\n" % (n % 30), b"%d" % (n % 30)) for n in range(40)]
    write_epoch(target(broker, name), some)
    write_epoch(target(broker, name, epoch=5), some)
    assert stored_numbers(broker, name) == list(range(30))


def test_rows_are_staged_in_a_folder(broker: Broker, name: str, tmp_path: Path) -> None:
    broker.create(name, allow_atomic=True)
    place = target(broker, name, staging_path=str(tmp_path))
    attempts = stage(place, rows(300, name), rows(300, name, 300))
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) > 3000
    EpochPublisher(place).commit(attempts)
    assert stored_numbers(broker, name) == list(range(600))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert f"SPARK_STAGING_{name}" not in broker.api("STREAM.NAMES")["streams"]
    place = replace(place, epoch=5)
    attempts = stage(place, rows(3, name, 600))
    next(path for path in tmp_path.rglob("*") if path.is_file()).unlink()
    with pytest.raises(WriteError, match="with staged rows is missing"):
        EpochPublisher(place).commit(attempts)
    write_epoch(place, rows(3, name, 600))
    assert stored_numbers(broker, name) == list(range(603))


def test_a_row_nearly_as_large_as_the_server_accepts_is_staged_in_parts(broker: Broker, name: str) -> None:
    broker.create(name, allow_atomic=True)
    limit = int(broker.link.server_info["max_payload"])
    subject = f"{name}.{'x' * 200}".encode()
    large = [(subject, b"", bytes([65 + n]) * (limit - 300)) for n in range(3)]
    write_epoch(target(broker, name), large)
    found = [base64.b64decode(each["data"]) for each in stored_messages(broker, name)]
    assert found == [payload for *_, payload in large]


@pytest.mark.parametrize("crash", [False, True], ids=["stopped", "killed"])
def test_a_broker_that_restarts_while_rows_are_staged_and_published_has_each_once(
    own_broker: Broker, name: str, crash: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = own_broker
    broker.create(name, allow_atomic=True)
    place = target(broker, name, batch_messages=10)

    def interrupted() -> Any:
        for number, each in enumerate(rows(100, name)):
            if number == 50:
                broker.server.restart(crash=crash)
            yield each

    attempts = stage(place, interrupted())
    send, sent = WindowSender.send, 0

    def restarting(sender: WindowSender, window: Window) -> SentWindow:
        nonlocal sent
        sent += 1
        if sent == 4:
            broker.server.restart(crash=crash)
        return send(sender, window)

    monkeypatch.setattr(WindowSender, "send", restarting)
    EpochPublisher(place).commit(attempts)
    broker.reconnect()
    assert stored_numbers(broker, name) == list(range(100))


@ATOMIC
def test_the_error_names_a_row_that_the_server_refuses(broker: Broker, name: str, allow_atomic: bool) -> None:
    broker.create(name, allow_atomic=allow_atomic)
    place = target(broker, name)
    limit = int(broker.link.server_info["max_payload"])
    large = [*rows(5, name), (f"{name}.x".encode(), b"", b"x" * limit)]
    with pytest.raises(
        WriteError, match=rf"row 5 of partition 0 of epoch 4 of q \(subject '{name}.x', {limit} bytes\)"
    ):
        stage(place, large)
    foreign = [*rows(5, name), (b"elsewhere", b"", b"y")]
    with pytest.raises(
        WriteError, match=r"row 5 .*\(subject 'elsewhere', 1 bytes\).*no stream has its subject"
    ):
        write_epoch(place, foreign)
    broker.create(f"{name}D", subjects=[f"dead.{name}"])
    place = target(broker, name, dead_letter=f"dead.{name}")
    write_epoch(place, foreign)
    assert stored_numbers(broker, name) == list(range(5)), "set the option and start again"
    write_epoch(replace(place, epoch=5), large)
    first, second = stored_messages(broker, f"{name}D")
    lines = base64.b64decode(first["hdrs"])
    assert b"Headrace-Dead-Letter-Subject: elsewhere" in lines
    assert b"Headrace-Dead-Letter-Reason: no stream has its subject" in lines
    assert base64.b64decode(first["data"]) == b"y"
    assert f"Headrace-Dead-Letter-Size: {limit}".encode() in base64.b64decode(second["hdrs"])


def test_a_row_that_another_stream_would_take_is_refused(broker: Broker, name: str) -> None:
    broker.create(name, allow_atomic=True)
    broker.create(f"{name}other")
    with pytest.raises(WriteError, match="expected stream does not match"):
        write_epoch(target(broker, name), [*rows(2, name), *rows(1, f"{name}other")])
    assert broker.state(f"{name}other")["messages"] == 0


def test_a_new_checkpoint_under_a_used_name_is_an_error(broker: Broker, name: str) -> None:
    """It starts with epoch 0, and everything up to the recorded epoch would count as written."""
    broker.create(name, allow_atomic=True)
    place = target(broker, name, query="w", owner="first", epoch=2)
    write_epoch(place, rows(3, name))
    for owner in ("second", ""):
        with pytest.raises(
            WriteError, match="writeId 'w' belongs to another query, which has written epoch 2"
        ):
            stage(replace(place, owner=owner, epoch=0), rows(3, name))
    write_epoch(replace(place, epoch=3), rows(3, name, 3))
    assert stored_numbers(broker, name) == list(range(6))
