"""A producer, a consumer and a collector with the permissions of docs/how-to/secure.md, on both servers."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client as Connection

from claims.claims_harness import LARGE, THRESHOLD, TIMEOUT_S, wait_until_stored
from conformance.servers import KINDS, Server, Setup
from headrace.claims import ClaimConfig, Claims, ConfigConflict, MemoryStore, Ttl
from headrace.claims.ack_floors import matches, register_reader
from headrace.claims.jetstream_client import JetStreamClient
from headrace.claims.reference import make_key
from headrace.claims.registry import STREAM, claim_subject, due_subject
from headrace.claims.stores import AccessDenied, StaticAttributes
from headrace.errors import RequestError

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "secure.md").read_text()
BLOCK = re.search(r"^## Claims\n.*?^```\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)[1]  # type: ignore[index]
ROOT = '    { user: root, password: "r" }\n'
NOT_NEEDED = "only with retention_after_read: 0"
LATER = Ttl(7200, True, 300, 60)
AT_ONCE = Ttl(7200, True, 0, 60)
CLAIM, NEEDED = "f0" * 16, "ee" * 16
MARKER = {"Nats-Marker-Reason": "MaxAge"}
ROLES = {"producer": "p", "consumer": "c", "collector": "l", "root": "r"}


def config_text(ttl: Ttl) -> str:
    """Return the documented block, for consumers that delete at once or later, plus a user with all permissions."""
    lines = BLOCK.splitlines(keepends=True)
    kept = [line for line in lines if not ttl.retention_after_read or NOT_NEEDED not in line]
    text = "".join(kept)
    return text.replace("  users: [\n", "  users: [\n" + ROOT, 1)


def permitted(role: str, ttl: Ttl) -> list[str]:
    """Return the subjects that a role may publish to."""
    found = re.search(
        rf"user: {role}, .*?publish: \[\n(.*?)^ *\]", config_text(ttl), re.DOTALL | re.MULTILINE
    )
    assert found
    return re.findall(r'"([^"]+)"', re.sub(r"#.*", "", found[1]))


class Guarded(MemoryStore):
    """A bucket as seen with the permissions of one role."""

    def __init__(self, shared: MemoryStore, allowed: Sequence[str]) -> None:
        self.__dict__.update(shared.__dict__)
        self._allowed = allowed
        self.used: set[str] = set()

    def _check(self, right: str, *keys: str) -> None:
        if right not in self._allowed or any(not key.startswith("video/") for key in keys):
            raise AccessDenied(f"{right} of {keys}")
        self.used.add(right)

    async def put(self, key: str, *rest: Any, **options: Any) -> None:
        self._check("write", key)
        await super().put(key, *rest, **options)

    async def get(self, key: str) -> Any:
        self._check("read", key)
        return await super().get(key)

    async def exists(self, key: str) -> bool:
        self._check("look", key)
        return await super().exists(key)

    async def delete(self, keys: Sequence[str]) -> None:
        self._check("delete", *keys)
        await super().delete(keys)

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[Any]:
        self._check("list", prefix)
        async for page in super().list(prefix, start_after):
            yield page

    async def prefixes(self, prefix: str) -> Any:
        self._check("list", prefix)
        return await super().prefixes(prefix)

    async def ensure_bucket(self) -> None:
        self._check("create")


RIGHTS = {
    "producer": ("write", "look", "delete"),
    "consumer": ("read",),
    "collector": ("list", "delete", "create"),
}


def rights(role: str, ttl: Ttl) -> tuple[str, ...]:
    """Return what a role may do below `video/` in the bucket."""
    is_finisher = role == "consumer" and not ttl.retention_after_read
    return (*RIGHTS[role], "delete") if is_finisher else RIGHTS[role]


@dataclass
class User:
    """A connection with its permission violations and the subjects that it has used."""

    role: str
    connection: Connection
    violations: list[str]
    used: set[str] = field(default_factory=set)

    @property
    def wire(self) -> JetStreamClient:
        return JetStreamClient(self.connection, timeout_s=TIMEOUT_S)

    async def is_refused(self, subject: str) -> bool:
        """Return whether the server rejects a publish with an error."""
        before = len(self.violations)
        await self.connection.publish(subject, b"{}", reply=f"_INBOX_{self.role}.x")
        return await self._is_told(before)

    async def is_deaf(self, subject: str) -> bool:
        """Return whether the server rejects a subscription with an error."""
        before = len(self.violations)
        await self.connection.subscribe(subject)
        return await self._is_told(before)

    async def _is_told(self, before: int) -> bool:
        await self.connection.flush()
        deadline = time.monotonic() + 2
        while len(self.violations) == before and time.monotonic() < deadline:
            await asyncio.sleep(0.001)
        return len(self.violations) > before


class Stage:
    """A server with the documented users, and one bucket."""

    def __init__(self, server: Server, ttl: Ttl) -> None:
        self.server = server
        self.ttl = ttl
        self.bucket = MemoryStore()
        self.users: dict[str, User] = {}
        self.stores: dict[str, Guarded] = {}

    async def user(self, role: str) -> User:
        violations: list[str] = []

        async def on_error(error: Exception) -> None:
            violations.append(str(error).lower())

        connection = await nats.connect(
            self.server.url,
            user=role,
            password=ROLES[role],
            inbox_prefix=f"_INBOX_{role}".encode(),
            allow_reconnect=False,
            connect_timeout=TIMEOUT_S,
            error_cb=on_error,
        )
        made = self.users[role] = User(role, connection, violations)
        publish = connection.publish

        async def counted(subject: str, *rest: Any, **options: Any) -> None:
            made.used.add(subject)
            await publish(subject, *rest, **options)

        connection.publish = counted  # type: ignore[method-assign]
        return made

    async def claims(self, role: str, **settings: Any) -> Claims:
        user = self.users.get(role) or await self.user(role)
        store = self.stores[role] = Guarded(self.bucket, rights(role, self.ttl))
        config = ClaimConfig("video", threshold=THRESHOLD, ttl=self.ttl, **settings)
        return await Claims.open(
            user.connection,
            config,
            store=store,
            timeout_s=TIMEOUT_S,
            set_up=role == "collector",
        )

    async def close(self) -> None:
        for user in self.users.values():
            await user.connection.close()


def _running(kind: str, ttl: Ttl) -> Server:
    return Server(kind, Setup(config=config_text(ttl)))


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def prepared(server: Server, ttl: Ttl) -> Stage:
    stage = Stage(server, ttl)
    root = await stage.user("root")
    wire = JetStreamClient(root.connection, timeout_s=TIMEOUT_S)
    body = {"name": "VIDEO", "subjects": ["video.>"], "allow_msg_ttl": True, "allow_direct": True}
    await wire.api_request("STREAM.CREATE.VIDEO", body)
    for name, subject in (("editor", "video.>"), ("archive", "video.d")):
        consumer = {"durable_name": name, "ack_policy": "explicit", "filter_subject": subject}
        await wire.api_request(
            f"CONSUMER.DURABLE.CREATE.VIDEO.{name}", {"stream_name": "VIDEO", "config": consumer}
        )
    await stage.bucket.ensure_bucket()
    await stage.bucket.lifecycle.write(stage.bucket.lifecycle.make_rules("video", 1))
    await wire.close()
    return stage


async def nothing(_: Any) -> None:
    """Succeed without doing anything."""


async def worked(stage: Stage) -> None:
    """Run claims through every path: read, published again, never published, never read, swept."""
    collector = await stage.claims("collector")
    root = JetStreamClient(stage.users["root"].connection, timeout_s=TIMEOUT_S)
    await change_trail(root)
    collector = await stage.claims("collector")
    await register_reader(root, "VIDEO", "spark", 0, filters=["video.elsewhere"])
    producer, consumer = await stage.claims("producer"), await stage.claims("consumer")
    first = await producer.producer.publish("video.a", LARGE, msg_id="one")
    again = await producer.producer.publish("video.a", iter_of(LARGE), msg_id="one")
    assert again.duplicate
    assert first.reference
    (message,) = await consumer.jetstream.pull("VIDEO", "editor", 1, expires_s=TIMEOUT_S)
    assert await consumer.consumer.handle(message, nothing)
    is_there = await stage.bucket.exists(first.reference.object_key)
    assert is_there == bool(stage.ttl.retention_after_read)
    await lose_note(root, producer, consumer)
    removed = await root.publish("video.c", b"")
    unread = await producer.producer.publish("video.b", LARGE)
    assert unread.reference
    ended, needed = expired(), expired(NEEDED, places={"VIDEO": [unread.seq, "video.b"]})
    for facts in (ended, needed):
        await root.publish(claim_subject("video", facts["claim_id"]), json.dumps(facts).encode())
        await root.publish(due_subject("video", facts["claim_id"]), b"", MARKER)
        await stage.bucket.put(facts["object_key"], b"x", StaticAttributes())
    # In a stream that lacks messages, the collector asks for single ones.
    await root.api_request("STREAM.MSG.DELETE.VIDEO", {"seq": removed["seq"]})
    report = await collector.collector.collect()
    assert report.removed == 1
    assert not await stage.bucket.exists(ended["object_key"])
    assert await stage.bucket.exists(needed["object_key"]), "past its age, and somebody needs it"
    for user in stage.users.values():
        await user.connection.flush()


async def change_trail(root: JetStreamClient) -> None:
    """Change the audit trail as an operator would: creating it again then fails, and clients check its configuration."""
    there = (await root.api_request("STREAM.INFO.CLAIMS_AUDIT"))["config"]
    await root.api_request("STREAM.UPDATE.CLAIMS_AUDIT", {**there, "description": "ours"})


async def lose_note(root: JetStreamClient, producer: Claims, consumer: Claims) -> None:
    """Read a claim whose producer did not record the position of its message."""
    sent = await producer.producer.publish("video.d", LARGE)
    assert sent.reference
    await wait_until_stored(producer.jetstream.connection, "video")
    found = await root.get_last(STREAM, claim_subject("video", sent.reference.claim_id))
    assert found
    lost = {**json.loads(found.data), "state": "pending", "places": {}}
    await root.publish(found.subject, json.dumps(lost).encode())
    (message,) = await consumer.jetstream.pull("VIDEO", "editor", 1, expires_s=TIMEOUT_S)
    assert await consumer.consumer.handle(message, nothing)


async def iter_of(data: bytes) -> AsyncIterator[bytes]:
    yield data


def expired(claim_id: str = CLAIM, **changes: Any) -> dict[str, Any]:
    """Return the record of a claim that has expired, within its grace period: the collector checks who needs it."""
    end = int(time.time()) - 30
    return {
        "claim_id": claim_id,
        "namespace": "video",
        "subject": "video.c",
        "bucket": "claims",
        "object_key": make_key("video", "video.c", end, claim_id),
        "original_size": 1,
        "stored_size": 1,
        "created_ns": (end - 7200) * 10**9,
        "expires_at": end,
        "state": "live",
        "places": {"VIDEO": [1, "video.c"]},
        **changes,
    }


@pytest.mark.parametrize("ttl", [LATER, AT_ONCE], ids=["later", "at-once"])
async def test_three_users_work_with_exactly_the_documented_permissions(kind: str, ttl: Ttl) -> None:
    with _running(kind, ttl) as server:
        stage = await prepared(server, ttl)
        await worked(stage)
        for role in RIGHTS:
            user = stage.users[role]
            assert user.violations == []
            assert stage.stores[role].used == set(rights(role, ttl))
            for pattern in permitted(role, ttl):
                assert any(matches(pattern, subject) for subject in user.used), (role, pattern)
        await stage.close()


BEYOND = {
    "everybody": (
        "$CLAIMS.claim.audio.x",
        "$CLAIMS.due.audio.x",
        "$CLAIMS.audit.audio.x.deleted",
        "$CLAIMS.namespace.audio",
        "$CLAIMS.reader.VIDEO.x",
        "$JS.API.STREAM.DELETE.CLAIMS",
        "$JS.API.STREAM.PURGE.CLAIMS",
        "$JS.API.STREAM.UPDATE.CLAIMS",
        "$JS.API.STREAM.DELETE.CLAIMS_AUDIT",
        "$JS.API.STREAM.PURGE.CLAIMS_AUDIT",
        "$JS.API.STREAM.DELETE.VIDEO",
        "$JS.API.STREAM.PURGE.VIDEO",
        "$JS.API.STREAM.CREATE.OTHER",
        "$JS.API.STREAM.SNAPSHOT.CLAIMS",
        "$JS.API.STREAM.MSG.GET.CLAIMS_AUDIT",
        "$JS.API.DIRECT.GET.CLAIMS.$CLAIMS.claim.audio.x",
        "$JS.API.CONSUMER.CREATE.CLAIMS",
        "$JS.API.CONSUMER.CREATE.CLAIMS.mine.$CLAIMS.claim.audio.*",
        "$JS.API.CONSUMER.CREATE.CLAIMS.collectors-video.$CLAIMS.due.audio.*",
        "$JS.API.CONSUMER.DURABLE.CREATE.CLAIMS.mine",
        "$JS.API.CONSUMER.DELETE.CLAIMS.collectors-video",
        "$JS.API.CONSUMER.DELETE.VIDEO.editor",
        "$JS.API.CONSUMER.MSG.NEXT.CLAIMS.collectors-audio",
        "$JS.ACK.CLAIMS.collectors-audio.1.1.1.1.0",
        "audio.a",
    ),
    "producer": (
        "$CLAIMS.namespace.video",
        "$JS.API.STREAM.MSG.DELETE.CLAIMS",
        "$JS.API.DIRECT.GET.CLAIMS",
        "$JS.API.CONSUMER.MSG.NEXT.CLAIMS.collectors-video",
        "$JS.API.CONSUMER.MSG.NEXT.VIDEO.editor",
        "$JS.ACK.VIDEO.editor.1.1.1.1.0",
    ),
    "consumer": (
        "video.forged",
        "$CLAIMS.namespace.video",
        "$JS.API.STREAM.MSG.DELETE.CLAIMS",
        "$JS.API.DIRECT.GET.CLAIMS",
        "$JS.API.CONSUMER.MSG.NEXT.CLAIMS.collectors-video",
        "$JS.API.STREAM.MSG.DELETE.VIDEO",
    ),
    "collector": (
        "video.forged",
        "$JS.API.STREAM.MSG.DELETE.VIDEO",
        "$JS.API.CONSUMER.MSG.NEXT.VIDEO.editor",
        "$JS.ACK.VIDEO.editor.1.1.1.1.0",
    ),
}


async def test_none_of_them_reaches_beyond(kind: str) -> None:
    with _running(kind, LATER) as server:
        stage = await prepared(server, LATER)
        await stage.claims("collector")
        root = JetStreamClient(stage.users["root"].connection, timeout_s=TIMEOUT_S)
        before = (await root.api_request(f"STREAM.INFO.{STREAM}"))["state"]
        for role in RIGHTS:
            user = stage.users.get(role) or await stage.user(role)
            for subject in (*BEYOND["everybody"], *BEYOND[role]):
                assert await user.is_refused(subject), (role, subject)
            for subject in ("$CLAIMS.>", "_INBOX.>", "video.>", "_INBOX_root.>", ">"):
                assert await user.is_deaf(subject), (role, subject)
            allowed = "video.x" if role == "producer" else "$CLAIMS.audit.video.x.failed"
            await user.connection.publish(allowed, b"", reply="$JS.API.STREAM.DELETE.CLAIMS")
            await user.connection.flush()
        after = (await root.api_request(f"STREAM.INFO.{STREAM}"))["state"]
        assert after["last_seq"] == before["last_seq"]
        await root.close()
        await stage.close()


async def test_an_answer_in_the_place_of_a_record_ends_no_claim(kind: str) -> None:
    """Servers send replies to any reply subject, so a user who may publish to a stream can have a reply stored there."""
    with _running(kind, LATER) as server:
        stage = await prepared(server, LATER)
        collector, producer = await stage.claims("collector"), await stage.claims("producer")
        sent = await producer.producer.publish("video.a", LARGE)
        assert sent.reference
        user = stage.users["consumer"] if "consumer" in stage.users else await stage.user("consumer")
        for subject in (claim_subject, due_subject):
            reply = subject("video", sent.reference.claim_id)
            await user.connection.publish("$CLAIMS.audit.video.x.failed", b"", reply=reply)
        await user.connection.flush()
        root = stage.users["root"].wire
        async with asyncio.timeout(TIMEOUT_S):
            while b"CLAIMS_AUDIT" not in (await root.get_last(STREAM, reply)).data:  # type: ignore[union-attr]
                await asyncio.sleep(0.01)
        await root.publish(due_subject("video", sent.reference.claim_id), b"", MARKER)
        report = await collector.collector.collect()
        assert (report.removed, report.failed) == (0, 0)
        assert await stage.bucket.exists(sent.reference.object_key)
        (message,) = await (await stage.claims("consumer")).jetstream.pull("VIDEO", "editor", 1, TIMEOUT_S)
        consumer = await stage.claims("consumer")
        assert await consumer.consumer.handle(message, nothing)
        await stage.close()


FOREIGN = ("other-team/report.csv", "backups/full.tar", make_key("audio", "video.c", 1_700_000_000, CLAIM))


async def test_forged_records_reach_no_object_of_others(kind: str) -> None:
    """Forged by users who may write records, with a collector whose credentials would allow all of it."""
    with _running(kind, LATER) as server:
        stage = await prepared(server, LATER)
        opened = await stage.claims("collector")
        collector = Claims(
            stage.users["collector"].connection, opened.config, store=stage.bucket, timeout_s=TIMEOUT_S
        )
        producer, consumer = await stage.user("producer"), await stage.user("consumer")
        for key in FOREIGN:
            await stage.bucket.put(key, b"precious", StaticAttributes())
        for number, (user, key) in enumerate((user, key) for user in (producer, consumer) for key in FOREIGN):
            claim_id = CLAIM if key.startswith("audio") else f"{number}" * 32
            for changes in ({}, {"namespace": "audio"}, {"reference": {"object_key": key}}):
                forged = json.dumps(expired(claim_id=claim_id, object_key=key, **changes)).encode()
                await user.wire.publish(claim_subject("video", claim_id), forged)
                await user.wire.publish(due_subject("video", claim_id), b"", MARKER)
                await collector.collector.collect()
        for key in FOREIGN:
            assert await stage.bucket.exists(key)
        # A stream that the collector may not query protects only the claims in it.
        hidden = "ab" * 16
        end = int(time.time()) + 3600
        released = expired(
            claim_id=hidden,
            expires_at=end,
            object_key=make_key("video", "video.c", end, hidden),
            state="released",
            places={"SECRET": [1, "video.c"]},
            created_ns=0,
        )
        hasty = Claims(
            stage.users["collector"].connection,
            ClaimConfig("video", ttl=AT_ONCE),
            store=stage.bucket,
            timeout_s=0.5,
        )
        await stage.bucket.put(expired()["object_key"], b"x", StaticAttributes())
        await producer.wire.publish(claim_subject("video", hidden), json.dumps(released).encode())
        await producer.wire.publish(claim_subject("video", CLAIM), json.dumps(expired()).encode())
        for claim_id in (hidden, CLAIM):
            await producer.wire.publish(due_subject("video", claim_id), b"", MARKER)
        await asyncio.sleep(0.01)
        report = await hasty.collector.collect_due()
        assert (report.removed, report.failed) == (1, 1)
        await stage.close()


async def test_missing_setup_is_reported_without_the_permission_to_do_it(kind: str) -> None:
    with _running(kind, LATER) as server:
        stage = await prepared(server, LATER)
        root = JetStreamClient(stage.users["root"].connection, timeout_s=TIMEOUT_S)
        with pytest.raises(RequestError, match="no stream has subject"):
            await stage.claims("producer")
        await stage.claims("collector")
        await root.api_request(f"STREAM.PURGE.{STREAM}", {"filter": "$CLAIMS.namespace.video"})
        with pytest.raises(ConfigConflict, match="is not set up"):
            await stage.claims("producer")
        await root.close()
        await stage.close()
