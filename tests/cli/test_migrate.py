"""`headrace migrate`: a Headrace that is a leafnode of a real cluster, moved there and back."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import nats.errors
import pytest

from cli.conftest import Headrace
from conformance.servers import NATS_SERVER, Server
from headrace.cli import main
from headrace.cli.exit_codes import FAILED, NO_ANSWER, NOT_FOUND, OK, REFUSED, TO_CHANGE, USAGE_ERROR
from headrace.client import connect
from headrace.client.errors import NoAnswer, NoStream
from headrace.errors import HeadraceError
from headrace.migrate.stream_config import get_original
from support.cluster_leaf import Pair, start_pair
from support.moves import WAIT_S, Silent, move, publish

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cluster")]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with start_pair(tmp_path_factory.mktemp("pair")) as joined:
        yield joined


@pytest.fixture
def server(pair: Pair) -> Server:
    return pair.ours


@pytest.fixture
def to(pair: Pair) -> tuple[str, str]:
    return "--to", pair.cluster.urls


def test_a_check_names_what_differs_and_exits_by_severity(
    headrace: Headrace, pair: Pair, to: tuple[str, str], name: str
) -> None:
    headrace("stream", "add", name, "--subjects", f"{name}.>")
    assert [each["kind"] for each in headrace.json("migrate", "check", name, *to, code=OK)] == ["server"]
    headrace("consumer", "add", name, "late", "--start", "new")
    found = headrace.json("migrate", "check", name, *to, code=TO_CHANGE)
    assert found[-1]["severity"] == "change"
    assert found[-1]["name"] == f"{name} > late"
    headrace("stream", "add", name, "--subjects", "x", "--server", pair.cluster.urls)
    shown = headrace("migrate", "check", name, *to, code=REFUSED)
    assert "the new server has a stream with this name" in shown
    assert shown.index("refused") < shown.index("change")
    for url in (pair.ours.url, pair.cluster.urls):
        headrace("stream", "rm", name, "--force", "--server", url)


def test_a_check_needs_a_stream_and_another_server(
    headrace: Headrace, to: tuple[str, str], name: str
) -> None:
    headrace("migrate", "check", name, *to, code=NOT_FOUND)
    headrace("migrate", "check", code=USAGE_ERROR)
    assert "--to URL or --to-context" in headrace.error
    assert "same server" in headrace("migrate", "check", "--to", headrace.url, code=REFUSED)


def test_a_check_accepts_a_saved_connection(headrace: Headrace, pair: Pair) -> None:
    headrace("context", "add", "hub", "--server", pair.cluster.urls)
    headrace("migrate", "check", "--to-context", "hub")


def test_a_move_takes_everything_along_and_back(headrace: Headrace, pair: Pair, to: tuple[str, str]) -> None:
    """Streams, buckets and consumers move under load; sequences, contents and positions stay."""
    asyncio.run(_fill(headrace.url))
    names = ("LOAD", "QUEUE", "KV_SETTINGS", "OBJ_FILES")
    with Publishing(headrace.url, "load") as publishing:
        publishing.await_count(200)
        receipts = headrace.json("migrate", "move", *names, *to)
        publishing.await_more(200)
        assert receipts["LOAD"]["ack_floors"]["worker"] == 4
        assert asyncio.run(_read_worker(pair.cluster.urls)) == [(5, 2), (10, 2), (21, 1), (22, 1)]
        asyncio.run(_await_content(pair.cluster.urls))
        assert "already; continue" in _run_failing(headrace, "migrate", "undo", *names, *to)
        headrace("migrate", "move", *names, "--back", *to)
        publishing.await_more(200)
    asyncio.run(_check_content(pair.ours.url, replicas=1))
    asyncio.run(publishing.check_stored(pair.ours.url, "LOAD"))
    # Publishers wait, but not for a whole timeout of the move. How long they wait is measured by `make move-load`.
    assert publishing.longest_wait_s < WAIT_S
    assert asyncio.run(_read_worker(pair.ours.url))[0] == (23, 1), "the worker continues after its last ack"
    _remove(headrace, pair, names)


#: Settings of streams that a move has to treat with care.
VARIANTS: dict[str, dict[str, Any]] = {
    "FULL": {"max_msgs": 5, "discard": "new"},
    "SMALL": {"max_msgs": 5},
    "LATEST": {"max_msgs_per_subject": 1, "allow_rollup_hdrs": True},
    "FIXED": {"deny_delete": True, "deny_purge": True},
    "MEMORY": {"storage": "memory", "compression": "none"},
    "PACKED": {"compression": "s2", "max_age": 3600 * 10**9, "allow_direct": True},
    "RENAMED": {"subject_transform": {"src": "renamed.>", "dest": "changed.>"}},
    "ECHO": {"republish": {"src": "echo.>", "dest": "echoed.>"}},
    "MARKED": {"allow_msg_ttl": True, "subject_delete_marker_ttl": 10**9},
    "BATCHED": {"allow_atomic": True, "allow_batched": True},
    "INTEREST": {"retention": "interest"},
    "COUNTER": {"allow_msg_counter": True},
    "EMPTY": {},
    "EMPTYQUEUE": {"retention": "workqueue"},
    "PURGED": {},
    "TAIL": {},
}
#: Headers of their messages.
HEADERS = {"MARKED": {"Nats-TTL": "3600s"}, "COUNTER": {"Nats-Incr": "1"}}


def test_streams_of_every_kind_move_with_their_settings(
    headrace: Headrace, pair: Pair, to: tuple[str, str]
) -> None:
    asyncio.run(_fill_variants(headrace.url))
    before = asyncio.run(_read_variants(headrace.url))
    headrace("migrate", "move", *VARIANTS, *to)
    asyncio.run(_check_variants(pair.cluster.urls, before))
    headrace("migrate", "move", *VARIANTS, "--back", *to)
    asyncio.run(_check_variants(pair.ours.url, asyncio.run(_read_variants(pair.cluster.urls, closed=True))))
    _remove(headrace, pair, VARIANTS)


@pytest.mark.parametrize(
    "step", ["copy", "close", "settle", "complete", "consumers", "verify", "open", "finish"]
)
@pytest.mark.parametrize("then", ["move", "undo"])
def test_a_move_that_was_interrupted_continues_or_is_undone(
    headrace: Headrace, pair: Pair, to: tuple[str, str], name: str, step: str, then: str
) -> None:
    names = (name, f"{name}Q")
    headrace("stream", "add", names[0], "--subjects", f"{name}.s")
    headrace("stream", "add", names[1], "--subjects", f"{name}.q", "--retention", "work")
    for stream, subject in zip(names, (f"{name}.s", f"{name}.q"), strict=True):
        headrace("pub", subject, "x", "--count", 10, "--jetstream")
        headrace("consumer", "add", stream, "worker")
        headrace("consumer", "next", stream, "worker", "--count", 3)
    _interrupt(pair, names, step)
    if then == "undo" and step != "finish":
        headrace("migrate", "undo", *names, *to)
        place, gone = pair.ours.url, pair.cluster.urls
    else:
        headrace("migrate", "move", *names, *to)
        place, gone = pair.cluster.urls, ""
    for stream, subject in zip(names, (f"{name}.s", f"{name}.q"), strict=True):
        assert headrace.json("stream", "info", stream, "--server", place)["config"]["subjects"] == [subject]
        # Over the leafnode connection a publish on either side reaches the open stream.
        assert asyncio.run(_publish(pair.ours.url, subject)) == 11
        _await_pending(headrace, stream, place, 8)
        if gone:
            headrace("stream", "info", stream, "--server", gone, code=NOT_FOUND)
    _remove(headrace, pair, names)


def test_an_interrupted_move_of_empty_streams_continues(
    headrace: Headrace, pair: Pair, to: tuple[str, str], name: str
) -> None:
    names = (name, f"{name}Q", f"KV_{name}")
    headrace("stream", "add", names[0], "--subjects", f"{name}.s")
    headrace("stream", "add", names[1], "--subjects", f"{name}.q", "--retention", "work")
    headrace("kv", "add", name)
    for stream in names[:2]:
        headrace("consumer", "add", stream, "worker")
    _interrupt(pair, names, "complete")
    headrace("migrate", "move", *names, *to)
    _remove(headrace, pair, names)


def test_without_a_leafnode_a_move_says_what_to_do(headrace: Headrace, name: str) -> None:
    headrace("stream", "add", name, "--subjects", name)
    with Server(NATS_SERVER) as alone:
        headrace("pub", name, "x", "--count", 5, "--jetstream")
        headrace("migrate", "move", name, "--to", alone.url, code=FAILED)
        assert "--copy restore" in headrace.error
        moved = headrace.json("migrate", "move", name, name, "--to", alone.url, "--copy", "restore")
        assert list(moved) == [name], "a name that is given twice is one stream"
        assert headrace.json("stream", "info", name, "--server", alone.url)["state"]["last_seq"] == 5
        headrace("pub", name, "x", "--jetstream", code=NO_ANSWER)
        headrace("migrate", "move", name, "--to", alone.url, "--copy", "restore", "--back")
        assert headrace.json("pub", name, "x", "--jetstream")["seq"] == 6
    headrace("stream", "rm", name, "--force")


def test_a_move_refuses_what_it_cannot_do(
    headrace: Headrace, pair: Pair, to: tuple[str, str], name: str
) -> None:
    assert "does not exist" in _run_failing(headrace, "migrate", "move", name, *to)
    headrace("stream", "add", name, "--subjects", name)
    headrace("stream", "add", name, "--subjects", "x", "--server", pair.cluster.urls)
    assert "has another stream" in _run_failing(headrace, "migrate", "move", name, *to)
    assert headrace.json("pub", name, "x", "--jetstream")["seq"] == 1, "nothing was changed"
    _remove(headrace, pair, (name,))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (
            {"mirror": {"name": "UPSTREAM"}},
            "it copies from UPSTREAM; create it on the new server with the same mirror",
        ),
        ({"sources": [{"name": "UPSTREAM"}]}, "it copies from UPSTREAM; create it on the new server"),
        (
            {"allow_msg_schedules": True},
            "its schedules would continue to fire on the old server; create a stream",
        ),
        ({"sealed": True}, "it is sealed, so no move can close it; use 'headrace stream backup'"),
    ],
)
def test_a_stream_that_the_server_itself_writes_to_is_refused_before_anything_changes(
    headrace: Headrace, pair: Pair, to: tuple[str, str], name: str, config: dict[str, Any], reason: str
) -> None:
    """Neither it nor a stream that is named before it is closed or copied."""
    plain = f"{name}P"
    headrace("stream", "add", plain, "--subjects", f"{name}.plain")
    base = {} if "mirror" in config else {"subjects": [f"{name}.own"]}
    asyncio.run(_create(headrace.url, {"name": name, **base, **config}))
    before = headrace.json("stream", "info", name)["config"]
    error = _run_failing(headrace, "migrate", "move", plain, name, *to)
    assert f"{name} cannot be moved: {reason}" in error
    assert headrace.json("stream", "info", name)["config"] == before
    assert headrace.json("pub", f"{name}.plain", "x", "--jetstream")["seq"] == 1
    for stream in (plain, name):
        headrace("stream", "info", stream, "--server", pair.cluster.urls, code=NOT_FOUND)
        headrace("stream", "rm", stream, "--force")


async def _publish(url: str, subject: str) -> int:
    async with await connect(url) as connection:
        return await publish(connection, subject, b"y")


def _await_pending(headrace: Headrace, stream: str, url: str, expected: int) -> None:
    """Wait until the worker is not paused and has so many messages to deliver.

    In a cluster the leader of a consumer counts what its own replica of the stream has. A publish is acknowledged as soon
    as two of the three replicas have it, and this may be the third one.
    """
    deadline_s = time.monotonic() + WAIT_S
    while True:
        info = headrace.json("consumer", "info", stream, "worker", "--server", url)
        assert not info.get("paused")
        if info["num_pending"] == expected:
            return
        assert info["num_pending"] < expected
        assert time.monotonic() < deadline_s, info
        time.sleep(0.05)


async def _create(url: str, config: dict[str, Any]) -> None:
    """Create a stream; a sealed one is sealed by an update."""
    async with await connect(url) as connection:
        js = connection.jetstream()
        created = {key: value for key, value in config.items() if key != "sealed"}
        info = await js.api_request(f"STREAM.CREATE.{config['name']}", created)
        if config.get("sealed"):
            await js.api_request(f"STREAM.UPDATE.{config['name']}", {**info["config"], "sealed": True})


def test_a_delete_marker_written_during_the_move_is_copied(headrace: Headrace, pair: Pair, name: str) -> None:
    """A message expires on both servers after the copy is complete: only the old one writes a marker, after its end."""
    asyncio.run(_create_with_ttl(headrace.url, name))
    move(pair, (name,), observer=WaitAt("verify", 5.0))
    messages = asyncio.run(_read_headers(pair.cluster.urls, name))
    assert [(subject, "Nats-Marker-Reason" in headers) for subject, headers in messages] == [
        (f"{name}.stays", False),
        (f"{name}.goes", True),
    ]
    _remove(headrace, pair, (name,))


async def _create_with_ttl(url: str, name: str) -> None:
    async with await connect(url) as connection:
        js = connection.jetstream()
        # With one message per subject, a TTL may be shorter than that of its marker.
        config = {"name": name, "subjects": [f"{name}.*"], "allow_msg_ttl": True, "max_msgs_per_subject": 1}
        await js.api_request(f"STREAM.CREATE.{name}", {**config, "subject_delete_marker_ttl": 3600 * 10**9})
        await js.publish(f"{name}.stays", b"1")
        await js.publish(f"{name}.goes", b"2", headers={"Nats-TTL": "2s"})


async def _read_headers(url: str, name: str) -> list[tuple[str, dict[str, str]]]:
    async with await connect(url.split(",")) as connection:
        reader = await connection.jetstream().pull_subscribe("", stream=name)
        return [(each.subject, each.headers or {}) for each in await _fetch(reader, 2)]


async def _fetch(reader: Any, count: int) -> list[Any]:
    """Return the next messages; those that the replica of the consumer's leader does not have yet come later."""
    messages: list[Any] = []
    async with asyncio.timeout(WAIT_S):
        while len(messages) < count:
            with suppress(nats.errors.TimeoutError):
                messages += await reader.fetch(count - len(messages), timeout=5)
    return messages


class WaitAt(Silent):
    """Waits when a step begins."""

    def __init__(self, step: str, wait_s: float) -> None:
        self._step, self._wait_s = step, wait_s

    def on_step(self, step: str) -> None:
        if step == self._step:
            time.sleep(self._wait_s)


class Interrupted(Exception):
    """The process of a move is gone."""


class StopAt(Silent):
    """Ends a move when a step begins."""

    def __init__(self, step: str) -> None:
        self._step = step

    def on_step(self, step: str) -> None:
        if step == self._step:
            raise Interrupted


def _interrupt(pair: Pair, names: Sequence[str], step: str) -> None:
    """Begin a move of streams, and end it when a step begins."""
    with pytest.raises(Interrupted):
        move(pair, names, observer=StopAt(step))


async def _fill(url: str) -> None:
    """Create the streams of the test under load, with a consumer that has not acknowledged messages 5 and 10."""
    async with await connect(url) as connection:
        js = connection.jetstream()
        await js.add_stream(name="LOAD", subjects=["load.>"])
        await js.add_stream(name="QUEUE", subjects=["queue"], retention="workqueue")
        bucket = await js.create_key_value(bucket="SETTINGS", history=3)
        files = await js.create_object_store("FILES")
        for number in range(30):
            await js.publish("load.first", b"%d" % number)
            await js.publish("queue", b"%d" % number)
            await bucket.put(f"key{number % 7}", b"%d" % number)
        await bucket.purge("key1")
        await files.put("file", b"x" * 300_000)
        for stream, count, pending in (("LOAD", 20, (5, 10)), ("QUEUE", 10, (3,))):
            worker = await js.pull_subscribe("", durable="worker", stream=stream)
            for message in await worker.fetch(count):
                if message.metadata.sequence.stream not in pending:
                    await message.ack_sync()


async def _read_worker(url: str) -> list[tuple[int, int]]:
    """Acknowledge the next four messages of the worker; return their sequences and how often they were delivered."""
    async with await connect(url.split(",")) as connection:
        worker = await connection.jetstream().pull_subscribe_bind("worker", stream="LOAD")
        messages = await _fetch(worker, 4)
        for message in messages:
            await message.ack_sync()
        return [(each.metadata.sequence.stream, each.metadata.num_delivered) for each in messages]


async def _await_content(url: str) -> None:
    """Wait until a cluster shows everything: readers and consumers use a replica that may have it later than the others."""
    deadline_s = time.monotonic() + WAIT_S
    while True:
        try:
            return await _check_content(url, replicas=3)
        except (AssertionError, nats.errors.Error, HeadraceError):
            if time.monotonic() > deadline_s:
                raise
        await asyncio.sleep(0.05)


async def _check_content(url: str, replicas: int) -> None:
    async with await connect(url.split(",")) as connection:
        js = connection.jetstream()
        bucket = await js.key_value("SETTINGS")
        assert sorted(await bucket.keys()) == [f"key{number}" for number in (0, 2, 3, 4, 5, 6)]
        history = await bucket.history("key0")
        assert [entry.value for entry in history] == [b"14", b"21", b"28"]
        files = await js.object_store("FILES")
        assert (await files.get("file")).data == b"x" * 300_000
        queue = await js.stream_info("QUEUE")
        assert (queue.state.messages, queue.state.last_seq) == (21, 30)
        assert queue.config.num_replicas == replicas
        worker = await js.consumer_info("QUEUE", "worker")
        assert worker.num_pending + worker.num_ack_pending == 21
        assert not worker.paused


async def _fill_variants(url: str) -> None:
    async with await connect(url) as connection:
        js = connection.jetstream()
        for name, settings in VARIANTS.items():
            subject = name.lower()
            config = {"name": name, "subjects": [f"{subject}.>"], **settings}
            await js.api_request(f"STREAM.CREATE.{name}", config)
            durable = {"durable_name": "worker", "ack_policy": "explicit"}
            body = {"stream_name": name, "config": durable}
            await js.api_request(f"CONSUMER.CREATE.{name}.worker", body)
            for number in range(0 if name.startswith("EMPTY") else 5):
                payload = b"" if name == "COUNTER" else b"%d" % number
                await js.publish(f"{subject}.{number % 3}", payload, headers=HEADERS.get(name))
            if name != "FULL" and not name.startswith("EMPTY"):
                worker = await js.pull_subscribe_bind("worker", stream=name)
                for message in await worker.fetch(5, timeout=2):
                    await message.ack_sync()
        await js.purge_stream("PURGED")
        for seq in (4, 5):
            await js.delete_msg("TAIL", seq)


async def _read_variants(url: str, closed: bool = False) -> dict[str, dict[str, Any]]:
    found = {}
    async with await connect(url.split(",")) as connection:
        for name in VARIANTS:
            info = await connection.jetstream().api_request(f"STREAM.INFO.{name}", {"deleted_details": True})
            found[name] = info
            if closed:
                info["config"] = get_original(info["config"])
    return found


async def _check_variants(url: str, before: dict[str, dict[str, Any]]) -> None:
    """Compare settings and sequences, and let each consumer receive the next message."""
    after = await _read_variants(url)
    own = {"metadata", "num_replicas", "placement"}
    async with await connect(url.split(",")) as connection:
        js = connection.jetstream()
        for name, info in after.items():
            expected = before[name]
            for key, value in expected["config"].items():
                assert key in own or info["config"].get(key) == value, (name, key)
            for key in ("messages", "last_seq"):
                assert info["state"][key] == expected["state"][key], (name, key)
            assert list_deleted(info) == list_deleted(expected), name
            if name == "FULL":
                continue
            payload = b"" if name == "COUNTER" else b"next"
            ack = await js.publish(f"{name.lower()}.0", payload, headers=HEADERS.get(name))
            assert ack.seq == expected["state"]["last_seq"] + 1, name
            worker = await js.pull_subscribe_bind("worker", stream=name)
            (message,) = await _fetch(worker, 1)
            assert message.metadata.sequence.stream == ack.seq, name
            await message.ack_sync()


def list_deleted(info: dict[str, Any]) -> list[int]:
    """Return the deleted sequences; nats-server lists 0 for an empty stream."""
    return [seq for seq in info["state"].get("deleted") or () if seq]


class Publishing:
    """Publishes to a server in a thread, and repeats what was not acknowledged."""

    def __init__(self, url: str, subject: str) -> None:
        self.acked: list[tuple[bytes, int]] = []
        self.longest_wait_s = 0.0
        self._url = url
        self._subject = subject
        self._ends = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> Publishing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def await_count(self, count: int) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while len(self.acked) < count:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)

    def await_more(self, count: int) -> None:
        self.await_count(len(self.acked) + count)

    async def _run(self) -> None:
        async with await connect(self._url) as connection:
            js = connection.jetstream()
            last_s, number = time.monotonic(), 0
            while not self._ends.is_set():
                payload = b"%d" % number
                try:
                    ack = await js.publish(f"{self._subject}.more", payload, timeout=2)
                except NoStream:
                    await asyncio.sleep(0.01)
                    continue
                except NoAnswer:
                    # On its way over the leafnode connection when the stream closed: it may be stored or not.
                    number += 1
                    continue
                number += 1
                self.acked.append((payload, ack.seq))
                self.longest_wait_s = max(self.longest_wait_s, time.monotonic() - last_s)
                last_s = time.monotonic()
                await asyncio.sleep(0.001)

    async def check_stored(self, url: str, stream: str) -> None:
        """Check that every acknowledged message is in the stream, at its sequence."""
        async with await connect(url) as connection:
            js = connection.jetstream()
            for payload, seq in self.acked:
                assert (await js.get_msg(stream, seq)).data == payload


def _run_failing(headrace: Headrace, *words: object) -> str:
    headrace(*words, code=FAILED)
    return headrace.error


def _remove(headrace: Headrace, pair: Pair, names: Iterable[str]) -> None:
    for url in (pair.cluster.urls, pair.ours.url):
        for name in names:
            main(["stream", "rm", name, "--force", "--server", url])
