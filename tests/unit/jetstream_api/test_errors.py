"""The error table, and the format of errors in responses."""

import re

from headrace.errors import RequestError
from headrace.jetstream_api import errors
from headrace.jetstream_api.errors import ApiError


def make_name(constant: str) -> str:
    """Return the constant for a name of nats-server: `JSStreamNotFoundErr` is `STREAM_NOT_FOUND`."""
    name = re.sub(r"^JS|(Err)?F?$", "", constant)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).upper()


def test_the_names_are_those_of_the_table() -> None:
    table = errors.load_table()
    assert len(table) == 226
    assert {error.name: error.value for error in ApiError} == {
        make_name(entry.constant): code for code, entry in table.items()
    }


def test_a_name_makes_its_error() -> None:
    found = ApiError.STREAM_NOT_FOUND()
    assert (found.code, found.err_code, found.description) == (404, 10059, "stream not found")


def test_placeholders_are_filled_and_braces_in_values_stay() -> None:
    assert ApiError.STREAM_WRONG_LAST_SEQUENCE(seq=7).description == "wrong last sequence: 7"
    refusal = ApiError.STREAM_EXTERNAL_API_OVERLAP(prefix="a.{subject}", subject="$JS.API")
    assert "must not overlap with $JS.API" in refusal.description
    assert errors.invalid_config("x {y}").description == "x {y}"


def test_a_refused_publish_has_its_exact_bytes() -> None:
    assert errors.encode_pub_ack_error("S", ApiError.STREAM_WRONG_LAST_SEQUENCE(seq=2)) == (
        b'{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 2"},"stream":"S","seq":0}'
    )


def test_descriptions_are_escaped_as_in_nats_server() -> None:
    assert errors.encode_error(RequestError(500, 10074, 'a > b & "c"')) == (
        b'{"code":500,"err_code":10074,"description":"a \\u003e b \\u0026 \\"c\\""}'
    )
