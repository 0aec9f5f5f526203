"""Pages about large streams and messages let others be served between two subjects or messages, whatever these are."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace.broker.stream import Stream
from headrace.monitor import sliced_page
from headrace.monitor.message_browser import browse_messages
from headrace.monitor.workbench.message_export import export_messages
from headrace.monitor.workbench.stream_comparison import compare_streams
from headrace.monitor.workbench.subject_rows import make_subject_table
from headrace.sim import SimDisk
from headrace.sim.sim_broker import SimBroker
from headrace.storage import StoreOptions

MESSAGES = 40
SECOND_NS = 1_000_000_000


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> SimBroker:
    """A broker; each slice of a page is over when it begins."""
    monkeypatch.setattr(sliced_page, "SLICE_S", 0)
    broker = SimBroker(SimDisk(), StoreOptions())
    broker.start()
    return broker


def fill(broker: SimBroker, *names: str, payload: bytes = b"x") -> list[Stream]:
    """Create streams with the same messages: the first stores them, the others are copies."""
    subjects, sources = {"subjects": ["k.>"]}, {"sources": [{"name": names[0]}]}
    for name in names:
        config = subjects if name == names[0] else sources
        assert "error" not in broker.call(f"STREAM.CREATE.{name}", name=name, **config)
    for number in range(MESSAGES):
        broker.publish(f"k.{number}", payload)
    broker.advance(10 * SECOND_NS)
    return [broker.jetstream.streams[name] for name in names]


async def count_turns(work: Callable[[], Awaitable[Any]]) -> tuple[Any, int]:
    """Return the result, and how often others were served meanwhile."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    result = await work()
    counting.cancel()
    return result, turns


async def encode(page: dict[str, Any]) -> Any:
    return json.loads(b"".join(await sliced_page.encode_page(page)))


async def test_subjects_that_both_streams_have(broker: SimBroker) -> None:
    left, right = fill(broker, "LEFT", "RIGHT")
    found, turns = await count_turns(lambda: compare_streams(left, right))
    assert (found["compared_subjects"], found["different_subjects"]) == (MESSAGES, 0)
    assert turns >= 2 * MESSAGES


async def test_messages_of_a_page(broker: SimBroker) -> None:
    [stream] = fill(broker, "S", payload=b"x" * 100_000)
    page = await browse_messages(stream, {"limit": "100"})
    found, turns = await count_turns(lambda: encode(page))
    assert len(found["messages"]) == MESSAGES
    assert turns >= MESSAGES


async def test_values_of_keys(broker: SimBroker) -> None:
    [stream] = fill(broker, "S", payload=b"x" * 100_000)
    page = await make_subject_table(stream, {"last": "1"})
    found, turns = await count_turns(lambda: encode(page))
    assert found["rows"][0]["message"]["size"] == 100_000
    assert turns >= MESSAGES


@pytest.mark.parametrize("payload", [b"\x01" * 500_000, bytes(range(256)) * 2_000], ids=["text", "binary"])
async def test_one_large_message(broker: SimBroker, payload: bytes) -> None:
    [stream] = fill(broker, "S", payload=payload)
    page = await export_messages(stream, {"seq": "1"})
    assert max(map(len, sliced_page.iter_json(page))) < 512 * 1024
    first = (await encode(page))["messages"][0]
    assert (first["text"].encode() if "text" in first else b64decode(first["base64"])) == payload
