"""The parser, compiled and pure: framing, limits, the route cache, and the format of deliveries."""

from __future__ import annotations

import re
from typing import Any

import pytest

from headrace._native.reserved_subjects import is_reserved_reply
from support.native_and_pure import TWINS, Anybody, Desk, load

UNKNOWN = b"-ERR 'Unknown Protocol Operation'\r\n<EOF>"


@pytest.fixture(params=TWINS)
def desk(request: pytest.FixtureRequest) -> Desk:
    return Desk(request.param)


@pytest.fixture(params=TWINS)
def twin(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Sink:
    def __init__(self) -> None:
        self.got: list[tuple[Any, ...]] = []

    def on_message(self, session: Any, *message: bytes) -> None:
        self.got.append(message)


def test_delivery_to_another(desk: Desk) -> None:
    one, two = desk.client(), desk.client()
    assert one.say(b"SUB a.* 7\r\n") == b""
    assert two.say(b"PUB a.b 2\r\nhi\r\n") == b""
    assert one.heard() == b"MSG a.b 7 2\r\nhi\r\n"
    assert desk.hub.dirty[-1] is one.session


def test_headers_go_only_to_clients_that_want_them(desk: Desk) -> None:
    one, two = desk.client(), desk.client(b'CONNECT {"verbose":false}\r\n')
    two.say(b"SUB a 2\r\n")
    assert one.say(b"SUB a 1\r\nHPUB a r 12 014\r\nNATS/1.0\r\n\r\nhi\r\n") == (
        b"HMSG a 1 r 12 014\r\nNATS/1.0\r\n\r\nhi\r\n"
    )
    assert two.heard() == b"MSG a 2 r 2\r\nhi\r\n"


@pytest.mark.parametrize(
    "start", [b"F", b"PX", b"PUBX", b"SUB1", b"MSG", b" ", b"\r", b"\n", b"UNSUB\r", b"-ERX", b"\x16\x03"]
)
def test_a_bad_verb_ends_it_as_soon_as_it_shows(desk: Desk, start: bytes) -> None:
    assert desk.client().say(start, 1) == UNKNOWN


@pytest.mark.parametrize("line", [b"PING", b"PONG", b"+OK"])
def test_junk_after_a_verb_without_arguments_is_dropped(desk: Desk, line: bytes) -> None:
    client = desk.client()
    client.say(line + b"x" * 100_000)
    assert client.parser.buffered_bytes < 16
    assert client.say(b"\r\n") == (b"PONG\r\n" if line == b"PING" else b"")


@pytest.mark.parametrize("step", [0, 1, 7])
@pytest.mark.parametrize("verb", [b"PUB", b"HPUB", b"SUB", b"UNSUB", b"CONNECT", b"INFO", b"-ERR"])
def test_control_line_limit(twin: str, verb: bytes, step: int) -> None:
    exceeded = b"-ERR 'maximum control line exceeded'\r\n<EOF>"
    assert Desk(twin).client(line_max=200).say(verb + b" " + b"a" * 201, step) == exceeded
    assert Desk(twin).client(line_max=200).say(verb + b" \t" + b"a" * 201 + b"\r\n", step) == exceeded
    client = Desk(twin).client(line_max=200)
    client.say(verb + b"   " + b"a" * 200 + b"\r", step)
    assert not client.ended
    assert client.parser.buffered_bytes < 220


def test_blanks_after_a_verb_are_not_kept(desk: Desk) -> None:
    client = desk.client()
    for _ in range(100):
        client.say(b"SUB" + b" " * 1000 if client.parser.buffered_bytes == 0 else b"\t" * 1000)
    assert client.parser.buffered_bytes < 16
    assert client.say(b"a 1\r\nPUB a 0\r\n\r\n") == b"MSG a 1 0\r\n\r\n"


def test_what_is_held_is_bounded_by_what_was_announced(desk: Desk) -> None:
    client = desk.client(payload_max=1000)
    client.say(b"PUB a 1000\r\n" + b"x" * 999)
    assert 999 <= client.parser.buffered_bytes < 1100
    client.say(b"x\r\n")
    assert client.parser.buffered_bytes == 0
    assert client.say(b"PUB a 1001\r\n") == b"-ERR 'Maximum Payload Violation'\r\n<EOF>"


def test_a_client_that_has_not_proven_itself_can_only_connect(desk: Desk) -> None:
    unauthorized = b"-ERR 'Authorization Violation'\r\n<EOF>"
    assert desk.client(b"", ready=False).say(b"P") == unauthorized
    client = desk.client(b"", ready=False)
    client.say(b"CONNECT {" + b" " * 3000)
    assert client.parser.buffered_bytes < 4096
    assert client.say(b"}\r\nPING\r\n") == b"+OK\r\nPONG\r\n"


def test_input_of_any_kind_of_buffer(desk: Desk) -> None:
    client = desk.client()
    client.parser.feed(bytearray(b"PING\r\nPING\r\nxxxxx"), 12)
    client.parser.feed(memoryview(b"PING\r\n"))
    assert client.heard() == b"PONG\r\n" * 3


@pytest.mark.parametrize(
    ("line", "header", "payload"),
    [
        (b"PUB a r 9\r\n", b"", b"payload-1"),
        (b"PUB a r 0\r\n", b"", b""),
        (b"PUB a r 1\r\n", b"", b"\r"),
        (b"HPUB a r 12 21\r\n", b"NATS/1.0\r\n\r\n", b"payload-2"),
        (b"HPUB a r 12 12\r\n", b"NATS/1.0\r\n\r\n", b""),
        (b"HPUB a r 0 3\r\n", b"", b"\r\n\r"),
    ],
)
def test_a_message_in_two_pieces_or_bytewise_is_the_same(
    desk: Desk, line: bytes, header: bytes, payload: bytes
) -> None:
    sink = Sink()
    desk.hub.subscribe_internal(b"a", sink)
    client = desk.client()
    data = line + header + payload + b"\r\n"
    for cut in range(1, len(data)):
        client.parser.feed(data[:cut])
        assert not sink.got, cut
        client.parser.feed(data[cut:] + b"PING\r\n")
        assert sink.got == [(b"a", b"r", header, payload)], cut
        sink.got.clear()
    for at in range(len(data)):
        client.parser.feed(data[at : at + 1])
    assert sink.got == [(b"a", b"r", header, payload)]
    assert client.parser.buffered_bytes == 0
    assert client.heard() == b"PONG\r\n" * (len(data) - 1)


@pytest.mark.parametrize("end", [b"x\n", b"\rx", b"\n\r", b"\r\r", b"\n\n"])
@pytest.mark.parametrize("cut", range(-3, 2))
def test_a_wrong_line_end_is_found_in_any_piece(desk: Desk, end: bytes, cut: int) -> None:
    client, payload = desk.client(), b"123"
    data = b"PUB a 3\r\n" + payload + end
    at = len(data) - 2 + cut
    assert (client.say(data[:at]) or client.say(data[at:])) == UNKNOWN


def test_sinks_take_messages_as_objects(desk: Desk) -> None:
    sink = Sink()
    desk.hub.subscribe_internal(b"s.>", sink)
    client = desk.client()
    assert client.say(b"PUB s.1 _INBOX.1 2\r\nhi\r\nHPUB s.2.x 12 14\r\nNATS/1.0\r\n\r\nho\r\n") == b""
    assert sink.got == [(b"s.1", b"_INBOX.1", b"", b"hi"), (b"s.2.x", b"", b"NATS/1.0\r\n\r\n", b"ho")]
    assert desk.hub.publish(b"s.3", b"", b"", b"x") == 1
    desk.hub.unsubscribe_internal(b"s.>", sink)
    assert desk.hub.publish(b"s.3", b"", b"", b"x") == 0


def test_publish_from_inside(desk: Desk) -> None:
    client = desk.client()
    client.say(b"SUB a.> 1\r\nSUB a.b 2\r\n")
    assert desk.hub.publish(b"a.b", b"r", b"NATS/1.0\r\n\r\n", b"hi") == 2
    assert sorted(re.findall(rb"HMSG a\.b (\d) r 12 14\r\nNATS/1.0\r\n\r\nhi\r\n", client.heard())) == [
        b"1",
        b"2",
    ]
    assert desk.hub.deliver(b"a.c", b"shown", b"", b"", b"x") == 1
    assert client.heard() == b"MSG shown 1 1\r\nx\r\n"
    assert desk.hub.publish(b"a..c", b"", b"", b"") == 0
    desk.hub.publish_many([(b"a.d", b"", b"", b"1"), (b"a..d", b"", b"", b"2"), (b"a.e", b"r", b"", b"3")])
    assert client.heard() == b"MSG a.d 1 1\r\n1\r\nMSG a.e 1 r 1\r\n3\r\n"


def test_a_large_payload_is_kept_once_for_all(desk: Desk) -> None:
    one, two, plain = desk.client(), desk.client(), desk.client(b'CONNECT {"verbose":false}\r\n')
    for client in (one, two, plain):
        client.say(b"SUB a 1\r\n")
    large = b"x" * 20_000
    said = b"PUB a 1\r\ny\r\nPUB a 20000\r\n%b\r\nHPUB a 12 20012\r\nNATS/1.0\r\n\r\n%b\r\nPUB a 1\r\nz\r\n"
    wanted = said.replace(b"PUB a ", b"MSG a 1 ") % (large, large)
    assert one.say(said % (large, large), 7_000) == wanted
    assert plain.heard() == wanted.replace(b"HMSG a 1 12 20012\r\nNATS/1.0\r\n\r\n", b"MSG a 1 20000\r\n")
    assert two.session.chunk_bytes + len(two.session.buffer) == len(wanted)
    assert two.session.out_bytes == 40_014
    lines = 4 * (len(b"a") + 24)
    assert (one.session.fanout_bytes, two.session.fanout_bytes) == (3 * (40_014 + lines), 0), (
        "one's, to all three"
    )
    parts = two.session.drain_chunks()
    assert b"".join(parts) == wanted
    assert (two.session.chunk_bytes, two.session.dirty, two.session.drain()) == (0, False, b"")
    desk.hub.publish(b"a", b"", b"", large)
    shared = [client.session.drain_chunks()[1] for client in (one, two, plain)]
    assert all(part is large for part in shared)


def test_one_receiver_of_a_large_payload_has_it_to_itself(desk: Desk) -> None:
    one = desk.client()
    one.say(b"SUB a 1\r\n")
    desk.hub.publish(b"a", b"", b"", b"x" * 20_000)
    assert one.session.chunk_bytes == 0
    assert len(one.heard()) == 20_017


def test_sessions_count_messages_and_bytes(desk: Desk) -> None:
    one, two = desk.client(), desk.client()
    one.say(b"SUB a 1\r\n")
    two.say(b"PUB a 2\r\nhi\r\nHPUB a 12 14\r\nNATS/1.0\r\n\r\nhi\r\n")
    assert (two.session.in_msgs, two.session.in_bytes) == (2, 16)
    assert (one.session.out_msgs, one.session.out_bytes) == (2, 16)


def test_wake_is_called_once_a_turn(desk: Desk) -> None:
    calls: list[int] = []
    desk.hub.table.wakeup = lambda: calls.append(1)
    one, two = desk.client(), desk.client()
    one.session.send(b"x")
    two.session.send(b"x")
    assert calls == [1]
    assert desk.hub.dirty == [one.session, two.session]


def record_traced(monkeypatch: pytest.MonkeyPatch, session: Any, *, handled: bool) -> list[tuple[bytes, ...]]:
    """The messages that the parser gives to the session because they may have to be traced."""
    calls: list[tuple[bytes, ...]] = []

    def on_traced_publish(self: Any, *message: bytes) -> bool:
        calls.append(message)
        return handled

    monkeypatch.setattr(type(session), "on_traced_publish", on_traced_publish)
    return calls


@pytest.mark.parametrize(
    ("header", "asked"),
    [
        (b"NATS/1.0\r\nNats-Trace-Dest: t\r\n\r\n", True),
        (b"NATS/1.0\r\nD: DD\r\nNats-Trace-Dest:t\r\n\r\n", True),
        (b"NATS/1.0\r\nNats-Trace-Dest", True),
        (b"NATS/1.0\r\nNats-Trace-Des", False),
        (b"Dest: Nats-Trace-\r\nD", False),
        (b"NATS/1.0\r\nnats-trace-Dest: t\r\n\r\n", False),
    ],
)
def test_only_messages_with_a_trace_header_may_be_traced(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, header: bytes, asked: bool
) -> None:
    """And they are published like others if the session does not handle them."""
    client = desk.client()
    client.say(b"SUB a 1\r\n")
    calls = record_traced(monkeypatch, client.session, handled=False)
    line = b"HPUB a r %d %d\r\n" % (len(header), len(header) + 2)
    expected = b"HMSG a 1 r %d %d\r\n%shi\r\n" % (len(header), len(header) + 2, header)
    assert client.say(line + header + b"hi\r\n") == expected
    assert calls == ([(b"a", b"r", header, b"hi")] if asked else [])
    client.say(b"PUB a 15\r\nNats-Trace-Dest\r\n")
    assert len(calls) == int(asked)


@pytest.mark.parametrize("external", [False, True])
def test_with_external_traces_every_header_is_looked_at(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, external: bool
) -> None:
    client = desk.client()
    client.session.traces_external = external
    calls = record_traced(monkeypatch, client.session, handled=True)
    client.say(b"SUB a 1\r\n")
    delivered = b"" if external else b"HMSG a 1 12 14\r\nNATS/1.0\r\n\r\nhi\r\n"
    assert client.say(b"HPUB a 12 14\r\nNATS/1.0\r\n\r\nhi\r\n") == delivered
    assert len(calls) == int(external)


class TestRoutes:
    def route(self, desk: Desk, subject: bytes) -> Any:
        return desk.hub.get_route(subject)

    def test_unique_replies_share_a_route(self, desk: Desk) -> None:
        client = desk.client()
        client.say(b"SUB _INBOX.x.* 1\r\n")
        assert self.route(desk, b"_INBOX.x.1") is self.route(desk, b"_INBOX.x.2")
        assert len(desk.hub.table) == 1

    def test_deep_subjects_share_a_route_below_two_tokens(self, desk: Desk) -> None:
        desk.hub.subscribe_internal(b"$JS.ACK.>", Sink())
        first = self.route(desk, b"$JS.ACK.s.c.1.2.3")
        assert self.route(desk, b"$JS.ACK.other.d.9.9.9") is first
        assert self.route(desk, b"$JS.ACK.x") is first
        assert not first.empty

    def test_a_literal_subscription_ends_the_sharing(self, desk: Desk) -> None:
        client = desk.client()
        client.say(b"SUB a.b.* 1\r\n")
        shared = self.route(desk, b"a.b.c")
        client.say(b"SUB a.b.c 2\r\n")
        assert not shared.valid
        assert shared.subscribers == []
        assert len(self.route(desk, b"a.b.c").subscribers) == 2
        assert len(self.route(desk, b"a.b.d").subscribers) == 1

    def test_unrelated_routes_survive(self, desk: Desk) -> None:
        client = desk.client()
        client.say(b"SUB a.b 1\r\nSUB x.y 2\r\n")
        one, two = self.route(desk, b"a.b"), self.route(desk, b"x.y")
        client.say(b"SUB a.* 3\r\n")
        assert (one.valid, two.valid) == (False, True)
        client.say(b"UNSUB 2\r\n")
        assert not two.valid

    def test_the_cache_is_bounded(self, twin: str) -> None:
        desk = Desk(twin, cache_max=100)
        client = desk.client()
        client.say(b"SUB a.*.z 1\r\n")
        for i in range(1000):
            client.say(b"PUB a.%d.z 0\r\n\r\n" % i)
        assert len(desk.hub.table) <= 100

    def test_empty_tokens_match_nothing(self, desk: Desk) -> None:
        client = desk.client()
        client.say(b"SUB > 1\r\nSUB a.> 2\r\nSUB a.b.* 3\r\n")
        for subject in (b"a.b.", b".a", b"a..b", b".", b"a.b..c", b"a.b.c."):
            assert client.say(b"PUB a.b.c 0\r\n\r\n").count(b"MSG") == 3
            assert client.say(b"PUB %s 0\r\n\r\n" % subject) == b""


def test_a_long_head_is_found(desk: Desk) -> None:
    client = desk.client()
    subject = b"a" * 300 + b".b.c.d"
    client.say(b"SUB %s.> 1\r\n" % (b"a" * 300))
    for _ in range(3):
        assert client.say(b"PUB %s 0\r\n\r\n" % subject).startswith(b"MSG")
    client.say(b"UNSUB 1\r\n")
    assert client.say(b"PUB %s 0\r\n\r\n" % subject) == b""


def test_permissions_are_asked(twin: str) -> None:
    desk = Desk(twin)
    rules = load(twin).Permissions(publish_allow=[b"foo.>"], publish_deny=[b"foo.secret"])
    client = desk.client(identity=Anybody(rules))
    assert client.say(
        b"PUB foo.1 0\r\n\r\nPUB foo 0\r\n\r\nPUB foo.secret 0\r\n\r\nPUB foo..x 0\r\n\r\nPING\r\n"
    ) == (
        b"-ERR 'Permissions Violation for Publish to \"foo\"'\r\n"
        b"-ERR 'Permissions Violation for Publish to \"foo.secret\"'\r\n"
        b"-ERR 'Permissions Violation for Publish to \"foo..x\"'\r\n"
        b"PONG\r\n"
    )


def test_withheld_messages_count_as_undelivered(twin: str) -> None:
    desk = Desk(twin)
    rules = load(twin).Permissions(subscribe_deny=[b"bar.no"])
    one, two = desk.client(identity=Anybody(rules)), desk.client()
    one.say(b"SUB bar.> 1\r\n")
    two.say(b"SUB i 1\r\n")
    assert two.say(b"PUB bar.yes i 0\r\n\r\n") == b""
    assert b"503" in two.say(b"PUB bar.no i 0\r\n\r\n")
    assert one.heard() == b"MSG bar.yes 1 i 0\r\n\r\n"


def test_a_full_route_cache_drops_one_route_for_each_new_one(twin: str) -> None:
    native, resolved = load(twin), 0

    def resolve(subject: bytes) -> Any:
        nonlocal resolved
        resolved += 1
        return native.Route(subject, 0, [], [], [])

    table = native.RouteTable(resolve, 100)
    routes = [table.find(b"a.%d" % number) for number in range(1_000)]
    assert len(table) == 100
    assert [route.key for route in routes if route.valid] == [
        b"a.%d" % number for number in range(1_000) if b"a.%d" % number in table
    ]
    for number in range(1_000):
        assert table.find(b"a.%d" % number).key == b"a.%d" % number
        assert len(table) == 100
    assert resolved <= 2_000
    table.clear()
    assert len(table) == 0


def test_twins_have_the_same_names() -> None:
    compiled, pure = load("compiled"), load("pure")
    for name in ("Parser", "ClientState", "Route", "RouteTable", "Subscription"):
        public = {n for n in dir(getattr(compiled, name)) if not n.startswith("_")}
        assert public <= {n for n in dir(getattr(pure, name)) if not n.startswith("_")}, name


def test_a_reply_cannot_call_the_api() -> None:
    """The parser rejects replies under `$JS.API.`; so a reply can never be a request."""
    assert is_reserved_reply(b"$JS.API.STREAM.DELETE.Y")
    assert is_reserved_reply(b"$JS.domain.API.STREAM.DELETE.Y")


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize(
    "reply",
    [
        b"$JS.API.", b"$JS.API.x", b"$JS.API", b"$JS.APIx.y", b"$JS.d.API", b"$JS.d.API.", b"$JS.d.API.x",
        b"$JS.d.e.API.x", b"$JS.d.APIx.y", b"$JS.ACK.x", b"$JS.ACK.", b"$JS.dddddddd", b"$JS.FC.a.b", b"$JT.d.API.x",
        b"_R_.a", b"_R_.", b"_GR_.a", b"_INBOX.a", b"JS.d.API.x", b"$JS..API.x",
    ],
)  # fmt: skip
def test_both_versions_refuse_the_same_replies(twin: str, reply: bytes) -> None:
    client = Desk(twin).client()
    refused = b"Reply of" in client.say(b"PUB a " + reply + b" 0\r\n\r\n")
    assert refused == is_reserved_reply(reply)
