"""Queries that an earlier version interrupted: the sink finishes their epochs, in whatever order rows come."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from headrace.spark.write.encode_rows import RawMessage
from headrace.spark.write.staged_writer import StagedWriter
from headrace.spark.write.write_batches import WriteError
from headrace.spark.write.write_target import WriteTarget
from spark.conftest import Broker
from spark.sink_cases import rows, stored_messages, target, write_epoch


def create(broker: Broker, name: str) -> None:
    broker.create(name, subjects=[f"{name}.>", f"_progress.{name}.>"], allow_atomic=True)


def store_batch(
    broker: Broker, place: WriteTarget, messages: Sequence[RawMessage], total: int, batch: str
) -> None:
    """Store an atomic batch with its record, as version 0.1 did."""
    frames = []
    record = {"epoch": place.epoch, "rows": total, "crc": 17}
    subject = f"_progress.{place.stream}.{place.query}.{place.partition}".encode()
    last = (subject, b"Headrace-Progress: spark\r\n", json.dumps(record).encode())
    for number, (to, lines, payload) in enumerate([*messages, last], 1):
        lines += b"Nats-Batch-Id: %s\r\nNats-Batch-Sequence: %d\r\n" % (batch.encode(), number)
        lines += b"Nats-Batch-Commit: 1\r\n" if number > len(messages) else b""
        frames.append((to.decode(), lines, payload))
    broker.publish(place.stream, frames)


def numbers(broker: Broker, name: str) -> list[int]:
    found = [each for each in stored_messages(broker, name) if not each["subject"].startswith("_progress")]
    return sorted(int(base64.b64decode(each["data"])) for each in found)


def test_an_epoch_that_an_earlier_version_interrupted_is_finished_in_any_order(
    broker: Broker, name: str
) -> None:
    create(broker, name)
    place = target(broker, name)
    every = [*rows(50, name), *rows(2, name)]
    store_batch(broker, replace(place, epoch=3), rows(10, name, 100), 10, "a")
    store_batch(broker, place, every[:10], 10, "b")
    broker.publish(name, [(f"{name}.x", b"", b"7")])  # of another writer
    store_batch(broker, place, every[10:15], 15, "c")
    store_batch(broker, replace(place, partition=1), every[30:40], 10, "d")
    random.Random(5).shuffle(every)
    write_epoch(place, every[:20], every[20:21], every[21:])
    assert numbers(broker, name) == sorted([*range(50), 0, 1, 7, *range(100, 110)])
    write_epoch(place, every)
    write_epoch(replace(place, epoch=5), rows(3, name, 200))
    assert numbers(broker, name) == sorted([*range(50), 0, 1, 7, *range(100, 110), 200, 201, 202])


def test_an_epoch_that_an_earlier_version_completed_is_not_written_again(broker: Broker, name: str) -> None:
    create(broker, name)
    place = target(broker, name)
    store_batch(broker, place, rows(10, name), 10, "a")
    broker.publish(name, [(f"_progress.{name}.q.committed", b"", b'{"epoch": 4, "rows": 0, "crc": 0}')])
    assert StagedWriter(place).publish(rows(10, name)) is None
    write_epoch(place, rows(10, name))
    write_epoch(replace(place, epoch=5), rows(3, name, 10))
    assert numbers(broker, name) == list(range(13))


def test_a_name_that_an_earlier_version_used_is_continued_but_not_begun_again(
    broker: Broker, name: str
) -> None:
    """Its records do not name the query that wrote them."""
    create(broker, name)
    place = target(broker, name, query="w", owner="first", epoch=3)
    broker.publish(name, [(f"_progress.{name}.w.committed", b"", b'{"epoch": 2, "rows": 5, "crc": 17}')])
    with pytest.raises(WriteError, match="belongs to another query, which has written epoch 2"):
        write_epoch(replace(place, epoch=0), rows(3, name))
    write_epoch(place, rows(3, name))
    assert numbers(broker, name) == [0, 1, 2]


def test_rows_with_ids_of_an_earlier_version_are_not_written_again(broker: Broker, name: str) -> None:
    """On streams without atomic batches it stored no records; ids have the position of a row."""
    broker.create(name)
    place = target(broker, name)
    assert place.may_have_legacy_ids
    every = rows(30, name)
    old = [
        (subject.decode(), b"Nats-Msg-Id: q:4:%d:%d\r\n" % (n % 2, n), payload)
        for n, (subject, _, payload) in enumerate(every[:12])
    ]
    broker.publish(name, old)
    random.Random(2).shuffle(every)
    write_epoch(place, every[:5], every[5:])
    assert numbers(broker, name) == list(range(30))
