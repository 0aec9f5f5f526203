"""Options of the data sources: parsing, errors, and how they are shown."""

from __future__ import annotations

import time

import pytest

from headrace.reader import options as o


def test_options_are_read_whatever_their_case() -> None:
    read = o.parse_read_options({"STREAM": "S", "maxBytesPerTrigger": "64MB", "FAILONDATALOSS": "False"})
    assert (read.bytes_max, read.fail_on_data_loss) == (64 * 1024 * 1024, False)
    assert o.parse_bound("2026-01-01T00:00:00Z").time_ns == 1767225600 * o.NS
    before_ns = time.time_ns()
    assert before_ns <= o.parse_bound("-10m").time_ns + 600 * o.NS <= time.time_ns()
    with pytest.raises(ValueError, match="has no time zone"):
        o.parse_bound("2026-01-01T00:00:00")


@pytest.mark.parametrize(
    ("option", "text", "words"),
    [
        ("lease", "0s", "is too short: a lease lasts at least"),
        ("lease", "1ns", "is too short: a lease lasts at least"),
        ("maxBytesPerTrigger", "0", "is not a valid limit"),
        ("maxBytesPerTrigger", "0MB", "is not a valid limit"),
        ("maxMessagesPerTrigger", "0", "is not a positive number"),
    ],
)
def test_what_is_nothing_is_no_limit_and_no_lease(option: str, text: str, words: str) -> None:
    with pytest.raises(o.OptionError, match=f"option `{option}`: {text!r} {words}"):
        o.parse_read_options({"stream": "S", option: text})


def test_secrets_are_not_shown() -> None:
    read = o.parse_read_options(
        {"stream": "S", "servers": "nats://ann:hush@h:1", "password": "secret", "token": "t0ken"}
    )
    assert read.address.redacted_servers == "h:1"
    assert "secret" not in repr(read.address)
    assert "t0ken" not in repr(read.address)
