"""Subject mappings: messages published on one subject are routed on another."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from conformance.client import Client
from conformance.servers import Server, Setup

Connect = Callable[..., Client]
CONFIG = """
mappings {
  "plain": "changed"
  "m.*.*": "mapped.$2.$1"
  "fn.*": "fn.{{partition(3,1)}}.$1"
  "deep.>": "deeper.>"
  "split": [{destination: "split.a", weight: 50%}, {destination: "split.b", weight: 50%}]
  "some": [{destination: "some.changed", weight: 30%}]
  "chain": "plain"
}
"""


@pytest.fixture(scope="module")
def server(kind: str) -> Iterator[Server]:
    with Server(kind, Setup(config=CONFIG)) as running:
        yield running


@pytest.fixture
def listener(server: Server, connect: Connect) -> tuple[Client, str]:
    client = connect(server)
    sid = client.subscribe(">")
    client.flush()
    return client, sid


def heard(client: Client, sid: str, publisher: Client) -> list[str]:
    publisher.flush()
    return [m.subject for m in client.pending(sid) if not m.subject.startswith(("_INBOX", "$JS"))]


@pytest.mark.parametrize(
    ("published", "delivered"),
    [
        ("plain", "changed"),
        ("m.one.two", "mapped.two.one"),
        ("m.one", "m.one"),
        ("deep.a.b", "deeper.a.b"),
        ("chain", "plain"),
        ("changed", "changed"),
        ("other", "other"),
    ],
)
def test_where_it_goes(
    server: Server, connect: Connect, listener: tuple[Client, str], published: str, delivered: str
) -> None:
    publisher = connect(server)
    publisher.publish(published, b"x", {"K": "v"})
    assert heard(*listener, publisher) == [delivered]


def test_a_mapping_may_use_partition(server: Server, connect: Connect, listener: tuple[Client, str]) -> None:
    publisher = connect(server)
    publisher.publish("fn.key")
    [subject] = heard(*listener, publisher)
    assert subject in {f"fn.{number}.key" for number in range(3)}


def test_subscribers_of_the_old_subject_receive_nothing(server: Server, connect: Connect) -> None:
    client, publisher = connect(server), connect(server)
    sid = client.subscribe("plain")
    client.flush()
    publisher.publish("plain")
    publisher.flush()
    assert client.pending(sid) == []
    assert publisher.request("plain").status == "503"


def test_weighted_mappings_split_messages(
    server: Server, connect: Connect, listener: tuple[Client, str]
) -> None:
    publisher = connect(server)
    for _ in range(400):
        publisher.publish("split")
        publisher.publish("some")
    subjects = heard(*listener, publisher)
    counts = {subject: subjects.count(subject) for subject in set(subjects)}
    assert set(counts) == {"split.a", "split.b", "some", "some.changed"}
    assert counts["split.a"] + counts["split.b"] == 400
    assert 130 < counts["split.a"] < 270
    assert 60 < counts["some.changed"] < 190


def test_requests_are_answered(server: Server, connect: Connect) -> None:
    service, client = connect(server), connect(server)
    sid = service.subscribe("mapped.>")
    service.flush()
    client.ask("m.a.b", b"?")
    request = service.next(sid)
    service.publish(request.reply, b"!")
    service.flush()
    assert client.next("1").payload == b"!"


def test_streams_store_what_it_became(server: Server, connect: Connect) -> None:
    client = connect(server)
    client.api("STREAM.CREATE.MAPPED", {"name": "MAPPED", "subjects": ["deeper.>"]})
    assert client.store("deep.x", b"1")["seq"] == 1
    assert client.api("STREAM.MSG.GET.MAPPED", {"seq": 1})["message"]["subject"] == "deeper.x"
    client.api("STREAM.DELETE.MAPPED")


def test_new_interest_is_noticed(server: Server, connect: Connect) -> None:
    publisher, client = connect(server), connect(server)
    for subject in ("changed", "unmapped.x"):
        assert publisher.request("plain" if subject == "changed" else subject).status == "503"
        sid = client.subscribe(subject)
        client.flush()
        publisher.publish("plain" if subject == "changed" else subject, b"x")
        publisher.flush()
        assert len(client.pending(sid)) == 1
        client.unsubscribe(sid)
        client.flush()


def test_a_reload_changes_them(kind: str) -> None:
    with (
        Server(kind, Setup(config="mappings { a: b }", jetstream=False)) as server,
        Client(server.port) as client,
    ):
        sid = client.subscribe(">")
        client.publish("a")
        assert heard(client, sid, client) == ["b"]
        server.reload("mappings { a: c }")
        client.publish("a")
        assert heard(client, sid, client) == ["c"]


def test_an_account_has_its_own(kind: str, connect: Connect) -> None:
    config = """accounts { A { users: [{user: a, password: a}], mappings { x: y } }
                           B { users: [{user: b, password: b}] } }"""
    with Server(kind, Setup(config=config, jetstream=False)) as server:
        for user, expected in (("a", "y"), ("b", "x")):
            client = connect(server, **{"user": user, "pass": user})
            sid = client.subscribe("*")
            client.publish("x")
            assert heard(client, sid, client) == [expected]


@pytest.mark.parametrize(
    "text",
    [
        "mappings { 'a..b': c }",
        "mappings { 'a.*': 'b.$2' }",
        "mappings { a: [{destination: b, weight: 60%}, {destination: c, weight: 60%}] }",
        "mappings { a: [{destination: b, weight: 10%}, {destination: b, weight: 20%}] }",
        "mappings { a: 'b.{{nonsense(1)}}' }",
    ],
)
def test_what_makes_no_sense(kind: str, text: str) -> None:
    with pytest.raises(RuntimeError, match="ended with 1"):
        Server(kind, Setup(config=text, jetstream=False))


def test_who_wants_no_echo_gets_none(server: Server, connect: Connect) -> None:
    silent, other = connect(server, echo=False), connect(server)
    own, theirs = silent.subscribe("changed"), other.subscribe("changed")
    silent.flush()
    other.flush()
    silent.publish("plain", b"x")
    silent.flush()
    other.flush()
    assert len(other.pending(theirs)) == 1
    assert not silent.pending(own)
