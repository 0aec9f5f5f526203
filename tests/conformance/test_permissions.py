"""Publish and subscribe permissions: the simple model holds on both servers; `allow_responses`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

import pytest

from conformance.client import Client
from conformance.servers import Server, Setup
from support.permission_model import Rules, meant, small_patterns

Connect = Callable[..., Client]

RULES = {
    "none": Rules(),
    "allow": Rules(publish_allow=("a.*", "b"), subscribe_allow=("a.*", "b")),
    "deny": Rules(publish_deny=("a.*",), subscribe_deny=("a.b", "b.>")),
    "both": Rules(
        publish_allow=(">",), publish_deny=("*.b",), subscribe_allow=("a.>", "*"), subscribe_deny=("a.*",)
    ),
    "nothing": Rules(publish_allow=("none.of.these",), subscribe_allow=("none.of.these",)),
    "queues": Rules(subscribe_allow=("a", "a q", "b.* q", "*.a *"), subscribe_deny=("*.b q",)),
    "queue_deny": Rules(subscribe_deny=("a.b q", "b")),
}


def config() -> str:
    users = []
    for name, rules in RULES.items():
        publish: dict[str, object] = {"deny": list(rules.publish_deny)}
        if rules.publish_allow is not None:
            publish["allow"] = list(rules.publish_allow)
        subscribe: dict[str, object] = {"deny": list(rules.subscribe_deny)}
        if rules.subscribe_allow is not None:
            subscribe["allow"] = list(rules.subscribe_allow)
        permissions = {"publish": publish, "subscribe": subscribe}
        users.append({"user": name, "password": "x", "permissions": permissions})
    users.append({"user": "all", "password": "x"})
    service = {"subscribe": ["svc.>"], "allow_responses": True}
    users.append({"user": "service", "password": "x", "permissions": service})
    for name, expires in (("twice", "1h"), ("lasting", "400ms")):
        rules = {"allow_responses": {"max": 2, "expires": expires}, "subscribe": "svc.>", "publish": "own.>"}
        users.append({"user": name, "password": "x", "permissions": rules})
    mute = {"publish": {"allow": []}}
    users.append({"user": "mute", "password": "x", "permissions": mute})
    endless = {"allow_responses": {"max": -1, "expires": "-1s"}}
    users.append({"user": "endless", "password": "x", "permissions": endless})
    return json.dumps({"authorization": {"users": users}})


@pytest.fixture(scope="module")
def server(kind: str) -> Iterator[Server]:
    with Server(kind, Setup(config=config(), jetstream=False)) as running:
        yield running


@pytest.fixture
def user(server: Server, connect: Connect) -> Callable[[str], Client]:
    return lambda name: connect(server, **{"user": name, "pass": "x"})


User = Callable[[str], Client]


def subjects() -> list[str]:
    return [subject for subject in sorted(meant(">")) if subject.count(".") < 2]


def literal_as_far_as_rules_go(pattern: str) -> bool:
    """Subscriptions wider than an allowed pattern are a deliberate difference."""
    return ">" not in pattern


@pytest.mark.parametrize("name", list(RULES))
def test_publish_permissions_match_the_model(server: Server, name: str) -> None:
    rules = RULES[name]
    with Client(server.port, **{"user": name, "pass": "x", "no_responders": False}) as client:
        client.errors.clear()
        for subject in subjects():
            client.publish(subject)
        client.flush()
        refused = [
            f'Permissions Violation for Publish to "{s}"' for s in subjects() if not rules.may_publish(s)
        ]
        assert [text for text in client.errors if "Publish" in text] == refused


@pytest.mark.parametrize("name", list(RULES))
@pytest.mark.parametrize("queue", [None, "q", "r"])
def test_subscribe_permissions_match_the_model(user: User, name: str, queue: str | None) -> None:
    rules, client, publisher = RULES[name], user(name), user("all")
    accepted: dict[str, str] = {}
    for pattern in filter(literal_as_far_as_rules_go, small_patterns()):
        client.errors.clear()
        sid = client.subscribe(pattern, queue or "")
        client.flush()
        using = f' using queue "{queue}"' if queue else ""
        expected = (
            []
            if rules.may_subscribe(pattern, queue)
            else [f'Permissions Violation for Subscription to "{pattern}"{using}']
        )
        assert client.errors == expected, (pattern, queue)
        if not expected:
            accepted[pattern] = sid
    for subject in subjects():
        publisher.publish(subject, subject.encode())
    publisher.flush()
    got = {pattern: {message.subject for message in client.pending(sid)} for pattern, sid in accepted.items()}
    everything = set().union(*got.values()) if got else set()
    if queue is None:
        for pattern, found in got.items():
            assert found == rules.delivered(pattern, queue) & set(subjects()), pattern
    else:
        # Subscriptions of one group share messages, so only all of them together receive each one.
        wanted = (
            set().union(*(rules.delivered(pattern, queue) for pattern in accepted)) if accepted else set()
        )
        assert everything == wanted & set(subjects())


@pytest.mark.ours_only("A subscription wider than its permission is rejected")
def test_a_subscription_wider_than_allowed_is_refused(user: User) -> None:
    client = user("allow")
    client.errors.clear()
    client.subscribe("a.>")
    client.subscribe(">")
    client.flush()
    assert len(client.errors) == 2


@pytest.mark.ours_only("An empty publish list allows nothing")
def test_an_empty_allow_list_allows_nothing(user: User) -> None:
    client = user("mute")
    client.errors.clear()
    client.publish("a")
    client.flush()
    assert len(client.errors) == 1


class TestResponses:
    def ask(self, asker: Client, answerer: Client) -> str:
        """Send a request to a user; return the reply subject that it may use now."""
        sid = answerer.subscribe("svc.x")
        answerer.flush()
        asker.publish("svc.x", b"?", reply=asker.inbox + ".1")
        asker.flush()
        reply = answerer.next(sid).reply
        answerer.unsubscribe(sid)
        answerer.errors.clear()
        return reply

    def answers(self, client: Client, reply: str, count: int) -> list[str]:
        for number in range(count):
            client.publish(reply, b"%d" % number)
        client.flush()
        return client.errors

    def test_a_reply_may_be_answered_once(self, user: User) -> None:
        asker, service = user("all"), user("service")
        reply = self.ask(asker, service)
        assert len(self.answers(service, reply, 3)) == 2
        assert [message.payload for message in asker.pending("1")] == [b"0"]

    def test_an_unrequested_response_is_refused(self, user: User) -> None:
        service = user("service")
        service.errors.clear()
        assert len(self.answers(service, "_INBOX.other", 1)) == 1

    def test_only_the_asked_connection_may_respond(self, user: User) -> None:
        asker, service, other = user("all"), user("service"), user("service")
        reply = self.ask(asker, service)
        other.errors.clear()
        assert len(self.answers(other, reply, 1)) == 1

    def test_as_often_as_allowed(self, user: User) -> None:
        asker, service = user("all"), user("twice")
        reply = self.ask(asker, service)
        assert len(self.answers(service, reply, 3)) == 1
        service.errors.clear()
        assert self.answers(service, "own.x", 2) == []

    def test_as_long_as_allowed(self, user: User) -> None:
        asker, service = user("all"), user("lasting")
        reply = self.ask(asker, service)
        time.sleep(0.6)
        assert len(self.answers(service, reply, 1)) == 1

    def test_unlimited_responses_are_allowed(self, user: User) -> None:
        asker, service = user("all"), user("endless")
        reply = self.ask(asker, service)
        assert self.answers(service, reply, 50) == []
