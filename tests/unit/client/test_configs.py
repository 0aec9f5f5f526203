"""Configurations keep every field when encoded and decoded."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from nats.js import api

from headrace.client import (
    ConsumerConfig,
    ConsumerInfo,
    PriorityPolicy,
    StreamConfig,
    StreamConsumerSource,
    StreamInfo,
    StreamSource,
    source_through,
)
from headrace.client.configs import Placement

CREATED = "2026-01-02T03:04:05.678901234Z"


def sent(config: Any) -> Any:
    return json.loads(json.dumps(config.as_dict()))


def test_a_stream_with_everything_new() -> None:
    config = StreamConfig(
        name="S",
        max_age=10.0,
        allow_msg_ttl=True,
        subject_delete_marker_ttl=2.5,
        allow_atomic=True,
        persist_mode=api.PersistMode.ASYNC,
        placement=Placement(cluster="c", preferred="s1"),
        sources=[
            StreamSource(name="A", consumer=StreamConsumerSource(name="d", server_managed=True)),
            StreamSource(name="B", consumer=StreamConsumerSource(name="e", deliver_subject="x.y")),
        ],
    )
    wire = sent(config)
    assert wire["subject_delete_marker_ttl"] == 2_500_000_000
    assert wire["persist_mode"] == "async"
    assert wire["placement"] == {"cluster": "c", "preferred": "s1"}
    assert [source["consumer"] for source in wire["sources"]] == [
        {"name": "d", "server_managed": True},
        {"name": "e", "deliver_subject": "x.y"},
    ]
    assert StreamConfig.from_response(wire) == config


def test_stream_info_with_sources() -> None:
    state = {"messages": 0, "bytes": 0, "first_seq": 0, "last_seq": 0, "consumer_count": 0}
    source = {"name": "A", "lag": 1, "active": -1, "seq": 9, "external": {"api": "$JS.x.API", "deliver": ""}}
    info = StreamInfo.from_response(
        {
            "config": {
                "name": "S",
                "mirror": {"name": "A", "consumer": {"name": "d", "server_managed": True}},
            },
            "state": state,
            "created": CREATED,
            "mirror": dict(source),
            "sources": [dict(source)],
        }
    )
    assert info.config.mirror
    assert info.config.mirror.consumer == StreamConsumerSource(name="d", server_managed=True)
    assert info.state.messages == 0
    assert info.sources
    assert info.mirror == info.sources[0]
    assert (info.sources[0].seq, info.sources[0].external.api) == (9, "$JS.x.API")  # type: ignore[attr-defined]


def test_a_consumer_with_everything_new() -> None:
    config = ConsumerConfig(
        name="C",
        ack_policy=api.AckPolicy.FLOW_CONTROL,
        max_batch=10,
        max_expires=1.5,
        max_bytes=1024,
        priority_groups=["g"],
        priority_policy=PriorityPolicy.PINNED_CLIENT,
        priority_timeout=5.0,
        opt_start_time=datetime(2026, 1, 2, tzinfo=UTC),
    )
    wire = sent(config)
    assert (wire["max_expires"], wire["priority_timeout"]) == (1_500_000_000, 5_000_000_000)
    assert (wire["ack_policy"], wire["priority_policy"]) == ("flow_control", "pinned_client")
    back = ConsumerConfig.from_response(wire)
    assert (back.max_expires, back.priority_groups, back.opt_start_time) == (
        1.5,
        ["g"],
        config.opt_start_time,
    )


def test_unset_fields_are_not_sent() -> None:
    assert (
        not {"max_batch", "max_expires", "priority_groups", "priority_timeout"}
        & sent(ConsumerConfig()).keys()
    )
    assert sent(StreamConsumerSource(name="x")) == {"name": "x"}


def test_the_source_of_a_consumer() -> None:
    info = ConsumerInfo.from_response(
        {"name": "d", "stream_name": "O", "created": CREATED, "config": {"deliver_subject": "x"}}
    )
    assert sent(source_through(info)) == {"name": "O", "consumer": {"name": "d", "deliver_subject": "x"}}


@pytest.mark.parametrize("kind", [StreamConfig, ConsumerConfig])
def test_they_go_wherever_nats_py_takes_its_own(kind: type) -> None:
    assert issubclass(kind, api.StreamConfig | api.ConsumerConfig)
