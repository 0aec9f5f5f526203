"""Steps with payloads too large for a message: sending them as claims, and collecting orphans."""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
from collections.abc import Iterator

import headrace.client
from headrace.demo.steps import TIMEOUT_S, DemoContext, Step

FILMS, FILM_BYTES = 3, 3_000_000


async def send_large_payloads(context: DemoContext) -> str:
    from headrace.claims import ClaimConfig, Claims, Received

    client = await context.connect()
    js = headrace.client.jetstream(client)
    await js.add_stream(name="FILMS", subjects=["film.>"], allow_direct=True, allow_msg_ttl=True)
    config = ClaimConfig("films", store={"path": str(context.folder / "objects")})
    with _without_warnings():  # a folder has no expiry rules; the last step runs the collector
        claims = await Claims.open(client, config, streams=["FILMS"])
    films = [os.urandom(FILM_BYTES) for _ in range(FILMS)]
    for number, film in enumerate(films):
        await claims.producer.publish(f"film.{number}", film, content_type="video/raw")
    received_payloads: list[bytes] = []

    async def watch(received: Received) -> None:
        received_payloads.append(bytes(received.data))

    viewer = await client.jetstream().pull_subscribe("film.>", "viewer")
    for message in await viewer.fetch(FILMS, timeout=TIMEOUT_S):
        assert len(message.data) < 10_000, "the message should contain only the reference"
        await claims.consumer.handle(message, watch)
    assert received_payloads == films
    context.shared["claims"] = claims
    size = (await js.stream_info("FILMS")).state.bytes
    return f"{FILMS} payloads of {FILM_BYTES / 1e6:.0f} MB were received; the stream has only {size} bytes"


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    log = logging.getLogger("headrace.claims")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


async def collect_orphan(context: DemoContext) -> str:
    """Create an object without a claim record, as left by a crash between upload and publish, and collect it."""
    from headrace.claims.stores import StaticAttributes

    claims = context.shared["claims"]
    long_ago = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=30)
    key = f"films/t/{long_ago:%Y%m%d%H}/lost"
    await claims.store.put(key, b"no claim refers to this", StaticAttributes())
    for file in (context.folder / "objects").rglob("lost*"):
        os.utime(file, (long_ago.timestamp(), long_ago.timestamp()))
    dry_run_report = await claims.collector.collect(dry_run=True)
    report = await claims.collector.collect()
    remaining = [item async for page in claims.store.list("films/") for item in page]
    await claims.close()
    assert dry_run_report.orphans == report.orphans == 1, (dry_run_report, report)
    return f"the collector removed {report.orphans} orphan; {len(remaining)} objects with a claim remain"


STEPS = (
    Step(
        "Large payloads",
        "sent as claims: the payload in an object store, a reference in the stream",
        send_large_payloads,
    ),
    Step(
        "Orphaned object", "the collector removes an object that a crash left without a claim", collect_orphan
    ),
)
