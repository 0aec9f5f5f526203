"""Attacks by hostile peers. Each takes the scene and a size, and closes its own connections.

An attack returns what the attackers received, so that a test can check it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter

from .attacked_server import GOOD, TIMEOUT_S, Peer, Scene, together

#: What is sent before authentication, and the reply. Lines are limited to 1,024 bytes; b"" is a close without a
#: reply.
MALFORMED: tuple[tuple[bytes, bytes], ...] = (
    (b"GET / HTTP/1.1\r\n\r\n", b"-ERR 'Authorization Violation'\r\n"),
    (b"PUB a 5\r\nhello\r\n", b"-ERR 'Authorization Violation'\r\n"),
    (b"SUB > 1\r\n", b"-ERR 'Authorization Violation'\r\n"),
    (b"CONNECT {" + b"x" * 70_000, b"-ERR 'maximum control line exceeded'\r\n"),
    (b"A" * 100_000, b"-ERR 'Authorization Violation'\r\n"),
    (b"CONNECT {\r\n", b""),
    (b"CONNECT []\r\n", b""),
    (b'CONNECT {"user":["good"],"pass":"x"}\r\n', b""),
    (b'CONNECT {"user":"good","pass":"y"}\r\n', b"-ERR 'Authorization Violation'\r\n"),
    (b"\x16\x03\x01\x02\x00\x01\x00", b"-ERR 'Authorization Violation'\r\n"),
    (b"\x00" * 64, b"-ERR 'Authorization Violation'\r\n"),
    (b"CONNECT " + b'{"a":' * 150 + b"\r\n", b""),
)
#: What an authenticated client sends, and how its connection ends; b"" is a close without a reply.
BROKEN: tuple[tuple[bytes, bytes], ...] = (
    (b"PUB a -1\r\n", b""),
    (b"PUB a 99999999999999999999\r\n", b""),
    (b"PUB a 9223372036854775808\r\nx\r\n", b""),
    (b"PUB a 1048577\r\n", b"-ERR 'Maximum Payload Violation'\r\n"),
    (b"HPUB a 10 5\r\n", b""),
    (b"HPUB a -1 5\r\n", b""),
    (b"PUB a 2\r\nhiXX", b"-ERR 'Unknown Protocol Operation'\r\n"),
    (b"SUB " + b"a" * 2_000 + b" 1\r\n", b"-ERR 'maximum control line exceeded'\r\n"),
    (b"PUB a.b", None),  # type: ignore[list-item]  # unfinished: nothing happens
)


async def malformed(scene: Scene, times: int) -> Counter[tuple[bytes, bytes]]:
    """Send everything that is malformed, before and after authentication; return the replies."""
    heard: Counter[tuple[bytes, bytes]] = Counter()

    async def one(greeting: bytes, said: bytes) -> None:
        peer = await Peer.dial(scene.port, greeting + said)
        heard[said, await peer.rest()] += 1
        peer.close()

    for _ in range(times):
        await asyncio.gather(*(one(b"", said) for said, _ in MALFORMED))
        await asyncio.gather(*(one(GOOD, said) for said, answer in BROKEN if answer is not None))
    return heard


async def silent(scene: Scene, count: int, said: bytes = b"") -> tuple[float, Counter[bytes], int]:
    """Connect and send nothing, or too little.

    Returns how long until all are disconnected, what they received, and the memory they used.
    """
    before = scene.memory()
    peers = await together(count, lambda number: Peer.dial(scene.port, said, limit=1024))
    begun, taken = time.monotonic(), scene.memory() - before
    heard = Counter(await asyncio.gather(*(peer.rest() for peer in peers)))
    lasted = time.monotonic() - begun
    for peer in peers:
        peer.close()
    return lasted, heard, taken


async def dripping(scene: Scene, count: int, pause_s: float) -> tuple[float, Counter[bytes]]:
    """Send CONNECT byte by byte: the timeout does not start again with each byte."""

    async def drip(peer: Peer) -> bytes:
        for byte in GOOD * 20:
            if peer.reader.at_eof():
                break
            peer.writer.write(bytes([byte]))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    return await peer.reader.read(4096)
        return await peer.rest()

    peers = await together(count, lambda number: Peer.dial(scene.port))
    begun = time.monotonic()
    heard = Counter(await asyncio.gather(*(drip(peer) for peer in peers)))
    lasted = time.monotonic() - begun
    for peer in peers:
        peer.close()
    return lasted, heard


async def churn(scene: Scene, count: int, at_once: int = 50, per_s: float = 1e9) -> int:
    """Connect and disconnect at once, repeatedly, sometimes in the middle of a word; return how many were accepted."""
    came, begun = 0, time.monotonic()
    for start in range(0, count, at_once):
        await asyncio.sleep(begun + start / per_s - time.monotonic())

        async def one(number: int) -> None:
            nonlocal came
            peer = await Peer.dial(
                scene.port, (b"", b"CONN", GOOD, GOOD + b"SUB > 1\r\nPUB a 100\r\nx")[number % 4]
            )
            came += 1
            peer.close()

        await asyncio.gather(*(one(number) for number in range(start, min(count, start + at_once))))
    return came


async def slow_readers(scene: Scene, slow: int, fast: int, size: int, bound: int) -> tuple[int, int]:
    """Some subscribers do not read: return how many were disconnected, and how many messages the others received."""
    readers = await together(
        slow, lambda number: Peer.dial(scene.port, GOOD + b"SUB flood 1\r\n", limit=1024)
    )
    for reader in readers:
        await reader.ask(b"")
        reader.writer.transport.pause_reading()  # type: ignore[attr-defined]
    others = await together(fast, lambda number: Peer.dial(scene.port, GOOD + b"SUB flood 1\r\n"))
    got = [0] * fast

    async def read(number: int, peer: Peer) -> None:
        while piece := await peer.reader.read(1 << 16):
            got[number] += piece.count(b"MSG flood 1 ")

    tasks = [asyncio.ensure_future(read(number, peer)) for number, peer in enumerate(others)]
    publisher = await Peer.dial(scene.port, GOOD)
    message = b"PUB flood %d\r\n%s\r\n" % (size, b"x" * size)
    sent = 0
    while sent * size < bound:
        await publisher.ask(message * 4)
        sent += 4
    async with asyncio.timeout(TIMEOUT_S):
        while min(got, default=sent) < sent:
            await asyncio.sleep(0.02)
    cut = sum([await _is_cut(reader) for reader in readers])
    for task in tasks:
        task.cancel()
    for peer in (*readers, *others, publisher):
        peer.close()
    return cut, min(got, default=sent)


async def _is_cut(peer: Peer) -> bool:
    """Return whether the server has closed the connection, after reading what is left."""
    peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
    try:
        async with asyncio.timeout(60):
            while await peer.reader.read(1 << 16):
                pass
    except OSError:
        return True
    except TimeoutError:
        return False
    return True


async def subscriptions(scene: Scene, count: int) -> bytes:
    """Subscribe to everything, in every form, from one client; return what it received."""
    peer = await Peer.dial(scene.port, GOOD, limit=1 << 22)
    forms = (b"a.%d", b"a.*.%d", b"*.%d.>", b"a.b.*.%d.>", b"*.*.*.*.*.%d")
    lines = [b"SUB %s %d\r\n" % (forms[number % 5] % number, number) for number in range(count)]
    heard = b""
    for start in range(0, count, 500):
        heard += await peer.ask(b"".join(lines[start : start + 500]))
    published = b"".join(b"PUB x%d.%d.y 0\r\n\r\n" % (number, number) for number in range(2_000))
    heard += await peer.ask(published)
    peer.close()
    return heard


async def pulls(scene: Scene, count: int) -> Counter[bytes]:
    """Pull from a consumer as often as possible, without an expiry; return the statuses received."""
    peer = await Peer.dial(scene.port, GOOD + b"SUB _INBOX.p.> 1\r\n", limit=1 << 22)
    await _api(peer, "STREAM.CREATE.PULLED", {"name": "PULLED", "subjects": ["pulled"]})
    config = {"durable_name": "C", "ack_policy": "explicit"}
    await _api(peer, "CONSUMER.CREATE.PULLED.C", {"stream_name": "PULLED", "config": config})
    body = json.dumps({"batch": 1 << 60, "max_bytes": 1 << 60, "expires": (1 << 62)}).encode()
    line = b"PUB $JS.API.CONSUMER.MSG.NEXT.PULLED.C _INBOX.p.%d %d\r\n%s\r\n"
    heard = b""
    for start in range(0, count, 50):
        heard += await peer.ask(
            b"".join([line % (number, len(body), body) for number in range(start, start + 50)])
        )
    async with asyncio.timeout(TIMEOUT_S):
        while heard.count(b"HMSG") < count - 512:
            heard += await peer.reader.read(1 << 16)
    peer.close()
    statuses = Counter(text.split(b"\r\n")[0] for text in heard.split(b"NATS/1.0 ")[1:])
    cleaner = await Peer.dial(scene.port, GOOD + b"SUB _INBOX.p.> 1\r\n")
    await _api(cleaner, "STREAM.DELETE.PULLED", None)
    cleaner.close()
    return statuses


async def _api(peer: Peer, endpoint: str, body: object) -> bytes:
    payload = b"" if body is None else json.dumps(body).encode()
    said = b"PUB $JS.API.%s _INBOX.p.api %d\r\n%s\r\n" % (endpoint.encode(), len(payload), payload)
    heard = await peer.ask(said)
    async with asyncio.timeout(TIMEOUT_S):
        while b"_response" not in heard:
            heard += await peer.reader.readline()
    return heard
