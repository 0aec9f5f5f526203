"""Buckets with headrace.client: options, every operation on keys, several keys at once."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import nats.js.errors
import pytest
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg
from nats.js import api

from conformance.client import Client
from headrace.client import BucketConfig, JetStream, KeyValue, Operation, errors, jetstream

Make = Callable[..., Awaitable[KeyValue]]


@pytest.fixture
def js(nc: NatsClient) -> JetStream:
    return jetstream(nc)


@pytest.fixture
async def make(js: JetStream, name: str) -> AsyncIterator[Make]:
    """Create a bucket called `name`; it is deleted at the end of the test."""
    made: list[str] = []

    async def create(bucket: str = name, **options: Any) -> KeyValue:
        kv = await js.create_key_value(bucket=bucket, **options)
        made.append(bucket)
        return kv

    yield create
    for bucket in made:
        await js.delete_key_value(bucket)


class TestBuckets:
    async def test_the_stream_of_a_bucket(self, make: Make, name: str, client: Client) -> None:
        await make(history=1, limit_markers="3s")
        config = client.api(f"STREAM.INFO.KV_{name}")["config"]
        expected = {
            "subjects": [f"$KV.{name}.>"],
            "max_msgs_per_subject": 1,
            "discard": "new",
            "retention": "limits",
            "storage": "file",
            "max_msgs": -1,
            "max_bytes": -1,
            "max_msg_size": -1,
            "duplicate_window": 120_000_000_000,
            "allow_direct": True,
            "deny_delete": True,
            "allow_rollup_hdrs": True,
            "allow_msg_ttl": True,
            "subject_delete_marker_ttl": 3_000_000_000,
        }
        assert {field: config[field] for field in expected} == expected
        assert config["deny_purge"] is False

    async def test_status_shows_every_option_of_a_bucket(self, make: Make, name: str) -> None:
        kv = await make(
            history=5,
            ttl="1h",
            limit_markers=timedelta(minutes=1),
            compression=True,
            metadata={"owner": "ann"},
            max_bytes=1 << 20,
            max_value_size=1 << 10,
            description="sessions",
        )
        await kv.put("a", b"x")
        status = await kv.status()
        assert (status.bucket, status.values, status.history, status.ttl) == (name, 1, 5, 3600)
        assert (status.limit_marker_ttl, status.marker_ttl) == (60, 60)
        assert status.bytes > 0
        assert status.is_compressed
        assert status.metadata["owner"] == "ann"
        assert status.backing_store == "JetStream"
        assert (status.allows_ttl, status.allows_atomic) == (True, False)

    async def test_a_bucket_without_options_has_the_defaults(self, make: Make) -> None:
        status = await (await make()).status()
        assert (status.history, status.limit_marker_ttl, status.is_compressed, status.allows_ttl) == (
            1,
            0,
            False,
            False,
        )

    async def test_creating_alike_and_otherwise(self, js: JetStream, make: Make, name: str) -> None:
        await make(history=2)
        assert (await js.create_key_value(bucket=name, history=2)).bucket == name
        with pytest.raises(errors.BucketExists, match="update_key_value"):
            await js.create_key_value(BucketConfig(bucket=name, history=3))

    async def test_nats_pys_configuration(self, js: JetStream, make: Make, name: str) -> None:
        await make(config=api.KeyValueConfig(bucket=name, history=4, storage=api.StorageType.MEMORY))
        info = await js.stream_info(f"KV_{name}")
        assert (info.config.max_msgs_per_subject, info.config.storage) == (4, "memory")

    async def test_a_missing_bucket_raises_bucket_not_found(
        self, js: JetStream, make: Make, name: str
    ) -> None:
        await (await make()).put("a", b"1")
        assert (await (await js.key_value(name)).get("a")).value == b"1"
        for missing in (js.key_value, js.delete_key_value, js.update_key_value):
            with pytest.raises(errors.BucketNotFound):
                await missing(f"{name}x")
        with pytest.raises(nats.js.errors.BucketNotFoundError):
            await js.key_value(f"{name}x")

    async def test_a_stream_that_is_no_bucket(
        self, js: JetStream, name: str, make_stream: Callable[..., Any]
    ) -> None:
        make_stream(f"KV_{name}")
        with pytest.raises(errors.BadBucket):
            await js.key_value(name)

    async def test_buckets_and_their_statuses_are_listed(self, js: JetStream, make: Make, name: str) -> None:
        await make(f"{name}a")
        await make(f"{name}b", history=3)
        names = await js.key_value_names()
        assert {f"{name}a", f"{name}b"} <= set(names)
        histories = {status.bucket: status.history for status in await js.key_value_statuses()}
        assert histories.keys() == set(names)
        assert histories[f"{name}b"] == 3

    async def test_a_deleted_bucket_raises_stream_not_found(self, js: JetStream, name: str) -> None:
        kv = await js.create_key_value(bucket=name)
        assert await js.delete_key_value(name)
        for gone in (kv.put("a", b"x"), kv.get("a"), kv.status()):
            with pytest.raises(errors.StreamNotFound):
                await gone

    async def test_without_direct_get(self, make: Make) -> None:
        kv = await make(direct=False)
        revision = await kv.put("a", b"x")
        assert (await kv.get("a")).revision == revision
        assert (await kv.get("a", revision)).value == b"x"
        await kv.purge("a")
        with pytest.raises(errors.KeyNotFound):
            await kv.get("a")

    async def test_ttls_through_a_mirror(self, js: JetStream, make: Make, name: str) -> None:
        """The origin gets the writes, so its settings count."""
        origin = await make(f"{name}o", limit_markers="1h")
        mirror = await make(mirror=f"{name}o")
        assert await mirror.create("a", b"1", ttl="1h") == 1
        assert await mirror.purge("a", ttl="1h")
        entry = await origin.last("a")
        assert entry
        assert (entry.revision, entry.operation) == (2, Operation.PURGE)
        await make(f"{name}p")
        other = await make(f"{name}q", mirror=f"{name}p")
        with pytest.raises(errors.TTLDisabled):
            await other.create("a", b"1", ttl="1h")

    async def test_several_keys_through_a_mirror(self, js: JetStream, make: Make, name: str) -> None:
        await make(f"{name}o", allow_atomic=True)
        mirror = await make(mirror=f"{name}o")
        assert await mirror.put_many({"a": b"1", "b": b"2"}) == {"a": 1, "b": 2}

    @pytest.mark.parametrize("several", [False, True])
    async def test_a_marker_that_ends_while_a_key_is_created(
        self, js: JetStream, make: Make, name: str, several: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kv = await make(history=2, allow_atomic=True)
        await kv.put("a", b"1")
        await kv.delete("a")
        last, ended = kv.last, []

        async def end_after_look(key: str, *arguments: Any, **options: Any) -> Any:
            entry = await last(key, *arguments, **options)
            if not ended:
                ended.append(key)
                await js.purge_stream(f"KV_{name}", subject=f"$KV.{name}.a")
            return entry

        monkeypatch.setattr(kv, "last", end_after_look)
        revision = (await kv.create_many({"a": b"2"}))["a"] if several else await kv.create("a", b"2")
        assert revision == 3
        assert ended
        with pytest.raises(errors.KeyExists):
            await kv.create("a", b"3")

    async def test_mirrors_and_sources(self, js: JetStream, make: Make, name: str) -> None:
        """A mirror is read locally and written at its upstream; a source's keys become keys of the bucket."""
        origin = await make(f"{name}o")
        await origin.put("a.b", b"1")
        mirror = await make(mirror=f"{name}o")
        merged = await make(f"{name}s", sources=[f"{name}o"])
        assert await mirror.put("c", b"2") == 2
        for copy in (mirror, merged, await js.key_value(name)):
            async with await copy.watchall() as watcher:
                found: dict[str, bytes] = {}
                while len(found) < 2:
                    if entry := await watcher.updates(30):
                        found[entry.key] = entry.value
            assert found == {"a.b": b"1", "c": b"2"}
            assert (await copy.get("c")).value == b"2"
        assert await merged.put("own", b"3") == 3


class TestLimitMarkers:
    async def test_enabled_later_and_changed(self, js: JetStream, make: Make, name: str) -> None:
        kv = await make(history=3, description="stays")
        with pytest.raises(errors.TTLDisabled, match="limit_markers"):
            await kv.create("a", b"x", ttl=5)
        with pytest.raises(errors.TTLDisabled):
            await kv.purge("a", ttl="1h")
        await js.update_key_value(name, limit_markers="10s")
        assert await kv.create("a", b"x", ttl=60) == 1
        await js.update_key_value(name, limit_markers=20)
        status = await kv.status()
        assert (status.limit_marker_ttl, status.history) == (20, 3)
        assert status.stream_info.config.description == "stays"

    @pytest.mark.parametrize("nothing", [None, 0])
    async def test_limit_markers_cannot_be_disabled(
        self, js: JetStream, make: Make, name: str, nothing: object
    ) -> None:
        kv = await make(limit_markers=5)
        with pytest.raises(errors.LimitMarkersPermanent):
            await js.update_key_value(name, limit_markers=nothing)
        await js.update_key_value(name, history=2)
        assert (await kv.status()).limit_marker_ttl == 5

    @pytest.mark.parametrize("short", [0.5, "999ms", timedelta(milliseconds=10), -1])
    async def test_at_least_a_second(self, js: JetStream, name: str, short: Any) -> None:
        with pytest.raises(ValueError, match="too short"):
            await js.create_key_value(bucket=name, limit_markers=short)
        with pytest.raises(errors.BucketNotFound):
            await js.key_value(name)

    async def test_a_server_that_does_not_know_them(self, nc: NatsClient, name: str) -> None:
        asked: list[str] = []

        async def answer(message: Msg) -> None:
            asked.append(message.subject)
            names = ["max_memory", "max_storage", "max_streams", "max_consumers", "max_ack_pending"]
            names += ["memory_max_stream_bytes", "storage_max_stream_bytes", "max_bytes_required"]
            counts = dict.fromkeys(["memory", "storage", "streams", "consumers"], 0)
            info = {**counts, "limits": dict.fromkeys(names, 0), "api": {"total": 0, "errors": 0}}
            await message.respond(json.dumps(info).encode())

        await nc.subscribe(f"{name}old.>", cb=answer)
        old = jetstream(nc, prefix=f"{name}old")
        with pytest.raises(errors.LimitMarkersUnsupported, match="API level 1, the server has 0"):
            await old.create_key_value(bucket=name, limit_markers="1h")
        assert asked == [f"{name}old.INFO"]


class TestOperations:
    async def test_put_get_and_revisions(self, make: Make, name: str) -> None:
        kv = await make(history=3)
        before = datetime.now(UTC) - timedelta(seconds=5)
        assert [await kv.put("a.b", b"%d" % n) for n in range(4)] == [1, 2, 3, 4]
        entry = await kv.get("a.b")
        assert (entry.bucket, entry.key, entry.value, entry.revision) == (name, "a.b", b"3", 4)
        assert (entry.operation, entry.delta, entry.deleted) == ("PUT", 0, False)
        assert before < entry.created < before + timedelta(seconds=60)
        assert (await kv.get("a.b", 2)).value == b"1"
        with pytest.raises(errors.KeyNotFound):
            await kv.get("a.b", 1)
        await kv.put("other", b"x")
        with pytest.raises(errors.KeyNotFound):
            await kv.get("a.b", 5)
        assert (await kv.get("other")).revision == 5

    async def test_an_empty_value_is_a_value(self, make: Make) -> None:
        kv = await make()
        await kv.put("a", b"")
        assert (await kv.get("a")).value == b""
        assert await kv.keys() == ["a"]

    async def test_what_is_not_there(self, make: Make) -> None:
        kv = await make()
        with pytest.raises(errors.KeyNotFound, match="'nope'") as caught:
            await kv.get("nope")
        assert caught.value.entry is None
        assert isinstance(caught.value, nats.js.errors.KeyNotFoundError)
        for nothing in (kv.keys(), kv.history("nope")):
            with pytest.raises(nats.js.errors.NoKeysError):
                await nothing

    @pytest.mark.parametrize("key", ["", ".a", "a.", "a b", "a.*", ">"])
    async def test_keys_are_checked(self, make: Make, key: str) -> None:
        kv = await make()
        for bad in (kv.get(key), kv.put(key, b""), kv.create(key, b""), kv.delete(key), kv.purge(key)):
            with pytest.raises(nats.js.errors.InvalidKeyError):
                await bad

    async def test_update_requires_the_last_revision(self, make: Make) -> None:
        kv = await make()
        first = await kv.update("a", b"1", last=0)
        second = await kv.update("a", b"2", last=first)
        with pytest.raises(errors.WrongRevision) as caught:
            await kv.update("a", b"3", last=first)
        assert caught.value.actual == second
        assert isinstance(caught.value, nats.js.errors.KeyWrongLastSequenceError)
        await kv.delete("a")
        with pytest.raises(errors.WrongRevision):
            await kv.update("a", b"3", last=0)

    async def test_create_fails_if_the_key_has_a_value(self, make: Make) -> None:
        kv = await make()
        revision = await kv.create("a", b"1")
        with pytest.raises(errors.KeyExists, match="'a' already has a value") as caught:
            await kv.create("a", b"2")
        assert caught.value.revision == revision
        assert isinstance(caught.value, nats.js.errors.KeyWrongLastSequenceError)
        assert (await kv.get("a")).value == b"1"

    @pytest.mark.parametrize("history", [1, 5])
    async def test_create_over_tombstones(self, make: Make, history: int) -> None:
        kv = await make(history=history)
        await kv.put("a", b"1")
        await kv.delete("a")
        assert await kv.create("a", b"2") == 3
        await kv.purge("a")
        assert await kv.create("a", b"3") == 5
        assert (await kv.get("a")).value == b"3"

    async def test_delete_keeps_history_and_purge_does_not(self, make: Make) -> None:
        kv = await make(history=5)
        await kv.put("a", b"1")
        await kv.delete("a")
        assert [entry.operation for entry in await kv.history("a")] == [Operation.PUT, Operation.DEL]
        with pytest.raises(errors.KeyNotFound) as caught:
            await kv.get("a")
        assert (caught.value.op, caught.value.entry.revision) == ("DEL", 2)
        await kv.purge("a")
        assert [(entry.operation, entry.revision) for entry in await kv.history("a")] == [("PURGE", 3)]
        with pytest.raises(errors.KeyNotFound):
            await kv.get("a", 3)

    async def test_delete_and_purge_of_an_expected_revision(self, make: Make) -> None:
        kv = await make(history=5)
        revision = await kv.put("a", b"1")
        for wrong in (kv.delete("a", last=revision + 1), kv.purge("a", last=revision + 1)):
            with pytest.raises(errors.WrongRevision):
                await wrong
        assert await kv.delete("a", last=revision)
        assert await kv.purge("a", last=revision + 1)

    async def test_ttl_only_where_it_makes_sense(self, make: Make) -> None:
        kv = await make(limit_markers=5)
        for refused in (
            lambda: kv.put("a", b"", ttl=5),  # type: ignore[call-arg]
            lambda: kv.update("a", b"", last=0, ttl=5),  # type: ignore[call-arg]
            lambda: kv.delete("a", ttl=5),  # type: ignore[call-arg]
            lambda: kv.delete("a", msg_ttl=5),
        ):
            with pytest.raises(TypeError):
                await refused()
        with pytest.raises(ValueError, match="at least one second"):
            await kv.create("a", b"", ttl=0.5)

    async def test_ttls_as_they_are_stored(self, make: Make, name: str, js: JetStream) -> None:
        kv = await make(limit_markers=5)
        await kv.create("a", b"", ttl="90m")
        await kv.purge("b", ttl=timedelta(hours=1))
        await kv.create("c", b"", msg_ttl=30)
        stored = [await js.get_msg(f"KV_{name}", seq) for seq in (1, 2, 3)]
        assert [message.headers["Nats-TTL"] for message in stored] == ["1h30m", "1h", "30s"]  # type: ignore[index]
        purged = stored[1].headers
        assert purged
        assert (purged["KV-Operation"], purged["Nats-Rollup"]) == ("PURGE", "sub")

    async def test_a_value_that_is_too_large(self, make: Make) -> None:
        kv = await make(max_value_size=50)
        with pytest.raises(errors.MessageTooLarge):
            await kv.put("a", b"x" * 60)

    @pytest.mark.single_server("A full stream also refuses a message that replaces another one")
    async def test_a_full_bucket_refuses_new_keys(self, make: Make) -> None:
        kv = await make(max_bytes=200)
        await kv.put("key0", b"x" * 40)
        await kv.put("key1", b"x" * 40)
        with pytest.raises(errors.StreamFull, match="maximum bytes"):
            await kv.put("key2", b"x" * 40)
        assert await kv.put("key0", b"y" * 40)

    @pytest.mark.parametrize(
        ("headers", "operation"),
        [
            ({"Nats-Marker-Reason": "MaxAge"}, "PURGE"),
            ({"Nats-Marker-Reason": "Purge"}, "PURGE"),
            ({"Nats-Marker-Reason": "Remove"}, "DEL"),
            ({"Nats-Applied-Limit": "MaxAge"}, "PURGE"),
            ({"Nats-Limit-Applied": "MaxAge"}, "PURGE"),
            ({"KV-Operation": "DEL", "Nats-Marker-Reason": "MaxAge"}, "DEL"),
        ],
    )
    async def test_every_marker_hides_its_key(
        self, make: Make, name: str, client: Client, headers: dict[str, str], operation: str
    ) -> None:
        kv = await make(history=5)
        await kv.put("a", b"1")
        client.store(f"$KV.{name}.a", b"", headers)
        with pytest.raises(errors.KeyNotFound) as caught:
            await kv.get("a")
        assert caught.value.op == operation
        with pytest.raises(errors.KeyNotFound):
            await kv.get("a", 2)
        assert [entry.operation for entry in await kv.history("a")] == ["PUT", operation]
        with pytest.raises(errors.NoKeys):
            await kv.keys()
        assert await kv.create("a", b"2") == 3

    async def test_an_unknown_marker_hides_its_key_too(self, make: Make, name: str, client: Client) -> None:
        kv = await make(history=5)
        await kv.put("a", b"1")
        client.store(f"$KV.{name}.a", b"", {"Nats-Marker-Reason": "Novelty"})
        with pytest.raises(errors.KeyNotFound):
            await kv.get("a")
        assert [entry.operation for entry in await kv.history("a")] == ["PUT"]
        assert await kv.create("a", b"2") == 3

    async def test_keys_with_filters(self, make: Make) -> None:
        kv = await make()
        for key in ("a.1", "a.2", "b.1", "c"):
            await kv.put(key, b"")
        await kv.delete("a.2")
        assert await kv.keys() == ["a.1", "b.1", "c"]
        assert await kv.keys(["a.*"]) == ["a.1"]
        assert await kv.keys(["a.>", "c"]) == ["a.1", "c"]
        with pytest.raises(errors.NoKeys):
            await kv.keys(["nope.*"])

    async def test_purge_deletes_removes_old_tombstones(self, make: Make) -> None:
        kv = await make(history=5)
        for key in ("kept", "deleted", "purged"):
            await kv.put(key, b"1")
        await kv.delete("deleted")
        await kv.purge("purged")
        assert await kv.purge_deletes()
        assert [entry.operation for entry in await kv.history("deleted")] == ["DEL"]
        assert await kv.purge_deletes(olderthan=-1)
        assert (await kv.status()).values == 1
        assert await kv.keys() == ["kept"]

    @pytest.mark.parametrize("history", [1, 5])
    async def test_purge_deletes_leaves_what_is_put_meanwhile(
        self, make: Make, history: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kv = await make(history=history)
        await kv.put("k", b"old")
        await kv.delete("k")
        purge = kv._js.purge_stream

        async def late(*arguments: Any, **more: Any) -> Any:
            await kv.put("k", b"new")
            return await purge(*arguments, **more)

        monkeypatch.setattr(kv._js, "purge_stream", late)
        assert await kv.purge_deletes(olderthan=-1)
        assert (await kv.get("k")).value == b"new"


class TestMany:
    async def test_put_many_stores_all_keys_and_returns_revisions(self, make: Make) -> None:
        kv = await make(allow_atomic=True, history=3)
        address = {"street": b"Elm", "city": b"Ulm", "code": b"89073"}
        assert await kv.put_many(address) == {"street": 1, "city": 2, "code": 3}
        assert await kv.put_many(address) == {"street": 4, "city": 5, "code": 6}
        assert {key: (await kv.get(key)).value for key in address} == address
        assert await kv.put_many({}) == {}

    async def test_update_many_is_all_or_none(self, make: Make, name: str) -> None:
        kv = await make(allow_atomic=True)
        revisions = await kv.put_many({"a": b"1", "b": b"1", "c": b"1"})
        revisions = await kv.update_many({key: (b"2", revision) for key, revision in revisions.items()})
        assert revisions == {"a": 4, "b": 5, "c": 6}
        await kv.put("b", b"foreign")
        with pytest.raises(errors.WrongRevision, match="'b' has revision 7, not 5") as caught:
            await kv.update_many({key: (b"3", revision) for key, revision in revisions.items()})
        assert caught.value.member == (2, f"$KV.{name}.b")
        assert [(await kv.get(key)).value for key in "abc"] == [b"2", b"foreign", b"2"]
        assert await kv.update_many({"new": (b"1", 0)}) == {"new": 8}

    async def test_create_many_fails_if_any_key_has_a_value(self, make: Make) -> None:
        kv = await make(allow_atomic=True, limit_markers=5)
        await kv.put_many({"deleted": b"1", "purged": b"1"})
        await kv.delete("deleted")
        await kv.purge("purged")
        created = await kv.create_many({"deleted": b"2", "purged": b"2", "new": b"2"}, ttl="1h")
        assert created == {"deleted": 5, "purged": 6, "new": 7}
        with pytest.raises(errors.KeyExists, match="already in the bucket: 'new'"):
            await kv.create_many({"newer": b"3", "new": b"3"})
        with pytest.raises(errors.KeyNotFound):
            await kv.get("newer")

    async def test_a_bucket_that_does_not_allow_it(self, js: JetStream, make: Make, name: str) -> None:
        kv = await make()
        for refused in (kv.put_many({"a": b""}), kv.update_many({"a": (b"", 0)}), kv.create_many({"a": b""})):
            with pytest.raises(errors.AtomicDisabled, match="allow_atomic"):
                await refused
        await js.update_key_value(name, allow_atomic=True)
        assert await kv.put_many({"a": b""}) == {"a": 1}

    async def test_put_many_refuses_more_than_a_batch_holds(self, make: Make) -> None:
        kv = await make(allow_atomic=True)
        with pytest.raises(errors.BatchTooLarge):
            await kv.put_many({f"k{n}": b"" for n in range(1001)})
        assert (await kv.status()).values == 0
