"""The error table and the shape of errors in answers."""

from headrace.errors import RequestError
from headrace.jetstream_api import errors


def test_the_table_is_whole() -> None:
    entries = set(errors.load_table().values())
    assert len(entries) == 226
    assert all(
        errors.load_table()[entry.constant] is errors.load_table()[entry.error_code] for entry in entries
    )


def test_an_error_is_found_by_code_and_by_constant() -> None:
    for which in (10059, "JSStreamNotFoundErr"):
        found = errors.error(which)
        assert (found.code, found.err_code, found.description) == (404, 10059, "stream not found")


def test_placeholders_are_filled_and_braces_in_values_stay() -> None:
    assert errors.error(10071, seq=7).description == "wrong last sequence: 7"
    refusal = errors.error(10021, prefix="a.{subject}", subject="$JS.API")
    assert "must not overlap with $JS.API" in refusal.description
    assert errors.invalid_config("x {y}").description == "x {y}"


def test_a_refused_publish_has_its_exact_bytes() -> None:
    assert errors.encode_pub_ack_error("S", errors.error(10071, seq=2)) == (
        b'{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 2"},"stream":"S","seq":0}'
    )


def test_descriptions_are_escaped_as_the_reference_does() -> None:
    assert errors.encode_error(RequestError(500, 10074, 'a > b & "c"')) == (
        b'{"code":500,"err_code":10074,"description":"a \\u003e b \\u0026 \\"c\\""}'
    )
