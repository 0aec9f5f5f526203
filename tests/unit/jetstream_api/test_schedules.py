"""When schedules fire: compared with a search through every minute, at clock changes, and invalid patterns."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.jetstream_api import times
from headrace.jetstream_api.schedules import (
    BadPattern,
    BadZone,
    find_next_fire,
    find_next_time,
    get_zone,
    parse_cron,
)
from headrace.jetstream_api.times import SECOND_NS

VIENNA = ZoneInfo("Europe/Vienna")
ZONES = (UTC, VIENNA, ZoneInfo("America/New_York"), ZoneInfo("Asia/Kolkata"))


def fires(pattern: str, after: str, zone: ZoneInfo | None = None, now: str = "") -> str:
    after_ns = times.parse_time_ns(after)
    return find_next_fire(pattern, zone, after_ns, times.parse_time_ns(now) if now else after_ns).text


@pytest.mark.parametrize(
    ("pattern", "after", "expected"),
    [
        ("@at 2026-11-15T10:00:00+01:00", "2026-01-01T00:00:00Z", "2026-11-15T10:00:00+01:00"),
        ("@every 90s", "2026-01-01T00:00:00.4Z", "2026-01-01T00:01:30Z"),
        ("@every 90s", "2026-01-01T00:00:00.5Z", "2026-01-01T00:01:31Z"),
        ("@every 1.5s", "2026-01-01T00:00:00Z", "2026-01-01T00:00:01.5Z"),
        ("@hourly", "2026-01-01T10:00:00Z", "2026-01-01T11:00:00Z"),
        ("@daily", "2026-01-01T10:00:00Z", "2026-01-02T00:00:00Z"),
        ("@weekly", "2026-11-15T00:00:00Z", "2026-11-22T00:00:00Z"),
        ("@monthly", "2026-12-15T00:00:00Z", "2027-01-01T00:00:00Z"),
        ("@yearly", "2026-12-15T00:00:00Z", "2027-01-01T00:00:00Z"),
        ("*/15 * * * * *", "2026-01-01T00:00:14.9Z", "2026-01-01T00:00:15Z"),
        ("0 30 9 ? * mon-fri", "2026-11-13T09:30:00Z", "2026-11-16T09:30:00Z"),
        ("0 0 0 29 2 *", "2026-01-01T00:00:00Z", "2028-02-29T00:00:00Z"),
        ("0 0 0 1 * sun", "2026-11-02T00:00:00Z", "2026-11-08T00:00:00Z"),
        ("0 0 0 13 * fri", "2026-11-06T01:00:00Z", "2026-11-13T00:00:00Z"),
        ("0 0 12 1,15 6/3 *", "2026-06-20T00:00:00Z", "2026-09-01T12:00:00Z"),
        ("+5 0 0 * * *", "2026-01-01T00:00:00Z", "2026-01-01T00:00:05Z"),
    ],
)
def test_a_pattern_fires_at_its_next_time(pattern: str, after: str, expected: str) -> None:
    assert fires(pattern, after) == expected


def test_an_hour_that_is_skipped_does_not_come() -> None:
    assert fires("0 30 2 * * *", "2026-03-28T12:00:00Z", VIENNA) == "2026-03-30T02:30:00+02:00"


def test_an_hour_that_is_repeated_comes_twice() -> None:
    first = fires("0 30 2 * * *", "2026-10-24T12:00:00Z", VIENNA)
    assert first == "2026-10-25T02:30:00+02:00"
    assert fires("0 30 2 * * *", "2026-10-25T00:30:00Z", VIENNA) == "2026-10-25T02:30:00+01:00"


@pytest.mark.parametrize("pattern", ["@every 10s", "*/10 * * * * *"])
def test_what_was_missed_comes_once(pattern: str) -> None:
    found = fires(pattern, "2026-01-01T00:00:00Z", now="2026-01-01T05:00:03Z")
    assert found in ("2026-01-01T05:00:10Z", "2026-01-01T05:00:13Z")


VALUES = st.sets(st.integers(0, 59), min_size=1, max_size=3)
HOURS = st.sets(st.integers(0, 23), min_size=1, max_size=3)
DAYS = st.one_of(st.just("*"), st.sets(st.integers(0, 6), min_size=1, max_size=2))


@settings(max_examples=40, deadline=None)
@given(st.integers(1_700_000_000, 1_900_000_000), VALUES, HOURS, DAYS, st.sampled_from(ZONES))
def test_it_is_the_first_of_all_minutes(
    after: int, minutes: set[int], hours: set[int], days: set[int] | str, zone: ZoneInfo
) -> None:
    shown = days if isinstance(days, str) else ",".join(map(str, days))
    pattern = f"0 {','.join(map(str, minutes))} {','.join(map(str, hours))} * * {shown}"

    def allowed(second: int) -> bool:
        local = datetime.fromtimestamp(second, zone)
        weekday = isinstance(days, str) or local.isoweekday() % 7 in days
        return local.minute in minutes and local.hour in hours and weekday

    start = after - after % 60 + 60
    expected = next(second for second in range(start, start + 15 * 86_400, 60) if allowed(second))
    assert find_next_time(parse_cron(pattern), zone, after) == expected


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "x",
        "@at",
        "@at x",
        "@every",
        "@every 1",
        "@every 0.5s",
        "* * * * *",
        ", * * * * *",
        "* * * 30 2 *",
        "-1 * * * * *",
    ],
)
def test_an_invalid_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(BadPattern):
        find_next_fire(pattern, None, 0, 0)


@pytest.mark.parametrize("name", ["", "Nowhere", "../../etc/passwd", "/etc/localtime", "Europe/"])
def test_an_unknown_time_zone_is_refused(name: str) -> None:
    with pytest.raises(BadZone):
        get_zone(name)


def test_far_away_is_never() -> None:
    assert find_next_fire("@at 9999-01-01T00:00:00Z", None, 0, 0).time_ns == 2**63 - 1
    assert find_next_fire("@every 2562047h", None, 10**18, 10**18).time_ns == 2**63 - 1


def test_a_search_without_end_is_short() -> None:
    started = datetime.now(UTC)
    with pytest.raises(BadPattern):
        find_next_fire("0 0 0 31 2,4,6,9,11 *", None, 1_700_000_000 * SECOND_NS, 0)
    assert datetime.now(UTC) - started < timedelta(seconds=1)
