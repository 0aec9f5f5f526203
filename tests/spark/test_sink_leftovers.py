"""What stays beside the target: staged rows after a failure, and records that must fit into a message."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.spark.write.epoch_publisher import EpochPublisher
from headrace.spark.write.progress_log import COMMITTED, LOST, Position, ProgressLog, StagedAttempt, make_id
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
    stored_numbers,
    target,
    write_epoch,
)

PLACES = pytest.mark.parametrize("is_folder", [False, True], ids=["stream", "folder"])


def make_target(broker: Broker, name: str, folder: Path | None, **changes: object) -> WriteTarget:
    return target(broker, name, **({"staging_path": str(folder)} if folder else {}), **changes)


def list_staged(broker: Broker, place: WriteTarget) -> list[str]:
    """Return the files or subjects of staged rows, from the epoch on."""
    if place.staging_path:
        folder = Path(place.staging_path) / place.stream / place.query
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    prefix = f"{place.staging_prefix}."
    info = broker.api(f"STREAM.INFO.{place.staging_stream}", {"subjects_filter": ">"})
    return sorted(subject.removeprefix(prefix) for subject in info["state"].get("subjects") or ())


@PLACES
def test_staged_rows_of_a_driver_that_died_before_it_removed_them_are_removed(
    broker: Broker, name: str, is_folder: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create(name, allow_atomic=True)
    place = make_target(broker, name, tmp_path if is_folder else None)
    attempts = stage(place, rows(5, name))
    with monkeypatch.context() as patch:
        store = ProgressLog.store_epoch

        def die_when_done(log: ProgressLog, record: object) -> None:
            store(log, record)  # type: ignore[arg-type]
            if record.state == "done":  # type: ignore[attr-defined]
                raise DriverDied

        patch.setattr(ProgressLog, "store_epoch", die_when_done)
        with pytest.raises(DriverDied):
            EpochPublisher(place).commit(attempts)
    forget_connections(place)
    assert list_staged(broker, place)
    EpochPublisher(place).commit([], has_skipped=True)
    assert list_staged(broker, place) == []
    assert stored_numbers(broker, name) == list(range(5))


@PLACES
def test_a_commit_removes_what_was_staged_for_earlier_epochs_and_not_for_later_ones(
    broker: Broker, name: str, is_folder: bool, tmp_path: Path
) -> None:
    """Of attempts that ended after their epoch was done, and of a driver that is ahead."""
    broker.create(name, allow_atomic=True)
    place = make_target(broker, name, tmp_path if is_folder else None)
    for epoch in (2, 3, 10):
        stage(replace(place, epoch=epoch), rows(5, name))
    write_epoch(place, rows(5, name))
    assert [each.replace("/", ".").partition(".")[0] for each in list_staged(broker, place)] == ["10"]


def test_files_of_writes_that_were_not_repeated_expire(ours: Broker, name: str, tmp_path: Path) -> None:
    ours.create(name)
    old, recent = (make_target(ours, name, tmp_path, query=each) for each in ("old", "recent"))
    stage(old, rows(5, name))
    stage(recent, rows(5, name))
    past = time.time() - 8 * 86_400
    for path in (tmp_path / name / "old").rglob("*"):
        os.utime(path, (past, past))
    make_target(ours, name, tmp_path)  # another query begins
    assert list_staged(ours, old) == []
    assert not (tmp_path / name / "old").exists()
    assert len(list_staged(ours, recent)) == 1


def test_files_of_other_queries_expire_by_no_shorter_time(ours: Broker, name: str, tmp_path: Path) -> None:
    ours.create(name)
    other = make_target(ours, name, tmp_path, query="other")
    stage(other, rows(5, name))
    past = time.time() - 86_400
    for path in (tmp_path / name / "other").rglob("*"):
        os.utime(path, (past, past))
    make_target(ours, name, tmp_path, staging_expiry_s=60.0)
    assert len(list_staged(ours, other)) == 1


@PLACES
def test_a_late_commit_keeps_the_rows_of_a_later_epoch(
    broker: Broker, name: str, is_folder: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create(name, allow_atomic=True)
    place = replace(make_target(broker, name, tmp_path if is_folder else None), epoch=4)
    write_epoch(place, rows(5, name))
    later = replace(place, epoch=5)
    attempts = stage(later, rows(500, name, 5))
    send, windows = WindowSender.send, []

    def die_after_one(self: WindowSender, window: Any) -> Any:
        windows.append(window)
        if len(windows) > 1:
            raise DriverDied
        return send(self, window)

    with monkeypatch.context() as patch:
        patch.setattr(WindowSender, "send", die_after_one)
        with pytest.raises(DriverDied):
            EpochPublisher(later).commit(attempts)
    forget_connections(later)
    EpochPublisher(place).commit([], has_skipped=True)  # a driver that was away repeats the earlier epoch
    EpochPublisher(later).commit([], has_skipped=True)
    assert stored_numbers(broker, name) == list(range(505))


def test_a_batch_write_leaves_no_folder(ours: Broker, name: str, tmp_path: Path) -> None:
    ours.create(name)
    place = make_target(ours, name, tmp_path, is_streaming=False)
    write_epoch(place, rows(5, name))
    assert not (tmp_path / name / place.query).exists()


@PLACES
def test_the_record_of_an_epoch_with_many_blocks_is_small(
    broker: Broker, name: str, is_folder: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.spark.write.staged_writer._BLOCK_ROWS", 2)
    broker.create(name, allow_atomic=True)
    place = make_target(broker, name, tmp_path if is_folder else None, batch_messages=2)
    every = rows(200, name)
    attempts = stage(place, every[:120], every[120:125], every[125:])
    assert [(len(each.blocks), each.block_count) for each in attempts] == [(0, 60), (3, 3), (0, 38)]
    send, count = WindowSender.send, 0

    def dying(sender: WindowSender, window: Window) -> SentWindow:
        nonlocal count
        count += 1
        if count == 72:
            raise DriverDied
        return send(sender, window)

    with monkeypatch.context() as patch:
        patch.setattr(WindowSender, "send", dying)
        with pytest.raises(DriverDied):
            EpochPublisher(place).commit(attempts)
    forget_connections(place)
    assert epoch_record(broker, place).state == COMMITTED
    EpochPublisher(place).commit([], has_skipped=True)
    assert stored_numbers(broker, name) == list(range(200))


def test_a_lost_list_of_blocks_is_found_out(ours: Broker, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.spark.write.staged_writer._BLOCK_ROWS", 1)
    ours.create(name)
    place = target(ours, name)
    attempts = stage(place, rows(30, name))
    ours.api(f"STREAM.MSG.DELETE.{place.staging_stream}", {"seq": attempts[0].index[0]})
    with pytest.raises(WriteError, match="Start the query again"):
        EpochPublisher(place).commit(attempts)
    assert epoch_record(ours, place).state == LOST
    write_epoch(place, rows(30, name))
    assert stored_numbers(ours, name) == list(range(30))


def test_a_record_that_the_server_would_not_accept_is_a_clear_error(broker: Broker, name: str) -> None:
    broker.create(name)
    place = target(broker, name)
    attempts = [StagedAttempt(number, make_id(), [[number]], 1) for number in range(60_000)]
    with pytest.raises(
        WriteError, match=r"the record of epoch 4 of q has .* Use fewer partitions, or raise max_payload"
    ):
        EpochPublisher(place).commit(attempts)
    assert epoch_record(broker, place).epoch == -1
    write_epoch(place, rows(3, name))
    assert stored_numbers(broker, name) == [0, 1, 2]


def test_a_position_of_the_driver_itself_that_is_stored_late_is_not_of_another_driver(
    broker: Broker, name: str
) -> None:
    """Its reply was lost with the connection."""
    broker.create(name)
    log = ProgressLog(target(broker, name), broker.link)
    first = log.store_position(Position("c", driver="d"))
    late = log.store_position(replace(first, row=10, target_seq=10))
    again = log.store_position(first)
    assert again.seq > late.seq
    assert log.load_position() == again
    for other in (replace(again, driver="e", seq=first.seq), replace(again, commit_id="b", seq=first.seq)):
        with pytest.raises(WriteError, match="another driver publishes the rows"):
            log.store_position(other)


def test_staged_rows_that_are_gone_are_recognised_in_a_stream_that_transforms_subjects(
    broker: Broker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    transform = {"src": f"{name}.*.*", "dest": f"{name}.to.{{{{wildcard(2)}}}}.{{{{partition(3,1)}}}}"}
    broker.create(name, allow_atomic=True, subject_transform=transform)
    place = target(broker, name, batch_messages=10)
    every = [(f"{name}.{n % 7}.{n % 3}".encode(), b"", b"%d" % (n % 40)) for n in range(50)]
    send, count = WindowSender.send, 0

    def dying(sender: WindowSender, window: Window) -> SentWindow:
        nonlocal count
        count += 1
        sent = send(sender, window)
        if count == 3:
            sender.receive(sent)
            raise DriverDied
        return sent

    with monkeypatch.context() as patch:
        patch.setattr(WindowSender, "send", dying)
        with pytest.raises(DriverDied):
            EpochPublisher(place).commit(stage(place, every))
    forget_connections(place)
    broker.api(f"STREAM.PURGE.{place.staging_stream}")
    with pytest.raises(WriteError, match="Start the query again"):
        EpochPublisher(place).commit([], has_skipped=True)
    write_epoch(place, every[::-1])
    assert stored_numbers(broker, name) == sorted(n % 40 for n in range(50))
