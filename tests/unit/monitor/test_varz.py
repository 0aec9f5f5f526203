"""The fields of /varz."""

import pytest

from headrace.monitor.varz import format_rfc3339, format_uptime, get_resident_bytes


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (59, "59s"),
        (60, "1m0s"),
        (3600, "1h0m0s"),
        (86400 + 61, "1d0h1m1s"),
        (365 * 86400, "1y0d0h0m0s"),
    ],
)
def test_uptime_is_written_as_nats_server_does(seconds: int, text: str) -> None:
    assert format_uptime(seconds) == text


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (1_500_000_000, "1970-01-01T00:00:01.5Z"),
        (1_767_225_600_000_000_001, "2026-01-01T00:00:00.000000001Z"),
    ],
)
def test_times_are_written_as_rfc3339(time_ns: int, text: str) -> None:
    assert format_rfc3339(time_ns) == text


def test_memory_is_a_number() -> None:
    assert get_resident_bytes() >= 0
