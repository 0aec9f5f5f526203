"""Rows, targets and helpers that the tests of the sink share."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from headrace.reader.blocking_connection import ServerAddress, drop_connection
from headrace.spark.write.encode_rows import RawMessage
from headrace.spark.write.epoch_publisher import EpochPublisher
from headrace.spark.write.progress_log import EpochRecord, ProgressLog, StagedAttempt
from headrace.spark.write.staged_writer import StagedWriter
from headrace.spark.write.write_options import WriteOptions, adapt_to_stream
from headrace.spark.write.write_target import WriteTarget
from spark.conftest import Broker


class DriverDied(BaseException):
    """The driver's process ended."""


def forget_connections(place: WriteTarget) -> None:
    """Close the connections of a driver that has died."""
    for name in ("", "headrace-staging", "headrace-progress"):
        drop_connection(replace(place.address, name=name))


def rows(count: int, stream: str, start: int = 0) -> list[RawMessage]:
    return [(b"%s.x" % stream.encode(), b"", b"%d" % n) for n in range(start, start + count)]


def target(broker: Broker, name: str, epoch: int = 4, query: str = "q", **changes: Any) -> WriteTarget:
    """Return the target of a query; its streams are created as Spark's driver does."""
    address = ServerAddress(servers=(broker.url,))
    names = {
        "atomic",
        "staging_path",
        "staging_expiry_s",
        "exactly_once",
        "dead_letter",
        "progress",
        "reconnect_s",
    }
    options = WriteOptions(address, name, **{key: changes.pop(key) for key in names & changes.keys()})
    adapted = replace(adapt_to_stream(options), batch_messages=changes.pop("batch_messages", 100))
    return replace(adapted.make_target(query, epoch), **changes)


def stage(place: WriteTarget, *partitions: Iterable[RawMessage]) -> list[StagedAttempt]:
    """Stage the rows of each partition, as tasks do."""
    found = [
        StagedWriter(replace(place, partition=number)).publish(messages)
        for number, messages in enumerate(partitions)
    ]
    return [each for each in found if each is not None]


def write_epoch(place: WriteTarget, *partitions: Iterable[RawMessage]) -> None:
    """Write an epoch, as tasks and driver do."""
    EpochPublisher(place).commit(stage(place, *partitions))


def stored_messages(broker: Broker, stream: str) -> list[dict[str, Any]]:
    """Return all messages of a stream, in order."""
    state = broker.state(stream)
    found = []
    for seq in range(state["first_seq"], state["last_seq"] + 1):
        answer = json.loads(broker.link.request(f"$JS.API.STREAM.MSG.GET.{stream}", {"seq": seq}).payload)
        if "message" in answer:
            found.append(answer["message"])
    return found


def stored_numbers(broker: Broker, stream: str) -> list[int]:
    """Return the payloads of a stream as numbers, sorted."""
    return sorted(int(base64.b64decode(each.get("data", ""))) for each in stored_messages(broker, stream))


def epoch_record(broker: Broker, place: WriteTarget) -> EpochRecord:
    return ProgressLog(place, broker.link).load_epoch()
