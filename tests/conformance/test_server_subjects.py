"""Nobody makes the server publish to its own API: not by replies over leafnodes, not by what streams and consumers send."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from conformance.client import Client
from conformance.consumer_client import eventually
from conformance.leafnode_pair import HUB, hub_setup
from conformance.leafnode_peer import LeafPeer
from conformance.servers import Server
from support.ports import free_port

USERS = (
    "authorization { users: [ {user: edge, password: pw, permissions: {publish: 'sensor.>', subscribe: 'down.>'}},"
    " {user: all, password: x} ] }"
)
API_SUBJECTS = ("$JS.API.STREAM.DELETE.VICTIM", f"$JS.{HUB}.API.STREAM.DELETE.VICTIM")


@pytest.fixture(scope="module")
def hub(kind: str) -> Iterator[tuple[Server, int]]:
    port = free_port()
    with Server(kind, hub_setup(port, more=USERS)) as server:
        yield server, port


@pytest.fixture
def client(hub: tuple[Server, int]) -> Iterator[Client]:
    with Client(hub[0].port, user="all", **{"pass": "x"}) as connected:
        connected.api("STREAM.CREATE.VICTIM", {"name": "VICTIM", "subjects": ["victim.>"]})
        connected.api("STREAM.PURGE.VICTIM")
        yield connected


def exists(client: Client) -> bool:
    return "error" not in client.api("STREAM.INFO.VICTIM")


@pytest.mark.ours_only("A leafnode message with a reply subject of the JetStream API is dropped")
@pytest.mark.parametrize("reply", API_SUBJECTS)
def test_an_ack_over_a_leafnode_is_no_request(hub: tuple[Server, int], client: Client, reply: str) -> None:
    consumer = {"durable_name": "C", "ack_policy": "explicit"}
    client.api("CONSUMER.DURABLE.CREATE.VICTIM.C", {"stream_name": "VICTIM", "config": consumer})
    client.request("victim.a", b"x")
    sid = client.subscribe("_INBOX.pull")
    client.publish("$JS.API.CONSUMER.MSG.NEXT.VICTIM.C", b"1", reply="_INBOX.pull")
    message = client.next(sid)
    with LeafPeer.dial(hub[1]) as leaf:
        leaf.connect(user="edge", **{"pass": "pw"})
        leaf.until_pong()
        leaf.send(f"LMSG {message.reply} {reply} 0\r\n\r\n".encode())
        leaf.send(f"LMSG sensor.a {reply} 0\r\n\r\n".encode())
        leaf.until_pong()
    # The confirmation of the ack would be sent after the next commit.
    client.request("victim.b", b"x")
    assert exists(client)
    client.api("CONSUMER.DELETE.VICTIM.C")


def test_ordinary_replies_cross(hub: tuple[Server, int], client: Client) -> None:
    sid = client.subscribe("sensor.>")
    client.flush()
    with LeafPeer.dial(hub[1]) as leaf:
        leaf.connect(user="edge", **{"pass": "pw"})
        leaf.until_pong()
        for reply in ("_INBOX.a.b", "$JS.ACK.EDGE.C.1.1.1.1.0", "$JS.FC.EDGE.C.x", "down.a"):
            leaf.send(f"LMSG sensor.a {reply} 0\r\n\r\n".encode())
            assert client.next(sid).reply == reply


@pytest.mark.ours_only("A reply subject below `$JS.API.` is rejected")
@pytest.mark.parametrize("reply", API_SUBJECTS)
def test_a_client_s_reply_is_no_request(client: Client, reply: str) -> None:
    client.errors.clear()
    client.publish("victim.a", b"x", reply=reply)
    client.flush()
    assert client.errors == [f'Permissions Violation for Publish with Reply of "{reply}"']
    assert exists(client)


@pytest.mark.ours_only("Streams and consumers do not send to the server's own subjects")
@pytest.mark.parametrize("dest", [*API_SUBJECTS, "$JS.ACK.VICTIM.C.1.1.1.1.0", "$SYS.REQ.SERVER.PING"])
def test_what_streams_and_consumers_send_is_no_request(client: Client, dest: str, name: str) -> None:
    republish = {"src": ">", "dest": dest}
    config: dict[str, Any] = {"name": name, "subjects": [name], "republish": republish}
    assert "belongs to the server" in client.api(f"STREAM.CREATE.{name}", config)["error"]["description"]
    push = {"stream_name": "VICTIM", "config": {"durable_name": "P", "deliver_subject": dest}}
    assert client.api("CONSUMER.DURABLE.CREATE.VICTIM.P", push)["error"]["err_code"] == 10112
    backup = client.api("STREAM.SNAPSHOT.VICTIM", {"deliver_subject": dest})
    assert backup["error"]["err_code"] == 10015
    external = {"api": "$JS.EDGE.API", "deliver": dest}
    config = {"name": name, "sources": [{"name": "REMOTE", "external": external}]}
    assert client.api(f"STREAM.CREATE.{name}", config)["error"]["err_code"] == 10024


@pytest.mark.ours_only("Streams and consumers do not send to the server's own subjects")
def test_a_transform_cannot_make_a_request_of_a_copy(client: Client, name: str) -> None:
    rule = {"src": f"{name}.*", "dest": "{{split(1,-)}}"}
    config = {"name": name, "subjects": [f"{name}.>"], "republish": rule}
    assert "error" not in client.api(f"STREAM.CREATE.{name}", config)
    sid = client.subscribe("copied.>")
    client.request(f"{name}.$JS-API-STREAM-DELETE-VICTIM")
    client.request(f"{name}.copied-b")
    assert client.next(sid).subject == "copied.b"
    eventually(lambda: exists(client))
    client.api(f"STREAM.DELETE.{name}")
