"""Advisories about streams, and the audit of API calls."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from conformance.client import Client
from conformance.servers import Server

Make = Callable[..., dict[str, Any]]
PREFIX = "$JS.EVENT.ADVISORY."
STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z")


def audits(client: Client, sid: str, subject: str, count: int = 1) -> list[dict[str, Any]]:
    """Return the audit advisories of one API subject: at least `count`, and those before the audit of a later call.

    nats-server sends an advisory after the response, so the advisory of the later call may overtake it.
    """
    client.api("INFO")
    found: list[dict[str, Any]] = []
    overtaken = False
    while not overtaken or len(found) < count:
        advisory = client.next(sid).json
        overtaken = overtaken or advisory["subject"] == "$JS.API.INFO"
        if advisory["subject"] == subject:
            found.append(advisory)
    return found


@pytest.mark.parametrize(
    ("operation", "event", "action"),
    [("CREATE", "CREATED", "create"), ("UPDATE", "UPDATED", "modify"), ("DELETE", "DELETED", "delete")],
)
def test_stream_changes_publish_an_action_advisory(
    client: Client, make_stream: Make, name: str, operation: str, event: str, action: str
) -> None:
    sid = client.subscribe(f"{PREFIX}STREAM.{event}.{name}")
    make_stream()
    client.api(f"STREAM.UPDATE.{name}", {"name": name, "subjects": [f"{name}.>"], "max_msgs": 5})
    client.api(f"STREAM.DELETE.{name}")
    message = client.next(sid)
    advisory = message.json
    assert advisory["type"] == "io.nats.jetstream.advisory.v1.stream_action"
    assert (advisory["stream"], advisory["action"]) == (name, action)
    assert re.fullmatch(r"[A-Za-z0-9]{22}", advisory["id"])
    assert STAMP.fullmatch(advisory["timestamp"])
    assert client.pending(sid) == []


class TestAudit:
    def test_an_audit_advisory_has_request_and_response(
        self, client: Client, make_stream: Make, name: str
    ) -> None:
        sid = client.subscribe(f"{PREFIX}API")
        answer = client.request(f"$JS.API.STREAM.INFO.{name}", b'{"deleted_details":true}')
        advisory = audits(client, sid, f"$JS.API.STREAM.INFO.{name}")[0]
        assert advisory["type"] == "io.nats.jetstream.advisory.v1.api_audit"
        assert advisory["server"] == client.info["server_id"]
        assert advisory["request"] == '{"deleted_details":true}'
        assert json.loads(advisory["response"]) == answer.json
        caller = advisory["client"]
        assert (caller["acc"], caller["kind"], caller["client_type"]) == ("$G", "Client", "nats")
        assert (caller["id"], caller["host"]) == (client.info["client_id"], "127.0.0.1")
        assert STAMP.fullmatch(caller["start"])
        assert caller["start"][:19] <= advisory["timestamp"][:19]
        client.api("STREAM.NAMES")
        again = audits(client, sid, "$JS.API.STREAM.NAMES")[0]
        assert again["client"]["start"] == caller["start"]

    def test_how_long_an_answer_of_the_client_took(
        self, server: Server, connect: Callable[..., Client]
    ) -> None:
        """Known from the server's first PING on, which it sends after a second or two."""
        client = connect(server)
        sid = client.subscribe(f"{PREFIX}API")
        shown: dict[str, Any] = {}
        deadline = time.monotonic() + 90
        while "rtt" not in shown:
            assert time.monotonic() < deadline
            time.sleep(0.2)
            client.api("STREAM.NAMES")
            shown = audits(client, sid, "$JS.API.STREAM.NAMES")[-1]["client"]
        assert 0 < shown["rtt"] < 60_000_000_000

    @pytest.mark.parametrize(
        ("operation", "body", "count"),
        [
            ("STREAM.INFO.{}", None, 1),
            ("STREAM.NAMES", None, 1),
            ("STREAM.LIST", None, 1),
            ("STREAM.PURGE.{}", {"keep": 5}, 1),
            ("STREAM.MSG.GET.{}", {"seq": 99}, 1),
            ("STREAM.MSG.GET.{}", {"seq": 1}, 0),
            ("STREAM.MSG.DELETE.{}", {"seq": 99}, 1),
            ("DIRECT.GET.{}", {"seq": 1}, 0),
        ],
    )
    def test_only_some_api_calls_are_audited(
        self, client: Client, make_stream: Make, name: str, operation: str, body: Any, count: int
    ) -> None:
        make_stream(allow_direct=True)
        client.store(f"{name}.a", "x")
        sid = client.subscribe(f"{PREFIX}API")
        subject = "$JS.API." + operation.format(name)
        client.request(subject, json.dumps(body).encode() if body else b"")
        assert len(audits(client, sid, subject, count)) == count


def test_advisories_can_be_kept_in_a_stream(client: Client, make_stream: Make, name: str) -> None:
    make_stream(f"{name}events", subjects=[f"{PREFIX}STREAM.*.{name}"])
    make_stream()
    while client.api(f"STREAM.INFO.{name}events")["state"]["messages"] == 0:
        pass
    kept = client.api(f"STREAM.MSG.GET.{name}events", {"seq": 1})["message"]
    assert kept["subject"] == f"{PREFIX}STREAM.CREATED.{name}"
