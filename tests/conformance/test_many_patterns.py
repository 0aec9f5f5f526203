"""Requests with hundreds of subjects and filters, which the server checks off its event loop and applies in slices."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from conformance.client import Client
from conformance.consumer_client import Reading, eventually

Make = Callable[..., dict[str, Any]]
MANY = 600


def test_a_stream_with_many_subjects_receives_on_each(client: Client, name: str, make_stream: Make) -> None:
    make_stream(subjects=[f"{name}.{n}.*" for n in range(MANY)])
    for n in (0, 1, 255, 256, 257, MANY - 1):
        assert client.store(f"{name}.{n}.x", "")
    assert client.api(f"STREAM.INFO.{name}")["state"]["messages"] == 6


def test_changed_subjects_of_a_stream_with_many(client: Client, name: str, make_stream: Make) -> None:
    make_stream(subjects=[f"{name}.{n}.*" for n in range(MANY)])
    config = client.api(f"STREAM.INFO.{name}")["config"]
    config["subjects"] = [f"{name}.{n}.*" for n in range(MANY // 2, MANY + 10)]
    answer = client.api(f"STREAM.UPDATE.{name}", config)
    assert answer["config"]["subjects"] == config["subjects"]
    for n in (MANY // 2, MANY - 1, MANY + 9):
        assert client.store(f"{name}.{n}.x", "")
    client.publish(f"{name}.0.x", b"nobody")
    client.flush()
    assert client.api(f"STREAM.INFO.{name}")["state"]["messages"] == 3


def test_subjects_that_overlap_among_many_are_refused(client: Client, name: str) -> None:
    subjects = [*(f"{name}.{n}.*" for n in range(MANY)), f"{name}.7.seven"]
    answer = client.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": subjects})
    assert answer["error"]["err_code"] == 10052
    assert client.api(f"STREAM.INFO.{name}")["error"]["err_code"] == 10059


def test_requests_behind_one_with_many_subjects_wait_for_it(client: Client, name: str) -> None:
    """The second request sees the stream that the first one creates."""
    body = {"name": name, "subjects": [f"{name}.{n}.*" for n in range(MANY)]}
    other = {"name": f"{name}B", "subjects": [f"{name}.5.x"]}
    sid = client.subscribe(f"{name}-replies")
    for each in (body, other):
        request = json.dumps(each).encode()
        client.publish(f"$JS.API.STREAM.CREATE.{each['name']}", request, reply=f"{name}-replies")
    assert "error" not in client.next(sid).json
    assert client.next(sid).json["error"]["err_code"] == 10065
    client.api(f"STREAM.DELETE.{name}")


def test_a_consumer_with_many_filters_receives_what_matches(
    client: Client, name: str, make_stream: Make
) -> None:
    make_stream()
    reading = Reading(client, name)
    for n in range(0, 1200, 100):
        client.store(f"{name}.{n}.x", str(n))
    created = reading.made("C", filter_subjects=[f"{name}.{n}.*" for n in range(MANY)])
    assert created["num_pending"] == 6
    client.store(f"{name}.599.y", "599")
    client.store(f"{name}.600.y", "600")
    assert [m.payload for m in reading.fetch("C", 7)] == [
        b"0",
        b"100",
        b"200",
        b"300",
        b"400",
        b"500",
        b"599",
    ]


def test_interest_of_a_consumer_with_many_filters(client: Client, name: str, make_stream: Make) -> None:
    make_stream(retention="interest")
    reading = Reading(client, name)
    reading.made("C", filter_subjects=[f"{name}.{n}.*" for n in range(MANY)])
    client.store(f"{name}.1.x", "")
    client.store(f"{name}.700.x", "")
    assert reading.state()["messages"] == 1
    reading.made("C", filter_subjects=[f"{name}.{n}.*" for n in range(2, MANY)])
    eventually(lambda: reading.state()["messages"] == 0)


def test_filters_that_overlap_among_many_are_refused(client: Client, name: str, make_stream: Make) -> None:
    make_stream()
    filters = [*(f"{name}.{n}.*" for n in range(MANY)), f"{name}.7.seven"]
    config = {"durable_name": "C", "ack_policy": "explicit", "filter_subjects": filters}
    answer = client.api(f"CONSUMER.DURABLE.CREATE.{name}.C", {"stream_name": name, "config": config})
    assert answer["error"]["err_code"] == 10138
