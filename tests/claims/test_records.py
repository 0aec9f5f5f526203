"""Records written by other programs: they delete nothing else, stop no collector, and are reported once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from claims.claims_harness import LARGE, TIMEOUT_S, ClaimsHarness, wait_until_stored
from headrace.claims import ClaimConfig, Claims, ConfigConflict, MemoryStore, Ttl, records
from headrace.claims import published_config as configs
from headrace.claims.config_lint import lint
from headrace.claims.jetstream_client import RequestTimeout
from headrace.claims.lenient_parsing import connect
from headrace.claims.namespace_stats import collect_stats
from headrace.claims.object_deletion import ClaimObjects, ForeignObject
from headrace.claims.records import ClaimEntry, MalformedRecord, decode_entry
from headrace.claims.reference import make_key
from headrace.claims.registry import STREAM, claim_subject, due_subject
from headrace.claims.stores import FolderStore, StaticAttributes
from headrace.errors import RequestError

SRC = Path(__file__).parents[2] / "src" / "headrace"
MARKER = {"Nats-Marker-Reason": "MaxAge", "Nats-TTL": "1h"}
CLAIM = "f0" * 16
OTHER = "0f" * 16
#: The subject of forged records.
TOPIC = "video.raw"
EXPIRES_AT = 1_700_000_000
TTL = Ttl(7200, True, 0, 60)


def facts(namespace: str, /, **changes: Any) -> dict[str, Any]:
    """Return a record as a producer writes it, of a claim that expired long ago, with some fields changed."""
    return {
        "claim_id": CLAIM,
        "namespace": namespace,
        "subject": TOPIC,
        "bucket": "claims",
        "object_key": make_key(namespace, TOPIC, EXPIRES_AT, CLAIM),
        "original_size": 1,
        "stored_size": 1,
        "created_ns": (EXPIRES_AT - 7200) * 10**9,
        "expires_at": EXPIRES_AT,
        **changes,
    }


async def forge(
    world: ClaimsHarness, document: Any, headers: dict[str, str] | None = None, claim_id: str = CLAIM
) -> None:
    """Write a record and make it due, as a user can who may publish both."""
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    await world.wire.publish(claim_subject(world.name, claim_id), data, headers)
    await world.wire.publish(due_subject(world.name, claim_id), b"", MARKER)
    await noticed(world)


async def noticed(world: ClaimsHarness) -> None:
    """Wait until the collectors' consumer, if there is one, has received a marker.

    nats-server delivers in the background.
    """
    for _ in range(500):
        try:
            if await left_to_do(world):
                return
        except RequestError:
            return  # there is no consumer yet; a new one finds the marker
        await asyncio.sleep(0.01)


async def due(world: ClaimsHarness, claims: Claims, suffix: str = "") -> str:
    """Publish a claim whose message is gone and whose time is over; return the key of its object."""
    stream = await world.stream(suffix)
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    assert sent.reference
    await wait_until_stored(world.connection)
    await world.advance(7200 + 3600)
    await world.wire.api_request(f"STREAM.PURGE.{stream}")
    await world.fire(claims, sent.reference.claim_id)
    return sent.reference.object_key


async def left_to_do(world: ClaimsHarness) -> int:
    """Return how many markers a collector still has to process."""
    info = await world.wire.api_request(f"CONSUMER.INFO.{STREAM}.collectors-{world.name}")
    return int(info["num_pending"] + info["num_ack_pending"])


async def settled(world: ClaimsHarness) -> None:
    await wait_until_stored(world.connection)
    await world.settled(STREAM, f"collectors-{world.name}")
    assert await left_to_do(world) == 0


FOREIGN = [
    "other-team/report.csv",
    "backups/2026/full.tar",
    f"other-team/{TOPIC.replace('.', '=2E')}/2023111422/{CLAIM}",
    "{ns}/notes.txt",
    "{ns}/../other-team/report.csv",
    "{ns}/video=2Eraw/2023111422/" + OTHER,
    "{ns}/audio/2023111422/" + CLAIM,
    "{ns}/video=2Eraw/2023111423/" + CLAIM,
    "{ns}/video=2Eraw/2023111422/" + CLAIM + ".attempt-1",
    "{ns}/video=2Eraw/2023111422/" + CLAIM + "/part",
    "{ns}/video=2Eraw/2023111422/" + CLAIM + "\n",
]


@pytest.mark.parametrize("key", FOREIGN)
async def test_forged_facts_delete_no_object_of_others(world: ClaimsHarness, key: str) -> None:
    claims = await world.claims(ttl=TTL, objects=MemoryStore(clock=world.clock))
    key = key.format(ns=world.name)
    await claims.store.put(key, b"precious", StaticAttributes())
    await forge(world, facts(world.name, object_key=key))
    await claims.collector.collect()
    assert await claims.store.exists(key)
    await settled(world)


@pytest.mark.parametrize(
    "changes",
    [
        {"namespace": "other-team", "object_key": make_key("other-team", TOPIC, EXPIRES_AT, CLAIM)},
        {"claim_id": OTHER, "object_key": make_key("{ns}", TOPIC, EXPIRES_AT, OTHER)},
        {"bucket": "backups"},
    ],
)
async def test_facts_of_another_claim_or_bucket_are_not_acted_upon(
    world: ClaimsHarness, changes: dict[str, Any]
) -> None:
    """With the record of another bucket: the namespace was moved, and the same key may be a new claim here."""
    claims = await world.claims(ttl=TTL, objects=MemoryStore(clock=world.clock))
    changes = {name: value.format(ns=world.name) for name, value in changes.items()}
    document = facts(world.name, **changes)
    await claims.store.put(document["object_key"], b"precious", StaticAttributes())
    await forge(world, document)
    await claims.collector.collect_due()
    assert await claims.store.exists(document["object_key"])
    assert _count(claims, "claim") == 1
    await settled(world)


UNREADABLE = [
    b"[]",
    b"{}",
    b"null",
    b"\xff\xfe",
    b'"\\ud800"',
    b'{"claim_id":' + b"[" * 20_000,
    {"created_ns": None},
    {"created_ns": "yesterday"},
    {"expires_at": 10**17},
    {"expires_at": -1},
    {"stored_size": -1},
    {"places": []},
    {"places": {"S": 1}},
    {"places": {"S": [0, "s"]}},
    {"places": {"S\r\nPUB x 0\r\n": [1, "s"]}},
    {"places": {"a.b": [1, "s"]}},
    {"places": {f"S{number}": [1, "s"] for number in range(300)}},
    {"state": ["released"]},
    {"subject": 7},
    {"reference": {"claim_id": CLAIM}},
    {"reference": []},
    {"shared": "no"},
]


@pytest.mark.parametrize("wrong", UNREADABLE, ids=lambda wrong: str(wrong)[:40])
async def test_one_record_that_cannot_be_read_stops_nobody(
    world: ClaimsHarness, wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(records._LOG, "warning", lambda text, *values: said.append(text % values))
    claims = await world.claims(ttl=TTL)
    document = wrong if isinstance(wrong, bytes) else facts(world.name, **wrong)
    await forge(world, document)
    key = await due(world, claims)
    report = await claims.collector.collect()
    assert report.removed == 1
    assert not await claims.store.exists(key)
    await settled(world)
    assert _count(claims, "claim") == 1
    assert sum("invalid claim record" in line for line in said) == 1
    await claims.collector.collect()
    assert _count(claims, "claim") == 1, "reported once"
    assert await world.events(claims, CLAIM) == ["failed"]
    await claims.producer.publish(f"{world.name}.b", LARGE, msg_id="another")
    assert [item["live"] for item in await collect_stats(world.wire) if item["namespace"] == world.name] == [
        1
    ]


async def test_an_object_whose_facts_cannot_be_read_stays_until_its_hour_is_over(
    world: ClaimsHarness,
) -> None:
    """A newer program may have written the record: nothing is deleted early, and nothing stays forever."""
    claims = await world.claims(ttl=TTL, objects=MemoryStore(clock=world.clock))
    stream = await world.stream()
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    assert sent.reference
    await wait_until_stored(world.connection)
    claim_id, key = sent.reference.claim_id, sent.reference.object_key
    await forge(world, b'{"format": "of tomorrow"}', {"Nats-TTL": "720h"}, claim_id)
    await claims.collector.collect()
    assert await claims.store.exists(key)
    await world.advance(7200 + 3600 + 60)
    await claims.collector.collect()
    assert not await claims.store.exists(key)


async def test_a_marker_with_a_wildcard_asks_for_no_other_claim(world: ClaimsHarness) -> None:
    claims = await world.claims(ttl=TTL)
    stream = await world.stream()
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    assert sent.reference
    for token in ("*", "ünïcode"):
        await world.wire.publish(due_subject(world.name, token), b"", MARKER)
    await claims.collector.collect()
    assert _count(claims, "due") == 2
    assert await claims.store.exists(sent.reference.object_key)
    await settled(world)


async def say(world: ClaimsHarness, *lines: bytes) -> None:
    """Send raw bytes to the server: a client would refuse some that servers accept."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(world.url.rpartition(":")[2]))
    writer.write(b'CONNECT {"verbose":false,"headers":true}\r\n' + b"".join(lines) + b"PING\r\n")
    while line := await reader.readline():
        if line.startswith((b"PONG", b"-ERR")):
            break
    writer.close()


def hpub(subject: bytes, header: bytes, data: bytes = b"") -> bytes:
    head = b"NATS/1.0\r\n%b\r\n\r\n" % header
    return b"HPUB %b %d %d\r\n%b%b\r\n" % (subject, len(head), len(head) + len(data), head, data)


async def test_subjects_and_headers_that_are_not_utf_8_stop_nobody(world: ClaimsHarness) -> None:
    connection = await connect(world.url, connect_timeout=TIMEOUT_S)
    claims = await world.claims(ttl=TTL, connection=connection)
    name, marker = world.name.encode(), b"Nats-Marker-Reason: MaxAge"
    await say(
        world,
        hpub(b"$CLAIMS.due.%b.\xff\xfe" % name, marker),
        hpub(b"$CLAIMS.claim.%b.\xff\xfe" % name, b"A: b", b"{}"),
        hpub(b"$CLAIMS.reader.%b.\xff" % name, b"A: b", b"{}"),
        hpub(b"$CLAIMS.claim.%b.%b" % (name, CLAIM.encode()), b"A: \xff", b"{}"),
        hpub(b"$CLAIMS.due.%b.%b" % (name, CLAIM.encode()), marker),
    )
    assert await claims.registry.find(world.name, CLAIM) is None
    key = await due(world, claims)
    assert (await claims.collector.collect()).removed == 1
    assert not await claims.store.exists(key)
    assert _count(claims, "due") == 1
    await settled(world)
    await claims.close()
    world.opened.remove(claims)
    await connection.close()


@pytest.mark.parametrize(
    "block", [b"X", b"\r\n", b"NATS/1.0", b"NATS/1.0 ", b"NATS/1.0 \xff", b"NATS/1.0\r\n"]
)
async def test_a_header_block_that_cannot_be_read_stops_nobody(world: ClaimsHarness, block: bytes) -> None:
    connection = await connect(world.url, connect_timeout=TIMEOUT_S)
    claims = await world.claims(ttl=TTL, connection=connection)
    for kind in (b"due", b"claim"):
        subject = b"$CLAIMS.%b.%b.%b" % (kind, world.name.encode(), CLAIM.encode())
        with contextlib.suppress(
            ConnectionError
        ):  # some servers close the connection of a client that sends this
            await say(world, b"HPUB %b %d %d\r\n%b\r\n" % (subject, len(block), len(block), block))
    key = await due(world, claims)
    assert (await claims.collector.collect()).removed == 1
    assert not await claims.store.exists(key)
    assert await claims.registry.get_server_time_ns(), "the connection still hears answers"
    await claims.close()
    world.opened.remove(claims)
    await connection.close()


async def test_a_claim_that_ends_in_thousands_of_years_stops_no_sweep(world: ClaimsHarness) -> None:
    claims = await world.claims(ttl=TTL)
    stream = await world.stream("far")
    await world.wire.publish(f"{stream}.a", b"1")
    end = 200_000_000_000
    far = facts(
        world.name,
        expires_at=end,
        object_key=make_key(world.name, TOPIC, end, CLAIM),
        state="live",
        places={stream: [99, TOPIC]},
        created_ns=0,
    )
    await world.wire.publish(claim_subject(world.name, CLAIM), json.dumps(far).encode())
    key = await due(world, claims)
    report = await claims.collector.collect()
    assert report.removed >= 1
    assert report.released == 1
    assert not await claims.store.exists(key)
    found = await claims.registry.find(world.name, CLAIM)
    assert found is None or found.state == "released"


@pytest.mark.parametrize(
    "error", [RequestError(400, 10165, "invalid per-message TTL"), RequestTimeout("nobody")]
)
async def test_a_claim_that_cannot_be_released_stops_no_sweep(
    world: ClaimsHarness, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = await world.claims(ttl=TTL)
    stream = await world.stream("kept")
    end = world.clock.now_ns() // 10**9 + 86400
    lost = facts(
        world.name,
        expires_at=end,
        object_key=make_key(world.name, TOPIC, end, CLAIM),
        state="live",
        places={stream: [99, TOPIC]},
    )
    await world.wire.publish(claim_subject(world.name, CLAIM), json.dumps(lost).encode())
    key = await due(world, claims)

    async def refused(*_: Any) -> None:
        raise error

    monkeypatch.setattr(claims.registry, "compare_and_set", refused)
    report = await claims.collector.collect()
    assert (report.removed, report.released) == (1, 0)
    assert not await claims.store.exists(key)


@pytest.mark.parametrize("status", ["404", "503", "409", "204"])
async def test_a_header_that_looks_like_a_status_hides_nothing(world: ClaimsHarness, status: str) -> None:
    claims = await world.claims(ttl=TTL)
    head = {"Status": status}
    for number in range(3):
        await forge(world, facts(world.name), head, f"{number}" * 32)
        await world.wire.publish(f"$CLAIMS.reader.{world.name}.{number}", b'{"acked":9}', head)
        await world.wire.publish(due_subject(world.name, f"{number}" * 32), b"", {**MARKER, **head})
    await world.wire.publish(f"$CLAIMS.reader.{world.name}.last", b'{"acked":9}')
    leases = await world.wire.get_all(STREAM, f"$CLAIMS.reader.{world.name}.*")
    assert [item.subject.rpartition(".")[2] for item in leases] == ["0", "1", "2", "last"]
    key = await due(world, claims)
    assert (await claims.collector.collect()).removed == 1
    assert not await claims.store.exists(key)
    await settled(world)


@pytest.mark.parametrize("lease", [b"{}", b"[]", b"junk", b'{"acked":"all"}', b'{"acked":5,"filters":3}'])
async def test_a_reader_whose_lease_cannot_be_read_may_need_everything(
    world: ClaimsHarness, lease: bytes
) -> None:
    claims = await world.claims(ttl=TTL)
    stream = await world.stream()
    await world.consumer(stream, "c")
    await world.wire.publish(f"$CLAIMS.reader.{stream}.spark", lease)
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    assert sent.reference
    message = await world.next(stream, "c")
    assert await claims.consumer.ack(message)
    await claims.collector.collect()
    assert await claims.store.exists(sent.reference.object_key), "the reader may still need it"
    assert _count(claims, "lease") == 1
    await world.advance(7200 + 60 + 1)
    await world.fire(claims, sent.reference.claim_id)
    await claims.collector.collect()
    assert not await claims.store.exists(sent.reference.object_key), "its age ends it in any case"


async def test_a_stream_that_does_not_answer_keeps_only_its_own_claims(
    world: ClaimsHarness, monkeypatch: Any
) -> None:
    claims = await world.claims(ttl=TTL)
    now_s = world.clock.now_ns() // 10**9
    silent = facts(
        world.name,
        expires_at=now_s + 3600,
        object_key=make_key(world.name, TOPIC, now_s + 3600, CLAIM),
        state="released",
        places={"SILENT": [1, TOPIC]},
    )
    await claims.store.put(silent["object_key"], b"needed?", StaticAttributes())
    stream = await world.stream()
    await world.consumer(stream, "c")
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    assert sent.reference
    asked = 0
    api = claims.jetstream.api_request

    async def failing(verb: str, body: Any = None) -> dict[str, Any]:
        nonlocal asked
        if verb.endswith(".SILENT"):
            asked += 1
            raise RequestTimeout("nobody may ask")
        return await api(verb, body)

    monkeypatch.setattr(claims.jetstream, "api_request", failing)
    await forge(world, silent)
    await forge(
        world,
        {**silent, "claim_id": OTHER, "object_key": silent["object_key"].replace(CLAIM, OTHER)},
        None,
        OTHER,
    )
    await world.fire(claims, sent.reference.claim_id)
    await world.wire.api_request(f"STREAM.PURGE.{stream}")
    await world.advance(2)
    report = await claims.collector.collect_due()
    assert report.failed >= 2
    assert asked <= report.failed, "each look at the server asks once"
    await claims.collector.collect()
    assert await claims.store.exists(silent["object_key"])


async def test_a_configuration_that_cannot_be_read_is_a_disagreement(world: ClaimsHarness) -> None:
    claims = await world.claims(ttl=TTL)
    subject = f"$CLAIMS.namespace.{world.name}"
    for text in (
        b"[]",
        b"junk",
        b'{"namespace":"other","ttl":{}}',
        b'{"namespace":"%s"}' % world.name.encode(),
    ):
        await world.wire.publish(subject, text)
        with pytest.raises(ConfigConflict, match="cannot be read"):
            await configs.check_published_config(world.wire, claims.config)
        assert any(
            "cannot be read" in str(item) for item in await lint(world.wire, claims.config, claims.store)
        )
        assert world.name not in [item["namespace"] for item in await collect_stats(world.wire)]
    await configs.publish(world.wire, claims.config)
    assert await configs.check_published_config(world.wire, claims.config) == []


async def test_events_that_cannot_be_read_are_shown_as_such(world: ClaimsHarness) -> None:
    claims = await world.claims()
    for text in (b"", b"junk", b"[1]"):
        await world.wire.publish(f"$CLAIMS.audit.{world.name}.{CLAIM}.created", text)
    found = [event.details async for event in claims.audit.events(world.name, CLAIM)]
    assert [list(item) for item in found] == [[], ["unreadable"], ["unreadable"]]


async def test_a_retry_uses_no_forged_claim(world: ClaimsHarness) -> None:
    """The record of an earlier attempt names another bucket, or the object of another message."""
    claims = await world.claims(ttl=TTL)
    stream = await world.stream()
    first = await claims.producer.publish(f"{stream}.a", LARGE, msg_id="m")
    victim = await claims.producer.publish(f"{stream}.secret", LARGE)
    assert first.reference
    assert victim.reference
    await wait_until_stored(world.connection)
    found = await world.wire.get_last(STREAM, claim_subject(world.name, first.reference.claim_id))
    assert found
    document = json.loads(found.data)
    document["object_key"] = document["reference"]["object_key"] = victim.reference.object_key
    await world.wire.publish(found.subject, json.dumps(document).encode())
    await world.wire.api_request(f"STREAM.PURGE.{stream}")
    again = await claims.producer.publish(f"{stream}.a", LARGE, msg_id="m")
    assert again.reference is not None
    assert again.reference.object_key != victim.reference.object_key


class Counting(MemoryStore):
    """A store that records deletions."""

    deleted: list[str]

    async def delete(self, keys: Any) -> None:
        self.deleted = [*getattr(self, "deleted", ()), *keys]


async def test_the_last_check_before_a_deletion_stands_alone() -> None:
    """Records that were never decoded, as if that check had a hole."""
    store = Counting()
    objects = ClaimObjects(ClaimConfig("video"), store)
    good = ClaimEntry(
        CLAIM, "video", TOPIC, "claims", make_key("video", TOPIC, 0, CLAIM, "0a1b2c3d"), 1, 1, 1, 1
    )
    for changes in (
        {"bucket": "backups"},
        {"namespace": "audio"},
        {"claim_id": OTHER},
        {"object_key": "backups/full.tar"},
        {"object_key": make_key("audio", TOPIC, 0, CLAIM)},
    ):
        bad = ClaimEntry(**{**{name: getattr(good, name) for name in good.__slots__}, **changes})
        with pytest.raises(ForeignObject):
            await objects.delete([good, bad])
    assert not hasattr(store, "deleted")
    await objects.delete([good])
    assert store.deleted == [good.object_key]


def test_objects_are_deleted_in_one_place() -> None:
    places = [path for part in ("claims", "spark", "demo") for path in (SRC / part).rglob("*.py")]
    found = {
        path.relative_to(SRC).as_posix()
        for path in (*places, SRC / "cli" / "claims.py")
        if re.search(r"store\.delete\(", path.read_text())
    }
    assert found == {"claims/object_deletion.py", "claims/stores/combined.py"}, (
        "the latter forwards to its stores"
    )


#: As version 0.1 wrote it, with and without fields that were added later.
WRITTEN = {
    "claim_id": "5d41402abc4b2a76b9719d911017c592",
    "namespace": "video",
    "subject": "video.raw.é",
    "bucket": "claims",
    "object_key": "video/video=2Eraw=2E=C3=A9/2026111610/5d41402abc4b2a76b9719d911017c592.7d793037",
    "original_size": 131072,
    "stored_size": 131072,
    "created_ns": 1794736800123456789,
    "expires_at": 1794823200,
    "state": "released",
    "released_ns": 1794736801123456789,
    "places": {"VIDEO": [17, "video.raw.é"], "COPY": [3, "copy.raw"]},
    "reference": None,
    "shared": False,
    "doomed": True,
}


def test_facts_that_are_there_already_can_be_read() -> None:
    document = dict(WRITTEN)
    subject = claim_subject("video", "5d41402abc4b2a76b9719d911017c592")
    entry = decode_entry(subject, json.dumps(document).encode(), 7, 8)
    assert (entry.revision, entry.updated_ns) == (7, 8)
    assert entry.places == {"VIDEO": (17, "video.raw.é"), "COPY": (3, "copy.raw")}
    for later in ("state", "released_ns", "places", "reference", "shared", "doomed"):
        del document[later]
    assert decode_entry(subject, json.dumps({**document, "of": "tomorrow"}).encode(), 7, 8).state == "pending"
    with pytest.raises(MalformedRecord):
        decode_entry(subject + "0", json.dumps(document).encode(), 7, 8)


async def test_metadata_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    store = FolderStore(tmp_path, xattrs=False)
    await store.ensure_bucket()
    await store.put("a/b", b"data", StaticAttributes({"prism-checksum": "x"}))
    beside = next(tmp_path.rglob("b.json"))
    for text in (b"[]", b"\xff", b'{"a":1}', b""):
        beside.write_bytes(text)
        found = await store.head("a/b")
        assert (found.size, found.metadata) == (4, {})


class Strange(MemoryStore):
    """A listing with objects of other programs, and an empty page."""

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[Any]:
        yield []
        async for page in super().list(prefix, start_after):
            yield page

    async def prefixes(self, prefix: str) -> Any:
        return [*await super().prefixes(prefix), f"{prefix}/", prefix]


async def test_a_sweep_leaves_objects_alone_that_no_producer_makes(world: ClaimsHarness) -> None:
    store = Strange(clock=world.clock)
    claims = await world.claims(ttl=TTL, objects=store)
    names = [
        f"{world.name}/t/2020010100/report.final.csv",
        f"{world.name}/t/2020010100/some file",
        f"{world.name}/t/2020010100/deeper/id",
        f"{world.name}/t/20200101 1/id",
        f"{world.name}/t/9999999999/id",
        f"{world.name}/t",
        f"{world.name}//2020010100/id",
    ]
    for key in names:
        await store.put(key, b"not ours", StaticAttributes())
    orphan = f"{world.name}/t/2020010100/{CLAIM}.0a1b2c3d"
    await store.put(orphan, b"ours", StaticAttributes())
    await world.advance(86400)
    report = await claims.collector.collect()
    assert report.orphans == 1
    assert not await store.exists(orphan)
    for key in names:
        assert await store.exists(key), key


def _count(claims: Claims, kind: str) -> int:
    found = claims.metrics.registry.get_sample_value(
        "claim_check_records_rejected_total", {"namespace": claims.config.namespace, "kind": kind}
    )
    return int(found or 0)
