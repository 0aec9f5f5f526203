"""Rules of stream configurations that nats-server does not share, and those that a table cannot show.

Everything else is compared with nats-server in tests/conformance/test_config_validation.py.
"""

from typing import Any

import pytest

from headrace.errors import RequestError
from headrace.jetstream_api.account_limits import JetStreamLimits, Usage
from headrace.jetstream_api.configs import (
    ConsumerConfig,
    ConsumerLimits,
    RePublish,
    StreamConfig,
    StreamConsumerSource,
    StreamSource,
    copy_config,
    encode_config,
)
from headrace.jetstream_api.times import SECOND_NS
from headrace.jetstream_api.validation import streams


def create(
    existing: dict[str, StreamConfig] | None = None, *, strict: bool = False, **fields: Any
) -> StreamConfig:
    fields = {"name": "S"} | fields
    return streams.validate_create(StreamConfig(**fields), "S", existing or {}, strict=strict)


def update(old: StreamConfig, *, strict: bool = False, **fields: Any) -> StreamConfig:
    fields = {"name": "S"} | fields
    return streams.validate_update(StreamConfig(**fields), "S", {"S": old}, strict=strict)


def refusal(caught: pytest.ExceptionInfo[RequestError]) -> tuple[int, int, str]:
    return caught.value.code, caught.value.err_code, caught.value.description


@pytest.mark.parametrize("dest", ["$JS.API.STREAM.DELETE.V", "$JS.>", "$JS.ACK.S.C.1.1.1.1.0", "$SYS.x"])
def test_copies_never_go_to_the_server(dest: str) -> None:
    with pytest.raises(RequestError) as caught:
        create(subjects=["s"], republish=RePublish(src="s" if ">" not in dest else ">", dest=dest))
    assert refusal(caught)[:2] == (500, 10052)
    assert "belongs to the server" in refusal(caught)[2]


def test_what_was_sent_is_not_changed() -> None:
    sent = StreamConfig(name="S", metadata={"_nats.ver": "x"})
    before = copy_config(sent)
    streams.validate_create(sent, "S", {})
    assert sent == before


def test_an_equal_stream_is_created_again_as_it_is() -> None:
    made = create(metadata={"a": "b"})
    assert create({"S": made}, metadata={"a": "b", "_nats.level": "9"}) is made
    with pytest.raises(RequestError) as caught:
        create({"S": made}, metadata={"a": "c"})
    assert refusal(caught) == (400, 10058, "stream name already in use with a different configuration")


# The flag of the TTL specification.


def test_the_marker_flag_brings_a_ttl_of_fifteen_minutes_and_is_echoed() -> None:
    made = create(subject_delete_markers=True, allow_msg_ttl=True)
    assert made.subject_delete_marker_ttl == 900 * SECOND_NS
    assert made.allow_rollup_hdrs
    assert b'"subject_delete_markers":true,"subject_delete_marker_ttl":900000000000' in encode_config(made)
    assert made.metadata["_nats.req.level"] == "1"


def test_a_flag_that_was_never_sent_is_not_shown() -> None:
    made = create(subject_delete_marker_ttl=SECOND_NS)
    assert made.allow_msg_ttl
    assert b"subject_delete_markers" not in encode_config(made)
    assert b'"subject_delete_markers":false' in encode_config(create(subject_delete_markers=False))


@pytest.mark.parametrize(
    ("fields", "strict", "text"),
    [
        (
            {"subject_delete_markers": True},
            False,
            "subject delete marker cannot be set if message TTLs are disabled",
        ),
        (
            {"subject_delete_markers": True, "allow_msg_ttl": True},
            True,
            "subject delete marker TTL must be set",
        ),
        (
            {"subject_delete_markers": False, "subject_delete_marker_ttl": SECOND_NS},
            False,
            "subject delete marker TTL cannot be set if subject delete markers are disabled",
        ),
        (
            {"subject_delete_markers": True, "allow_msg_ttl": True, "subject_delete_marker_ttl": 1},
            False,
            "subject delete marker TTL must be at least 1 second",
        ),
        (
            {"subject_delete_markers": True, "allow_msg_ttl": True, "mirror": StreamSource(name="O")},
            False,
            "subject delete markers forbidden on mirrors",
        ),
        (
            {"allow_msg_counter": True, "subject_delete_marker_ttl": SECOND_NS},
            False,
            "counter stream cannot use message TTLs",
        ),
    ],
)
def test_the_seed_s_rules_of_markers(fields: dict[str, Any], strict: bool, text: str) -> None:
    with pytest.raises(RequestError) as caught:
        create(strict=strict, **fields)
    assert refusal(caught) == (500, 10052, text)


def test_an_update_without_the_flag_keeps_it_true_to_the_ttl() -> None:
    old = create(subject_delete_markers=True, allow_msg_ttl=True)
    kept = update(old, allow_msg_ttl=True, subject_delete_marker_ttl=5 * SECOND_NS)
    assert (kept.subject_delete_markers, kept.subject_delete_marker_ttl) == (True, 5 * SECOND_NS)
    assert update(old, allow_msg_ttl=True).subject_delete_markers is False


# Server-managed consumers of the sourcing specification.


def test_a_server_managed_consumer_needs_only_a_name() -> None:
    consumer = StreamConsumerSource(name="d", server_managed=True)
    made = create(sources=[StreamSource(name="O", consumer=consumer, opt_start_seq=5, filter_subject="a")])
    assert b'"consumer":{"name":"d","server_managed":true}' in encode_config(made)
    made = create(mirror=StreamSource(name="O", consumer=consumer, filter_subject="a"))
    assert made.mirror is not None


@pytest.mark.parametrize("deliver", ["a.*", "a b"])
def test_its_deliver_subject_has_to_be_literal(deliver: str) -> None:
    consumer = StreamConsumerSource(name="d", server_managed=True, deliver_subject=deliver)
    with pytest.raises(RequestError) as caught:
        create(mirror=StreamSource(name="O", consumer=consumer))
    assert caught.value.err_code == 10213
    with pytest.raises(RequestError) as caught:
        create(sources=[StreamSource(name="O", consumer=consumer)])
    assert caught.value.err_code == 10215


def test_a_mirror_may_change_its_consumer_and_nothing_else() -> None:
    old = create(mirror=StreamSource(name="O"))
    consumer = StreamConsumerSource(name="d", server_managed=True)
    changed = update(old, mirror=StreamSource(name="O", consumer=consumer))
    assert changed.mirror is not None
    assert changed.mirror.consumer == consumer
    assert update(old).subjects == ["S"]
    with pytest.raises(RequestError) as caught:
        update(old, mirror=StreamSource(name="P"))
    assert caught.value.err_code == 10055


def test_sealing_settles_what_a_sealed_stream_is() -> None:
    sealed = update(create(max_age=SECOND_NS, allow_rollup_hdrs=True), sealed=True, max_age=SECOND_NS)
    assert (sealed.max_age, sealed.discard, sealed.deny_delete, sealed.deny_purge) == (0, "new", True, True)
    with pytest.raises(RequestError, match="can not unseal a sealed stream"):
        update(sealed, discard="new", deny_delete=True, deny_purge=True)


def test_an_update_reports_the_consumers_that_break_new_limits() -> None:
    old = create()
    new = StreamConfig(name="S", consumer_limits=ConsumerLimits(max_ack_pending=5))
    consumers = [("a", ConsumerConfig(max_ack_pending=9)), ("b", ConsumerConfig(max_ack_pending=5))]
    consumers.append(("c", ConsumerConfig(max_ack_pending=6)))
    with pytest.raises(RequestError) as caught:
        streams.validate_update(new, "S", {"S": old}, consumers=consumers)
    assert refusal(caught) == (500, 10069, "change to limits violates consumers: a, c")


@pytest.mark.parametrize(
    ("fields", "limits", "usage", "code"),
    [
        ({}, JetStreamLimits(max_streams=1), Usage(streams=1), 10027),
        ({"max_bytes": 11}, JetStreamLimits(max_storage=20), Usage(reserved_storage=10), 10047),
        ({"max_bytes": 11}, JetStreamLimits(server_storage=20), Usage(reserved_storage=10), 10047),
        ({"max_bytes": 1, "storage": "memory"}, JetStreamLimits(max_memory=0), Usage(), 10028),
        ({"max_consumers": 5}, JetStreamLimits(max_consumers=4), Usage(), 10026),
        ({}, JetStreamLimits(max_bytes_required=True), Usage(), 10113),
        ({"max_bytes": 11}, JetStreamLimits(storage_max_stream_bytes=10), Usage(), 10122),
        (
            {"duplicate_window": 2 * SECOND_NS},
            JetStreamLimits(server_duplicate_window=SECOND_NS),
            Usage(),
            10052,
        ),
    ],
)
def test_limits_of_account_and_server(
    fields: dict[str, Any], limits: JetStreamLimits, usage: Usage, code: int
) -> None:
    with pytest.raises(RequestError) as caught:
        streams.validate_create(StreamConfig(name="S", **fields), "S", {}, limits=limits, usage=usage)
    assert caught.value.err_code == code


def test_the_server_s_window_is_the_default() -> None:
    made = streams.validate_create(
        StreamConfig(name="S"), "S", {}, limits=JetStreamLimits(server_duplicate_window=SECOND_NS)
    )
    assert made.duplicate_window == SECOND_NS
