"""Request bodies become typed values; the fast and the slow path agree."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import RequestError
from headrace.jetstream_api import configs, decode, go_json_decoder, requests


def slow(kind: type[Any], body: bytes) -> Any:
    return decode._build(kind, go_json_decoder.parse_all(body), strict=True)


BODIES = [
    (requests.StreamRequest, {"name": "S", "subjects": ["a", "b"], "max_age": 5, "metadata": {"k": "v"}}),
    (requests.StreamRequest, {"name": "S", "mirror": {"name": "O", "external": {"api": "x", "deliver": ""}}}),
    (requests.StreamRequest, {"sources": [{"name": "O", "subject_transforms": [{"src": "a", "dest": "b"}]}]}),
    (requests.StreamRequest, {"subject_delete_markers": False, "pedantic": True, "first_seq": 2**63}),
    (requests.StreamRequest, {"mirror": {"name": "O", "consumer": {"name": "c", "server_managed": True}}}),
    (requests.ConsumerRequest, {"stream_name": "S", "config": {"backoff": [1, 2]}, "action": "create"}),
    (requests.ConsumerRequest, {"config": {"opt_start_time": "2020-01-01T00:00:00.5Z", "ack_policy": "all"}}),
    (requests.MessageGetRequest, {"multi_last": ["a"], "up_to_time": "2020-01-01T00:00:00Z", "no_hdr": True}),
    (requests.NextRequest, {"batch": 5, "expires": 10, "no_wait": True, "id": "x", "priority": 3}),
    (requests.RestoreRequest, {"config": {"name": "S"}, "state": {"deleted": [1, 2], "subjects": {"a": 1}}}),
    (requests.ResetRequest, {"seq": 0}),
]


@pytest.mark.parametrize(("kind", "body"), BODIES)
def test_both_paths_give_the_same(kind: type[Any], body: dict[str, Any]) -> None:
    encoded = json.dumps(body).encode()
    assert decode.decode(kind, encoded) == slow(kind, encoded)


def test_times_are_kept_in_canonical_form_by_both_paths() -> None:
    for text in ("2020-01-31T00:00:00.50Z", "2020-01-31T00:00:00.5Z", "2020-01-31T00:00:00.500000Z"):
        request = decode.decode(requests.MessageGetRequest, b'{"start_time":"%b"}' % text.encode())
        assert request.start_time == "2020-01-31T00:00:00.5Z"


def test_an_unknown_key_is_refused_or_ignored() -> None:
    with pytest.raises(RequestError, match='invalid JSON: json: unknown field "zz"') as caught:
        decode.decode(requests.PurgeRequest, b'{"zz":1}')
    assert (caught.value.code, caught.value.err_code) == (400, 10025)
    assert decode.decode_lenient(requests.ResetRequest, b'{"zz":1,"SEQ":5}').seq == 5


def test_a_reset_tells_no_sequence_from_zero() -> None:
    assert decode.decode_lenient(requests.ResetRequest, b"{}").seq is None
    assert decode.decode_lenient(requests.ResetRequest, b"null").seq is None
    assert decode.decode_lenient(requests.ResetRequest, b'{"seq":0}').seq == 0


def test_an_optional_body_is_looked_at_only_when_it_is_json() -> None:
    for body in (b"", b"x", b" ", b"null", b'"x"'):
        assert decode.decode_optional(requests.PurgeRequest, body) == requests.PurgeRequest()
    with pytest.raises(RequestError, match="cannot unmarshal array"):
        decode.decode_optional(requests.PurgeRequest, b" []")


def test_empty_means_empty() -> None:
    assert all(decode.is_empty(body) for body in (b"", b"{}", b" { } "))
    assert not any(decode.is_empty(body) for body in (b"[]", b"null", b"x", b'{"a":1}', b" "))


@pytest.mark.parametrize(
    ("body", "batch", "structured"),
    [
        (b"", 1, False),
        (b"7", 7, False),
        (b" 7\r\n", 7, False),
        (b"x", 1, False),
        (b"99999999999999999999", 1, False),
        (b'{"batch":7}', 7, True),
        (b' {"Batch":7,"zz":[]} ', 7, True),
        (b"{}", 0, True),
    ],
)
def test_a_pull_request_is_read_from_all_its_forms(body: bytes, batch: int, structured: bool) -> None:
    request = decode.decode_next(body)
    assert (request.batch, request.structured) == (batch, structured)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b'{"no_hdr":true}',
        b'{"seq":1,"last_by_subj":"a"}',
        b'{"seq":1,"start_time":"2020-01-01T00:00:00Z"}',
        b'{"last_by_subj":"a","next_by_subj":"a"}',
        b'{"seq":1,"batch":1}',
        b'{"seq":1,"max_bytes":1}',
    ],
)
def test_a_message_is_asked_for_in_one_way(body: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        decode.decode_message_get(body)
    assert caught.value.err_code == 10003
    for sound in (b'{"seq":1}', b'{"seq":1,"next_by_subj":"a"}', b'{"last_by_subj":"a"}'):
        assert decode.decode_message_get(sound)


def test_an_unpin_names_a_group() -> None:
    assert decode.decode_unpin(b'{"group":"g","zz":1}') == "g"
    refusals = {b"": 10025, b"{}": 10025, b'{"group":"a b"}': 10162, b'{"group":5}': 10025}
    for body, code in refusals.items():
        with pytest.raises(RequestError) as caught:
            decode.decode_unpin(body)
        assert caught.value.err_code == code


def test_a_heartbeat_needs_twice_its_time() -> None:
    assert decode.decode_next(b'{"expires":10,"idle_heartbeat":5}').idle_heartbeat == 5
    with pytest.raises(RequestError, match="heartbeat value too large"):
        decode.decode_next(b'{"expires":9,"idle_heartbeat":5}')


def test_a_stored_configuration_is_read_back() -> None:
    config = configs.StreamConfig(
        name="S", first_seq=2**64 - 1, subject_delete_markers=False, metadata={"a": "b"}
    )
    assert decode.load_config(configs.StreamConfig, configs.encode_config(config)) == config


def test_deep_nesting_is_refused_not_followed() -> None:
    for body in (b"[" * 100_000, b'{"a":' * 100_000):
        with pytest.raises(RequestError):
            decode.decode(requests.PurgeRequest, body)


@given(st.binary(max_size=40))
def test_any_bytes_either_decode_or_are_refused(body: bytes) -> None:
    for kind in (requests.StreamRequest, requests.ConsumerRequest, requests.MessageGetRequest):
        with contextlib.suppress(RequestError):
            decode.decode(kind, body)
    with contextlib.suppress(RequestError):
        decode.decode_next(body)


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(_JSON)
def test_sound_json_is_never_called_malformed(value: Any) -> None:
    node = go_json_decoder.parse_one(json.dumps(value).encode())
    assert node.kind in ("object", "array", "string", "number", "bool", "null")


@given(st.text())
def test_strings_are_read_as_they_were_written(value: str) -> None:
    assert go_json_decoder.parse_one(json.dumps(value).encode()).value == value.encode(
        "utf-16", "surrogatepass"
    ).decode("utf-16", "replace")
