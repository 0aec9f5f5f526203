"""Updating a stream: what may change, what may not, and what takes effect at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from conformance.client import Client, error_of

Make = Callable[..., dict[str, Any]]
SECOND = 1_000_000_000
MINUTE = 60 * SECOND


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ({}, {"storage": "memory"}, "stream configuration update can not change storage type"),
        (
            {},
            {"retention": "workqueue"},
            "stream configuration update can not change retention policy to/from workqueue",
        ),
        (
            {"retention": "workqueue"},
            {},
            "stream configuration update can not change retention policy to/from workqueue",
        ),
        (
            {"deny_delete": True},
            {},
            "stream configuration update can not cancel deny message deletes",
        ),
        ({"deny_purge": True}, {}, "stream configuration update can not cancel deny purge"),
        ({"allow_msg_ttl": True}, {}, "message TTL status can not be disabled"),
        ({}, {"persist_mode": "async"}, "stream configuration update can not change persist mode"),
        ({}, {"max_age": 5}, "max age needs to be >= 100ms"),
    ],
)
def test_invalid_updates_are_refused(
    client: Client,
    make_stream: Make,
    name: str,
    before: dict[str, Any],
    after: dict[str, Any],
    text: str,
) -> None:
    make_stream(**before)
    answer = client.api(f"STREAM.UPDATE.{name}", {"name": name, "subjects": [f"{name}.>"], **after})
    assert error_of(answer) == (10052, text)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"max_msgs": 10}),
        ({"max_msgs": 10}, {"max_msgs": -1}),
        ({}, {"max_bytes": 1000, "max_age": MINUTE, "duplicate_window": SECOND}),
        ({}, {"max_msg_size": 100, "max_msgs_per_subject": 3}),
        ({}, {"discard": "new"}),
        ({}, {"retention": "interest"}),
        ({"retention": "interest"}, {"retention": "limits"}),
        ({}, {"description": "new", "metadata": {"k": "v"}}),
        ({}, {"allow_direct": True, "allow_rollup_hdrs": True}),
        ({}, {"no_ack": True, "max_consumers": 3, "compression": "s2"}),
        ({}, {"deny_delete": True, "deny_purge": True}),
        ({}, {"allow_msg_ttl": True}),
    ],
)
def test_valid_updates_are_applied(
    client: Client, make_stream: Make, name: str, before: dict[str, Any], after: dict[str, Any]
) -> None:
    make_stream(**before)
    answer = client.api(f"STREAM.UPDATE.{name}", {"name": name, "subjects": [f"{name}.>"], **after})
    assert "error" not in answer, answer["error"]
    assert answer["type"] == "io.nats.jetstream.api.v1.stream_update_response"
    config = client.api(f"STREAM.INFO.{name}")["config"]
    shown = {k: config.get(k) for k in after if k != "metadata"}
    assert shown == {k: v for k, v in after.items() if k != "metadata"}


def test_of_a_missing_stream(client: Client, name: str) -> None:
    assert error_of(client.api(f"STREAM.UPDATE.{name}", {"name": name}))[0] == 10059


def test_onto_the_subjects_of_another(client: Client, make_stream: Make, name: str) -> None:
    make_stream()
    make_stream(f"{name}b")
    config = {"name": f"{name}b", "subjects": [f"{name}.a"]}
    assert error_of(client.api(f"STREAM.UPDATE.{name}b", config))[0] == 10065


def test_subjects_are_bound_again(client: Client, make_stream: Make, name: str) -> None:
    make_stream()
    assert client.store(f"{name}.a")["seq"] == 1
    client.api(f"STREAM.UPDATE.{name}", {"name": name, "subjects": [f"{name}x.b"]})
    assert client.request(f"{name}.a").status == "503"
    assert client.store(f"{name}x.b")["seq"] == 2
    assert client.api(f"STREAM.INFO.{name}")["state"]["messages"] == 2


def test_lower_limits_trim_at_once(client: Client, make_stream: Make, name: str) -> None:
    make_stream()
    for i in range(10):
        client.store(f"{name}.{i % 2}")
    config = {"name": name, "subjects": [f"{name}.>"], "max_msgs": 4}
    assert client.api(f"STREAM.UPDATE.{name}", config)["state"]["messages"] == 4
    config["max_msgs_per_subject"] = 1
    assert client.api(f"STREAM.UPDATE.{name}", config)["state"]["messages"] == 2
    assert client.api(f"STREAM.INFO.{name}")["state"]["first_seq"] == 9


def test_sealing_a_stream_denies_every_change(client: Client, make_stream: Make, name: str) -> None:
    make_stream(max_age=MINUTE, allow_rollup_hdrs=True)
    client.store(f"{name}.a")
    sealed = client.api(
        f"STREAM.UPDATE.{name}",
        {"name": name, "subjects": [f"{name}.>"], "sealed": True, "max_age": MINUTE},
    )["config"]
    assert (sealed["sealed"], sealed["max_age"], sealed["discard"]) == (True, 0, "new")
    assert (sealed["deny_delete"], sealed["deny_purge"], sealed["allow_rollup_hdrs"]) == (
        True,
        True,
        False,
    )
    assert error_of(client.store(f"{name}.a"))[0] == 10109
    assert error_of(client.api(f"STREAM.PURGE.{name}"))[0] == 10109
    assert error_of(client.api(f"STREAM.MSG.DELETE.{name}", {"seq": 1}))[0] == 10109
    again = client.api(f"STREAM.UPDATE.{name}", {"name": name, "subjects": [f"{name}.>"]})
    assert error_of(again) == (10052, "stream configuration update can not unseal a sealed stream")
