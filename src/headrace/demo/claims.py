"""Steps with payloads too large for a message: they travel as claims, and what is left over is found."""

from __future__ import annotations

import datetime
import os

import headrace.client
from headrace.demo.story import PATIENCE_S, Stage, Step

FILMS, FILM_BYTES = 3, 3_000_000


async def hand_over_large_payloads(stage: Stage) -> str:
    from headrace.claims import ClaimConfig, Claims, Received

    client = await stage.connect()
    js = headrace.client.jetstream(client)
    await js.add_stream(name="FILMS", subjects=["film.>"], allow_direct=True, allow_msg_ttl=True)
    config = ClaimConfig("films", store={"path": str(stage.folder / "objects")})
    claims = await Claims.open(client, config, streams=["FILMS"])
    films = [os.urandom(FILM_BYTES) for _ in range(FILMS)]
    for number, film in enumerate(films):
        await claims.producer.publish(f"film.{number}", film, content_type="video/raw")
    seen: list[bytes] = []

    async def watch(received: Received) -> None:
        seen.append(bytes(received.data))

    viewer = await client.jetstream().pull_subscribe("film.>", "viewer")
    for message in await viewer.fetch(FILMS, timeout=PATIENCE_S):
        assert len(message.data) < 10_000, "only the reference travels"
        await claims.consumer.handle(message, watch)
    assert seen == films
    stage.props["claims"] = claims
    size = (await js.stream_info("FILMS")).state.bytes
    return (
        f"{FILMS} films of {FILM_BYTES / 1e6:.0f} MB were handed over; the stream itself holds {size} bytes"
    )


async def find_an_orphan(stage: Stage) -> str:
    """An object that no claim knows of, as a crash between upload and publish leaves it."""
    from headrace.claims.stores import Plain

    claims = stage.props["claims"]
    long_ago = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=30)
    key = f"films/t/{long_ago:%Y%m%d%H}/lost"
    await claims.store.put(key, b"nobody knows me", Plain())
    for file in (stage.folder / "objects").rglob("lost*"):
        os.utime(file, (long_ago.timestamp(), long_ago.timestamp()))
    looked = await claims.collector.collect(dry_run=True)
    done = await claims.collector.collect()
    left = [item async for page in claims.store.list("films/") for item in page]
    await claims.close()
    assert looked.orphans == done.orphans == 1, (looked, done)
    return f"the collector found {done.orphans} orphan and removed it; {len(left)} objects still have a claim"


STEPS = (
    Step(
        "Large payloads",
        "they travel as claims: the bytes in a store, a reference in the stream",
        hand_over_large_payloads,
    ),
    Step("An orphan", "the collector finds what a crash left behind, and nothing else", find_an_orphan),
)
