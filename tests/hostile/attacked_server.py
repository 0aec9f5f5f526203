"""A real server, a bystander that only wants to be served, and attackers.

Owns the server's process and the measurements: memory, file descriptors, and how long the bystander waits for
replies. Must not know the attacks.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from support.processes import Serving, serving

TIMEOUT_S = 60.0
GOOD = b'CONNECT {"verbose":false,"headers":true,"user":"good","pass":"x"}\r\n'
NARROW = b'CONNECT {"verbose":false,"headers":true,"user":"narrow","pass":"x"}\r\n'
PENDING_MAX = 512 * 1024
SUBSCRIPTIONS_MAX = 2_000
KIB = 1024

CONFIG = """
jetstream { store_dir: data }
max_pending: %(pending)d
max_payload: 262144
max_control_line: 1024
write_deadline: 2s
http: 127.0.0.1:-1
%(tls)s
authorization {
  timeout: 2
  users: [
    { user: good, password: x }
    { user: narrow, password: x, permissions: {
        publish: ["mine.>", "$JS.API.STREAM.INFO.MINE"], subscribe: { allow: ["mine.>", "_INBOX.n.>"], deny: "mine.not" } } }
  ]
}
"""


@dataclass
class Scene:
    """A running server."""

    running: Serving
    folder: Path
    certificate: str = ""

    @property
    def port(self) -> int:
        return self.running.port

    def memory(self) -> int:
        """Return the bytes of resident memory."""
        pages = int(Path(f"/proc/{self.running.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.running.process.pid}/fd"))

    def alive(self) -> bool:
        return self.running.process.poll() is None

    async def settled(self, descriptors: int) -> None:
        """Wait until at most this many file descriptors are open."""
        async with asyncio.timeout(TIMEOUT_S):
            while self.descriptors() > descriptors:
                await asyncio.sleep(0.05)


@contextmanager
def scene(
    folder: Path, *, tls: str = "", pending: int = PENDING_MAX, flags: tuple[str, ...] = ()
) -> Iterator[Scene]:
    """Start a server for one test."""
    (folder / "server.conf").write_text(CONFIG % {"pending": pending, "tls": tls})
    with serving(folder, "-c", "server.conf", *flags) as running:
        yield Scene(running, folder)


class Peer:
    """A client that sends raw bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def dial(cls, port: int, said: bytes = b"", *, limit: int = 1 << 20) -> Peer:
        async with asyncio.timeout(TIMEOUT_S):
            peer = cls(*await asyncio.open_connection("127.0.0.1", port, limit=limit))
            await peer.reader.readline()  # INFO
            peer.writer.write(said)
            return peer

    async def ask(self, said: bytes) -> bytes:
        """Send bytes and a PING; return everything before the PONG."""
        self.writer.write(said + b"PING\r\n")
        heard = b""
        async with asyncio.timeout(TIMEOUT_S):
            while not heard.endswith(b"PONG\r\n"):
                line = await self.reader.readline()
                if not line:
                    return heard + b"<EOF>"
                heard += line
        return heard.removesuffix(b"PONG\r\n")

    async def rest(self) -> bytes:
        """Return everything up to the end of the connection."""
        heard = b""
        async with asyncio.timeout(TIMEOUT_S):
            try:
                while piece := await self.reader.read(65_536):
                    heard = (heard + piece)[-4096:]
            except OSError:
                heard += b"<reset>"
        return heard

    def close(self) -> None:
        self.writer.transport.abort()


@dataclass
class Bystander:
    """A client that keeps publishing to itself and to a stream, and records how long each reply takes."""

    peer: Peer
    waits: list[float] = field(default_factory=list)
    acknowledged: int = 0
    _going: bool = True
    _paused_s: float = 0.0

    @classmethod
    async def arrive(cls, port: int) -> Bystander:
        peer = await Peer.dial(port, GOOD + b"SUB by.stander 1\r\nSUB _INBOX.by.* 2\r\n")
        bystander = cls(peer)
        await bystander.api("STREAM.CREATE.BY", {"name": "BY", "subjects": ["by.kept"], "max_msgs": 1000})
        return bystander

    async def api(self, endpoint: str, body: object) -> dict[str, object]:
        payload = json.dumps(body).encode()
        self.peer.writer.write(
            b"PUB $JS.API.%s _INBOX.by.a %d\r\n%s\r\n" % (endpoint.encode(), len(payload), payload)
        )
        found: dict[str, object] = json.loads(await self._message())
        return found

    async def _message(self) -> bytes:
        async with asyncio.timeout(TIMEOUT_S):
            while not (line := await self.peer.reader.readline()).startswith((b"MSG", b"HMSG")):
                if line == b"PING\r\n":
                    self.peer.writer.write(b"PONG\r\n")
                assert line, "the bystander was cut off"
            return (await self.peer.reader.readexactly(int(line.split()[-1]) + 2))[:-2]

    async def once(self) -> None:
        """Publish a message to itself, and one to the stream; wait for both."""
        begun, paused_s = time.perf_counter(), self._paused_s
        self.peer.writer.write(b"PUB by.stander 2\r\nhi\r\n")
        assert await self._message() == b"hi"
        self.peer.writer.write(b"PUB by.kept _INBOX.by.b 2\r\nhi\r\n")
        assert "seq" in json.loads(await self._message())
        await asyncio.sleep(0)  # a pause is detected before it is subtracted
        self.waits.append(max(time.perf_counter() - begun - (self._paused_s - paused_s), 0.0))
        self.acknowledged += 1

    async def _notice_pauses(self) -> None:
        """Detect pauses of this process, so that they do not count as waits."""
        while True:
            begun = time.perf_counter()
            await asyncio.sleep(0.02)
            late_s = time.perf_counter() - begun - 0.02
            self._paused_s += late_s if late_s > 0.5 else 0.0

    async def while_(self, attack: Awaitable[object], pause_s: float = 0.005) -> float:
        """Continue while the attack lasts; return the 99th percentile of the waits."""
        self.waits = []
        task, pauses = asyncio.ensure_future(attack), asyncio.ensure_future(self._notice_pauses())
        try:
            while not task.done() or not self.waits:
                await self.once()
                await asyncio.sleep(pause_s)
            await task
        finally:
            task.cancel()
            pauses.cancel()
        return self.p99()

    def p99(self) -> float:
        return statistics.quantiles([*self.waits, *self.waits[:1]], n=100, method="inclusive")[98]


async def together(count: int, begin: Callable[[int], Awaitable[Peer]], at_once: int = 100) -> list[Peer]:
    """Connect this many peers, a hundred at a time."""
    peers: list[Peer] = []
    for start in range(0, count, at_once):
        peers += await asyncio.gather(
            *(begin(number) for number in range(start, min(count, start + at_once)))
        )
    return peers
