"""Steps with payloads too large for a message: they are sent as claims, and leftovers are found."""

from __future__ import annotations

import datetime
import os

import headrace.client
from headrace.demo.steps import TIMEOUT_S, DemoContext, Step

FILMS, FILM_BYTES = 3, 3_000_000


async def send_large_payloads(context: DemoContext) -> str:
    from headrace.claims import ClaimConfig, Claims, Received

    client = await context.connect()
    js = headrace.client.jetstream(client)
    await js.add_stream(name="FILMS", subjects=["film.>"], allow_direct=True, allow_msg_ttl=True)
    config = ClaimConfig("films", store={"path": str(context.folder / "objects")})
    claims = await Claims.open(client, config, streams=["FILMS"])
    films = [os.urandom(FILM_BYTES) for _ in range(FILMS)]
    for number, film in enumerate(films):
        await claims.producer.publish(f"film.{number}", film, content_type="video/raw")
    received_payloads: list[bytes] = []

    async def watch(received: Received) -> None:
        received_payloads.append(bytes(received.data))

    viewer = await client.jetstream().pull_subscribe("film.>", "viewer")
    for message in await viewer.fetch(FILMS, timeout=TIMEOUT_S):
        assert len(message.data) < 10_000, "only the reference travels"
        await claims.consumer.handle(message, watch)
    assert received_payloads == films
    context.shared["claims"] = claims
    size = (await js.stream_info("FILMS")).state.bytes
    return (
        f"{FILMS} films of {FILM_BYTES / 1e6:.0f} MB were handed over; the stream itself holds {size} bytes"
    )


async def collect_orphan(context: DemoContext) -> str:
    """An object that no claim knows of, as a crash between upload and publish leaves it."""
    from headrace.claims.stores import StaticAttributes

    claims = context.shared["claims"]
    long_ago = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=30)
    key = f"films/t/{long_ago:%Y%m%d%H}/lost"
    await claims.store.put(key, b"nobody knows me", StaticAttributes())
    for file in (context.folder / "objects").rglob("lost*"):
        os.utime(file, (long_ago.timestamp(), long_ago.timestamp()))
    dry_run_report = await claims.collector.collect(dry_run=True)
    report = await claims.collector.collect()
    remaining = [item async for page in claims.store.list("films/") for item in page]
    await claims.close()
    assert dry_run_report.orphans == report.orphans == 1, (dry_run_report, report)
    return f"the collector found {report.orphans} orphan and removed it; {len(remaining)} objects still have a claim"


STEPS = (
    Step(
        "Large payloads",
        "they travel as claims: the bytes in a store, a reference in the stream",
        send_large_payloads,
    ),
    Step("An orphan", "the collector finds what a crash left behind, and nothing else", collect_orphan),
)
