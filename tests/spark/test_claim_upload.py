"""Payloads that are too large for a message: the sink stores each as a claim once, and leaves no orphans."""

from __future__ import annotations

import base64
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headrace.claims.registry import ClaimEntry, Registry
from headrace.reader.blocking_connection import ServerAddress
from headrace.reader.claim_fetch import load_claim_configs
from headrace.reader.options import OptionError
from headrace.spark.write.claim_upload import ClaimUploadConfig, ClaimUploader
from headrace.spark.write.direct_writer import DirectWriter
from headrace.spark.write.encode_rows import RawMessage, find_header, make_message_columns
from headrace.spark.write.write_batches import WriteError
from headrace.spark.write.write_options import parse_write_options
from headrace.spark.write.write_target import WriteTarget
from spark.conftest import Broker
from spark.sink_cases import stage, stored_messages, write_epoch
from spark.sink_cases import target as sink_target
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
    broker.create(name, allow_atomic=True, allow_msg_ttl=True)


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


@pytest.mark.parametrize(("ttl", "shorter"), [("never", False), ("1000h", False), ("90s", True)])
def test_no_message_outlives_its_claim_because_of_its_own_ttl(
    ours: Broker, name: str, settings: str, ttl: str, shorter: bool
) -> None:
    sink(ours, name)
    row = (f"{name}.x".encode(), b"A: 1\r\nNats-TTL: %s\r\nB: 2\r\n" % ttl.encode(), b"x" * LARGE)
    write_epoch(target(ours, name, settings), [row])
    (found,) = messages(ours, name)
    header = base64.b64decode(found["hdrs"]).decode()
    assert f"Nats-TTL: {ttl}\r\n" in header if shorter else f"Nats-TTL: {ttl}" not in header
    assert header.count("Nats-TTL: ") == 1
    assert f"Claim-Sent-TTL: {ttl}\r\n" in header, "readers restore it"
    assert "A: 1\r\n" in header
    assert "B: 2\r\n" in header


def target(broker: Broker, name: str, settings: str, **changes: Any) -> WriteTarget:
    address = ServerAddress(servers=(broker.url,))
    uploads = ClaimUploadConfig(address, load_claim_configs(settings)[0], name, True)
    uploads.prepare()
    return replace(sink_target(broker, name), claim_upload=uploads, **changes)


def rows(name: str, count: int) -> list[RawMessage]:
    return [(f"{name}.x".encode(), b"", b"%d" % n * LARGE) for n in range(count)]


def rows_with_ids(name: str, count: int) -> list[RawMessage]:
    return [
        (subject, b"Nats-Msg-Id: i%d\r\n" % number, payload)
        for number, (subject, _, payload) in enumerate(rows(name, count))
    ]


def test_a_repeated_epoch_uploads_nothing_twice(
    broker: Broker, name: str, settings: str, tmp_path: Path
) -> None:
    sink(broker, name)
    place = target(broker, name, settings)
    stage(place, rows(name, 3))  # an attempt that died
    first = objects(tmp_path)
    assert len(first) == 3
    write_epoch(place, rows(name, 3))
    write_epoch(place, rows(name, 3))
    assert objects(tmp_path) == first
    assert kept(tmp_path) == claims_in(messages(broker, name))


def test_by_ids_a_repeated_task_uploads_nothing_twice_in_another_order(
    broker: Broker, name: str, settings: str, tmp_path: Path
) -> None:
    sink(broker, name)
    place = target(broker, name, settings)
    every = rows_with_ids(name, 3)
    assert DirectWriter(place, needs_ids=True).publish(every) == 3
    first = objects(tmp_path)
    assert DirectWriter(place, needs_ids=True).publish(every[::-1]) == 0
    assert objects(tmp_path) == first
    assert kept(tmp_path) == claims_in(messages(broker, name))


@pytest.mark.parametrize("allow_atomic", [True, False], ids=["batches", "single messages"])
def test_published_claims_are_confirmed_with_their_places(
    broker: Broker,
    name: str,
    settings: str,
    allow_atomic: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if the driver dies before it confirms them: the next one finds the messages."""
    broker.create(name, allow_atomic=allow_atomic, allow_msg_ttl=True)
    place = target(broker, name, settings)
    confirmed: dict[str, int] = {}
    confirm = ClaimUploader.confirm

    def dying(uploader: ClaimUploader, stored: Any) -> None:
        raise KeyboardInterrupt

    def noted(uploader: ClaimUploader, stored: Any) -> None:
        found = list(stored)
        confirmed.update({each.entry.claim_id: seq for each, _, seq in found})
        confirm(uploader, found)

    monkeypatch.setattr(ClaimUploader, "confirm", dying)
    with pytest.raises(KeyboardInterrupt):
        write_epoch(place, rows(name, 2))
    monkeypatch.setattr(ClaimUploader, "confirm", noted)
    write_epoch(place, rows(name, 2))
    found = messages(broker, name)
    assert confirmed == {
        json.loads(base64.b64decode(each["data"]))["claim_id"]: each["seq"] for each in found
    }


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


def messages(broker: Broker, stream: str) -> list[dict[str, Any]]:
    """Return all messages of a stream."""
    return stored_messages(broker, stream)


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
    publisher = DirectWriter(target(broker, name, settings), needs_ids=True)
    first, second = rows_with_ids(name, 2)
    small = (f"{name}.x".encode(), b"Nats-Msg-Id: s\r\n", b"7")
    with pytest.raises(WriteError, match="no stream has its subject"):
        publisher.publish([first, (b"elsewhere", b"Nats-Msg-Id: e\r\n", b"z" * LARGE), small, second])
    stored = messages(broker, name)
    assert len(stored) == 3
    assert len(claims_in(stored)) == 2
    assert kept(tmp_path) == claims_in(stored)


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
    write_epoch(place, [row])
    (message,) = messages(broker, name)
    lines = base64.b64decode(message["hdrs"])
    left_s = json.loads(base64.b64decode(message["data"]))["expires_at"] - time.time_ns() // 10**9
    assert left_s < 86400 - 3000
    end_s = left_s + 3600 + 60  # the grace period, and a minute
    assert int((find_header(lines, b"Nats-TTL") or b"").removesuffix(b"s")) == pytest.approx(end_s, abs=30)


def test_a_large_row_keeps_its_content_type(ours: Broker, name: str, settings: str) -> None:
    """Readers get it from the claim's reference."""
    sink(ours, name)
    line = b"A: b\r\nContent-Type: application/json\r\n"
    large = [(f"{name}.x".encode(), line, b"1" * LARGE), *rows(name, 1)]
    write_epoch(target(ours, name, settings), large)
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
