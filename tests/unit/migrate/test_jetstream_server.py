"""Requests of a move: how long a reply is awaited, and which errors are temporary."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import nats.errors
import pytest

from headrace.migrate import jetstream_server
from headrace.migrate.jetstream_server import JetStreamServer, NoReply


class Replies:
    """A connection that gives these replies in turn, None for none, and keeps how long each was awaited."""

    is_closed = False

    def __init__(self, *replies: dict[str, Any] | None) -> None:
        self.timeouts_s: list[float] = []
        self._replies = list(replies)

    async def request(self, subject: str, payload: bytes, *, timeout: float, headers: Any) -> Any:
        self.timeouts_s.append(timeout)
        reply = self._replies.pop(0)
        if reply is None:
            raise nats.errors.TimeoutError
        return SimpleNamespace(data=json.dumps(reply).encode())


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jetstream_server, "_PAUSE_S", 0.0)


async def test_a_request_that_a_cluster_dropped_is_soon_repeated() -> None:
    """Publishers wait while streams are closed; a reply that takes longer arrives all the same."""
    connection = Replies(None, None, None, None, {"seq": 1})
    server = JetStreamServer(connection, "cluster", timeout_s=5.0)  # type: ignore[arg-type]
    assert await server.api("CONSUMER.RESET.S.c") == {"seq": 1}
    assert connection.timeouts_s == [1.0, 2.0, 4.0, 5.0, 5.0]


async def test_a_request_that_must_not_be_repeated_early_has_the_whole_timeout() -> None:
    connection = Replies(None, {})
    server = JetStreamServer(connection, "cluster", timeout_s=5.0)  # type: ignore[arg-type]
    await server.api("STREAM.SNAPSHOT.S", is_slow=True)
    assert connection.timeouts_s == [5.0, 5.0]


async def test_temporary_errors_are_repeated_until_the_time_is_over() -> None:
    no_leader = {"error": {"code": 503, "err_code": 10008, "description": "no leader"}}
    server = JetStreamServer(Replies(no_leader, {"ok": True}), "cluster", timeout_s=0.5)  # type: ignore[arg-type]
    assert await server.api("INFO") == {"ok": True}
    server = JetStreamServer(Replies(no_leader), "cluster")  # type: ignore[arg-type]
    with pytest.raises(NoReply, match="no leader"):
        await server.api("INFO", retry_s=0.0)
