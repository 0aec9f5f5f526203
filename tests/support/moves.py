"""Moves streams between the two sides of a pair, without the command line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from headrace.client import Client, connect
from headrace.client.errors import NoStream, StreamMismatch
from headrace.migrate.jetstream_server import JetStreamServer
from headrace.migrate.mover import MoveObserver, Mover, make_record
from headrace.migrate.stream_move import StreamMove
from support.cluster_leaf import HUB, LEAF, Pair

#: Maximum wait for a replica of the cluster, or for the leafnode connection.
WAIT_S = 120.0


class Silent:
    """Shows nothing of a move."""

    def on_step(self, step: str) -> None:
        pass

    @contextmanager
    def show_copying(self, total: int) -> Iterator[Callable[[int], None]]:
        yield lambda _: None


def move(
    pair: Pair, names: Sequence[str], *, back: bool = False, observer: MoveObserver | None = None
) -> None:
    """Move streams from Headrace to the cluster with three replicas, or back."""
    asyncio.run(move_streams(pair, names, back=back, observer=observer))


async def move_streams(
    pair: Pair, names: Sequence[str], *, back: bool = False, observer: MoveObserver | None = None
) -> None:
    """Like `move`, inside an event loop."""
    async with await connect(pair.ours.url) as one, await connect(pair.cluster.urls.split(",")) as other:
        ours, theirs = JetStreamServer(one, "headrace"), JetStreamServer(other, "cluster")
        old, new = (theirs, ours) if back else (ours, theirs)
        replicas, domain = (1, HUB) if back else (3, LEAF)
        moves = [StreamMove(name, old, new, replicas=replicas, domain=domain) for name in names]
        await Mover(moves, observer or Silent(), make_record(old, new, names), ack_wait_s=0.1).move()


async def publish(connection: Client, subject: str, payload: bytes, stream: str | None = None) -> int:
    """Publish a message; return its sequence.

    After a move, routes and the leafnode connection carry a subject only once they know its new stream.
    """
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                return (await connection.jetstream().publish(subject, payload, WAIT_S, stream)).seq
            except NoStream:
                await asyncio.sleep(0.05)


async def await_stream(url: str, subject: str) -> None:
    """Wait until a message on this subject would reach its stream through each of these servers; store nothing."""
    for each in url.split(","):
        async with await connect(each) as connection:
            with suppress(StreamMismatch):
                await publish(connection, subject, b"", stream="none")
