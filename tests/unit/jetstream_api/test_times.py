"""Times, durations and the `Nats-TTL` header as text."""

import pytest

from headrace.jetstream_api import times
from headrace.jetstream_api.times import SECOND_NS


@pytest.mark.parametrize(
    ("time_ns", "shown"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (1_700_000_000 * SECOND_NS, "2023-11-14T22:13:20Z"),
        (1_700_000_000 * SECOND_NS + 1, "2023-11-14T22:13:20.000000001Z"),
        (1_700_000_000 * SECOND_NS + 120_000_000, "2023-11-14T22:13:20.12Z"),
        (times.ZERO_TIME_NS, times.ZERO_TIME),
        (-1, "1969-12-31T23:59:59.999999999Z"),
    ],
)
def test_a_time_is_written_and_read(time_ns: int, shown: str) -> None:
    assert times.format_time(time_ns) == shown
    assert times.parse_time_ns(shown) == time_ns


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("2020-01-02T03:04:05.100Z", "2020-01-02T03:04:05.1Z"),
        ("2020-01-02T03:04:05+00:00", "2020-01-02T03:04:05Z"),
        ("2020-01-02T03:04:05.50+01:30", "2020-01-02T03:04:05.5+01:30"),
        ("2020-01-02T3:04:05,5Z", "2020-01-02T03:04:05.5Z"),
        ("2020-02-29T03:04:05.1234567899Z", "2020-02-29T03:04:05.123456789Z"),
        ("0000-02-29T00:00:00Z", "0000-02-29T00:00:00Z"),
    ],
)
def test_a_time_becomes_canonical_and_keeps_its_zone(given: str, kept: str) -> None:
    assert times.to_canonical(given) == kept
    assert times.parse_time_ns(given) == times.parse_time_ns(kept)


def test_an_offset_counts() -> None:
    assert times.parse_time_ns("2020-01-01T02:00:00+02:00") == times.parse_time_ns("2020-01-01T00:00:00Z")
    assert (
        times.parse_time_ns("0000-03-01T00:00:00Z") - times.parse_time_ns("0000-02-29T00:00:00Z")
        == 86_400 * SECOND_NS
    )


@pytest.mark.parametrize("given", ["", "x", "2020-01-01", "2021-02-29T00:00:00Z", "2020-01-01T00:00:00Zx"])
def test_what_is_no_time_is_refused(given: str) -> None:
    with pytest.raises(times.BadTime, match="parsing time"):
        times.parse_time_ns(given)


@pytest.mark.parametrize(
    ("duration", "shown"),
    [
        (0, "0s"),
        (1, "1ns"),
        (1_500, "1.5µs"),
        (500_000_000, "500ms"),
        (SECOND_NS, "1s"),
        (1_500_000_000, "1.5s"),
        (60 * SECOND_NS, "1m0s"),
        (90 * SECOND_NS, "1m30s"),
        (900 * SECOND_NS, "15m0s"),
        (3600 * SECOND_NS, "1h0m0s"),
        (90_000 * SECOND_NS, "25h0m0s"),
        (-90 * SECOND_NS, "-1m30s"),
        (3600 * SECOND_NS + 1, "1h0m0.000000001s"),
    ],
)
def test_a_duration_is_written_and_read(duration: int, shown: str) -> None:
    assert times.format_duration(duration) == shown
    assert times.parse_duration(shown) == duration


@pytest.mark.parametrize(
    "text", ["", "1", "1d", "s", ".s", "1 s", "1s1", "1H", "3000000h", "+", "1e3s", "1s "]
)
def test_what_is_no_duration_gives_none(text: str) -> None:
    assert times.parse_duration(text) is None


# The TTL specification, with its rule for zero.
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (
            ("seconds", 1),
            ["1", "01", "1s", "1000ms", "1000000us", "1000000µs", "1000000μs", "1000000000ns", "1.s"],
        ),
        (("seconds", 1), ["1.9s", "1999ms"]),
        (("seconds", 5), ["+5s", "5"]),
        (("seconds", 7), ["007"]),
        (("seconds", 5400), ["1h30m"]),
        (("seconds", 60), ["1m0.5s"]),
        (("never", 0), ["never", "Never", "NEVER"]),
        (("none", 0), [""]),
        (("zero", 0), ["0", "00", "0s", "-0s"]),
        (
            ("invalid", 0),
            [".5s", "999ms", "500ms", "1us", "-5s", "-1", "+5", "0.5", "1.5", "1.", "1e3", "1_000"],
        ),
        (
            ("invalid", 0),
            ["0x10", "1d", "1w", "1H", "1 s", "1s1", "garbage", "∞", "５", "5 ", "5s ", "never ", "5\t"],
        ),
        (("invalid", 0), ["3000000h", "9223372036854775808", "9" * 30]),
    ],
)
def test_a_ttl_header_says_what_it_says(kind: tuple[str, int], values: list[str]) -> None:
    assert {value: times.parse_ttl(value.encode()) for value in values} == dict.fromkeys(values, kind)


def test_a_ttl_that_is_no_text_is_invalid() -> None:
    assert times.parse_ttl(b"\xff5s") == ("invalid", 0)
