"""Steps in which a broker in a process of its own is killed in the middle of its work."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
import tempfile
from collections.abc import AsyncIterator
from typing import Any

import nats
from nats.aio.client import Client

from headrace.demo.story import PATIENCE_S, Stage, Step

CRASH_JOBS, CRASH_DONE = 20, 8
COPIED, KILLS = 300, 2
_LISTENING = re.compile(rb"Listening for client connections on (\S+)")


async def crash_and_go_on(stage: Stage) -> str:
    """A broker in a process of its own is killed in the middle of its work."""
    with tempfile.TemporaryDirectory() as folder:
        async with running(folder) as client:
            js = client.jetstream()
            await js.add_stream(name="WORK", subjects=["work"], retention="workqueue")
            for number in range(CRASH_JOBS):
                await js.publish("work", b"%d" % number)
            worker = await js.pull_subscribe("work", "miller")
            for message in await worker.fetch(CRASH_DONE, timeout=PATIENCE_S):
                await message.ack_sync()
        async with running(folder) as client:
            js = client.jetstream()
            worker = await js.pull_subscribe("work", "miller")
            left = await worker.fetch(CRASH_JOBS, timeout=PATIENCE_S)
            await client.close()
    assert [int(message.data) for message in left] == list(range(CRASH_DONE, CRASH_JOBS))
    return f"killed after {CRASH_DONE} of {CRASH_JOBS} jobs; the other {len(left)} were there, none twice"


async def copy_through_a_crash(stage: Stage) -> str:
    """A work queue is copied into an archive while the broker is killed again and again."""
    with tempfile.TemporaryDirectory() as folder:
        sent = 0
        for life in range(KILLS + 1):
            async with running(folder) as client:
                if life == 0:
                    await _make_archive(client)
                for _ in range(COPIED // (KILLS + 1)):
                    await client.jetstream().publish("order.new", b"%d" % sent)
                    sent += 1
                if life == KILLS:
                    queue, archive = await _until_empty(client)
                    await client.close()
    assert (queue, archive) == (0, sent), (queue, archive, sent)
    return (
        f"killed {KILLS} times: {archive} of {sent} orders are in the archive, {queue} are left in the queue"
    )


async def _make_archive(client: Client) -> None:
    orders = {"name": "ORDERS", "subjects": ["order.>"], "retention": "workqueue"}
    source = {"name": "ORDERS", "consumer": {"name": "archive", "server_managed": True}}
    for config in (orders, {"name": "ARCHIVE", "sources": [source]}):
        await _api(client, f"STREAM.CREATE.{config['name']}", config)


async def _until_empty(client: Client) -> tuple[int, int]:
    """How many are in the queue and in the archive, once the copy has caught up."""
    for _ in range(300):
        found = [await _api(client, f"STREAM.INFO.{name}", {}) for name in ("ORDERS", "ARCHIVE")]
        queue, archive = (int(info["state"]["messages"]) for info in found)
        if not queue:
            break
        await asyncio.sleep(0.1)
    return queue, archive


async def _api(client: Client, endpoint: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await client.request(f"$JS.API.{endpoint}", json.dumps(body).encode(), timeout=PATIENCE_S)
    found: dict[str, Any] = json.loads(answer.data)
    assert "error" not in found, found
    return found


@contextlib.asynccontextmanager
async def running(folder: str) -> AsyncIterator[Client]:
    """A client of a broker in a process of its own, which is killed without warning at the end."""
    command = [sys.executable, "-m", "headrace", "serve", "-p", "-1", "-js", "-sd", folder]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    try:
        async with asyncio.timeout(30):
            while not (found := _LISTENING.search(await process.stderr.readline())):
                pass
        client = await nats.connect(f"nats://{found[1].decode()}", error_cb=_ignore, allow_reconnect=False)
        yield client
    finally:
        process.kill()
        await process.communicate()


async def _ignore(_: Exception) -> None:
    """The end of the connection is what this is about."""


STEPS = (
    Step("A crash", "a killed broker goes on where it was", crash_and_go_on),
    Step(
        "A durable copy",
        "a work queue is archived through crashes, nothing lost or doubled",
        copy_through_a_crash,
    ),
)
