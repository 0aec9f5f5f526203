"""Steps that kill a running server process."""

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

from headrace.demo.steps import TIMEOUT_S, DemoContext, Step

CRASH_JOBS, CRASH_DONE = 20, 8
COPY_MESSAGES, KILLS = 300, 2
_LISTENING = re.compile(rb"Listening for client connections on (\S+)")


async def resume_after_crash(context: DemoContext) -> str:
    """Kill a server in a separate process while a work queue is processed, and restart it."""
    with tempfile.TemporaryDirectory() as folder:
        async with run_broker(folder) as client:
            js = client.jetstream()
            await js.add_stream(name="WORK", subjects=["work"], retention="workqueue")
            for number in range(CRASH_JOBS):
                await js.publish("work", b"%d" % number)
            worker = await js.pull_subscribe("work", "miller")
            for message in await worker.fetch(CRASH_DONE, timeout=TIMEOUT_S):
                await message.ack_sync()
        async with run_broker(folder) as client:
            js = client.jetstream()
            worker = await js.pull_subscribe("work", "miller")
            remaining = await worker.fetch(CRASH_JOBS, timeout=TIMEOUT_S)
            await client.close()
    assert [int(message.data) for message in remaining] == list(range(CRASH_DONE, CRASH_JOBS))
    return f"killed after {CRASH_DONE} of {CRASH_JOBS} jobs; the other {len(remaining)} were delivered, none twice"


async def copy_across_crashes(context: DemoContext) -> str:
    """Copy a work queue into an archive while the server is killed repeatedly."""
    with tempfile.TemporaryDirectory() as folder:
        sent = 0
        for run_number in range(KILLS + 1):
            async with run_broker(folder) as client:
                if run_number == 0:
                    await _create_archive(client)
                for _ in range(COPY_MESSAGES // (KILLS + 1)):
                    await client.jetstream().publish("order.new", b"%d" % sent)
                    sent += 1
                if run_number == KILLS:
                    queue, archive = await _wait_until_copied(client)
                    await client.close()
    assert (queue, archive) == (0, sent), (queue, archive, sent)
    return f"killed {KILLS} times: {archive} of {sent} orders are in the archive, {queue} remain in the queue"


async def _create_archive(client: Client) -> None:
    orders = {"name": "ORDERS", "subjects": ["order.>"], "retention": "workqueue"}
    source = {"name": "ORDERS", "consumer": {"name": "archive", "server_managed": True}}
    for config in (orders, {"name": "ARCHIVE", "sources": [source]}):
        await _api(client, f"STREAM.CREATE.{config['name']}", config)


async def _wait_until_copied(client: Client) -> tuple[int, int]:
    """Return the number of messages in the queue and in the archive, once the copy has caught up."""
    for _ in range(300):
        found = [await _api(client, f"STREAM.INFO.{name}", {}) for name in ("ORDERS", "ARCHIVE")]
        queue, archive = (int(info["state"]["messages"]) for info in found)
        if not queue:
            break
        await asyncio.sleep(0.1)
    return queue, archive


async def _api(client: Client, endpoint: str, body: dict[str, Any]) -> dict[str, Any]:
    response = await client.request(f"$JS.API.{endpoint}", json.dumps(body).encode(), timeout=TIMEOUT_S)
    found: dict[str, Any] = json.loads(response.data)
    assert "error" not in found, found
    return found


@contextlib.asynccontextmanager
async def run_broker(folder: str) -> AsyncIterator[Client]:
    """Yield a client of a broker in a separate process, which is killed without warning at the end."""
    command = [sys.executable, "-m", "headrace", "serve", "-p", "-1", "-js", "-sd", folder]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    try:
        async with asyncio.timeout(30):
            while not (found := _LISTENING.search(await process.stderr.readline())):
                pass
        client = await nats.connect(
            f"nats://{found[1].decode()}", error_cb=_ignore_error, allow_reconnect=False
        )
        yield client
    finally:
        process.kill()
        await process.communicate()


async def _ignore_error(_: Exception) -> None:
    """Ignore the error: killing the server closes the connection."""


STEPS = (
    Step("Crash recovery", "a killed server continues where it stopped", resume_after_crash),
    Step(
        "Durable source",
        "a work queue is archived across crashes, without loss or duplicates",
        copy_across_crashes,
    ),
)
