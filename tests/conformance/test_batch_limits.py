"""Limits on open batches count for the whole server, whatever account a batch is in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from conformance.client import Client, error_of
from conformance.servers import Server, Setup

CONFIG = """
jetstream { limits { batch { max_inflight_per_stream: 3, max_inflight_total: 4 } } }
accounts {
  A { users: [{user: a, password: a}], jetstream: enabled }
  B { users: [{user: b, password: b}], jetstream: enabled }
}
"""
Connect = Callable[..., Client]


@pytest.fixture
def members(launch: Callable[[Setup], Server], connect: Connect) -> tuple[Client, Client]:
    server = launch(Setup(config=CONFIG))
    one, other = (connect(server, user=name, **{"pass": name}) for name in ("a", "b"))
    for client in (one, other):
        for stream in "ST":
            config = {"name": stream, "subjects": [f"{stream.lower()}.>"]}
            created = client.api(
                f"STREAM.CREATE.{stream}", {**config, "allow_atomic": True, "allow_batched": True}
            )
            assert "error" not in created
    return one, other


def begin(client: Client, stream: str, name: str) -> int:
    """Begin an atomic batch; 0, or the error."""
    answer = client.request(f"{stream}.x", b"x", {"Nats-Batch-Id": name, "Nats-Batch-Sequence": "1"})
    return error_of(answer.json)[0] if answer.payload else 0


def begin_fast(client: Client, stream: str, name: str) -> int:
    """Begin a fast batch; 0, or the error."""
    inbox = f"{client.inbox}{stream}{name}"
    sid = client.subscribe(f"{inbox}.>")
    client.publish(f"{stream}.x", b"x", None, f"{inbox}.{name}.10.ok.1.0.$FI")
    answer: dict[str, Any] = client.next(sid).json
    return error_of(answer)[0] if "error" in answer else 0


@pytest.mark.parametrize(("start", "too_many"), [(begin, 10210), (begin_fast, 10211)])
def test_accounts_share_the_limit(
    members: tuple[Client, Client], start: Callable[[Client, str, str], int], too_many: int
) -> None:
    one, other = members
    assert [start(one, "s", name) for name in ("1", "2", "3")] == [0, 0, 0]
    assert start(other, "s", "1") == 0
    assert [start(client, stream, "5") for client in members for stream in "st"] == [too_many] * 4
    one.api("STREAM.DELETE.S")
    assert [start(other, stream, name) for stream, name in ("s6", "t6", "t7")] == [0, 0, 0]
    assert start(one, "t", "8") == too_many
