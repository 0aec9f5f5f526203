"""Rows that the target does not take: what the error advises, what becomes a dead letter, and what other streams get."""

from __future__ import annotations

import base64
from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from headrace.reader.blocking_connection import ServerAddress
from headrace.spark.schema import SchemaError
from headrace.spark.write.direct_writer import DirectWriter
from headrace.spark.write.encode_rows import RawMessage, encode_batch, make_row_layout
from headrace.spark.write.stream_writer import JetStreamBatchWriter, TaskCommitMessage, write_task
from headrace.spark.write.write_batches import WriteError
from headrace.spark.write.write_options import STAGED, WriteOptions
from headrace.spark.write.write_target import WriteTarget
from spark.conftest import Broker
from spark.sink_cases import rows, stage, stored_messages, stored_numbers, target, write_epoch

ATOMIC = pytest.mark.parametrize("allow_atomic", [True, False], ids=["batches", "single messages"])
MODES = pytest.mark.parametrize("mode", ["staged", "ids", "at least once"])


def write(place: WriteTarget, mode: str, messages: list[RawMessage]) -> None:
    """Write rows in one of the modes."""
    if mode == "staged":
        return write_epoch(place, messages)
    with_ids = [(subject, b"Nats-Msg-Id: %s\r\n" % data, data) for subject, _, data in messages]
    DirectWriter(place, needs_ids=mode == "ids").publish(with_ids if mode == "ids" else messages)


def test_the_error_advises_what_helps(broker: Broker, name: str) -> None:
    """Before the commit, other rows may be staged; after it they may not."""
    broker.create(name)
    place = target(broker, name)
    with pytest.raises(WriteError, match="Filter such rows out, or set option `deadLetter`"):
        stage(place, [*rows(1, name), (b"a b", b"", b"1")])
    with pytest.raises(
        WriteError, match="committed with this row, so filtering it out now does not help"
    ) as error:
        write_epoch(place, [*rows(1, name), (b"elsewhere", b"", b"1")])
    assert "deadLetter" in str(error.value)
    with pytest.raises(WriteError, match="Filter such rows out"):
        DirectWriter(place, needs_ids=False).publish([(b"elsewhere", b"", b"1")])


@ATOMIC
@MODES
def test_a_row_of_a_full_subject_is_a_dead_letter(
    broker: Broker, name: str, allow_atomic: bool, mode: str
) -> None:
    limits = {"max_msgs_per_subject": 1, "discard": "new", "discard_new_per_subject": True}
    broker.create(name, allow_atomic=allow_atomic, **limits)
    broker.create(f"{name}D", subjects=[f"dead.{name}"])
    some = [(f"{name}.{n % 4}".encode(), b"", b"%d" % n) for n in range(6)]
    with pytest.raises(WriteError, match=r"row 4 .*maximum messages per subject exceeded"):
        write(target(broker, name), mode, some)
    write(target(broker, name, dead_letter=f"dead.{name}"), mode, some)
    assert stored_numbers(broker, name) == [0, 1, 2, 3]
    first_time = {0, 1, 2, 3} if mode == "at least once" else set()
    assert set(stored_numbers(broker, f"{name}D")) == {4, 5} | first_time


def test_a_stream_that_is_full_refuses_no_row_in_particular(broker: Broker, name: str) -> None:
    broker.create(name, max_msgs=3, discard="new")
    broker.create(f"{name}D", subjects=[f"dead.{name}"])
    with pytest.raises(WriteError, match="rejected a message: maximum messages exceeded"):
        write_epoch(target(broker, name, dead_letter=f"dead.{name}"), rows(5, name))
    assert broker.state(f"{name}D")["messages"] == 0


@ATOMIC
@MODES
@pytest.mark.parametrize("count", [0, 3], ids=["alone", "among others"])
def test_a_row_of_another_stream_is_not_stored_there(
    broker: Broker, name: str, allow_atomic: bool, mode: str, count: int
) -> None:
    broker.create(name, allow_atomic=allow_atomic)
    broker.create(f"{name}other", allow_atomic=allow_atomic)
    foreign = (f"{name}other.x".encode(), b"", b"9")
    with pytest.raises(WriteError, match=f"row {count} .*expected stream does not match"):
        write(target(broker, name), mode, [*rows(count, name), foreign])
    broker.create(f"{name}D", subjects=[f"dead.{name}"])
    write(target(broker, name, epoch=5, dead_letter=f"dead.{name}"), mode, [foreign, *rows(count, name, 10)])
    assert broker.state(f"{name}other")["messages"] == 0
    assert {each["subject"] for each in stored_messages(broker, f"{name}D")} == {f"dead.{name}"}
    assert set(stored_numbers(broker, name)) >= set(range(10, 10 + count))


def test_rows_that_are_all_dead_letters_count_when_a_write_is_repeated(ours: Broker, name: str) -> None:
    """The tasks that had only such rows staged nothing."""
    ours.create(name)
    ours.create(f"{name}D", subjects=[f"dead.{name}"])
    schema = StructType([StructField("subject", StringType()), StructField("data", StringType())])
    options = WriteOptions(ServerAddress(servers=(ours.url,)), name, write_id="w", dead_letter=f"dead.{name}")

    def run(*partitions: list[str]) -> None:
        writer = JetStreamBatchWriter(options, schema, overwrite=False)
        messages: list[TaskCommitMessage] = []
        for number, subjects in enumerate(partitions):
            batch = pa.record_batch({"subject": subjects, "data": ["1"] * len(subjects)})
            place = replace(
                writer._writer.options.make_target(options.write_id, None, number), batch_messages=100
            )
            messages.append(write_task(place, STAGED, make_row_layout(schema, ""), iter([batch])))
        writer.commit(messages)

    run([f"{name}.x"] * 3, ["a b"] * 2)
    assert ours.state(name)["messages"] == 3
    run([f"{name}.x"] * 3, ["a b"] * 2)
    with pytest.raises(WriteError, match="was completed with 5 rows, and this write has 3"):
        run([f"{name}.x"] * 3, [])
    assert ours.state(name)["messages"] == 3
    options = replace(options, write_id="only-dead")
    run(["a b"])
    run(["a b"])
    with pytest.raises(WriteError, match="was completed with 1 rows, and this write has 2"):
        run(["a b"], ["a b"])


def test_the_error_about_a_header_does_not_show_its_value() -> None:
    layout = make_row_layout(StructType([StructField("data", StringType())]), "s")
    layout = replace(layout, names=("data", "headers"))
    headers = pa.array([[("Authorization", "secret\r\nX: y")]], pa.map_(pa.string(), pa.string()))
    with pytest.raises(SchemaError, match="header 'Authorization' of a row contains a line break") as error:
        encode_batch(pa.record_batch([pa.array(["x"]), headers], names=["data", "headers"]), layout)
    assert "secret" not in str(error.value)


@ATOMIC
@MODES
@pytest.mark.parametrize("reason", ["ttl", "full subject"])
def test_a_refused_row_does_not_change_the_order(
    broker: Broker, name: str, allow_atomic: bool, mode: str, reason: str
) -> None:
    """A batch with such a row is refused as a whole, and its other rows are sent again."""
    per_subject = {"max_msgs_per_subject": 1, "discard": "new", "discard_new_per_subject": True}
    limits = per_subject if reason == "full subject" else {}
    broker.create(name, allow_atomic=allow_atomic, **limits)
    broker.create(name + "DL", subjects=[name + "DL.>"])
    place = target(broker, name, dead_letter=name + "DL.x", batch_messages=10)
    subjects = [f"{name}.{4 if reason == 'full subject' and n == 5 else n}".encode() for n in range(40)]
    ttls = [b"Nats-TTL: 1h\r\n" if reason == "ttl" and n == 5 else b"" for n in range(40)]
    ids = [b"Nats-Msg-Id: i%d\r\n" % n if mode == "ids" else b"" for n in range(40)]
    messages = [(subjects[n], ttls[n] + ids[n], b"%d" % n) for n in range(40)]
    if mode == "staged":
        write_epoch(place, messages)
    else:
        DirectWriter(place, needs_ids=mode == "ids").publish(messages)
    stored = [int(base64.b64decode(message["data"])) for message in stored_messages(broker, name)]
    if mode == "at least once":
        stored = list(dict.fromkeys(stored))  # what was sent again may be there twice
    assert stored == [number for number in range(40) if number != 5]


@pytest.mark.parametrize("is_atomic", [False, True])
@pytest.mark.parametrize("mode", ["ids", "staged"])
def test_a_foreign_row_does_not_change_the_order(
    broker: Broker, name: str, is_atomic: bool, mode: str
) -> None:
    broker.create(name, allow_atomic=is_atomic)
    broker.create(name + "DL", subjects=[name + "DL.>"])
    place = target(broker, name, exactly_once=mode, dead_letter=name + "DL.x", batch_messages=10)
    messages = [(b"%s.x" % name.encode(), b"Nats-Msg-Id: i%d\r\n" % n, b"%d" % n) for n in range(40)]
    messages[5] = (b"%s_nobody.x" % name.encode(), b"Nats-Msg-Id: i5\r\n", b"5")
    if mode == "ids":
        DirectWriter(place, needs_ids=True).publish(messages)
    else:
        write_epoch(place, [(subject, b"", payload) for subject, _, payload in messages])
    stored = [int(base64.b64decode(message["data"])) for message in stored_messages(broker, name)]
    assert stored == [number for number in range(40) if number != 5]
