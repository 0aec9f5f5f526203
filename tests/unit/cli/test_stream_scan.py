"""Connection options and bounds of commands that read whole streams."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from headrace.cli import stream_scan
from headrace.cli.connection_target import ConnectionTarget
from headrace.cli.exit_codes import CliError
from headrace.reader.options import parse_read_options


def test_the_reader_gets_the_connection_options() -> None:
    target = ConnectionTarget(
        "a:4222, tls://b:4223", user="ann", password="secret", domain="hub", timeout=2.5
    )
    assert stream_scan.make_server_list(target) == "nats://a:4222,tls://b:4223"
    options = stream_scan.make_connection_options(target)
    assert options == {"user": "ann", "password": "secret", "domain": "hub", "timeout": "2.5s"}
    servers = stream_scan.make_server_list(target)
    parsed = parse_read_options({**options, "servers": servers, "stream": "S"})
    assert (parsed.address.timeout_s, parsed.api_prefix) == (2.5, "$JS.hub.API")


@pytest.mark.parametrize("option", ["nkey", "api_prefix", "inbox_prefix"])
def test_options_that_the_reader_lacks_are_refused(option: str) -> None:
    target = replace(ConnectionTarget(), **{option: "x"})
    with pytest.raises(CliError, match="cannot use"):
        stream_scan.make_connection_options(target)


def test_bounds() -> None:
    assert stream_scan.parse_bound("") is None
    assert stream_scan.parse_bound("17") == 17
    assert stream_scan.parse_bound("2026-01-31T12:00:00+02:00") == datetime(2026, 1, 31, 10, tzinfo=UTC)
    ago = stream_scan.parse_bound("1h")
    assert isinstance(ago, datetime)
    assert ago < datetime.now(UTC)
    with pytest.raises(CliError, match="is not a time"):
        stream_scan.parse_bound("-")
