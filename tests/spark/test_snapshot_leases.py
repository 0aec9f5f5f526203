"""Guarantees of the direct path: a repeated batch has the same rows, and pins are released in time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.reader.options import parse_read_options
from headrace.spark import schema as schemas
from headrace.spark.micro_batch_reader import JetStreamMicroBatchReader
from headrace.spark.offsets import DataLoss
from headrace.spark.pyspark_compat import ReadAllAvailable
from spark.conftest import Begun, Broker, eventually, needs_read_limits

Reader = Callable[..., JetStreamMicroBatchReader]


@pytest.fixture
def reader(begun: Begun[JetStreamMicroBatchReader]) -> Reader:
    """`reader(broker, stream, **options)`: a reader as Spark's driver uses it."""

    def made(broker: Broker, name: str, **options: Any) -> JetStreamMicroBatchReader:
        given = {"servers": broker.url, "stream": name, "starting": "earliest", "path": broker.path}
        schema = schemas.make_arrow_schema(schemas.STREAM_SCHEMA, schemas.STREAM_SCHEMA)
        return begun(JetStreamMicroBatchReader(parse_read_options({**given, **options}), schema))

    return made


def pins(broker: Broker) -> list[str]:
    return sorted(path.name for path in Path(broker.path, "headrace", "pins").glob("*"))


def rows(query: JetStreamMicroBatchReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    parts = query.partitions(start, end)
    return [int(data) for part in parts for batch in query.read(part) for data in batch["data"].to_pylist()]


def test_a_repeated_batch_reads_what_is_gone_since(own_broker: Broker, reader: Reader, name: str) -> None:
    broker = own_broker
    broker.create(name)
    broker.fill(name, 100)
    first = reader(broker, name)
    start = first.initialOffset()
    end = first.latestOffset(start, ReadAllAvailable())
    assert rows(first, start, end) == list(range(100))
    broker.api(f"STREAM.PURGE.{name}")
    restarted = reader(broker, name)
    assert rows(restarted, start, end) == list(range(100))
    broker.server.restart(crash=True)
    assert rows(reader(broker, name), start, end) == list(range(100)), "a crash leaves pins alone"
    broker.reconnect()
    with pytest.raises(DataLoss, match=r"1 to 100 \(100 in total\)"):
        rows(reader(broker, name), start, {**end, "pin": "0-0"})


@needs_read_limits
def test_pins_serve_several_batches_and_are_let_go_of(own_broker: Broker, reader: Reader, name: str) -> None:
    broker = own_broker
    broker.create(name)
    broker.fill(name, 100)
    query = reader(broker, name, maxMessagesPerTrigger=40)
    start = query.initialOffset()
    ends = [start]
    for _ in range(3):
        ends.append(query.latestOffset(ends[-1], query.getDefaultReadLimit()))
    assert [end["next_seq"] for end in ends] == [1, 41, 81, 101]
    assert len({end["pin"] for end in ends[1:]}) == 1
    assert pins(broker) == [ends[-1]["pin"]]
    query.commit(ends[1])
    assert pins(broker) == [ends[-1]["pin"]], "batches that were not finished may be read again"
    query.commit(ends[-1])
    eventually(lambda: pins(broker) == [])


def test_a_pin_ends_with_its_lease(own_broker: Broker, name: str) -> None:
    broker = own_broker
    broker.create(name)
    broker.fill(name, 1)
    broker.api(f"STREAM.PIN.{name}", {"lease": 0.001})
    kept = broker.api(f"STREAM.PIN.{name}", {"lease": 60})["pin"]
    eventually(lambda: pins(broker) == [kept])
    broker.api(f"STREAM.UNPIN.{name}", {"pin": kept})
    eventually(lambda: pins(broker) == [])
