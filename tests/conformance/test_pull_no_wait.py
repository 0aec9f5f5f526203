"""When a no-wait pull ends although messages are left: the limit of unacknowledged messages is reached."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from conformance.client import API, Client

Make = Callable[..., dict[str, Any]]
MS = 1_000_000


@pytest.mark.parametrize(
    ("body", "beats", "end"),
    [
        ({"no_wait": True, "expires": 30_000 * MS, "idle_heartbeat": 5_000 * MS}, False, "404 No Messages"),
        ({"expires": 1_000 * MS, "idle_heartbeat": 100 * MS}, True, "408 Request Timeout"),
    ],
    ids=["no_wait", "waiting"],
)
def test_more_than_may_be_pending(
    client: Client, make_stream: Make, name: str, body: dict[str, Any], beats: bool, end: str
) -> None:
    make_stream()
    config = {"durable_name": "C", "ack_policy": "explicit", "max_ack_pending": 5}
    client.api(f"CONSUMER.DURABLE.CREATE.{name}.C", {"stream_name": name, "config": config})
    for _ in range(9):
        client.store(f"{name}.a", "x")
    inbox = f"{client.inbox}-pull"
    sid = client.subscribe(inbox)
    client.publish(
        f"{API}CONSUMER.MSG.NEXT.{name}.C", json.dumps({"batch": 20, **body}).encode(), reply=inbox
    )
    assert [client.next(sid).payload for _ in range(5)] == [b"x"] * 5
    statuses = [client.next(sid).status]
    while statuses[-1] == "100 Idle Heartbeat":
        statuses.append(client.next(sid).status)
    assert statuses[-1] == end
    assert bool(statuses[:-1]) == beats
