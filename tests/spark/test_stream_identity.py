"""A checkpoint stays valid for a mirror or a restored stream, and for nothing else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from conformance import backups
from conformance.client import Client
from headrace.errors import DataLoss, HeadraceError
from headrace.reader.options import parse_read_options
from headrace.spark import jobs
from headrace.spark import schema as schemas
from headrace.spark.micro_batch_reader import JetStreamMicroBatchReader
from spark.conftest import Begun, Broker, eventually

SCHEMA = schemas.make_arrow_schema(schemas.STREAM_SCHEMA, schemas.STREAM_SCHEMA)
Begin = Begun[JetStreamMicroBatchReader]


class Query:
    """A streaming query in the role of Spark's driver; its checkpoint survives a restart."""

    def __init__(self, begin: Begin) -> None:
        self._begin = begin
        self.offset: dict[str, Any] | None = None
        self.numbers: list[int] = []

    def run(self, broker: Broker, stream: str, **options: str) -> None:
        """Start a process from the checkpoint, read one batch and stop."""
        given = {
            "servers": broker.url,
            "stream": stream,
            "starting": "earliest",
            "reconnect": "5s",
            **options,
        }
        reader = self._begin(JetStreamMicroBatchReader(parse_read_options(given), SCHEMA))
        start = self.offset or reader.initialOffset()
        end = json.loads(json.dumps(reader.latestOffset(start)))
        for part in reader.partitions(start, end) if end != start else ():
            self.numbers += [int(row) for batch in reader.read(part) for row in batch["data"].to_pylist()]
        self.offset = end
        reader.stop()


def create_mirror(broker: Broker, stream: str, mirror: str) -> None:
    """Create a mirror and wait until it is complete."""
    broker.create(mirror, subjects=[], mirror={"name": stream})
    eventually(lambda: bool(broker.state(mirror)["last_seq"] == broker.state(stream)["last_seq"]))


def test_a_mirror_continues_the_checkpoint(broker: Broker, name: str, begun: Begin) -> None:
    broker.create(name)
    broker.fill(name, 10)
    query = Query(begun)
    query.run(broker, name)
    broker.fill(name, 5, start=10)
    create_mirror(broker, name, f"{name}_copy")
    query.run(broker, f"{name}_copy")
    assert query.numbers == list(range(15))
    query.run(broker, name)
    assert query.numbers == list(range(15)), "and back again"


def test_a_copy_that_lagged_and_got_other_messages_is_another_stream(
    broker: Broker, name: str, begun: Begin
) -> None:
    """Two batches follow each other at once, so the offset of the second needs an anchor of its own."""
    copy = f"{name}_copy"
    broker.create(name)
    broker.fill(name, 20)
    given = {"servers": broker.url, "stream": name, "starting": "earliest"}
    reader = begun(JetStreamMicroBatchReader(parse_read_options(given), SCHEMA))
    first_end = reader.latestOffset(reader.initialOffset())
    broker.fill(name, 5, start=20)
    create_mirror(broker, name, copy)
    broker.api(f"STREAM.UPDATE.{copy}", {"name": copy, "subjects": [f"{copy}.>"], "allow_direct": True})
    broker.fill(name, 5, start=25)
    query = Query(begun)
    query.offset = reader.latestOffset(first_end)
    assert query.offset["next_seq"] == 31
    assert [int(each.split(":")[0]) for each in query.offset["anchors"]] == [1, 30]
    broker.fill(copy, 10, start=1000)
    with pytest.raises(HeadraceError, match="no copy of it with the same sequences"):
        query.run(broker, copy)
    query.offset["anchors"] = first_end["anchors"]
    with pytest.raises(HeadraceError, match="no copy of it with the same sequences"):
        query.run(broker, copy)
    query.offset["stream"] = copy
    with pytest.raises(DataLoss, match="is not the one in the checkpoint"):
        query.run(broker, copy)


def test_a_query_that_runs_for_long_keeps_few_decisions(ours: Broker, name: str, begun: Begin) -> None:
    ours.create(name)
    given = {"servers": ours.url, "stream": name, "starting": "earliest"}
    reader = begun(JetStreamMicroBatchReader(parse_read_options(given), SCHEMA))
    position = reader.initialOffset()
    for number in range(20):
        ours.fill(name, 1, start=number)
        position = reader.latestOffset(position)
    assert position["next_seq"] == 21
    assert len(reader._get_identity_checker()._decisions) <= 8


def take_backup(broker: Broker, stream: str) -> bytes:
    with Client(broker.server.port) as client:
        return backups.take(client, stream).data


def restore(broker: Broker, stream: str, data: bytes) -> None:
    """Delete a stream and restore it from a backup, as an operator does."""
    config = broker.api(f"STREAM.INFO.{stream}")["config"]
    broker.api(f"STREAM.DELETE.{stream}")
    with Client(broker.server.port) as client:
        assert "error" not in backups.give(client, stream, data, config)


@pytest.mark.parametrize("is_running", [False, True], ids=["started again", "running"])
def test_a_restored_stream_continues_the_checkpoint(
    broker: Broker, name: str, begun: Begin, is_running: bool
) -> None:
    """The query reads what was written since the backup as well, whether it runs meanwhile or not."""
    broker.create(name)
    broker.fill(name, 10)
    given = {"servers": broker.url, "stream": name, "starting": "earliest"}
    numbers: list[int] = []

    def start_reader() -> JetStreamMicroBatchReader:
        return begun(JetStreamMicroBatchReader(parse_read_options(given), SCHEMA))

    def read(reader: JetStreamMicroBatchReader, start: dict[str, Any]) -> dict[str, Any]:
        end = json.loads(json.dumps(reader.latestOffset(start)))
        for part in reader.partitions(start, end) if end != start else ():
            numbers.extend(int(row) for batch in reader.read(part) for row in batch["data"].to_pylist())
        return end

    reader = start_reader()
    offset = read(reader, reader.initialOffset())
    broker.fill(name, 5, start=10)
    restore(broker, name, take_backup(broker, name))
    if not is_running:
        reader = start_reader()
    offset = read(reader, offset)
    assert numbers == list(range(15))
    broker.fill(name, 5, start=15)
    offset = read(reader, offset)
    assert numbers == list(range(20))
    reader.commit(offset)


def test_a_backup_older_than_the_checkpoint_is_a_loss(broker: Broker, name: str, begun: Begin) -> None:
    broker.create(name)
    broker.fill(name, 10)
    data = take_backup(broker, name)
    broker.fill(name, 5, start=10)
    query = Query(begun)
    query.run(broker, name)
    restore(broker, name, data)
    with pytest.raises(DataLoss):
        query.run(broker, name)
    broker.fill(name, 10, start=100)
    with pytest.raises(DataLoss, match=r"is not the one in the checkpoint|deleted and created again"):
        query.run(broker, name)
    assert query.numbers == list(range(15))
    query.run(broker, name, failOnDataLoss="false")
    assert set(query.numbers) >= set(range(100, 110)), "nothing that is new is skipped"


def test_a_limit_that_removed_the_first_messages_does_no_harm(
    broker: Broker, name: str, begun: Begin
) -> None:
    broker.create(name)
    broker.fill(name, 10)
    query = Query(begun)
    query.run(broker, name)
    create_mirror(broker, name, f"{name}_copy")
    broker.fill(name, 5, start=10)
    eventually(lambda: bool(broker.state(f"{name}_copy")["last_seq"] == 15))
    broker.api(f"STREAM.PURGE.{name}_copy", {"seq": 6})
    query.run(broker, f"{name}_copy")
    assert query.numbers == list(range(15))


def test_a_stream_with_other_messages_is_another_one(broker: Broker, name: str, begun: Begin) -> None:
    broker.create(name)
    broker.fill(name, 10)
    query = Query(begun)
    query.run(broker, name)
    broker.api(f"STREAM.DELETE.{name}")
    broker.create(name)
    broker.fill(name, 20)
    with pytest.raises(DataLoss, match="it was deleted and created again"):
        query.run(broker, name)
    query.run(broker, name, failOnDataLoss="false")
    assert query.numbers == [*range(10), *range(20)]


def test_a_stream_of_another_name_must_be_a_copy(broker: Broker, name: str, begun: Begin) -> None:
    for stream in (name, f"{name}_other"):
        broker.create(stream)
        broker.fill(stream, 10)
    query = Query(begun)
    query.run(broker, name)
    with pytest.raises(HeadraceError, match=f"the checkpoint belongs to stream '{name}'"):
        query.run(broker, f"{name}_other", failOnDataLoss="false")


def test_checkpoints_of_earlier_versions_continue(broker: Broker, name: str, begun: Begin) -> None:
    """They have the creation time only."""
    broker.create(name)
    broker.fill(name, 10)
    query = Query(begun)
    query.run(broker, name)
    assert query.offset is not None
    del query.offset["anchors"]
    broker.fill(name, 5, start=10)
    query.run(broker, name)
    assert query.numbers == list(range(15))
    assert len(query.offset["anchors"]) == 2
    del query.offset["anchors"]
    create_mirror(broker, name, f"{name}_copy")
    with pytest.raises(HeadraceError, match="the checkpoint belongs to stream"):
        query.run(broker, f"{name}_copy")


def test_an_older_state_that_has_grown_again_is_noticed(
    own_broker: Broker, name: str, begun: Begin, tmp_path: Path
) -> None:
    """Creation time and length are those of the checkpoint, but messages that were read are others now."""
    broker, server = own_broker, own_broker.server
    broker.create(name)
    broker.fill(name, 10)
    server.stop()
    shutil.copytree(broker.path, tmp_path / "store")
    server.start()
    broker.reconnect()
    broker.fill(name, 10, 10)
    query = Query(begun)
    query.run(broker, name)
    server.stop()
    shutil.rmtree(broker.path)
    shutil.copytree(tmp_path / "store", broker.path)
    server.start()
    broker.reconnect()
    broker.fill(name, 20, 100)
    with pytest.raises(DataLoss, match="is not the one in the checkpoint"):
        query.run(broker, name)


def test_a_store_without_its_broker_continues_the_checkpoint(
    own_broker: Broker, name: str, begun: Begin
) -> None:
    broker = own_broker
    broker.create(name)
    broker.fill(name, 10)
    query = Query(begun)
    query.run(broker, name)
    create_mirror(broker, name, f"{name}_copy")
    broker.server.stop()
    given = {"path": broker.path, "stream": f"{name}_copy"}
    reader = begun(JetStreamMicroBatchReader(parse_read_options(given), SCHEMA))
    assert reader.latestOffset(query.offset)["stream"] == f"{name}_copy"
    broker.server.start()
    broker.reconnect()


def test_a_landed_table_is_united_with_a_mirror(ours: Broker, spark: Any, name: str, tmp_path: Path) -> None:
    ours.create(name)
    ours.fill(name, 10)
    target, source = str(tmp_path / "table"), {"servers": ours.url}
    jobs.land(spark, {**source, "stream": name}, target, layout="none")
    ours.fill(name, 5, start=10)
    create_mirror(ours, name, f"{name}_copy")
    rows = jobs.read_with_tail(spark, {**source, "stream": f"{name}_copy"}, target).collect()
    assert sorted(int(row.data) for row in rows) == list(range(15))
    ours.create(f"{name}_other")
    ours.fill(f"{name}_other", 15)
    with pytest.raises(DataLoss, match="not the one that was landed"):
        jobs.read_with_tail(spark, {**source, "stream": f"{name}_other"}, target)
