"""Stream configurations: defaults, errors on create, what an update may change, pedantic mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from conformance.client import Client, error_of
from conformance.servers import Server

Make = Callable[..., dict[str, Any]]
SECOND = 1_000_000_000
MINUTE = 60 * SECOND
NAME_RULE = r"stream name is required and can not contain '.', '*', '>', '\', '/'"


@pytest.mark.parametrize(
    ("config", "shown"),
    [
        ({}, {"retention": "limits", "storage": "file", "discard": "old", "num_replicas": 1}),
        (
            {},
            {
                "max_msgs": -1,
                "max_bytes": -1,
                "max_msg_size": -1,
                "max_consumers": -1,
                "max_msgs_per_subject": -1,
            },
        ),
        (
            {"max_msgs": 0, "max_bytes": 0, "max_msg_size": -7},
            {"max_msgs": -1, "max_bytes": -1, "max_msg_size": -1},
        ),
        ({"num_replicas": 0}, {"num_replicas": 1}),
        ({}, {"duplicate_window": 2 * MINUTE, "max_age": 0, "compression": "none", "consumer_limits": {}}),
        ({"max_age": MINUTE}, {"duplicate_window": MINUTE}),
        ({"max_age": 3 * MINUTE}, {"duplicate_window": 2 * MINUTE}),
        ({"duplicate_window": 5 * SECOND}, {"duplicate_window": 5 * SECOND}),
        ({"duplicate_window": 0}, {"duplicate_window": 2 * MINUTE}),
        ({"retention": "interest"}, {"retention": "interest"}),
        ({"retention": "workqueue"}, {"retention": "workqueue"}),
        ({"storage": "memory"}, {"storage": "memory"}),
        ({"compression": "s2"}, {"compression": "s2"}),
        ({"description": "d" * 4096}, {"description": "d" * 4096}),
        ({"no_ack": True}, {"no_ack": True}),
        ({"deny_delete": True, "deny_purge": True}, {"deny_delete": True, "deny_purge": True}),
        (
            {"allow_rollup_hdrs": True, "allow_direct": True},
            {"allow_rollup_hdrs": True, "allow_direct": True},
        ),
        ({"consumer_limits": {"max_ack_pending": 7}}, {"consumer_limits": {"max_ack_pending": 7}}),
        ({"subject_delete_marker_ttl": SECOND}, {"allow_msg_ttl": True, "allow_rollup_hdrs": True}),
        ({"subject_delete_marker_ttl": SECOND, "deny_purge": True}, {"deny_purge": False}),
        ({"persist_mode": "async"}, {"persist_mode": "async"}),
        ({"first_seq": 100}, {"first_seq": 100}),
        ({"Max_Msgs": 5}, {"max_msgs": 5}),
    ],
)
def test_create_applies_defaults(make_stream: Make, config: dict[str, Any], shown: dict[str, Any]) -> None:
    answer = make_stream(**config)
    assert {key: answer["config"].get(key) for key in shown} == shown


@pytest.mark.parametrize(
    "field",
    [
        "description",
        "no_ack",
        "placement",
        "mirror",
        "sources",
        "first_seq",
        "subject_transform",
        "republish",
        "discard_new_per_subject",
        "subject_delete_marker_ttl",
        "allow_msg_counter",
        "allow_atomic",
        "persist_mode",
        "allow_batched",
        "allow_msg_schedules",
    ],
)
def test_create_leaves_out_what_is_empty(make_stream: Make, field: str) -> None:
    assert field not in make_stream()["config"]


@pytest.mark.parametrize(
    ("config", "level"),
    [
        ({}, "0"),
        ({"allow_msg_ttl": True}, "1"),
        ({"subject_delete_marker_ttl": SECOND}, "1"),
        ({"allow_atomic": True}, "2"),
        ({"persist_mode": "async"}, "2"),
        ({"metadata": {"_nats.req.level": "9", "_nats.ver": "x", "a": "b"}}, "0"),
    ],
)
def test_metadata_says_the_level(make_stream: Make, config: dict[str, Any], level: str) -> None:
    metadata = make_stream(**config)["config"]["metadata"]
    assert metadata["_nats.req.level"] == level
    assert metadata["_nats.level"] == "5"
    assert metadata["_nats.ver"] == "2.15.1"
    assert metadata.get("a") == config.get("metadata", {}).get("a")


@pytest.mark.parametrize(
    ("config", "code", "text"),
    [
        ({"description": "d" * 4097}, 10052, "stream description is too long, maximum allowed is 4096"),
        ({"max_age": -1}, 10052, "max age can not be negative"),
        ({"max_age": 99_999_999}, 10052, "max age needs to be >= 100ms"),
        ({"num_replicas": 6}, 10052, "maximum replicas is 5"),
        ({"num_replicas": -1}, 10133, "replicas count cannot be negative"),
        ({"num_replicas": 3}, 10074, "replicas > 1 not supported in non-clustered mode"),
        ({"duplicate_window": -1}, 10052, "duplicates window can not be negative"),
        ({"duplicate_window": 1000}, 10052, "duplicates window needs to be >= 100ms"),
        (
            {"duplicate_window": MINUTE, "max_age": SECOND},
            10052,
            "duplicates window can not be larger then max age",
        ),
        ({"mirror_direct": True}, 10052, "stream has no mirror but does have mirror direct"),
        (
            {"discard_new_per_subject": True, "max_msgs_per_subject": 1},
            10052,
            "discard new per subject requires discard new policy to be set",
        ),
        (
            {"discard_new_per_subject": True, "discard": "new"},
            10052,
            "discard new per subject requires max msgs per subject > 0",
        ),
        ({"sealed": True}, 10052, "stream configuration for create can not be sealed"),
        ({"deny_purge": True, "allow_rollup_hdrs": True}, 10052, "roll-ups require the purge permission"),
        ({"subject_delete_marker_ttl": 1000}, 10052, "subject delete marker TTL must be at least 1 second"),
        (
            {"persist_mode": "async", "storage": "memory"},
            10052,
            "async persist mode is only supported on file storage",
        ),
        ({"placement": {"preferred": "x"}}, 10052, "preferred server not permitted in placement"),
        ({"subjects": ["a..b"]}, 10052, "invalid subject"),
        ({"subjects": ["a.>.b"]}, 10052, "invalid subject"),
        ({"subjects": ["x1.a", "x1.*"]}, 10052, 'subject "x1.a" overlaps with "x1.*"'),
        ({"subjects": ["x1.a", "x1.a"]}, 10052, 'subject "x1.a" overlaps with "x1.a"'),
        ({"subjects": [">"]}, 10052, "capturing all subjects requires no-ack to be true"),
        (
            {"subjects": ["$JS.>"]},
            10052,
            "subjects that overlap with jetstream api require no-ack to be true",
        ),
        ({"subjects": ["$SYS.>"]}, 10052, "subjects that overlap with system api require no-ack to be true"),
        (
            {"subject_transform": {"src": "a..b", "dest": "c"}},
            10155,
            "stream transform source: invalid subject a..b",
        ),
        (
            {"republish": {"src": "a.*", "dest": "b.$2"}},
            10052,
            "stream configuration for republish with transform from 'a.*' to 'b.$2' not valid",
        ),
        ({"subjects": ["*.a"]}, 10052, "subjects that overlap with jetstream api require no-ack to be true"),
        ({"subject_transform": {"src": "a.*", "dest": "b.$2"}}, 10156, None),
        ({"subject_transform": {"src": "a.>", "dest": "b"}}, 10156, None),
        ({"subject_transform": {"src": "a.*", "dest": "b.{{foo(1)}}"}}, 10156, None),
        ({"retention": "forever"}, 10025, None),
        ({"storage": "tape"}, 10025, None),
        ({"discard": "both"}, 10025, None),
        ({"compression": "zip"}, 10025, None),
        ({"max_msgs": "many"}, 10025, None),
        ({"max_msg_size": 2**31}, 10025, None),
        ({"template_owner": "x"}, 10025, 'invalid JSON: json: unknown field "template_owner"'),
        ({"subjects": "a"}, 10025, None),
    ],
)
def test_create_refuses_invalid_configurations(
    client: Client, name: str, config: dict[str, Any], code: int, text: str | None
) -> None:
    base = {"name": name, "subjects": [f"{name}.>"]}
    answer = client.api(f"STREAM.CREATE.{name}", {**base, **config})
    assert error_of(answer) == (code, text or answer["error"]["description"])


def test_create_refuses_a_republish_to_itself(client: Client, name: str) -> None:
    config = {"name": name, "subjects": [f"{name}.>"], "republish": {"src": ">", "dest": f"{name}.>"}}
    text = "stream configuration for republish destination forms a cycle"
    assert error_of(client.api(f"STREAM.CREATE.{name}", config)) == (10052, text)


@pytest.mark.parametrize(
    ("subject", "body", "code", "text"),
    [
        ("X*", {"name": "X*"}, 10052, NAME_RULE),
        ("X>", {"name": "X>"}, 10052, NAME_RULE),
        ("Xa", {"name": "X a"}, 10056, "stream name in subject does not match request"),
        ("X/", {"name": "X/"}, 10128, "Stream name can not contain path separators"),
        ("X\\", {"name": "X\\"}, 10128, "Stream name can not contain path separators"),
        ("n" * 256, {"name": "n" * 256}, 10052, "stream name is too long, maximum allowed is 255"),
        ("X", {"name": "Y"}, 10056, "stream name in subject does not match request"),
        ("X", {}, 10056, "stream name in subject does not match request"),
        ("X", None, 10056, "stream name in subject does not match request"),
        ("X", b"{", 10025, None),
        ("X", b"[]", 10025, None),
    ],
)
def test_invalid_stream_names_are_refused(
    client: Client, subject: str, body: Any, code: int, text: str | None
) -> None:
    answer = client.api(f"STREAM.CREATE.{subject}", body)
    assert error_of(answer) == (code, text or answer["error"]["description"])


class TestExisting:
    def test_the_same_configuration_again(self, client: Client, make_stream: Make, name: str) -> None:
        first = make_stream(max_msgs=5, metadata={"a": "b"})
        second = make_stream(max_msgs=5, metadata={"a": "b"})
        assert second["did_create"] is True
        assert second["created"] == first["created"]

    def test_with_what_the_server_answered(self, client: Client, make_stream: Make, name: str) -> None:
        config = make_stream()["config"]
        assert "error" not in client.api(f"STREAM.CREATE.{name}", config)
        assert "error" not in client.api(f"STREAM.UPDATE.{name}", config)

    def test_creating_with_another_configuration_is_refused(
        self, client: Client, make_stream: Make, name: str
    ) -> None:
        make_stream()
        answer = client.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"], "max_msgs": 5})
        assert error_of(answer)[0] == 10058

    @pytest.mark.parametrize("subject", ["{}.a", "{}.*", "{}.>", "{}.a.b"])
    def test_overlap_with_another_stream(
        self, client: Client, make_stream: Make, name: str, subject: str
    ) -> None:
        make_stream()
        config = {"name": f"{name}x", "subjects": [subject.format(name)]}
        assert error_of(client.api(f"STREAM.CREATE.{name}x", config)) == (
            10065,
            "subjects overlap with an existing stream",
        )

    def test_subjects_beside_each_other(self, make_stream: Make, name: str) -> None:
        make_stream(f"{name}a", subjects=[f"{name}.a.*"])
        make_stream(f"{name}b", subjects=[f"{name}.a.*.*", f"{name}.a"])


class TestPedantic:
    @pytest.mark.parametrize(
        ("config", "text"),
        [
            ({"max_msgs": -2}, "pedantic mode: max_msgs must be set to -1"),
            ({"max_bytes": -2}, "pedantic mode: max_bytes must be set to -1"),
            ({"max_msg_size": -2}, "pedantic mode: max_msg_size must be set to -1"),
            ({"max_consumers": -2}, "pedantic mode: max_consumers must be set to -1"),
            ({"max_msgs_per_subject": -2}, "pedantic mode: max_msgs_per_subject must be set to -1"),
        ],
    )
    def test_no_silent_defaults(self, client: Client, name: str, config: dict[str, Any], text: str) -> None:
        request = {"name": name, "subjects": [f"{name}.>"], "pedantic": True, **config}
        assert error_of(client.api(f"STREAM.CREATE.{name}", request)) == (10157, text)

    def test_zeroes_are_fine(self, make_stream: Make) -> None:
        make_stream(pedantic=True, max_msgs=0)


async def test_configuration_survives_a_restart(fresh_server: Server) -> None:
    config = {"name": "S", "subjects": ["s.>"], "max_msgs": 7, "metadata": {"k": "v"}, "description": "kept"}
    with Client(fresh_server.port) as client:
        before = client.api("STREAM.CREATE.S", config)
    fresh_server.restart()
    with Client(fresh_server.port) as client:
        after = client.api("STREAM.INFO.S")
    assert after["config"] == before["config"]
    assert after["created"] == before["created"]
