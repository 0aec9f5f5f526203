"""Rules of consumers that need more than a server in its default state.

Everything else is compared with nats-server in tests/conformance/test_config_validation.py.
"""

from typing import Any

import pytest

from headrace.errors import RequestError
from headrace.jetstream_api.account_limits import JetStreamLimits
from headrace.jetstream_api.configs import ConsumerConfig, StreamConfig
from headrace.jetstream_api.times import SECOND_NS
from headrace.jetstream_api.validation import consumers

STREAM = StreamConfig(name="S", subjects=["s.>"], num_replicas=1)
QUEUE = StreamConfig(name="W", subjects=["w.>"], num_replicas=1, retention="workqueue")


def settle(
    stream: StreamConfig = STREAM, others: dict[str, ConsumerConfig] | None = None, **fields: Any
) -> Any:
    options = {name: fields.pop(name) for name in ("action", "limits", "has_interest") if name in fields}
    return consumers.validate(ConsumerConfig(**fields), stream, others or {}, **options)


def code(caught: pytest.ExceptionInfo[RequestError]) -> int:
    return caught.value.err_code


def test_a_deliver_subject_changes_only_without_subscribers_of_the_old_one() -> None:
    old = settle(durable_name="C", name="C", deliver_subject="d")
    assert settle(others={"C": old}, durable_name="C", deliver_subject="e").deliver_subject == "e"
    with pytest.raises(RequestError) as caught:
        settle(others={"C": old}, durable_name="C", deliver_subject="e", has_interest=lambda subject: True)
    assert code(caught) == 10013


def sourcing(**fields: Any) -> ConsumerConfig:
    request: dict[str, Any] = {
        "name": "JS_SRC_x",
        "ack_policy": "none",
        "ack_wait": 79_200 * SECOND_NS,
        "max_deliver": 1,
        "flow_control": True,
        "deliver_subject": "$JS.S.abc",
        "idle_heartbeat": SECOND_NS,
        "inactive_threshold": 10 * SECOND_NS,
        "direct": True,
        "sourcing": True,
    }
    return ConsumerConfig(**(request | fields))


def test_a_sourcing_consumer_of_an_ordinary_stream_gets_a_name_of_its_own() -> None:
    made = consumers.merge_existing(sourcing(), STREAM, {}, "abcdefgh")
    assert (made.name, made.direct, made.durable_name) == ("JS_SRC_x-abcdefgh", True, "")
    assert consumers.validate(made, STREAM, {}).ack_policy == "none"


def test_a_sourcing_consumer_of_a_work_queue_becomes_durable_and_keeps_its_start() -> None:
    first = consumers.validate(consumers.merge_existing(sourcing(), QUEUE, {}, "r"), QUEUE, {})
    assert (first.durable_name, first.ack_policy, first.direct) == ("JS_SRC_x", "flow_control", False)
    assert (first.ack_wait, first.max_deliver, first.max_ack_pending) == (0, -1, 1000)
    assert first.inactive_threshold == 0
    others = {"JS_SRC_x": first}
    again = consumers.merge_existing(
        sourcing(deliver_policy="by_start_sequence", opt_start_seq=9), QUEUE, others, "r"
    )
    assert consumers.validate(again, QUEUE, others) == first


def test_sourcing_consumers_do_not_stand_in_the_way_of_others() -> None:
    others = {"x": sourcing()}
    assert consumers.count_limited(others) == 0
    assert settle(QUEUE, others, durable_name="C", ack_policy="explicit").ack_policy == "explicit"


def test_a_work_queue_has_one_reader_a_message() -> None:
    first = settle(QUEUE, durable_name="A", ack_policy="explicit", filter_subject="w.1.*")
    others = {"A": first}
    assert settle(QUEUE, others, durable_name="B", ack_policy="explicit", filter_subject="w.2.>")
    with pytest.raises(RequestError) as caught:
        settle(QUEUE, others, durable_name="B", ack_policy="explicit", filter_subjects=["w.2", "w.*.x"])
    assert code(caught) == 10100
    second = settle(QUEUE, others, durable_name="B", ack_policy="explicit", filter_subject="w.2.>")
    with pytest.raises(RequestError) as caught:
        settle(QUEUE, others | {"B": second}, durable_name="B", ack_policy="explicit", filter_subject="w.>")
    assert code(caught) == 10100


def test_an_update_is_exempt_from_the_limit_on_consumers() -> None:
    stream = StreamConfig(name="S", subjects=["s"], num_replicas=1, max_consumers=1)
    old = settle(stream, durable_name="C")
    assert settle(stream, {"C": old}, durable_name="C", description="x").description == "x"
    with pytest.raises(RequestError) as caught:
        settle(stream, {"C": old}, durable_name="D")
    assert code(caught) == 10026


def test_without_a_limit_a_stream_has_a_hundred_thousand_consumers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert consumers.CONSUMERS_MAX_DEFAULT == 100_000
    monkeypatch.setattr(consumers, "CONSUMERS_MAX_DEFAULT", 2)
    stream = StreamConfig(name="S", subjects=["s"], num_replicas=1)
    others = {name: settle(stream, durable_name=name) for name in ("A", "B")}
    with pytest.raises(RequestError) as caught:
        settle(stream, others, durable_name="C")
    assert code(caught) == 10026
    settle(StreamConfig(name="S", subjects=["s"], num_replicas=1, max_consumers=3), others, durable_name="C")


def test_an_ephemeral_that_becomes_durable_loses_its_default_threshold() -> None:
    old = settle(name="C")
    assert old.inactive_threshold == 5 * SECOND_NS
    assert settle(others={"C": old}, name="C", durable_name="C").inactive_threshold == 0


@pytest.mark.parametrize(
    ("fields", "limits", "expected"),
    [
        ({"ack_policy": "explicit"}, JetStreamLimits(max_ack_pending=7), {"max_ack_pending": 7}),
        (
            {"ack_policy": "explicit"},
            JetStreamLimits(server_ack_pending=7, max_ack_pending=9),
            {"max_ack_pending": 7},
        ),
        ({}, JetStreamLimits(server_request_batch=7), {"max_batch": 7}),
    ],
)
def test_limits_lower_defaults(
    fields: dict[str, Any], limits: JetStreamLimits, expected: dict[str, int]
) -> None:
    made = settle(limits=limits, **fields)
    assert {name: getattr(made, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("fields", "limits", "expected"),
    [
        ({"ack_policy": "explicit", "max_ack_pending": 8}, JetStreamLimits(max_ack_pending=7), 10121),
        ({"max_batch": 8}, JetStreamLimits(server_request_batch=7), 10125),
    ],
)
def test_limits_refuse_more(fields: dict[str, Any], limits: JetStreamLimits, expected: int) -> None:
    with pytest.raises(RequestError) as caught:
        settle(limits=limits, **fields)
    assert code(caught) == expected
