"""`headrace events`, `trace` and `mkpasswd`: on both servers."""

import json
from pathlib import Path

import bcrypt
import pytest

from cli.conftest import Headrace
from cli.terminal import Terminal
from conformance.servers import Server, Setup
from headrace.cli import main
from headrace.cli.events import format_event
from headrace.cli.trace import describe


def test_events_are_shown_as_they_happen(headrace: Headrace, stream: str, name: str) -> None:
    with Terminal("events", "_action", "-n", 3, url=headrace.url, columns=200) as terminal:
        terminal.expect("waiting for events")
        headrace("consumer", "add", stream, "worker")
        terminal.expect(f"[consumer_action] consumer worker of {stream} created")
        headrace("stream", "add", f"{name}e", "--subjects", f"{name}e")
        terminal.expect(f"[stream_action] stream {name}e created")
        headrace("stream", "rm", f"{name}e", "-f")
        terminal.expect(f"[stream_action] stream {name}e removed")
        assert terminal.ended() == 0


def test_events_for_programs(headrace: Headrace, stream: str) -> None:
    with Terminal("events", "--json", "--api", "-n", 1, url=headrace.url, columns=5000) as terminal:
        terminal.expect("waiting for events")
        headrace("stream", "info", stream)
        assert terminal.ended() == 0
        line = terminal.text.splitlines()[-1]
        event = json.loads(line)
        assert event["type"] == "io.nats.jetstream.advisory.v1.api_audit"
        assert event["subject"] == f"$JS.API.STREAM.INFO.{stream}"


def test_an_event_of_each_kind() -> None:
    time = {"timestamp": "2026-01-31T12:00:00.5Z"}
    prefix = "io.nats.jetstream.advisory.v1."
    delivery = {"stream": "S", "consumer": "C", "stream_seq": 7, "deliveries": 3, **time}
    assert format_event({"type": f"{prefix}max_deliver", **delivery}) == (
        "2026-01-31 12:00:00 [max_deliver] message 7 of S, consumer C, not delivered again after 3 deliveries"
    )
    assert "terminated after 3 deliveries: bad" in format_event(
        {"type": f"{prefix}terminated", "reason": "bad", **delivery}
    )
    assert (
        format_event({"type": f"{prefix}other", "a": 1, "client": {"user": "ann"}}) == "[other] a=1 (by ann)"
    )
    assert format_event({"type": f"{prefix}stream_action"}) == "[stream_action]"
    assert format_event({"data": "noise"}) == "[unknown] data=noise"


def test_a_trace_shows_where_a_message_goes(headrace: Headrace, stream: str) -> None:
    (found,) = headrace.json("trace", f"{stream}.1")
    assert [event["type"] for event in found["events"]] == ["in", "js"]
    shown = headrace("trace", f"{stream}.1", "payload", "-H", "Kind:a")
    assert f"received {stream}.1 from client headrace command line, account $G" in shown
    assert f"stored in stream {stream}, subject {stream}.1" in shown
    assert headrace.json("stream", "info", stream)["state"]["messages"] == 0
    headrace("trace", f"{stream}.1", "payload", "--deliver")
    assert headrace("stream", "get", stream, 1, "--raw") == "payload"
    assert "nobody receives it" in headrace("trace", f"nobody.{stream}")
    headrace("trace", "a b", code=2)


def test_an_event_of_a_trace() -> None:
    egress = {"type": "eg", "kind": 4, "name": "hub", "sub": "a.*", "queue": "q", "error": "No echo"}
    assert describe(egress) == "delivered to leafnode hub, subscription a.*, queue group q; ERROR: No echo"
    assert describe({"type": "sm", "to": "b"}) == "mapped to b"
    assert describe({"type": "new", "ts": "now", "x": 1}) == "x=1"


def test_a_server_accepts_the_hash(server: Server, headrace: Headrace, tmp_path: Path) -> None:
    hashed = headrace("mkpasswd", "--cost", 4, stdin=b"secret\n").strip()
    assert hashed.startswith("$2a$04$")
    config = f'authorization {{ user: ann, password: "{hashed}" }}'
    with Server(server.kind, Setup(config=config)) as other:
        headrace("server", "ping", "-n", 1, "--server", other.url, "--user", "ann", "--password", "secret")
        headrace(
            "server", "ping", "-n", 1, "--server", other.url, "--user", "ann", "--password", "no", code=5
        )


def test_generated_passwords(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mkpasswd", "--generate", "--cost", "4", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert len(made["password"]) == 22
    assert bcrypt.checkpw(made["password"].encode(), made["hash"].encode())


def test_passwords_that_cannot_be_hashed(headrace: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    headrace("mkpasswd", stdin=b"\n", code=2)
    assert "empty" in headrace.error
    headrace("mkpasswd", stdin=b"x" * 73, code=2)
    assert "72 bytes" in headrace.error
    monkeypatch.setattr("headrace.extras.find_spec", lambda name: None)
    headrace("mkpasswd", stdin=b"x", code=1)
    assert "pip install 'headrace[bcrypt]'" in headrace.error
    monkeypatch.undo()


def test_a_password_is_asked_for_twice() -> None:
    with Terminal("mkpasswd", "--cost", 4) as terminal:
        terminal.expect("Password:")
        terminal.press("secret\n")
        terminal.expect("Again:")
        terminal.press("secrets\n")
        assert terminal.ended() == 2
        assert "differ" in terminal.text
        assert "secret\n" not in terminal.text
