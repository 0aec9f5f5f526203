"""Streams that cannot be moved: each has a reason and a remedy."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.migrate.obstacles import find_obstacles, list_upstreams


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"mirror": {"name": "A"}}, "it copies from A"),
        ({"sources": [{"name": "A"}, {"name": "B"}]}, "it copies from A, B"),
        ({"sealed": True}, "sealed"),
        ({"allow_msg_schedules": True}, "schedules"),
    ],
)
def test_what_a_move_cannot_close_is_an_obstacle(config: dict[str, Any], text: str) -> None:
    (found,) = find_obstacles({"name": "S", **config})
    assert text in found.text
    assert found.remedy


def test_every_obstacle_is_found() -> None:
    config = {"sources": [{"name": "A"}], "sealed": True, "allow_msg_schedules": True}
    assert len(list(find_obstacles(config))) == 3
    assert not list(find_obstacles({"name": "S", "sources": [], "sealed": False}))


def test_upstreams_of_other_servers_can_be_left_out() -> None:
    config = {"sources": [{"name": "A"}, {"name": "B", "external": {"api": "$JS.HUB.API"}}]}
    assert list_upstreams(config) == ["A", "B"]
    assert list_upstreams(config, local=True) == ["A"]
