"""A session: CONNECT, subscriptions and their limits, and what it sends."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.native_and_pure import TWINS, Anybody, Desk, load

DEEP = b'{"a":' + b"[" * 3500
UNAUTHORIZED = b"-ERR 'Authorization Violation'\r\n<EOF>"


@pytest.fixture(params=TWINS)
def twin(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def desk(twin: str) -> Desk:
    return Desk(twin)


def test_defaults_before_connect(desk: Desk) -> None:
    client = desk.client(b"")
    assert client.say(b"SUB a 1\r\nPUB a 0\r\n\r\n") == b"+OK\r\n+OK\r\nMSG a 1 0\r\n\r\n"
    assert client.say(b"PUB a.* 0\r\n\r\n") == b"-ERR 'Invalid Publish Subject'\r\n+OK\r\n"


@pytest.mark.parametrize(
    ("args", "answer"),
    [
        (b"{}", b"+OK\r\n"),
        (b'{"VERBOSE":false,"unknown":[1,2]}', b""),
        (b'{"verbose":false,"lang":null}', b""),
        (b"{bad", b"<EOF>"),
        (b"", b"<EOF>"),
        (b"[]", b"<EOF>"),
        (b'{"verbose":"yes"}', b"<EOF>"),
        (b'{"user":1}', b"<EOF>"),
        (b'{"protocol":true}', b"<EOF>"),
        (b'{"name":"\xff"}', b"<EOF>"),
        (b'{"protocol":2}', b"-ERR 'invalid client protocol'\r\n<EOF>"),
        (b'{"no_responders":true}', b"-ERR 'no responders requires headers support'\r\n<EOF>"),
        (b'{"account":"X"}', UNAUTHORIZED),
        (b'{"new_account":true}', UNAUTHORIZED),
    ],
)
def test_connect_options_are_checked(desk: Desk, args: bytes, answer: bytes) -> None:
    assert desk.client(b"").say(b"CONNECT " + args + b"\r\n") == answer


def test_rejected_connections(desk: Desk) -> None:
    client = desk.client(b"", ready=False)
    client.owner.identity = None
    assert client.say(b'CONNECT {"USER":"x"}\r\n') == UNAUTHORIZED
    assert client.owner.connects == [{"user": "x"}]


def test_a_second_connect_starts_over(desk: Desk) -> None:
    client = desk.client(b"")
    client.say(b'CONNECT {"verbose":false,"headers":true}\r\nSUB a 1\r\n')
    assert client.session.headers
    client.say(b'CONNECT {"verbose":true}\r\n')
    assert not client.session.headers
    assert desk.hub.subscriptions == 0
    assert client.session.subs == {}


@pytest.mark.parametrize("sliced", [False, True])
def test_a_client_that_disconnects_is_removed_at_once_and_its_subscriptions_in_slices(
    desk: Desk, sliced: bool
) -> None:
    turns: list[Callable[[], None]] = []
    desk.hub.set_wakeup(None, turns.append if sliced else None)
    told: list[bytes] = []
    desk.hub.watch_all(told.append)
    client, other = desk.client(), desk.client()
    client.say(b"".join(b"SUB a.%d g %d\r\n" % (number, number) for number in range(600)) + b"SUB a.* w\r\n")
    other.say(b"SUB a.599 g 1\r\n")
    told.clear()
    client.session.close()
    assert desk.hub.subscriptions == 1
    for _ in range(4):  # the remaining member gets everything
        assert other.say(b"PUB a.599 0\r\n\r\n") == b"MSG a.599 1 0\r\n\r\n"
    assert not desk.hub.has_interest(b"a.7")
    assert client.say(b"") == b""
    for turn in turns:  # grows meanwhile
        turn()
    assert len(turns) == (2 if sliced else 0)
    assert len(told) == 601
    assert [pattern for pattern, _ in desk.hub.entries()] == [b"a.599"]


def test_info_follows_the_first_ping_of_a_new_protocol(desk: Desk) -> None:
    info = b'INFO {"connect_info":true} \r\n'
    new = desk.client(b'CONNECT {"verbose":false,"protocol":1}\r\n')
    assert new.say(b"PING\r\nPING\r\n") == b"PONG\r\n" + info + b"PONG\r\n"
    assert desk.client().say(b"PING\r\n") == b"PONG\r\n"
    assert desk.client(b"").say(b"PING\r\n") == b"PONG\r\n"


def test_subscription_limits_are_enforced(twin: str) -> None:
    limits = load(twin).SessionLimits(subscriptions=2, subscription_tokens=3)
    client = Desk(twin).client(limits=limits)
    assert client.say(b"SUB a.b.c.d 1\r\n") == (
        b"-ERR 'Permissions Violation for Subscription to \"a.b.c.d\", too many tokens'\r\n"
    )
    assert client.say(b"SUB a 1\r\nSUB b 2\r\nSUB c 3\r\n") == b"-ERR 'maximum subscriptions exceeded'\r\n"
    assert client.say(b"UNSUB 1\r\nSUB c 3\r\nPUB c 0\r\n\r\n") == b"MSG c 3 0\r\n\r\n"


def test_a_sid_in_use_stays_what_it_is(desk: Desk) -> None:
    client = desk.client(b"")
    assert client.say(b"SUB a 1\r\nSUB a..b 1\r\n") == b"+OK\r\n+OK\r\n"
    assert list(client.session.subs) == [b"1"]


def test_an_invalid_subject_leaves_nothing(desk: Desk) -> None:
    client = desk.client()
    assert client.say(b"SUB a.>.b 1\r\nSUB .a 1\r\nSUB a. 1\r\n") == b"-ERR 'Invalid Subject'\r\n" * 3
    assert client.session.subs == {}


@pytest.mark.parametrize("most", [b"0", b"x", b"-1", b"9999999999"])
def test_unsubscribing_with_a_senseless_maximum_is_now(desk: Desk, most: bytes) -> None:
    client = desk.client()
    assert client.say(b"SUB a 1\r\nUNSUB 1 %s\r\nPUB a 0\r\n\r\n" % most) == b""


def test_subscriptions_beyond_permissions_are_refused(twin: str) -> None:
    rules = load(twin).Permissions(subscribe_allow=[b"bar.>", b"qq v1"], subscribe_deny=[b"bar.no"])
    client = Desk(twin).client(identity=Anybody(rules))
    refused = b"-ERR 'Permissions Violation for Subscription to \"%s\"'\r\n"
    assert client.say(b"SUB bar.1 1\r\nSUB x 2\r\nSUB bar.no 3\r\nSUB > 4\r\n") == (
        refused % b"x" + refused % b"bar.no" + refused % b">"
    )
    assert client.say(b"SUB qq 5\r\nSUB qq v1 6\r\nSUB qq v2 7\r\n") == (
        refused % b"qq" + refused % b'qq" using queue "v2'
    )


def test_no_responders_needs_a_plain_subscription_of_ones_own(desk: Desk) -> None:
    client, other = desk.client(), desk.client()
    other.say(b"SUB i.* 1\r\n")
    assert client.say(b"SUB i.x q 1\r\nPUB nobody i.x 0\r\n\r\nPUB nobody i..x 0\r\n\r\n") == b""
    assert other.heard() == b""
    client.say(b"SUB i.x 2\r\n")
    assert client.say(b"PUB a..b i.x 0\r\n\r\n") == (
        b"HMSG i.x 2 36 36\r\nNATS/1.0 503\r\nNats-Subject: a..b\r\n\r\n\r\n"
    )


def test_a_greeting_nested_deep_ends_the_connection_in_good_order(twin: str) -> None:
    assert Desk(twin).client(b"", ready=False).say(b"CONNECT " + DEEP + b"\r\n") == b"<EOF>"


def test_texts_of_strangers_are_not_shared(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interned texts are never freed by Python 3.12.0 to 3.12.4, and each stranger can bring new ones."""
    module = desk.classes.Session.on_connect.__globals__
    monkeypatch.setitem(module, "_shared_texts", {})
    monkeypatch.setitem(module, "_SHARED_TEXTS_MAX", 3)
    desk.client(b"").say(b'CONNECT {"lang":"stranger","version":"1","protocol":9}\r\n')
    assert module["_shared_texts"] == {}
    for number in range(9):
        desk.client(b"").say(b'CONNECT {"lang":"python","version":"%d"}\r\n' % number)
    assert list(module["_shared_texts"]) == ["python", "0", "1"]
