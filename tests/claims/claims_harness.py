"""Test harness for claims: a server, streams, a namespace, and a clock that can be moved."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nats.aio.client import Client as Connection
from nats.aio.msg import Msg
from nats.errors import NoRespondersError

from conformance.servers import NATS_SERVER, Server, Setup
from headrace.claims import ClaimConfig, Claims, FakeClock, MemoryStore, Metrics, Ttl
from headrace.claims.jetstream_client import JetStreamClient
from headrace.claims.registry import STREAM, claim_subject, due_subject
from headrace.testing import HostedServer

LARGE = b"0123456789abcdef" * 8192  # 128 KiB
THRESHOLD = 64 * 1024
#: Timeout for replies that must arrive. Generous, because the machine may pause for some seconds.
TIMEOUT_S = 90.0
NOT_THE_EXPECTED_STREAM = 10060


@contextlib.contextmanager
def run_nats_server(*, sync_always: bool = False) -> Iterator[str]:
    """Run a real nats-server with JetStream; `sync_always` makes it sync before each ack."""
    config = "jetstream { sync_interval: always }" if sync_always else ""
    with Server(NATS_SERVER, Setup(config=config)) as server:
        yield server.url


class MovedClock(FakeClock):
    """The machine's clock plus an offset, so that it is never behind a real server's clock."""

    def __init__(self) -> None:
        super().__init__(0)

    def now_ns(self) -> int:
        return time.time_ns() + super().now_ns()


class ClaimsHarness:
    """The environment of one test. `name` is unique: it is the namespace, and the prefix of streams and subjects."""

    def __init__(
        self, connection: Connection, url: str, server: HostedServer | None, folder: Path, name: str
    ) -> None:
        self.connection = connection
        self.url = url
        self.server = server
        self.folder = folder
        self.name = name
        self.clock = FakeClock(server.server.now_ns()) if server else MovedClock()
        self.wire = JetStreamClient(connection, timeout_s=TIMEOUT_S)
        self.opened: list[Claims] = []
        #: Backend and settings of the store; empty for a folder. All tests share one memory store.
        self.backend: dict[str, Any] = {}
        self.memory = MemoryStore(clock=self.clock)

    @property
    def is_ours(self) -> bool:
        return self.server is not None

    async def claims(
        self,
        *,
        ttl: Ttl | None = None,
        objects: Any = None,
        clock: Any = None,
        connection: Connection | None = None,
        **settings: Any,
    ) -> Claims:
        """Open the namespace, by default on a folder store."""
        settings = {"threshold": THRESHOLD, **self.backend, **settings}
        if objects is None and settings.get("backend") == "memory":
            objects = self.memory
        if objects is None and settings.get("backend", "folder") == "folder":
            settings.setdefault("store", {"path": str(self.folder), "sync": False})
        config = ClaimConfig(settings.pop("namespace", self.name), ttl=ttl or Ttl(), **settings)
        made = await Claims.open(
            connection or self.connection,
            config,
            store=objects,
            clock=clock or self.clock,
            metrics=Metrics(),
            timeout_s=TIMEOUT_S,
            retry_s=0.01,
        )
        self.opened.append(made)
        return made

    async def stream(self, suffix: str = "", **config: Any) -> str:
        """Create a stream with the subjects `name[suffix].>` that allows message TTLs."""
        name = f"{self.name}{suffix}"
        body = {"name": name, "subjects": [f"{name}.>"], "allow_msg_ttl": True, **config}
        await self.wire.api_request(f"STREAM.CREATE.{name}", body)
        return name

    async def consumer(self, stream: str, name: str, **config: Any) -> str:
        body = {"durable_name": name, "ack_policy": "explicit", "ack_wait": 3600 * 10**9, **config}
        await self.wire.api_request(
            f"CONSUMER.DURABLE.CREATE.{stream}.{name}", {"stream_name": stream, "config": body}
        )
        return name

    async def next(self, stream: str, consumer: str) -> Msg:
        """Return the next message of a consumer; it must arrive before the timeout."""
        (message,) = await self.wire.pull(stream, consumer, 1, expires_s=TIMEOUT_S)
        return message

    async def settled(self, stream: str, consumer: str) -> None:
        """Wait until no message is pending: nats-server processes acks with a delay."""
        async with asyncio.timeout(TIMEOUT_S):
            while (await self.wire.api_request(f"CONSUMER.INFO.{stream}.{consumer}"))["num_ack_pending"]:
                await asyncio.sleep(0.01)

    async def advance(self, seconds: float) -> None:
        """Advance the program's clock and, with Headrace, the server's."""
        self.clock.advance(seconds)
        if self.server is not None:
            await asyncio.to_thread(self.server.advance, seconds)

    async def fire(self, claims: Claims, claim_id: str) -> None:
        """Make the claim's timer expire.

        Headrace does it by itself in virtual time. nats-server runs in real time, so the marker that it would place
        is published on its behalf.
        """
        if self.is_ours:
            return
        headers = {"Nats-Marker-Reason": "MaxAge", "Nats-TTL": "1h", "Nats-Rollup": "sub"}
        namespace = claims.config.namespace
        await self.wire.publish(due_subject(namespace, claim_id), b"", headers)
        while not (await self.wire.api_request(f"CONSUMER.INFO.{STREAM}.collectors-{namespace}"))[
            "num_pending"
        ]:
            await asyncio.sleep(0.01)  # nats-server notifies its consumers shortly after the publish

    async def remove_message(self, stream: str, seq: int) -> None:
        """Remove a message as its TTL would; needed for nats-server, which runs in real time."""
        if not self.is_ours:
            await self.wire.api_request(f"STREAM.MSG.DELETE.{stream}", {"seq": seq})

    async def pass_ttl(self, claims: Claims, published: Any, seconds: float) -> None:
        """Advance beyond a claim's max_age: the message and the timer expire."""
        await self.advance(seconds)
        await self.remove_message(published.stream, published.seq)
        await self.fire(claims, published.reference.claim_id)

    async def timer(self, claims: Claims, claim_id: str) -> tuple[str, float] | None:
        """Return state and TTL in seconds of the claim's timer."""
        found = await self.wire.get_last(STREAM, due_subject(claims.config.namespace, claim_id))
        if found is None or not found.data:
            return None
        return found.data.decode(), float(found.headers["Nats-TTL"].rstrip("s"))

    async def events(self, claims: Claims, claim_id: str) -> list[str]:
        await wait_until_stored(self.connection)
        return [event.event async for event in claims.audit.events(claims.config.namespace, claim_id)]

    async def close(self) -> None:
        for claims in self.opened:
            await claims.close()
        await self.wire.close()


async def wait_until_stored(connection: Connection, namespace: str = "barrier") -> None:
    """Wait until the server has stored everything that this connection published without requesting an ack.

    A PONG does not prove that: nats-server stores in the background. Each stream works in order, so the rejection of
    a publish that expects another stream arrives after everything before it, and stores nothing.
    """
    for subject in (claim_subject(namespace, "barrier"), f"$CLAIMS.audit.{namespace}.barrier.created"):
        with contextlib.suppress(NoRespondersError):  # there is no stream if claims have no audit trail
            reply = await connection.request(
                subject, b"", timeout=TIMEOUT_S, headers={"Nats-Expected-Stream": "another"}
            )
            assert json.loads(reply.data)["error"]["err_code"] == NOT_THE_EXPECTED_STREAM


def reference_of(message: Msg) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(message.data)
    return found
