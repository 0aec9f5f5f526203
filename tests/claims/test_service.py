"""The collector inside the server: its option, every kind of authentication, and that it never blocks the server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.errors import Error as NatsError

from claims.claims_harness import LARGE, TIMEOUT_S, ClaimsHarness
from claims.faulty_store import Faulty
from headrace import Server
from headrace.auth.authenticator import INTERNAL_USER
from headrace.claims import Claims, FakeClock, MemoryStore, Received, Ttl, load
from headrace.claims.collector_service import CollectorService
from headrace.claims.stores import ObjectStoreError
from headrace.config.options import OptionsError
from headrace.testing import HostedServer
from support import certificates

YAML = """
namespace: {name}
claim_check:
  threshold: 65536
  ttl: {{max_age: 7200, retention_after_read: 600, grace_period: 600}}
  store: {{path: {folder}, sync: false}}
"""


async def nothing(_: Received) -> None:
    """Succeed without doing anything."""


def written(tmp_path: Path, name: str = "inside") -> Path:
    path = tmp_path / "claims.yaml"
    path.write_text(YAML.format(name=name, folder=tmp_path / "objects"))
    return path


@contextlib.asynccontextmanager
async def served(tmp_path: Path, **options: Any) -> AsyncIterator[HostedServer]:
    """Run a server with virtual time that collects claims."""
    options.setdefault("claims", str(written(tmp_path)))
    made = HostedServer(store_dir=tmp_path / "broker", clock="virtual", **options)
    server = await asyncio.to_thread(made.__enter__)
    try:
        yield server
    finally:
        await asyncio.to_thread(made.__exit__, None, None, None)


async def until(condition: Any) -> None:
    async with asyncio.timeout(2 * TIMEOUT_S):
        while not await condition():
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    "guard", [{}, {"token": "s3cret"}, {"user": "ann", "password": "pw"}], ids=["open", "token", "user"]
)
async def test_a_broker_collects_by_itself(tmp_path: Path, guard: dict[str, str]) -> None:
    """Claims that were read end after their retention, unread ones after max_age and grace, all by the broker."""
    async with served(tmp_path, http_port=-1, **guard) as server:
        connection = await nats.connect(server.url, connect_timeout=TIMEOUT_S, **guard)
        clock = FakeClock(server.server.now_ns())
        world = ClaimsHarness(connection, server.url, server, tmp_path, "inside")
        claims = await Claims.open(
            connection, load(tmp_path / "claims.yaml"), clock=clock, timeout_s=TIMEOUT_S
        )
        stream = await world.stream()
        await world.consumer(stream, "c")
        read = await claims.producer.publish(f"{stream}.a", LARGE)
        unread = await claims.producer.publish(f"{stream}.b", LARGE)
        assert read.reference
        assert unread.reference
        await claims.consumer.handle(await world.next(stream, "c"), nothing)

        async def is_gone(key: str) -> bool:
            return not await claims.store.exists(key)

        await asyncio.to_thread(server.advance, 601)
        await until(lambda: is_gone(read.reference.object_key))  # type: ignore[union-attr]
        assert await claims.store.exists(unread.reference.object_key)
        await asyncio.to_thread(server.advance, 7200)

        async def is_gone_later() -> bool:
            """Advance until the grace period is over: the collector sets its timer at a moment of its own."""
            await asyncio.to_thread(server.advance, 60)
            return await is_gone(unread.reference.object_key)  # type: ignore[union-attr]

        await until(is_gone_later)
        await until(lambda: _exports(server, 'claim_check_claims_expired_total{namespace="inside"} 1.0'))
        await claims.close()
        await world.close()
        await connection.close()


async def _exports(server: HostedServer, line: str) -> bool:
    return line in await metrics_of(server)


async def metrics_of(server: HostedServer) -> str:
    url = f"http://127.0.0.1:{server.server.stats().http_port}/metrics"
    answer = await asyncio.to_thread(urllib.request.urlopen, url)
    with answer:
        return str(answer.read().decode())


async def test_a_store_that_is_down_does_not_keep_the_broker_from_its_work(tmp_path: Path) -> None:
    """The folder cannot be created at first; as soon as it can, collecting starts."""
    blocked = tmp_path / "objects"
    blocked.write_bytes(b"a file where a folder should be")
    async with served(tmp_path) as server:
        connection = await nats.connect(server.url, connect_timeout=TIMEOUT_S)
        assert await connection.jetstream(timeout=TIMEOUT_S).account_info()
        blocked.unlink()

        async def is_set_up() -> bool:
            return await asyncio.to_thread((blocked / "claims").is_dir)

        await until(is_set_up)
        await connection.close()


async def test_a_store_that_fails_in_between_is_asked_again(world: ClaimsHarness) -> None:
    """The service survives a store that fails to list, to delete, and then to do anything."""
    ttl = Ttl(max_age=7200, retention_after_read=0, grace_period=600)
    faulty = Faulty(MemoryStore(clock=world.clock))
    claims = await world.claims(objects=faulty, backend="memory", ttl=ttl)
    stream = await world.stream()
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    assert sent.reference
    for operation in ("delete", "prefixes", "uploads"):
        faulty.fail(operation, ObjectStoreError("503"))
    await world.pass_ttl(claims, sent, 7801)
    watching = asyncio.create_task(claims.collector.watch(sweep_every_s=0.05, poll_s=0.05))

    async def is_refused() -> bool:
        await world.advance(1)  # whatever waits for the server's time continues
        return "delete" in faulty.calls

    await until(is_refused)
    assert not watching.done()
    faulty.heal()

    async def is_gone() -> bool:
        await world.advance(1)
        return not await faulty._store.exists(sent.reference.object_key)  # type: ignore[union-attr]

    await until(is_gone)
    watching.cancel()


async def test_the_service_ends_when_it_is_told_to_even_without_a_server(tmp_path: Path) -> None:
    said: list[str] = []
    configs = [load(written(tmp_path))]
    service = CollectorService(configs, said.append, servers="nats://127.0.0.1:1", connect_timeout=1)
    service.start()
    await asyncio.sleep(0)
    await asyncio.wait_for(service.stop(), TIMEOUT_S)
    await service.stop()


def insiders(server: Server) -> list[Any]:
    """Return the connections of parts of the server itself."""
    found = list(server.listener.connections.values())
    return [item for item in found if item.session.identity and item.session.identity.user == INTERNAL_USER]


async def test_an_insider_stays_through_a_reload_and_nobody_else_becomes_one(tmp_path: Path) -> None:
    async with Server(store_dir=tmp_path / "broker", claims=str(written(tmp_path))) as server:

        async def is_inside() -> bool:
            return bool(insiders(server))

        await until(is_inside)
        before = insiders(server)
        server.reload(replace(server.options, user="ann", password="pw"))
        for guess in ({}, {"user": INTERNAL_USER, "password": "guess"}):
            with pytest.raises(NatsError):
                await nats.connect(server.url, max_reconnect_attempts=1, reconnect_time_wait=0.01, **guess)
        assert insiders(server) == before


@pytest.mark.parametrize("verify", [False, True])
async def test_a_broker_with_tls_collects_too(tmp_path: Path, verify: bool) -> None:
    made = certificates.make(tmp_path)
    tls = {"tls_cert": made.cert, "tls_key": made.key, "tls_ca": made.ca, "tls_verify": verify}
    async with Server(store_dir=tmp_path / "broker", claims=str(written(tmp_path)), **tls) as server:

        async def is_set_up() -> bool:
            return bool(insiders(server)) and await asyncio.to_thread((tmp_path / "objects").is_dir)

        await until(is_set_up)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"claims": "missing.yaml", "jetstream": True}, "cannot be read"),
        ({"claims": "claims.yaml"}, "requires JetStream: add -js"),
    ],
)
async def test_what_cannot_be_collected_is_said_at_the_start(
    tmp_path: Path, options: dict[str, Any], complaint: str
) -> None:
    settings = {**options, "claims": str(tmp_path / options["claims"])}
    if options.get("jetstream"):
        settings["store_dir"] = str(tmp_path / "broker")
    with pytest.raises(OptionsError, match=complaint):
        async with Server(**settings):
            pass


def test_the_command_line_and_the_configuration_file_take_it(tmp_path: Path) -> None:
    from headrace.cli.serve_flags import parse

    options, _ = parse(["-js", "--claims", "c.yaml"]).resolve()
    assert options.claims == "c.yaml"
    path = tmp_path / "server.conf"
    path.write_text(f"claims: {json.dumps('d.yaml')}\njetstream: true\n")
    options, _ = parse(["-c", str(path)]).resolve()
    assert options.claims == "d.yaml"


async def test_it_ends_although_a_cancellation_gets_lost(monkeypatch: Any) -> None:
    """A cancellation can be lost if a reply arrives at the same moment."""
    lost = asyncio.Event()

    async def stubborn(_: CollectorService) -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if lost.is_set():
                    raise
                lost.set()

    monkeypatch.setattr(CollectorService, "_run", stubborn)
    collectors = CollectorService([], print)
    collectors.start()
    await asyncio.sleep(0)
    async with asyncio.timeout(TIMEOUT_S):
        await collectors.stop()
    assert lost.is_set()
