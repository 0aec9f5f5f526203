"""Message tracing: where a message went, step by step, as an event for the subject that its header names."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.client import Client
from conformance.consumer_client import eventually
from conformance.leafnode_pair import Joined
from conformance.servers import Server, Setup

Launch = Callable[[Setup], Server]
Event = dict[str, Any]

CONFIG = """
server_name: traced
accounts {
  A {
    jetstream: enabled
    users: [
      {user: a, password: p}
      {user: limited, password: p, permissions: {
        publish: ["ok.>", "traces"], subscribe: {allow: [">"], deny: ["denied.this"]}}}
    ]
    exports: [{stream: "news.>"}, {service: "open.>", allow_trace: true}, {service: "closed.>"}]
    mappings: {"old.*": "new.$1"}
    trace_dest: "external.traces"
  }
  B {
    jetstream: enabled
    users: [{user: b, password: p}]
    imports: [
      {stream: {account: A, subject: "news.open"}, to: "got.open", allow_trace: true}
      {stream: {account: A, subject: "news.closed"}, to: "got.closed"}
      {service: {account: A, subject: "open.>"}, to: "far.>"}
      {service: {account: A, subject: "closed.>"}}
    ]
  }
  SAMPLED { users: [{user: s, password: p}], msg_trace: {dest: "external.traces", sampling: "100%"} }
  NONE { users: [{user: n, password: p}] }
}
"""


@pytest.fixture(scope="module")
def server(kind: str) -> Iterator[Server]:
    with Server(kind, Setup(config=CONFIG, accounts=("A", "B"))) as running:
        yield running


class Tracing:
    """A client that publishes traced messages and reads their events."""

    def __init__(self, server: Server, user: str, **connect: Any) -> None:
        self.client = Client(server.port, **{"user": user, "pass": "p", **connect})
        self._sids = [self.client.subscribe(subject) for subject in ("traces", "external.traces")]
        self.client.flush()

    def publish(self, subject: str, headers: dict[str, str], payload: bytes = b"hi", reply: str = "") -> None:
        self.client.publish(subject, payload, headers, reply)
        self.client.flush()

    def trace(self, subject: str, payload: bytes = b"hi", reply: str = "", **headers: str) -> list[Event]:
        """The events of a traced message, without times and ids."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.publish(subject, {"Nats-Trace-Dest": "traces", **named}, payload, reply)
        return self.events(subject)

    def only(self, subject: str, payload: bytes = b"hi", reply: str = "", **headers: str) -> list[Event]:
        return self.trace(subject, payload, reply, **{"Nats_Trace_Only": "true", **headers})

    def events(self, subject: str, external: bool = False) -> list[Event]:
        found = self.next(external)["events"]
        assert (found[0]["type"], found[0]["subj"]) == ("in", subject)
        return [{k: v for k, v in event.items() if k not in ("ts", "cid")} for event in found[1:]]

    def next(self, external: bool = False) -> dict[str, Any]:
        return self.client.next(self._sids[external]).json

    def is_untraced(self) -> bool:
        """Whether nothing before was traced, as the next event shows."""
        return self.trace("ok.marker") == []


@pytest.fixture
def connect_tracing(server: Server) -> Iterator[Callable[..., Tracing]]:
    opened: list[Tracing] = []

    def connect(user: str, **options: Any) -> Tracing:
        opened.append(Tracing(server, user, **options))
        return opened[-1]

    yield connect
    for tracing in opened:
        tracing.client.close()


Connect = Callable[..., Tracing]


@pytest.fixture
def a(connect_tracing: Connect) -> Tracing:
    return connect_tracing("a", name="tracer")


@pytest.fixture
def b(connect_tracing: Connect) -> Tracing:
    return connect_tracing("b")


def egress(sub: str, **more: Any) -> Event:
    return {"type": "eg", "kind": 0, "name": "tracer", "sub": sub, **more}


def listen(tracing: Tracing, *subjects: str, queue: str = "") -> list[str]:
    sids = [tracing.client.subscribe(subject, queue) for subject in subjects]
    tracing.client.flush()
    return sids


class TestEvents:
    def test_the_event_names_server_request_and_origin(self, a: Tracing) -> None:
        a.publish("ok.nobody", {"Mine": "x", "Nats-Trace-Dest": "traces"}, b"12345")
        event = a.next()
        assert event["server"]["name"] == "traced"
        assert {"host", "id", "ver", "seq", "time"} <= set(event["server"])
        assert event["request"]["header"] == {"Mine": ["x"], "Nats-Trace-Dest": ["traces"]}
        assert (
            event["request"]["msgsize"] == len("NATS/1.0\r\nMine: x\r\nNats-Trace-Dest: traces\r\n\r\n") + 5
        )
        assert "hops" not in event
        (ingress,) = event["events"]
        assert ingress.pop("ts").startswith("20")
        assert ingress.pop("cid") == a.client.info["client_id"]
        assert ingress == {"type": "in", "kind": 0, "name": "tracer", "acc": "A", "subj": "ok.nobody"}

    def test_subscriptions_and_queue_groups(self, a: Tracing, name: str) -> None:
        plain, member = *listen(a, f"{name}.*"), *listen(a, f"{name}.>", queue="group")
        expected = [egress(f"{name}.*"), egress(f"{name}.>", queue="group")]
        assert a.trace(f"{name}.x") == expected
        assert [message.payload for sid in (plain, member) for message in a.client.pending(sid)] == [
            b"hi"
        ] * 2
        assert a.only(f"{name}.x") == expected
        assert a.client.pending(plain) == a.client.pending(member) == []

    @pytest.mark.parametrize(("value", "delivered"), [("1", 0), ("ON", 0), ("True", 0), ("yes", 1), ("0", 1)])
    def test_trace_only_has_several_spellings(
        self, a: Tracing, name: str, value: str, delivered: int
    ) -> None:
        (sid,) = listen(a, name)
        assert a.trace(name, Nats_Trace_Only=value) == [egress(name)]
        assert len(a.client.pending(sid)) == delivered

    def test_nobody_receives_it(self, a: Tracing, name: str) -> None:
        reply = f"{a.client.inbox}.r"
        assert a.trace(name, reply=reply) == []
        assert a.client.next(a.client._answers).status == "503"

    def test_no_echo(self, connect_tracing: Connect, name: str) -> None:
        quiet = connect_tracing("a", echo=False, name="tracer")
        listen(quiet, name)
        assert quiet.trace(name) == [egress(name, error="Not delivered because of no echo")]

    def test_a_denied_subscription(self, connect_tracing: Connect, a: Tracing) -> None:
        limited = connect_tracing("limited", name="tracer")
        listen(limited, "denied.*")
        error = "Not delivered because subscription denies this subject"
        assert a.trace("denied.this") == [egress("denied.*", error=error)]
        assert a.trace("denied.other") == [egress("denied.*")]

    def test_a_mapped_subject(self, a: Tracing) -> None:
        (sid,) = listen(a, "new.*")
        assert a.trace("old.1") == [{"type": "sm", "to": "new.1"}, egress("new.*")]
        assert [message.subject for message in a.client.pending(sid)] == ["new.1"]
        a.client.unsubscribe(sid)
        a.client.flush()


class TestPermissions:
    def test_a_rejected_message_has_an_error(self, connect_tracing: Connect) -> None:
        limited = connect_tracing("limited")
        limited.publish("not.allowed", {"Nats-Trace-Dest": "traces"})
        text = 'Permissions Violation for Publish to "not.allowed"'
        assert limited.next()["events"][0]["error"] == text
        assert limited.client.errors == [text]

    def test_a_destination_without_permission_drops_the_message(
        self, connect_tracing: Connect, a: Tracing
    ) -> None:
        limited = connect_tracing("limited")
        (sid,) = listen(a, "ok.secret")
        limited.publish("ok.secret", {"Nats-Trace-Dest": "other"})
        assert limited.client.errors == ['Permissions Violation for Publish to "other"']
        assert a.client.pending(sid) == []

    @pytest.mark.parametrize("value", ["a.*", "a..b", "trace disabled"])
    def test_an_invalid_destination_is_ignored(self, a: Tracing, name: str, value: str) -> None:
        (sid,) = listen(a, name)
        a.publish(name, {"Nats-Trace-Dest": value})
        assert len(a.client.pending(sid)) == 1
        if value != "trace disabled":
            a.publish(name, {"Nats-Trace-Dest": value, "Nats-Trace-Only": "true"})
            assert a.client.pending(sid) == []
        assert a.is_untraced()

    def test_the_header_of_old_servers_disables_tracing(self, a: Tracing, name: str) -> None:
        (sid,) = listen(a, name)
        a.publish(name, {"Nats-Trace-Dest": "traces", "Nats-Trace-Origin-Account": "x"})
        (message,) = a.client.pending(sid)
        assert message.headers["Nats-Trace-Dest"] == "trace disabled"
        assert a.is_untraced()


class TestOtherAccounts:
    @pytest.mark.parametrize("access", ["open", "closed"])
    def test_an_imported_stream(self, a: Tracing, b: Tracing, access: str) -> None:
        (sid,) = listen(b, f"got.{access}")
        expected: list[Event] = [{"type": "se", "acc": "B", "to": f"got.{access}"}]
        if access == "open":
            expected.append({"type": "eg", "kind": 0, "acc": "B", "sub": f"news.{access}"})
        assert a.trace(f"news.{access}") == expected
        assert [message.subject for message in b.client.pending(sid)] == [f"got.{access}"]
        assert a.only(f"news.{access}") == expected
        assert b.client.pending(sid) == []

    def test_a_service_whose_export_allows_it(self, a: Tracing, b: Tracing) -> None:
        (sid,) = listen(a, "open.*")
        expected = [{"type": "si", "acc": "A", "from": "far.x", "to": "open.x"}, egress("open.*", acc="A")]
        assert b.trace("far.x", reply=f"{b.client.inbox}.r") == expected
        (request,) = a.client.pending(sid)
        assert request.headers["Nats-Trace-Dest"].startswith("_R_.")
        a.client.publish(request.reply, b"answer")
        assert b.client.next(b.client._answers).payload == b"answer"
        assert b.only("far.x", reply=f"{b.client.inbox}.r") == expected
        assert a.client.pending(sid) == []

    def test_a_service_whose_export_does_not(self, a: Tracing, b: Tracing) -> None:
        (sid,) = listen(a, "closed.*")
        expected = [{"type": "si", "acc": "A", "from": "closed.x", "to": "closed.x"}]
        assert b.trace("closed.x", reply=f"{b.client.inbox}.r") == expected
        (request,) = a.client.pending(sid)
        assert request.headers["Nats-Trace-Dest"] == "trace disabled"
        assert b.only("closed.x", reply=f"{b.client.inbox}.r") == expected
        assert a.client.pending(sid) == []
        assert b.client.next(b.client._answers).status == "503"


class TestStreams:
    @pytest.fixture
    def stream(self, a: Tracing, name: str) -> Iterator[str]:
        transform = {"src": f"{name}.from.*", "dest": f"{name}.to.{{{{wildcard(1)}}}}"}
        config = {"name": name, "subjects": [f"{name}.>"], "subject_transform": transform}
        a.client.api(f"STREAM.CREATE.{name}", {**config, "max_msg_size": 400})
        yield name
        a.client.api(f"STREAM.DELETE.{name}")

    def test_a_stored_message_is_not_traced_again(self, a: Tracing, stream: str) -> None:
        reply = f"{a.client.inbox}.ack"
        assert a.trace(f"{stream}.x", reply=reply) == [
            {"type": "js", "stream": stream, "subject": f"{stream}.x"}
        ]
        assert a.client.next(a.client._answers).json == {"stream": stream, "seq": 1}
        stored = a.client.api(f"STREAM.MSG.GET.{stream}", {"seq": 1})["message"]
        assert b"Nats-Trace-Dest: trace disabled" in base64.b64decode(stored["hdrs"])

    def test_trace_only_stores_nothing(self, a: Tracing, stream: str) -> None:
        reply = f"{a.client.inbox}.ack"
        expected = [{"type": "js", "stream": stream, "subject": f"{stream}.x"}]
        assert a.only(f"{stream}.x", reply=reply) == expected
        assert a.client.api(f"STREAM.INFO.{stream}")["state"]["messages"] == 0
        assert a.client.pending(a.client._answers) == []

    def test_a_transformed_subject(self, a: Tracing, stream: str) -> None:
        expected = [{"type": "js", "stream": stream, "subject": f"{stream}.to.1"}]
        assert a.trace(f"{stream}.from.1") == expected

    @pytest.mark.parametrize(
        ("header", "value", "error"),
        [
            ("Nats_Msg_Id", "1", "msgid is duplicate"),
            ("Nats_Expected_Last_Sequence", "7", "last sequence mismatch: 7 vs 1"),
            ("Nats_Expected_Stream", "OTHER", "expected stream does not match"),
            ("Nats_TTL", "5s", "message TTL disabled"),
            ("Filler", "x" * 400, "maximum payload exceeded"),
        ],
    )
    @pytest.mark.parametrize("only", [False, True])
    def test_a_rejected_message(
        self, a: Tracing, stream: str, header: str, value: str, error: str, only: bool
    ) -> None:
        a.client.store(f"{stream}.x", b"first", {"Nats-Msg-Id": "1"})
        trace = a.only if only else a.trace
        expected = [{"type": "js", "stream": stream, "error": error}]
        assert trace(f"{stream}.x", **{header: value}) == expected
        assert a.client.api(f"STREAM.INFO.{stream}")["state"]["messages"] == 1

    def test_a_stream_without_interest(self, a: Tracing, name: str) -> None:
        config = {"name": name, "subjects": [f"{name}.>"], "retention": "interest"}
        a.client.api(f"STREAM.CREATE.{name}", config)
        expected = [{"type": "js", "stream": name, "subject": f"{name}.x", "nointerest": True}]
        assert a.trace(f"{name}.x") == expected
        a.client.api(f"STREAM.DELETE.{name}")

    def test_a_request_to_the_api(self, a: Tracing, stream: str) -> None:
        subject, reply = f"$JS.API.STREAM.INFO.{stream}", f"{a.client.inbox}.api"
        expected = [{"type": "si", "acc": "$SYS", "from": subject, "to": subject}]
        assert a.trace(subject, b"", reply) == expected
        assert a.client.next(a.client._answers).json["config"]["name"] == stream
        assert a.only(subject, b"", reply) == expected
        assert a.client.next(a.client._answers).status == "503"


PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-"


class TestTraceParent:
    @pytest.mark.parametrize("user", ["a", "s"])
    @pytest.mark.parametrize("header", ["traceparent", "TraceParent"])
    def test_a_sampled_message_goes_to_the_destination_of_the_account(
        self, connect_tracing: Connect, name: str, user: str, header: str
    ) -> None:
        tracing = connect_tracing(user, name="tracer")
        (sid,) = listen(tracing, name)
        tracing.publish(name, {header: PARENT + "01", "Nats-Trace-Only": "true"})
        assert tracing.events(name, external=True) == [egress(name)]
        assert [message.headers[header] for message in tracing.client.pending(sid)] == [PARENT + "01"]

    @pytest.mark.parametrize("value", [PARENT + "00", PARENT + "0x", PARENT + "1", "01"])
    def test_others_are_not_traced(self, a: Tracing, name: str, value: str) -> None:
        a.publish(name, {"traceparent": value})
        a.publish(name, {"traceparent": PARENT + "01"})
        assert a.events(name, external=True) == []
        assert a.is_untraced()

    def test_nor_in_an_account_without_a_destination(self, connect_tracing: Connect, name: str) -> None:
        tracing = connect_tracing("n")
        tracing.publish(name, {"traceparent": PARENT + "01"})
        assert tracing.is_untraced()

    def test_a_reload_changes_the_destination(self, launch: Launch) -> None:
        config = "accounts {{ A {{ users: [{{user: a, password: p}}], {} }} }}"
        server = launch(Setup(config=config.format(""), jetstream=False))
        tracing = Tracing(server, "a")
        try:
            server.reload(config.format('trace_dest: "external.traces"'))
            tracing.publish("x", {"traceparent": PARENT + "01"})
            assert tracing.events("x", external=True) == []
        finally:
            tracing.client.close()

    @pytest.mark.parametrize(
        "setting",
        [
            'trace_dest: "a.*"',
            "trace_dest: {dest: a, sampling: 0}",
            "trace_dest: {dest: a, sampling: 101}",
            "msg_trace: {other: a}",
            'exports: [{stream: "x", allow_trace: true}]',
        ],
    )
    def test_invalid_settings_are_rejected(self, launch: Launch, setting: str, tmp_path: Path) -> None:
        with pytest.raises(RuntimeError, match="ended with 1"):
            launch(Setup(config=f"accounts {{ A {{ {setting} }} }}", jetstream=False))


def test_events_are_compressed_on_request(a: Tracing, name: str) -> None:
    sid = a._sids[0]
    a.publish(name, {"Nats-Trace-Dest": "traces", "Accept-Encoding": "gzip"})
    message = a.client.next(sid)
    assert message.headers == {"Content-Encoding": "gzip"}
    assert json.loads(gzip.decompress(message.payload))["events"][0]["subj"] == name


class TestLeafnodes:
    """A trace continues on the other side of a leafnode connection, as the next hop."""

    @pytest.fixture(params=[True, False], ids=["up", "down"])
    def ends(self, request: pytest.FixtureRequest, pair: Joined) -> tuple[Client, Client]:
        origin, copy = pair.ways(request.param)
        return origin.client, copy.client

    def trace(
        self, ends: tuple[Client, Client], listening: str, name: str, **headers: str
    ) -> tuple[Event, Event]:
        """The events of sender and receiver, sent when the interest of the receiver has arrived."""
        sender, listener = ends

        def crossed() -> bool:
            sender.publish(f"{name}.x", b"untraced")
            sender.flush()
            return bool(listener.pending(listening))

        eventually(crossed)
        sid = sender.subscribe(f"{name}.traces")
        sender.publish(f"{name}.x", b"traced", {"Nats-Trace-Dest": f"{name}.traces", **headers})
        found = [sender.next(sid).json for _ in range(2)]
        found.sort(key=lambda event: "Nats-Trace-Hop" in event["request"]["header"])
        return found[0], found[1]

    @pytest.mark.parametrize("only", [False, True])
    def test_the_next_hop_sends_an_event_of_its_own(
        self, ends: tuple[Client, Client], name: str, only: bool
    ) -> None:
        listener = ends[1]
        sid = listener.subscribe(f"{name}.x")
        listener.flush()
        near, far = self.trace(ends, sid, name, **({"Nats-Trace-Only": "true"} if only else {}))
        assert near["hops"] == 1
        hop = near["events"][-1]
        assert (hop["type"], hop["kind"], hop["hop"]) == ("eg", 4, "1")
        assert hop["name"] == far["server"]["name"]
        assert far["request"]["header"]["Nats-Trace-Hop"] == ["1"]
        ingress, leaving = far["events"]
        assert (ingress["kind"], ingress["name"]) == (4, near["server"]["name"])
        assert (ingress["acc"], ingress["subj"]) == ("$G", f"{name}.x")
        assert (leaving["type"], leaving["kind"], leaving["sub"]) == ("eg", 0, f"{name}.x")
        received = [message.payload for message in listener.pending(sid)]
        assert received.count(b"traced") == (0 if only else 1)
