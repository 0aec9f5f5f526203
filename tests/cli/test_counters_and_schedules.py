"""`headrace counter` and `schedule` on both servers."""

import re

import pytest

from cli.conftest import Headrace
from headrace.cli.exit_codes import CliError
from headrace.cli.schedule import parse_when


def test_counters(headrace: Headrace, name: str) -> None:
    headrace("stream", "add", name, "--subjects", f"{name}.>", "--allow-counter")
    assert headrace("counter", "incr", f"{name}.a") == "1\n"
    assert headrace("counter", "incr", f"{name}.a", 41) == "42\n"
    assert headrace("counter", "incr", f"{name}.a", -2) == "40\n"
    large = 10**30
    assert headrace.json("counter", "incr", f"{name}.b", large) == {
        "subject": f"{name}.b",
        "value": str(large),
    }
    assert headrace("counter", "get", f"{name}.a") == "40\n"
    rows = headrace.json("counter", "ls", name)
    assert [(row["subject"], row["value"]) for row in rows] == [
        (f"{name}.a", "40"),
        (f"{name}.b", str(large)),
    ]
    assert [row["subject"] for row in headrace.json("counter", "ls", "--subject", f"{name}.b")] == [
        f"{name}.b"
    ]
    assert f"{name}.a" in headrace("counter", "ls")
    headrace("counter", "get", f"{name}.c", code=3)
    assert "headrace counter incr" in headrace.error
    headrace("counter", "incr", f"{name}.a", "many", code=2)
    assert "'many' is not an integer" in headrace.error
    headrace("stream", "rm", name, "-f")


def test_what_has_no_counters(headrace: Headrace, stream: str) -> None:
    headrace("counter", "incr", f"{stream}.a", code=2)
    assert "--allow-counter" in headrace.error
    headrace("counter", "get", f"nobody.{stream}", code=3)
    assert "headrace stream ls" in headrace.error
    headrace("counter", "get", f"{stream}.*", code=2)
    headrace("counter", "ls", stream, code=2)
    headrace("counter", "ls", f"{stream}x", code=3)
    assert headrace.json("stream", "info", stream)["state"]["messages"] == 0


def test_schedules(headrace: Headrace, name: str) -> None:
    headrace("stream", "add", name, "--subjects", f"{name}.>", "--allow-schedules", "--allow-msg-ttl")
    added = headrace.json(
        "schedule", "add", f"{name}.plan", "@every 1h", f"{name}.out", "report", "--ttl", "5m", "-H", "Kind:x"
    )
    assert (added["stream"], added["schedule"], added["target"]) == (name, "@every 1h", f"{name}.out")
    headers = headrace.json("stream", "get", name, "--last-for", f"{name}.plan")["headers"]
    assert (headers["Nats-Schedule"], headers["Nats-Schedule-TTL"], headers["Kind"]) == (
        "@every 1h",
        "5m",
        "x",
    )
    headrace("schedule", "add", f"{name}.later", "2h", f"{name}.out", "once")
    headrace("pub", f"{name}.other", "no schedule", "-J")
    rows = headrace.json("schedule", "ls", name)
    assert [row["subject"] for row in rows] == [f"{name}.later", f"{name}.plan"]
    assert rows[0]["schedule"].startswith("@at ")
    assert f"{name}.plan" in headrace("schedule", "ls")
    headrace("schedule", "rm", f"{name}.plan", code=2)
    assert "--force" in headrace.error
    headrace("schedule", "rm", f"{name}.plan", "-f")
    assert [row["subject"] for row in headrace.json("schedule", "ls", name)] == [f"{name}.later"]
    headrace("schedule", "rm", f"{name}.other", "-f", code=3)
    assert "headrace schedule ls" in headrace.error
    headrace("schedule", "add", f"{name}.bad", "@every never", f"{name}.out", "x", code=1)
    headrace("schedule", "add", f"{name}.bad", "soon", f"{name}.out", "x", code=2)
    assert headrace.json("stream", "info", name)["state"]["messages"] == 2
    headrace("stream", "rm", name, "-f")


def test_a_schedule_is_published(headrace: Headrace, name: str) -> None:
    headrace("stream", "add", name, "--subjects", f"{name}.>", "--allow-schedules")
    headrace("consumer", "add", name, "worker", "--filter", f"{name}.out")
    headrace("schedule", "add", f"{name}.plan", "1s", f"{name}.out", "now")
    assert headrace("consumer", "next", name, "worker", "--raw", "--timeout", 60) == "now\n"
    headrace("stream", "rm", name, "-f")


def test_a_stream_without_schedules(headrace: Headrace, stream: str) -> None:
    headrace("schedule", "add", f"{stream}.plan", "1h", f"{stream}.out", "x", code=2)
    assert "--allow-schedules" in headrace.error
    assert headrace.json("schedule", "ls", stream) == []
    headrace("schedule", "ls", f"{stream}x", code=3)


def test_when() -> None:
    assert parse_when("@daily") == "@daily"
    assert parse_when(" 0 0 5 * * * ") == "0 0 5 * * *"
    assert re.fullmatch(r"@at \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", parse_when("10m"))
    assert parse_when("2030-01-31T12:00:00Z") == "@at 2030-01-31T12:00:00Z"
    with pytest.raises(CliError, match="is not a time"):
        parse_when("soon")
