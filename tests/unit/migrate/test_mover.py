"""A move that cannot work stops before it changes anything."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.migrate.mover import Mover
from headrace.migrate.stream_move import MoveFailed, StreamMove
from support.moves import Silent


class ReadOnlyServer:
    """A server with some streams that allows no change."""

    name = "nats://server"

    def __init__(self, *configs: dict[str, Any]) -> None:
        self._configs = {config["name"]: config for config in configs}

    async def find(self, call: str, body: Any = None) -> dict[str, Any] | None:
        verb, _, stream = call.rpartition(".")
        assert verb == "STREAM.INFO", "nothing may be changed"
        found = self._configs.get(stream)
        return {"config": found, "state": {"messages": 0}} if found else None


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"mirror": {"name": "UP"}}, "S cannot be moved: it copies from UP; create it on the new server"),
        ({"sources": [{"name": "UP"}]}, "S cannot be moved: it copies from UP; create it on the new server"),
        ({"allow_msg_schedules": True}, "S cannot be moved: its schedules would continue to fire"),
        ({"sealed": True}, "S cannot be moved: it is sealed"),
        (None, "stream S does not exist on nats://server"),
    ],
)
async def test_a_stream_that_cannot_move_is_refused_before_anything_changes(
    config: dict[str, Any] | None, reason: str
) -> None:
    plain = {"name": "PLAIN", "subjects": ["plain"]}
    old: Any = ReadOnlyServer(plain, *([{"name": "S", **config}] if config else []))
    new: Any = ReadOnlyServer(plain)
    moves = [StreamMove(name, old, new, replicas=3, domain="LOCAL") for name in ("PLAIN", "S")]
    with pytest.raises(MoveFailed, match=reason):
        await Mover(moves, Silent(), {"id": "1"}, ack_wait_s=0).move()
