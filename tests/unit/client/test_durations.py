"""Durations as the protocol requires them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from headrace.client.durations import Duration, format_ttl, parse_optional_ns, parse_ttl_ns


@pytest.mark.parametrize(
    ("ttl", "text"),
    [
        (1, "1s"),
        (60, "1m"),
        (90, "1m30s"),
        (3600, "1h"),
        (90_061, "25h1m1s"),
        (timedelta(hours=1, seconds=1), "1h1s"),
        (timedelta(days=2), "48h"),
        ("1h30m", "1h30m"),
        ("2d", "48h"),
        ("5400s", "1h30m"),
        (10.0, "10s"),
        ("never", "never"),
    ],
)
def test_a_ttl_is_written_in_the_shortest_go_form(ttl: Duration, text: str) -> None:
    assert format_ttl(ttl) == text


@pytest.mark.parametrize(("ttl", "text"), [(1.5, "2s"), ("1001ms", "2s"), (timedelta(seconds=59.1), "1m")])
def test_a_fraction_is_rounded_up_because_servers_cut_it_off(ttl: Duration, text: str) -> None:
    assert format_ttl(ttl) == text


@pytest.mark.parametrize("ttl", [0, 0.5, -1, "999ms", timedelta(milliseconds=1), timedelta(0)])
def test_less_than_a_second_is_refused_with_the_value(ttl: Duration) -> None:
    with pytest.raises(ValueError, match="at least one second") as caught:
        format_ttl(ttl)
    assert repr(ttl) in str(caught.value)


@pytest.mark.parametrize("ttl", ["", "1", "soon", "1 h", "-1s", "1h garbage"])
def test_what_is_not_a_duration_is_refused(ttl: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_ttl_ns(ttl)


def test_none_and_zero_mean_no_limit() -> None:
    assert (parse_optional_ns(None, "ttl"), parse_optional_ns(0, "ttl")) == (0, 0)
    assert parse_optional_ns("250ms", "ttl") == 250_000_000
    with pytest.raises(ValueError, match="ttl=-3"):
        parse_optional_ns(-3, "ttl")
