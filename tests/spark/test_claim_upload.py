"""Payloads that are too large for a message: the sink stores each as a claim once, and leaves no orphans."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headrace.claims.registry import ClaimEntry, Registry
from headrace.reader.blocking_connection import BlockingConnection, ConnectionFailed, Msg, ServerAddress
from headrace.reader.claim_fetch import load_claim_configs
from headrace.reader.options import OptionError
from headrace.spark.write.claim_upload import ClaimUploadConfig
from headrace.spark.write.encode_rows import RawMessage, find_header, make_message_columns
from headrace.spark.write.publisher import AtomicWriter, IdempotentWriter, WriteError, WriteTarget
from headrace.spark.write.stream_writer import parse_write_options
from spark.conftest import Broker
from spark.test_batch_reader import Load

LARGE = 5000


@pytest.fixture
def settings(name: str, tmp_path: Path) -> str:
    """The configuration of claims, as a file."""
    path = tmp_path / "claims.yaml"
    check = {"threshold": 1000, "store": {"path": str(tmp_path / "claims")}}
    path.write_text(json.dumps({"namespace": name, "claim_check": check}))
    return str(path)


def objects(folder: Path) -> list[Path]:
    found = (path for path in (folder / "claims").rglob("*") if path.is_file())
    return [path for path in found if len(path.name.partition(".")[0]) == 32]


def sink(broker: Broker, name: str) -> None:
    broker.create(name, subjects=[f"{name}.>", f"_progress.{name}.>"], allow_atomic=True, allow_msg_ttl=True)


def test_a_table_with_large_payloads_comes_back_whole(
    broker: Broker, load: Load, spark: SparkSession, name: str, settings: str, tmp_path: Path
) -> None:
    sink(broker, name)
    expression = (
        f"'{name}.' || id % 3 as subject, repeat(string(id % 10), if(id % 5 = 0, {LARGE}, 10)) as data"
    )
    frame = spark.sql(f"select {expression} from range(0, 40, 1, 2)")
    for _ in range(2):
        writer = frame.write.format("headrace").mode("append").option("servers", broker.url)
        writer.options(stream=name, claimConfig=settings, writeId="once").save()
    assert len(objects(tmp_path)) == 8
    plain = load(broker, name, subject=f"{name}.*").select("claim", "expires_at").collect()
    assert sum(row.claim is not None for row in plain) == 8
    assert all((row.claim is None) == (row.expires_at is None) for row in plain)
    whole = load(broker, name, subject=f"{name}.*", claims="inline", claimConfig=settings).select("data")
    assert sorted(len(row.data) for row in whole.collect()) == [10] * 32 + [LARGE] * 8


def target(broker: Broker, name: str, settings: str, **changes: Any) -> WriteTarget:
    address = ServerAddress(servers=(broker.url,))
    uploads = ClaimUploadConfig(address, load_claim_configs(settings)[0], name, True)
    uploads.prepare()
    values = {
        "progress_prefix": f"_progress.{name}",
        "query": "q",
        "epoch": 4,
        "partition": 0,
        "batch_messages": 100,
    }
    return WriteTarget(address, "$JS.API", name, **{**values, **changes}, claim_upload=uploads)


def rows(name: str, count: int) -> list[RawMessage]:
    return [(f"{name}.x".encode(), b"", b"%d" % n * LARGE) for n in range(count)]


@pytest.mark.parametrize("kind", [AtomicWriter, IdempotentWriter])
def test_a_repeated_task_puts_nothing_away_twice(
    broker: Broker, name: str, settings: str, tmp_path: Path, kind: Any
) -> None:
    sink(broker, name)
    place = target(broker, name, settings, **({"progress_prefix": ""} if kind is IdempotentWriter else {}))
    assert kind(place).publish(rows(name, 3)) == 3
    first = objects(tmp_path)
    assert len(first) == 3
    assert kind(place).publish(rows(name, 3)) == 0
    assert objects(tmp_path) == first


def test_a_claim_whose_facts_change_while_a_repeated_task_looks_is_looked_at_again(
    ours: Broker, name: str, settings: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example because the first attempt records the position of its message without waiting."""
    sink(ours, name)
    place = target(ours, name, settings)
    some = [make_message_columns(rows(name, 1))]
    place.make_claim_uploader().upload(some, 0)
    change, missed = Registry.compare_and_set, []

    async def late(registry: Registry, entry: ClaimEntry, keep_s: float) -> ClaimEntry | None:
        if not missed:
            missed.append(entry)
            return None
        return await change(registry, entry, keep_s)

    monkeypatch.setattr(Registry, "compare_and_set", late)
    place.make_claim_uploader().upload(some, 0)
    assert (len(missed), len(objects(tmp_path))) == (1, 1)


def test_other_rows_in_the_same_place_have_claims_of_their_own(
    ours: Broker, name: str, settings: str, tmp_path: Path
) -> None:
    sink(ours, name)
    place = target(ours, name, settings)
    first, second = rows(name, 2)
    lots, deposits = place.make_claim_uploader().upload([make_message_columns([first])], 0)
    assert len(deposits) == 1, "an attempt that died before it stored anything"
    again, _ = place.make_claim_uploader().upload([make_message_columns([first])], 0)
    assert again[0].payloads == lots[0].payloads
    other, _ = place.make_claim_uploader().upload([make_message_columns([second])], 0)
    assert other[0].payloads != lots[0].payloads
    assert len(objects(tmp_path)) == 2


def test_claims_of_refused_rows_are_removed(ours: Broker, name: str, settings: str, tmp_path: Path) -> None:
    sink(ours, name)
    wrong = [(b"elsewhere", b"", b"x" * LARGE), *rows(name, 2)]
    with pytest.raises(WriteError, match="check that the stream has every subject"):
        AtomicWriter(target(ours, name, settings)).publish(wrong)
    assert objects(tmp_path) == []


def messages(broker: Broker, stream: str) -> list[dict[str, Any]]:
    """Return all messages of a stream, except the sink's own records."""
    state = broker.state(stream)
    every = (
        broker.api(f"STREAM.MSG.GET.{stream}", {"seq": seq})["message"]
        for seq in range(state["first_seq"], state["last_seq"] + 1)
    )
    return [each for each in every if not each["subject"].startswith("_progress")]


def claims_in(found: list[dict[str, Any]]) -> set[str]:
    """Return the claims that messages refer to."""
    large = (json.loads(base64.b64decode(each["data"])) for each in found if "hdrs" in each)
    return {reference["claim_id"] for reference in large if isinstance(reference, dict)}


def kept(folder: Path) -> set[str]:
    """Return the claims that have objects."""
    return {path.name.partition(".")[0] for path in objects(folder)}


def test_claims_of_stored_rows_stay_when_another_row_is_refused(
    broker: Broker, name: str, settings: str, tmp_path: Path
) -> None:
    """With message ids, each row is stored or rejected on its own; a rejection may arrive before an ack."""
    sink(broker, name)
    publisher = IdempotentWriter(target(broker, name, settings, progress_prefix=""))
    first, second = rows(name, 2)
    small = (f"{name}.x".encode(), b"", b"7")
    with pytest.raises(WriteError, match="does not have a subject that was written"):
        publisher.publish([first, (b"elsewhere", b"", b"z" * LARGE), small, second])
    stored = messages(broker, name)
    assert len(stored) == 3
    assert len(claims_in(stored)) == 2
    assert kept(tmp_path) == claims_in(stored)


def test_claims_of_a_batch_whose_answer_was_lost_stay_when_a_later_batch_is_refused(
    broker: Broker, name: str, settings: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink(broker, name)
    place = target(broker, name, settings, batch_messages=3)
    answer, lost = BlockingConnection.receive_reply, []

    def losing(link: BlockingConnection, reply: bytes, what: str, timeout_s: float = 0.0) -> Msg:
        found = answer(link, reply, what, timeout_s)
        if what == place.progress_subject and not lost:
            lost.append(found)
            link.close()
            raise ConnectionFailed("the connection broke after the batch was stored")
        return found

    monkeypatch.setattr(BlockingConnection, "receive_reply", losing)
    with pytest.raises(WriteError, match="rejected a batch"):
        AtomicWriter(place).publish([*rows(name, 2), (b"elsewhere", b"", b"z" * LARGE)])
    stored = messages(broker, name)
    assert (len(lost), len(stored)) == (1, 2)
    assert kept(tmp_path) == claims_in(stored)


def test_by_ids_another_large_row_in_a_repeated_task_is_an_error(
    ours: Broker, name: str, settings: str
) -> None:
    sink(ours, name)
    place = target(ours, name, settings, progress_prefix="")
    first, second = rows(name, 2)
    assert IdempotentWriter(place).publish([first]) == 1
    with pytest.raises(WriteError, match="row 0 of partition 0 of epoch 4 has changed"):
        IdempotentWriter(place).publish([second])
    assert IdempotentWriter(place).publish([first]) == 0


def test_message_and_claim_of_a_repeated_task_end_together(
    broker: Broker, name: str, settings: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink(broker, name)
    place = target(broker, name, settings)
    (subject, _, payload), *_ = rows(name, 1)
    row = (subject, b"Source-Nats-TTL: 5s\r\n", payload)
    place.make_claim_uploader().upload(
        [make_message_columns([row])], 0
    )  # an attempt that died before it stored anything
    now_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now_ns() + 3600 * 10**9)
    AtomicWriter(place).publish([row])
    (message,) = messages(broker, name)
    lines = base64.b64decode(message["hdrs"])
    left_s = json.loads(base64.b64decode(message["data"]))["expires_at"] - time.time_ns() // 10**9
    assert left_s < 86400 - 3000
    assert int((find_header(lines, b"Nats-TTL") or b"").removesuffix(b"s")) == pytest.approx(left_s, abs=30)


def test_a_large_row_keeps_its_content_type(ours: Broker, name: str, settings: str) -> None:
    """Readers get it from the claim's reference."""
    sink(ours, name)
    line = b"A: b\r\nContent-Type: application/json\r\n"
    AtomicWriter(target(ours, name, settings)).publish(
        [(f"{name}.x".encode(), line, b"1" * LARGE), *rows(name, 1)]
    )
    kinds = [json.loads(base64.b64decode(each["data"]))["content_type"] for each in messages(ours, name)]
    assert kinds == ["application/json", "application/octet-stream"]


def test_a_configuration_that_cannot_be_is_refused_on_the_driver(
    ours: Broker, spark: SparkSession, name: str
) -> None:
    sink(ours, name)
    writer = (
        spark.sql("select 'x' as data").write.format("headrace").mode("append").option("servers", ours.url)
    )
    with pytest.raises(PySparkException, match=r"option `claimConfig`: .*there is no such file"):
        writer.options(stream=name, subject=f"{name}.x", claimConfig="/nowhere.yaml").save()


def test_claims_are_not_written_into_another_domain(settings: str) -> None:
    """Their registry would be here, and the stream and its consumers there."""
    with pytest.raises(OptionError, match="Set `servers` to a server of that domain instead"):
        parse_write_options({"stream": "S", "domain": "hub", "claimConfig": settings})
