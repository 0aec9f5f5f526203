"""The two servers of the campaign, Headrace and a cluster of three nats-servers, behind one interface.

Owns their processes, the streams of a query, and publishing and reading with nats.py, which shares no code with the
source and the sink. Invariant: `publish` returns when every row is stored once.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import nats
from nats.errors import Error as NatsError
from nats.js.api import ConsumerConfig, DeliverPolicy

from conformance.servers import OURS, Server
from headrace.reader.blocking_connection import BlockingConnection, ConnectionFailed, ServerAddress
from kills.ledger import Row
from kills.plan import CLUSTER, HEADRACE
from support.cluster import Cluster

_LIMIT_S = 120.0
_PAUSE_S = 0.1
_WINDOW = 500
_DUPLICATE_WINDOW_NS = 600 * 10**9
Result = TypeVar("Result")


class Message(NamedTuple):
    """A message of a target."""

    seq: int
    subject: str
    data: str
    headers: dict[str, str]


class Streams(NamedTuple):
    """The streams of a query."""

    source: str
    target: str

    @property
    def staging(self) -> str:
        return f"SPARK_STAGING_{self.target}"

    @property
    def progress(self) -> str:
        return f"SPARK_PROGRESS_{self.target}"


class Backend:
    """What both servers have in common."""

    kind = ""
    replicas = 1

    def __init__(self) -> None:
        self._connection: BlockingConnection | None = None

    @property
    def urls(self) -> list[str]:
        raise NotImplementedError

    def kill(self, streams: Streams, draw: random.Random) -> str:
        """Kill a process of the server and start it again after a while; return which one."""
        raise NotImplementedError

    def read_log(self) -> str:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def create(self, streams: Streams, *, is_atomic: bool) -> None:
        """Create source and target."""
        for name in streams:
            config = {
                "name": name,
                "subjects": [f"{name}.>"],
                "num_replicas": self.replicas,
                "allow_direct": True,
                "allow_atomic": is_atomic and name == streams.target,
                "duplicate_window": _DUPLICATE_WINDOW_NS,
            }
            self.api(f"STREAM.CREATE.{name}", config)

    def delete(self, streams: Streams) -> None:
        """Delete all streams of a query."""
        for name in (*streams, streams.staging, streams.progress):
            if self.last_seq(name) >= 0:
                self.api(f"STREAM.DELETE.{name}")

    def last_seq(self, stream: str) -> int:
        """Return the last sequence of a stream; -1 if it does not exist or the server does not reply."""
        state = self._try(f"STREAM.INFO.{stream}").get("state", {})
        return int(state.get("last_seq", -1))

    def api(self, verb: str, body: Any = None) -> dict[str, Any]:
        """Send a request until the server accepts it; return the reply."""
        deadline = time.monotonic() + _LIMIT_S
        while True:
            reply = self._try(verb, body)
            if reply and "error" not in reply:
                return reply
            if time.monotonic() > deadline:
                raise TimeoutError(f"{verb}: {reply}")
            time.sleep(_PAUSE_S)

    def publish(self, stream: str, rows: Sequence[Row]) -> None:
        """Publish rows, again if a reply is missing; the stream drops repetitions."""
        for start in range(0, len(rows), _WINDOW):
            window = rows[start : start + _WINDOW]
            self._retry(lambda window=window: _publish(self.urls, stream, window))

    def read(self, stream: str, after: int) -> list[Message]:
        """Return the messages of a stream after a sequence."""
        return self._retry(lambda: _read(self.urls, stream, after, self.last_seq(stream)))

    def settle(self, streams: Streams) -> None:
        """Wait until every replica has caught up."""

    def describe(self, streams: Streams) -> dict[str, Any]:
        """Return the infos of all streams of a query."""
        return {
            name: self._try(f"STREAM.INFO.{name}") for name in (*streams, streams.staging, streams.progress)
        }

    def _retry(self, work: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + _LIMIT_S
        while True:
            try:
                return asyncio.run(work())
            except (NatsError, OSError, TimeoutError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE_S)

    def _try(self, verb: str, body: Any = None) -> dict[str, Any]:
        """Send an API request; return the reply, {} if there is none."""
        try:
            if self._connection is None:
                address = ServerAddress(servers=tuple(self.urls), timeout_s=5.0)
                self._connection = BlockingConnection(address)
            reply: dict[str, Any] = json.loads(self._connection.request(f"$JS.API.{verb}", body).payload)
            return reply
        except ConnectionFailed:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            return {}


async def _connect(urls: list[str]) -> nats.NATS:
    """Connect; errors are raised, not logged."""

    async def ignore(_: Exception) -> None:
        pass

    return await nats.connect(urls, max_reconnect_attempts=2, error_cb=ignore)


async def _publish(urls: list[str], stream: str, rows: Sequence[Row]) -> None:
    connection = await _connect(urls)
    try:
        publish = connection.jetstream(timeout=10).publish
        await asyncio.gather(
            *(
                publish(
                    f"{stream}.{row.side}.{row.key}",
                    row.payload.encode(),
                    headers={"Nats-Msg-Id": row.msg_id},
                )
                for row in rows
            )
        )
    finally:
        await connection.close()


async def _read(urls: list[str], stream: str, after: int, last: int) -> list[Message]:
    if last <= after:
        return []
    connection = await _connect(urls)
    try:
        config = ConsumerConfig(deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=after + 1)
        feed = await connection.jetstream(timeout=10).subscribe(
            "", stream=stream, ordered_consumer=True, config=config
        )
        found: list[Message] = []
        while not found or found[-1].seq < last:
            message = await feed.next_msg(timeout=10)
            seq = message.metadata.sequence.stream
            found.append(Message(seq, message.subject, message.data.decode(), message.headers or {}))
        return found
    finally:
        await connection.close()


class HeadraceServer(Backend):
    """A Headrace server, killed and started again."""

    kind = HEADRACE

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._server = Server(OURS)

    @property
    def urls(self) -> list[str]:
        return [self._server.url]

    def kill(self, streams: Streams, draw: random.Random) -> str:
        self._server.kill()
        time.sleep(draw.choice((0.0, 0.5, 2.0)))
        self._server.start()
        return "server"

    def read_log(self) -> str:
        return self._server.log_text()

    def close(self) -> None:
        self._server.close()


class NatsCluster(Backend):
    """Three nats-servers, one of which is killed and started again."""

    kind = CLUSTER
    replicas = 3

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._cluster = Cluster(folder / "nats").__enter__()

    @property
    def urls(self) -> list[str]:
        return self._cluster.urls.split(",")

    def kill(self, streams: Streams, draw: random.Random) -> str:
        """Kill the leader of one of the streams, or any node."""
        chosen = draw.choice([*streams, streams.staging, streams.progress, ""])
        info = self._try(f"STREAM.INFO.{chosen}") if chosen else {}
        leader = info.get("cluster", {}).get("leader")
        node = next((each for each in self._cluster.nodes if each.name == leader), None)
        role = f"leader of {chosen}" if node else "any node"
        node = node or draw.choice(self._cluster.nodes)
        node.kill()
        time.sleep(draw.choice((0.0, 0.5, 2.0)))
        node.start()
        return f"{node.name}, {role}"

    def settle(self, streams: Streams) -> None:
        deadline = time.monotonic() + _LIMIT_S
        names = [*streams, streams.staging, streams.progress]
        while names and time.monotonic() < deadline:
            info = self._try(f"STREAM.INFO.{names[0]}")
            replicas = info.get("cluster", {}).get("replicas", [])
            is_current = sum(bool(each.get("current")) for each in replicas) == self.replicas - 1
            if is_current or info.get("error", {}).get("code") == 404:
                names.pop(0)
            else:
                time.sleep(_PAUSE_S)
        if names:
            raise TimeoutError(f"the replicas of {names[0]} do not catch up: {info}")

    def read_log(self) -> str:
        return "\n".join(f"--- {node.name}\n{node.log[-5000:]}" for node in self._cluster.nodes)

    def close(self) -> None:
        self._cluster.close()


BACKENDS: dict[str, Callable[[Path], Backend]] = {HEADRACE: HeadraceServer, CLUSTER: NatsCluster}
