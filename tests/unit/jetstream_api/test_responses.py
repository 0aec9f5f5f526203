"""Responses, byte for byte as in the vectors of the API and consumer specifications."""

import msgspec

from headrace.jetstream_api import responses
from headrace.jetstream_api.account_limits import NO_LIMITS
from headrace.jetstream_api.configs import ConsumerConfig, External, StreamConfig, SubjectTransform
from headrace.jetstream_api.errors import ApiError
from headrace.jetstream_api.responses import (
    ConsumerInfoState,
    PriorityGroupState,
    SequenceInfo,
    SourceStatus,
    StreamInfoState,
)
from headrace.jetstream_api.times import SECOND_NS, parse_time_ns
from headrace.jetstream_api.validation import consumers, streams

V1 = b'{"type":"io.nats.jetstream.api.v1.'
T = "2026-01-02T03:04:05.5Z"
NOW = parse_time_ns(T)
NOT_FOUND = b'"error":{"code":404,"err_code":10059,"description":"stream not found"}'

S = streams.validate_create(StreamConfig(name="S", subjects=["s.>"], allow_direct=True), "S", {})
C = consumers.validate(ConsumerConfig(durable_name="C", name="C", ack_policy="explicit"), S, {})


def test_a_stream_create_response_matches_nats_server() -> None:
    info = responses.make_stream_info_body(
        responses.encode_public_config(S, "2.15.1"),
        NOW,
        responses.make_stream_state_body(StreamInfoState()),
        NOW,
    )
    assert responses.encode_stream_created(info) == (
        V1 + b'stream_create_response","config":{"name":"S","subjects":["s.\\u003e"],"retention":"limits",'
        b'"max_consumers":-1,"max_msgs":-1,"max_bytes":-1,"max_age":0,"max_msgs_per_subject":-1,"max_msg_size":-1,'
        b'"discard":"old","storage":"file","num_replicas":1,"duplicate_window":120000000000,"compression":"none",'
        b'"allow_direct":true,"mirror_direct":false,"sealed":false,"deny_delete":false,"deny_purge":false,'
        b'"allow_rollup_hdrs":false,"consumer_limits":{},"allow_msg_ttl":false,"metadata":{"_nats.level":"5",'
        b'"_nats.req.level":"0","_nats.ver":"2.15.1"}},"created":"2026-01-02T03:04:05.5Z","state":{"messages":0,'
        b'"bytes":0,"first_seq":0,"first_ts":"0001-01-01T00:00:00Z","last_seq":0,'
        b'"last_ts":"0001-01-01T00:00:00Z","consumer_count":0},"ts":"2026-01-02T03:04:05.5Z","did_create":true}'
    )


def test_stream_info_with_everything() -> None:
    state = StreamInfoState(2, 104, 1, NOW, 3, NOW, num_subjects=2, num_deleted=1, consumers=4)
    mirror = SourceStatus("O", lag=3, active_ns=7, error=ApiError.STREAM_NOT_FOUND())
    source = SourceStatus(
        "P", External(api="x"), seq=5, subject_transforms=[SubjectTransform(src="a", dest="")]
    )
    info = responses.make_stream_info_body(
        responses.encode_public_config(S),
        NOW,
        responses.make_stream_state_body(state, msgspec.Raw(b'{"s.a":1,"s.b":1}'), msgspec.Raw(b"[2]")),
        NOW,
        domain="hub",
        leader="n1",
        mirror=mirror,
        sources=[source],
    )
    body = responses.encode_stream_info(info, total=2, limit=responses.SUBJECTS_LIMIT)
    assert body.startswith(
        V1 + b'stream_info_response","total":2,"offset":0,"limit":100000,"config":{"name":"S"'
    )
    assert b'"metadata":{"_nats.req.level":"0"}}' in body
    assert body.endswith(
        b'"state":{"messages":2,"bytes":104,"first_seq":1,"first_ts":"2026-01-02T03:04:05.5Z","last_seq":3,'
        b'"last_ts":"2026-01-02T03:04:05.5Z","num_subjects":2,"subjects":{"s.a":1,"s.b":1},"num_deleted":1,'
        b'"deleted":[2],"consumer_count":4},"domain":"hub","cluster":{"leader":"n1"},"mirror":{"name":"O","lag":3,'
        b'"active":7,' + NOT_FOUND + b'},"sources":[{"name":"P","external":{"api":"x","deliver":""},"lag":0,'
        b'"seq":5,"active":-1,"subject_transforms":[{"src":"a","dest":""}]}],"ts":"2026-01-02T03:04:05.5Z"}'
    )


def test_a_consumer_create_response_matches_nats_server() -> None:
    info = responses.make_consumer_info_body(
        "S", "C", NOW, responses.encode_public_config(C, "2.15.1"), ConsumerInfoState(num_pending=2), NOW
    )
    assert responses.encode_consumer_created(info) == (
        V1 + b'consumer_create_response","stream_name":"S","name":"C","created":"2026-01-02T03:04:05.5Z",'
        b'"config":{"durable_name":"C","name":"C","deliver_policy":"all","ack_policy":"explicit",'
        b'"ack_wait":30000000000,"max_deliver":-1,"replay_policy":"instant","max_waiting":512,"max_ack_pending":1000,'
        b'"num_replicas":0,"metadata":{"_nats.level":"5","_nats.req.level":"0","_nats.ver":"2.15.1"}},'
        b'"delivered":{"consumer_seq":0,"stream_seq":0},"ack_floor":{"consumer_seq":0,"stream_seq":0},'
        b'"num_ack_pending":0,"num_redelivered":0,"num_waiting":0,"num_pending":2,"ts":"2026-01-02T03:04:05.5Z"}'
    )


def test_consumer_info_with_everything() -> None:
    state = ConsumerInfoState(
        SequenceInfo(3, 4, NOW),
        SequenceInfo(1, 2),
        5,
        6,
        7,
        8,
        push_bound=True,
        pause_remaining_ns=9,
        groups=[PriorityGroupState("g", "pin", NOW), PriorityGroupState("h")],
    )
    info = responses.make_consumer_info_body("S", "C", NOW, responses.encode_public_config(C), state, NOW)
    assert responses.encode_consumer_reset(info, 3).endswith(
        b'"delivered":{"consumer_seq":3,"stream_seq":4,"last_active":"2026-01-02T03:04:05.5Z"},'
        b'"ack_floor":{"consumer_seq":1,"stream_seq":2},"num_ack_pending":5,"num_redelivered":6,"num_waiting":7,'
        b'"num_pending":8,"push_bound":true,"paused":true,"pause_remaining":9,"ts":"2026-01-02T03:04:05.5Z",'
        b'"priority_groups":[{"group":"g","pinned_client_id":"pin","pinned_ts":"2026-01-02T03:04:05.5Z"},'
        b'{"group":"h","pinned_ts":"0001-01-01T00:00:00Z"}],"reset_seq":3}'
    )


def test_refusals_keep_the_zeros_of_their_answer() -> None:
    page = b',"total":0,"offset":0,"limit":0'
    rests = {
        "stream_create_response": b"",
        "stream_info_response": page,
        "stream_names_response": page + b',"streams":null',
        "stream_list_response": page + b',"streams":[]',
        "consumer_names_response": page + b',"consumers":[]',
        "stream_purge_response": b',"purged":0',
        "consumer_pause_response": b',"paused":false,"pause_until":"0001-01-01T00:00:00Z"',
        "consumer_reset_response": b',"reset_seq":0',
        "stream_restore_response": b',"deliver_subject":""',
    }
    for kind, rest in rests.items():
        assert (
            responses.encode_error_response(kind, ApiError.STREAM_NOT_FOUND())
            == V1 + kind.encode() + b'",' + NOT_FOUND + rest + b"}"
        )


def test_lists_are_cut_into_pages() -> None:
    assert responses.encode_stream_names(0, 0, []) == (
        V1 + b'stream_names_response","total":0,"offset":0,"limit":1024,"streams":null}'
    )
    assert responses.encode_stream_list(0, 0, []) == (
        V1 + b'stream_list_response","total":0,"offset":0,"limit":256,"streams":[]}'
    )
    assert responses.encode_consumer_names(1, 0, ["C"]) == (
        V1 + b'consumer_names_response","total":1,"offset":0,"limit":1024,"consumers":["C"]}'
    )
    cases = {(-3, 10): (0, 3), (1, 1): (1, 2), (9, 10): (3, 3)}
    assert {case: responses.compute_page(3, *case) for case in cases} == cases


def test_messages_and_small_answers() -> None:
    assert responses.encode_stored_message(b"s.b", 2, b"NATS/1.0\r\n\r\n", b"m2", NOW) == (
        V1
        + b'stream_msg_get_response","message":{"subject":"s.b","seq":2,"hdrs":"TkFUUy8xLjANCg0K","data":"bTI=",'
        b'"time":"2026-01-02T03:04:05.5Z"}}'
    )
    assert responses.encode_stored_message(b"<", 2, b"", b"", NOW).endswith(
        b'"message":{"subject":"\\u003c","seq":2,"time":"2026-01-02T03:04:05.5Z"}}'
    )
    assert responses.encode_purged(3) == V1 + b'stream_purge_response","success":true,"purged":3}'
    assert (
        responses.encode_success("stream_delete_response") == V1 + b'stream_delete_response","success":true}'
    )
    assert responses.encode_consumer_unpinned() == V1 + b'consumer_unpin_response"}'
    assert responses.encode_consumer_paused("2030-01-01T00:00:00Z", SECOND_NS) == (
        V1 + b'consumer_pause_response","paused":true,"pause_until":"2030-01-01T00:00:00Z",'
        b'"pause_remaining":1000000000}'
    )


def test_an_account_info_response_matches_nats_server() -> None:
    assert responses.encode_account_info(responses.AccountUsage(streams=1), NO_LIMITS, api_total=3) == (
        V1
        + b'account_info_response","memory":0,"storage":0,"reserved_memory":0,"reserved_storage":0,"streams":1,'
        b'"consumers":0,"limits":{"max_memory":-1,"max_storage":-1,"max_streams":-1,"max_consumers":-1,'
        b'"max_ack_pending":-1,"memory_max_stream_bytes":-1,"storage_max_stream_bytes":-1,'
        b'"max_bytes_required":false},"api":{"level":5,"total":3,"errors":0}}'
    )
