"""Guarantees of a watcher in difficult cases; a fake of nats-py's subscription decides what arrives."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import api

from headrace.client import JetStream, Watcher, watch
from headrace.client.watch import WatchOptions


class Subscription:
    """A fake of what nats-py returns for an ordered consumer."""

    def __init__(self, deliver: Callable[[Msg], Awaitable[None]], pending: int) -> None:
        self._deliver = deliver
        self.pending = pending
        self.floor = 0
        self.delivered = 0

    async def consumer_info(self) -> api.ConsumerInfo:
        delivered = api.SequenceInfo(consumer_seq=self.delivered, stream_seq=self.delivered or self.floor)
        config = api.ConsumerConfig()
        return api.ConsumerInfo("C", "KV_B", config, None, delivered, num_pending=self.pending)  # type: ignore[arg-type]

    async def unsubscribe(self) -> None:
        """Do nothing: it ends with the test."""

    async def message(self, seq: int, pending: int, **headers: str) -> None:
        self.delivered = max(self.delivered, seq)
        reply = f"$JS.ACK.KV_B.C.1.{seq}.{seq}.1700000000000000000.{pending}"
        await self._deliver(Msg(Client(), subject=f"$KV.B.k{seq}", reply=reply, data=b"x", headers=headers))


class Context(JetStream):
    """A context with fake subscriptions."""

    def __init__(self, pending: int) -> None:
        super().__init__(Client())
        self.subscription: Subscription
        self._pending = pending
        self.floor = 0

    async def subscribe(self, subject: str, **options: Any) -> Any:
        self.subscription = Subscription(options["cb"], self._pending)
        self.subscription.floor = self.floor
        return self.subscription


async def started(pending: int, *, floor: int = 0, **options: Any) -> tuple[Watcher, Subscription]:
    context = Context(pending)
    context.floor = floor
    watcher = await Watcher(context, "B", "KV_B", "$KV.B.", WatchOptions(**options)).start()
    return watcher, context.subscription


async def test_none_comes_when_what_is_still_to_come_vanishes(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the last pending keys expire before their delivery, no message marks the end."""
    monkeypatch.setattr(watch, "_INIT_CHECK_S", 0.01)
    watcher, subscription = await started(pending=3)
    await subscription.message(1, pending=2)
    await subscription.message(2, pending=1)
    subscription.pending = 0
    assert [entry.revision for entry in await watcher.initial()] == [1, 2]
    await watcher.stop()


async def test_none_waits_for_what_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_INIT_CHECK_S", 0.01)
    watcher, subscription = await started(pending=2)
    await subscription.message(1, pending=1)
    subscription.pending, subscription.delivered = 0, 2
    assert await watcher.updates()
    with pytest.raises(TimeoutError):
        await watcher.updates(timeout=0.1)
    await subscription.message(2, pending=0)
    assert [entry.revision for entry in await watcher.initial()] == [2]
    await watcher.stop()


async def test_a_revision_comes_once_and_none_too() -> None:
    """An ordered consumer that starts again may repeat messages."""
    watcher, subscription = await started(pending=2)
    for seq, pending in ((1, 1), (2, 0), (1, 1), (2, 0), (3, 0)):
        await subscription.message(seq, pending)
    await watcher.stop()
    received = [entry and entry.revision async for entry in watcher]
    assert received == [1, 2, None, 3]


async def test_updates_only_never_shows_what_was_there() -> None:
    """nats-py's ordered consumer starts at sequence 1 if it has to start again before the first message."""
    watcher, subscription = await started(pending=0, floor=5, updates_only=True)
    assert await watcher.updates() is None
    for seq in (4, 5, 6):
        await subscription.message(seq, 6 - seq)
    entry = await watcher.updates()
    assert entry
    assert entry.revision == 6
    await watcher.stop()


async def test_a_suppressed_last_entry_still_ends_the_beginning() -> None:
    watcher, subscription = await started(pending=2, ignore_deletes=True)
    await subscription.message(1, pending=1)
    await subscription.message(2, 0, **{"Nats-Marker-Reason": "MaxAge"})
    assert [entry.revision for entry in await watcher.initial()] == [1]
    await watcher.stop()


async def test_stopping_a_full_watcher_ends_its_iteration() -> None:
    watcher, subscription = await started(pending=300)
    for seq in range(1, 257):
        await subscription.message(seq, 300 - seq)
    await watcher.stop()
    assert len([entry async for entry in watcher]) == 255
