"""The clients of the simulation: publishers, consumers, and one that reads and removes messages.

Owns what they send and how they change servers. A client uses one server until a reply is late, then tries the other; a
publisher repeats a message with the same id until it is acknowledged.
"""

from __future__ import annotations

import asyncio
import base64
import json
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .server import LeaderServer
    from .simulation import TwoBrokerSimulation

REPLY_TIMEOUT_S = 1.5
SECOND_NS = 1_000_000_000


class Client:
    """One client."""

    def __init__(self, simulation: TwoBrokerSimulation, name: str) -> None:
        self.simulation = simulation
        self.name = name
        self.rng: Random = simulation.make_rng(name)
        self._server: LeaderServer | None = None

    async def find_server(self) -> LeaderServer:
        """Return the server of this client's connection; wait until one accepts it."""
        while True:
            if self._server is not None and self._server.is_serving and not self._server.process.is_killed:
                return self._server
            found = self.simulation.list_servers()
            self._server = self.rng.choice(found) if found else None
            if self._server is None:
                await asyncio.sleep(self.rng.uniform(0.02, 0.3))

    async def request(self, subject: str, payload: bytes = b"", **fields: str) -> Any:
        """Return header and payload of the reply; None if there is none in time, or the server is gone."""
        server = await self.find_server()
        reply = server.send(subject, payload, **fields)
        try:
            return await asyncio.wait_for(reply, REPLY_TIMEOUT_S)
        except TimeoutError:
            self._server = None
            return None

    async def call(self, endpoint: str, body: dict[str, Any]) -> Any:
        """Call the API until there is a response."""
        while True:
            found = await self.request(f"$JS.API.{endpoint}", json.dumps(body).encode())
            if found is not None and b'"error"' not in found[1]:
                return json.loads(found[1])
            if found is not None and found[1]:
                return json.loads(found[1])
            await asyncio.sleep(0.05)


class Publisher(Client):
    """Publishes messages with ids; each one is repeated until it is acknowledged."""

    def __init__(self, simulation: TwoBrokerSimulation, name: str) -> None:
        super().__init__(simulation, name)
        self._count = 0

    async def run(self) -> None:
        options = self.simulation.options
        while not self.simulation.is_ending:
            await asyncio.gather(*(self._publish() for _ in range(self.rng.randrange(1, options.burst + 1))))
            await asyncio.sleep(self.rng.expovariate(options.rate))

    async def _publish(self) -> None:
        self._count += 1
        stream = self.rng.choice(self.simulation.streams)
        text = f"{self.name}-{self._count}"
        size = self.rng.choice((0, 0, 10, 300, 6000 if self.rng.random() < 0.3 else 20))
        payload = text.encode() + b"." * size
        while not self.simulation.has_ended:
            found = await self.request(f"{stream.lower()}.{self.rng.randrange(3)}", payload, Nats_Msg_Id=text)
            if found is not None and b'"seq"' in found[1] and b'"error"' not in found[1]:
                return
            await asyncio.sleep(self.rng.uniform(0.01, 0.2))


class Consumer(Client):
    """Reads a stream with a durable consumer; most acknowledgments are confirmed, some are plain, some are missing."""

    def __init__(self, simulation: TwoBrokerSimulation, stream: str) -> None:
        super().__init__(simulation, f"C{stream}")
        self.stream = stream
        self._acks: list[tuple[LeaderServer, str, int]] = []

    async def run(self) -> None:
        while not self.simulation.has_ended:
            server = await self.find_server()
            inbox = server.open_inbox(self.name, self._on_delivery)
            body = {"batch": self.rng.randrange(1, 20), "expires": SECOND_NS // 2}
            endpoint = f"$JS.API.CONSUMER.MSG.NEXT.{self.stream}.{self.name}"
            server.send(endpoint, json.dumps(body).encode(), inbox=inbox)
            for _ in range(4):
                await asyncio.sleep(self.rng.uniform(0.02, 0.2))
                await self._acknowledge()
            if self.rng.random() < 0.1:
                self._server = None

    def _on_delivery(
        self, server: LeaderServer, subject: bytes, reply: bytes, header: bytes, payload: bytes
    ) -> None:
        if not reply.startswith(b"$JS.ACK."):
            return  # a status
        seq = int(reply.split(b".")[5])
        self.simulation.checker.on_delivery(server, self.name, (self.stream, seq), payload)
        self._acks.append((server, reply.decode(), seq))

    async def _acknowledge(self) -> None:
        acks, self._acks = self._acks, []
        waiting = []
        for server, subject, seq in acks:
            roll = self.rng.random() if not self.simulation.is_ending else 0.0
            if roll > 0.95:
                continue
            target = server if self.rng.random() < 0.8 else await self.find_server()
            if roll > 0.9:
                target.send(subject, b"-NAK")
                continue
            self.simulation.checker.attempted_acks.add((self.name, seq))
            reply = target.send(subject, b"")
            waiting.append(asyncio.wait_for(reply, REPLY_TIMEOUT_S))
        await asyncio.gather(*waiting, return_exceptions=True)


class Operator(Client):
    """Creates the streams; later it reads messages and removes some."""

    async def set_up(self) -> None:
        for stream in self.simulation.streams:
            config = {
                "name": stream,
                "subjects": [f"{stream.lower()}.*"],
                "duplicate_window": 600 * SECOND_NS,
            }
            if stream == "W":
                config["retention"] = "workqueue"
            await self.call(f"STREAM.CREATE.{stream}", config)
            consumer = {"durable_name": f"C{stream}", "ack_policy": "explicit", "ack_wait": 2 * SECOND_NS}
            body = {"stream_name": stream, "config": consumer}
            await self.call(f"CONSUMER.DURABLE.CREATE.{stream}.C{stream}", body)

    async def run(self) -> None:
        checker = self.simulation.checker
        while not self.simulation.is_ending:
            await asyncio.sleep(self.rng.expovariate(3.0))
            keys = [key for key in checker.seen if key[0] == "S"]
            if not keys:
                continue
            stream, seq = self.rng.choice(keys)
            if self.rng.random() < 0.15:
                checker.attempted_removals.add((stream, seq))
                await self.request(f"$JS.API.STREAM.MSG.DELETE.{stream}", json.dumps({"seq": seq}).encode())
            else:
                await self._read(stream)

    async def _read(self, stream: str) -> None:
        """Read the newest message of a subject."""
        body = json.dumps({"last_by_subj": f"{stream.lower()}.{self.rng.randrange(3)}"}).encode()
        server = await self.find_server()
        found = await self.request(f"$JS.API.STREAM.MSG.GET.{stream}", body)
        if found is None or b'"message"' not in found[1]:
            return
        message = json.loads(found[1])["message"]
        payload = base64.b64decode(message.get("data", ""))
        self.simulation.checker.on_seen(server, (stream, message["seq"]), payload)
