"""Durations and sizes as people and Go write them."""

import time
from datetime import timedelta

import pytest

from headrace.durations import Duration, parse_duration_ns, parse_size

S = 1_000_000_000


@pytest.mark.parametrize(
    ("duration", "expected"),
    [
        ("24h", 86400 * S),
        ("1m30s", 90 * S),
        ("250ms", S // 4),
        ("1.5s", 3 * S // 2),
        ("2d", 172800 * S),
        ("10us", 10_000),
        ("10\u03bcs", 10_000),
        (".5m", 30 * S),
        ("1.s.5s", 3 * S // 2),
        ("7ns", 7),
        (2, 2 * S),
        (0.5, S // 2),
        (timedelta(minutes=1), 60 * S),
    ],
)
def test_durations_are_parsed(duration: Duration, expected: int) -> None:
    assert parse_duration_ns(duration) == expected


@pytest.mark.parametrize("text", ["", "1", "s", ".s", "1x", "1h 2m", "-1s", "1hh"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration_ns(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("1024", 1024),
        ("8k", 8000),
        ("8K", 8000),
        ("64KB", 65536),
        ("1MiB", 1 << 20),
        ("2gi", 2 << 30),
    ],
)
def test_sizes_are_parsed(text: str, expected: int) -> None:
    assert parse_size(text) == expected


@pytest.mark.parametrize("text", ["", "k", "1x", "-1", "1.5k", "1kk"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


@pytest.mark.parametrize(
    "text", ["9" * 50_000, "9" * 50_000 + "x", "1." + "9" * 50_000, "." * 50_000, "1s" * 9_999 + "1"]
)
def test_an_invalid_value_is_rejected_at_once(text: str) -> None:
    begun = time.thread_time()
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration_ns(text)
    assert time.thread_time() - begun < 1
