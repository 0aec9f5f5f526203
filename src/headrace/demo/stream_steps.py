"""Steps with streams and buckets: storing, expiring, atomic batches."""

from __future__ import annotations

import asyncio

import headrace.client
import headrace.errors
from headrace.demo.steps import TIMEOUT_S, DemoContext, Step


async def store_messages(context: DemoContext) -> str:
    client = await context.connect()
    js = headrace.client.jetstream(client)
    await js.add_stream(name="LEVELS", subjects=["level.>"])
    acks = [await js.publish(f"level.{mill}", b"2.31 m") for mill in ("north", "south")]
    assert [ack.seq for ack in acks] == [1, 2]
    last = await js.get_last_msg("LEVELS", "level.south")
    await client.close()
    return f"level.south is message {last.seq}, synced to disk before it was acknowledged"


async def expire_key_with_marker(context: DemoContext) -> str:
    client = await context.connect()
    bucket = await headrace.client.jetstream(client).create_key_value(bucket="gates", limit_markers=60)
    watcher = await bucket.watchall()
    await bucket.create("east", b"open", ttl=1)
    operations = []
    async with asyncio.timeout(TIMEOUT_S):
        async for entry in watcher:
            if entry is not None:
                operations.append(entry.operation)
            if len(operations) == 2:
                break
    await client.close()
    assert operations == ["PUT", "PURGE"], operations
    return "the watcher received PUT, and a second later PURGE, when the key's TTL expired"


async def update_atomically(context: DemoContext) -> str:
    client = await context.connect()
    js = headrace.client.jetstream(client)
    bucket = await js.create_key_value(bucket="address", allow_atomic=True)
    await bucket.create_many({"street": b"Mill Lane 1", "city": b"Waterside", "code": b"12345"})
    try:
        await bucket.update_many({"city": (b"Hillside", 2), "code": (b"99999", 77)})
    except headrace.errors.HeadraceError:
        pass
    else:
        raise AssertionError("a batch with a wrong revision should be rejected")
    city = await bucket.get("city")
    await client.close()
    assert city.value == b"Waterside"
    return "one revision was wrong, so the whole batch was rejected: the city is still Waterside"


STEPS = (
    Step("Stream", "messages are acknowledged when they are on disk", store_messages),
    Step("Key with a TTL", "watchers receive a delete marker when it expires", expire_key_with_marker),
    Step("Atomic batch", "several keys change together or not at all", update_atomically),
)
