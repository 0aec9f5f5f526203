"""An archive in streams of a NATS server: groups by sequence, objects in parts, and streams that cannot be used."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import nats
import pytest

from conformance.servers import Server
from headrace.archive import nats_objects
from headrace.archive.archive_identity import normalize_url
from headrace.archive.archive_target import open_archive
from headrace.archive.group_log import GroupLog
from headrace.archive.nats_objects import NatsObjects
from headrace.archive.nats_streams import parse_nats_url
from headrace.archive.store_check import check_store
from headrace.backup.target import BackupTarget
from headrace.claims.jetstream_client import RequestTimeout
from headrace.claims.stores import ObjectMissing, ObjectStoreError
from headrace.errors import ArchiveError, ArchiveFenced
from support.archives import SERVER, STORE, FrameSource, make_writer

FOLDER = f"{SERVER:016x}"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("nats-server") as made:
        yield made


@pytest.fixture
async def target(server: Server, request: pytest.FixtureRequest) -> AsyncIterator[BackupTarget]:
    made = open_archive(f"{server.url}/{request.node.name[:60]}")
    await made.prepare()
    yield made
    await made.close()


async def test_a_group_is_the_message_with_its_number(target: BackupTarget) -> None:
    folder = target.open_folder(FOLDER)
    log = GroupLog(folder, SERVER)
    for number in range(1, 8):
        await log.create(number, b"group %d" % number)
    await log.create(7, b"group 7")  # a retry after a lost reply
    with pytest.raises(ArchiveFenced):
        await log.create(7, b"other bytes")
    assert await log.find_last() == 7
    assert await folder.read_any(f"log/{3:016x}") == b"group 3"
    assert await folder.read_any(f"log/{8:016x}") is None


async def test_a_number_that_was_removed_is_never_free_again(target: BackupTarget) -> None:
    log = GroupLog(target.open_folder(FOLDER), SERVER)
    for number in range(1, 6):
        await log.create(number, b"%d" % number)
    assert await log.trim(3) == 3
    assert await log.find_last() == 5
    assert (await log.read_floor()).number == 3
    with pytest.raises(ArchiveFenced, match="below the floor 3"):
        await log.create(2, b"late")
    with pytest.raises(ArchiveFenced, match="below the floor 3"):
        await log.check_next(2, "late")  # an idle server that was replaced
    await log.create(6, b"6")


async def test_a_create_whose_reply_is_lost_is_found(
    target: BackupTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Any = target._store
    client = store._streams.client
    publish, calls = client.publish, 0

    async def lose_first(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        result = await publish(*arguments)
        if calls == 1:
            raise RequestTimeout("no reply")
        return result

    monkeypatch.setattr(client, "publish", lose_first)
    log = GroupLog(target.open_folder(FOLDER), SERVER)
    with pytest.raises(ObjectStoreError):
        await log.create(1, b"own")
    await log.create(1, b"own")
    assert await log.find_last() == 1


async def test_another_server_cannot_use_the_stream(target: BackupTarget) -> None:
    await GroupLog(target.open_folder(FOLDER), SERVER).create(1, b"x")
    other = GroupLog(target.open_folder(f"{SERVER + 1:016x}"), SERVER + 1)
    with pytest.raises(ArchiveError, match="use another stream for each server"):
        await other.find_last()
    assert await target.list_folders() == [FOLDER]


async def test_objects_of_any_size(target: BackupTarget) -> None:
    sizes = {"a/small": 10, "a/b/none": 0, "a/large.0af": 3_000_000}
    for key, size in sizes.items():
        assert await target.create(key, bytes(size))
        assert await target.create(key, bytes(size))
        assert not await target.create(key, b"other")
        assert await target.read_any(key) == bytes(size)
    assert {info.key: info.size async for info in target.list("a/")} == sizes
    await target.delete(["a/large.0af", "a/missing"])
    assert await target.read_any("a/large.0af") is None
    store: Any = target._store
    info = await store._streams.client.api_request(f"STREAM.INFO.{store._streams.objects}")
    # The attempts that found other bytes sent their parts first, unless they were small.
    assert info["state"]["messages"] <= 2 + 3 * 3
    for text in (b"1", b"2" * 10_000, b"3"):
        await target.replace("a/small", text)
        assert await target.read_any("a/small") == text


async def test_interrupted_uploads_are_found_and_removed(
    target: BackupTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await target.create("a/whole", bytes(20_000))
    store: Any = target._store
    monkeypatch.setattr(store._streams, "object_subject", lambda key: "nowhere")
    with pytest.raises(ObjectStoreError):
        await target.create("a/lost", bytes(20_000))
    monkeypatch.undo()
    (upload,) = await store.uploads()
    await target.remove_partial_uploads(upload.initiated_ns + 1)
    assert await store.uploads() == []
    assert await target.read_any("a/whole") == bytes(20_000)


async def test_the_check_passes(target: BackupTarget) -> None:
    assert (await check_store(target))["rounds"] == 20
    assert [info async for info in target.list("check/")] == []


async def test_a_large_group_is_written_in_parts_below_max_payload(target: BackupTarget) -> None:
    folder, source = target.open_folder(FOLDER), FrameSource()
    writer = make_writer(folder, source, "w1")
    await writer.take_over({"w1"}, {STORE: 0})
    await writer.send_group()
    source.add(30_000)  # more than 1 MiB
    while await writer.send_group():
        pass
    log = GroupLog(folder, SERVER)
    last = await log.read(await log.find_last())
    assert last is not None
    assert last.header.parts > 1
    assert last.header.heads == {STORE: 30_000}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"discard": "old"}, "discard is 'old'"),
        ({"max_age": 3600_000_000_000}, "max_age"),
        ({"max_msgs_per_subject": 5}, "max_msgs_per_subject"),
        ({"storage": "memory"}, "storage"),
        ({"subjects": ["others.>"]}, "subjects"),
        ({"deny_purge": True}, "deny_purge"),
    ],
)
async def test_a_stream_that_could_lose_groups_is_refused(
    server: Server, change: dict[str, Any], reason: str
) -> None:
    name = f"BAD_{next(iter(change))}"
    client = await nats.connect(server.url)
    config = {"name": name, "subjects": [f"headrace.archive.{name}.log.*"], "discard": "new", **change}
    reply = await client.request(f"$JS.API.STREAM.CREATE.{name}", json.dumps(config).encode(), timeout=60)
    assert b'"error"' not in reply.data
    await client.close()
    made = open_archive(f"{server.url}/{name}")
    try:
        with pytest.raises(ArchiveError, match=reason):
            await made.prepare()
    finally:
        await made.close()


async def test_a_server_that_is_not_there_is_reported() -> None:
    made = open_archive("nats://127.0.0.1:1/S")
    with pytest.raises(ObjectStoreError, match="cannot connect"):
        await asyncio.wait_for(made.prepare(), 60)
    await made.close()


def test_urls() -> None:
    found = parse_nats_url("nats://a:1,b:2,c/LOG?domain=hub")
    assert (found.servers, found.stream, found.domain) == (
        ["nats://a:1", "nats://b:2", "nats://c"],
        "LOG",
        "hub",
    )
    assert normalize_url("nats://a,b/LOG") == normalize_url("nats://c/LOG?domain=x") == "nats:///LOG"
    for wrong in (
        "nats://a",
        "nats:///LOG",
        "nats://a/b/c",
        "nats://a/L.G",
        "nats://u:p@a/LOG",
        "nats://a/L?x=1",
    ):
        with pytest.raises(ArchiveError):
            parse_nats_url(wrong)


async def test_a_part_that_is_missing_is_an_error(target: BackupTarget) -> None:
    assert await target.create("a/b", bytes(10_000))
    store: Any = target._store
    assert isinstance(store, NatsObjects)
    head = await store._find_head("a/b")
    assert head is not None
    await store._remove_parts(head[0].upload)
    with pytest.raises(ObjectMissing, match="part"):
        await store._read("a/b")
    assert nats_objects.INLINE_BYTES < 10_000
