"""When a copy is near enough to its stream to close it."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.migrate.stream_move import StreamMove

OLD = {"messages": 90_000, "first_seq": 1, "last_seq": 100_000}


class MirrorServers:
    """Both servers, which are asked in turn: the mirror has the next of some states each time."""

    name = "server"

    def __init__(self, *mirrors: dict[str, Any]) -> None:
        self.requests = 0
        self._mirrors = mirrors

    async def api(self, call: str, body: Any = None) -> dict[str, Any]:
        number = self.requests
        self.requests += 1
        return self._mirrors[number // 2] if number % 2 else {"state": OLD}


def make_mirror(messages: int, last_seq: int, lag: int, active: int = 1) -> dict[str, Any]:
    return {
        "state": {"messages": messages, "last_seq": last_seq},
        "mirror": {"name": "S", "lag": lag, "active": active},
    }


@pytest.mark.parametrize(
    ("mirrors", "polls"),
    [
        # No message has arrived yet: nats-server reports no lag.
        ([make_mirror(0, 0, 0), make_mirror(50_000, 55_000, 45_000), make_mirror(89_500, 99_500, 500)], 3),
        # The last 5,000 sequences of the old stream are gone.
        ([make_mirror(80_000, 85_000, 10_000), make_mirror(90_000, 95_000, 0)], 2),
        ([make_mirror(90_000, 95_000, 0, active=-1), make_mirror(90_000, 95_000, 0)], 2),
    ],
)
async def test_a_copy_is_near_when_it_has_almost_all_messages(
    mirrors: list[dict[str, Any]], polls: int
) -> None:
    servers: Any = MirrorServers(*mirrors)
    move = StreamMove("S", servers, servers, replicas=3, domain="LOCAL")
    move._original = {"name": "S", "retention": "limits"}
    await move.await_near(lambda _: None)
    assert servers.requests == 2 * polls
