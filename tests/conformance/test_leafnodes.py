"""Leafnodes in every pairing of Headrace and nats-server: which messages cross, which do not, and permissions."""

from __future__ import annotations

import itertools
import json

import pytest

from conformance.client import TIMEOUT_S, Client
from conformance.consumer_client import eventually
from conformance.leafnode_pair import HUB, LEAF, Joined

_marks = itertools.count(1)


@pytest.fixture(params=[True, False], ids=["up", "down"])
def ends(request: pytest.FixtureRequest, pair: Joined) -> tuple[Client, Client]:
    """The sending and the receiving side."""
    origin, copy = pair.ways(request.param)
    return origin.client, copy.client


class TestMessages:
    def test_headers_replies_and_payloads(self, ends: tuple[Client, Client], name: str) -> None:
        sender, listener = ends
        sid = listener.subscribe(f"{name}.*")
        listener.flush()
        eventually(lambda: _arrives(sender, listener, sid, f"{name}.probe"))
        sender.publish(f"{name}.a", b"plain")
        sender.publish(f"{name}.b", b"with", {"A": "b", "C": "d"}, reply="answer.here")
        sender.publish(f"{name}.c", b"")
        got = [listener.next(sid) for _ in range(3)]
        assert [(m.subject, m.payload) for m in got] == [
            (f"{name}.a", b"plain"),
            (f"{name}.b", b"with"),
            (f"{name}.c", b""),
        ]
        assert got[1].headers == {"A": "b", "C": "d"}
        assert got[1].reply == "answer.here"

    def test_requests_are_answered_once_each(self, ends: tuple[Client, Client], name: str) -> None:
        asker, service = ends
        sid = service.subscribe(f"{name}.ask")
        service.flush()
        eventually(lambda: _arrives(asker, service, sid, f"{name}.ask"))
        inbox = asker.subscribe(f"{name}.inbox")
        for number in range(5):
            asker.publish(f"{name}.ask", b"%d" % number, reply=f"{name}.inbox")
            request = service.next(sid)
            service.publish(request.reply, b"answer to " + request.payload)
            service.flush()
            assert asker.next(inbox).payload == b"answer to %d" % number
        assert asker.pending(inbox) == []

    def test_no_responders_is_reported_at_once(self, ends: tuple[Client, Client], name: str) -> None:
        assert ends[0].request(f"{name}.nobody").status == "503"

    def test_no_interest_any_more(self, ends: tuple[Client, Client], name: str) -> None:
        sender, listener = ends
        sid = listener.subscribe(f"{name}.gone")
        other = listener.subscribe(f"{name}.gone")
        listener.flush()
        eventually(lambda: _arrives(sender, listener, sid, f"{name}.gone"))
        listener.unsubscribe(sid)
        listener.flush()
        assert _arrives(sender, listener, other, f"{name}.gone", TIMEOUT_S)
        listener.unsubscribe(other)
        listener.flush()
        eventually(lambda: _nobody(sender, f"{name}.gone"))

    def test_a_message_arrives_once_on_each_side(self, pair: Joined, name: str) -> None:
        """A message that both sides subscribe to arrives once on each."""
        sides = (pair.hub.client, pair.leaf.client)
        sids = [client.subscribe(f"{name}.both") for client in sides]
        for client in sides:
            client.flush()
        eventually(lambda: _arrives(sides[0], sides[1], sids[1], f"{name}.both"))
        eventually(lambda: _arrives(sides[1], sides[0], sids[0], f"{name}.both"))
        for client, sid in zip(sides, sids, strict=True):
            client.pending(sid)
        sides[0].publish(f"{name}.both", b"once")
        sides[0].flush()
        for client, sid in zip(sides, sids, strict=True):
            _next(client, sid, b"once")
        for client, sid in zip(sides, sids, strict=True):
            assert b"once" not in [message.payload for message in client.pending(sid)]


class TestQueues:
    def test_a_group_on_the_other_side(self, ends: tuple[Client, Client], name: str) -> None:
        """Each message reaches one member of each group, and every plain subscriber."""
        sender, listener = ends
        members = [listener.subscribe(f"{name}.q", "group") for _ in range(2)]
        others = [listener.subscribe(f"{name}.*", "other")]
        plain = listener.subscribe(f"{name}.q")
        listener.flush()
        eventually(lambda: _arrives(sender, listener, plain, f"{name}.q"))
        eventually(lambda: _arrives(sender, listener, others[0], f"{name}.q"))
        for sid in (*members, *others, plain):
            listener.pending(sid)
        for _ in range(20):
            sender.publish(f"{name}.q", b"x")
        for _ in range(20):
            _next(listener, plain, b"x")
        arrived = [message.payload for sid in members for message in listener.pending(sid)]
        assert arrived.count(b"x") == 20
        assert [message.payload for message in listener.pending(others[0])].count(b"x") == 20

    def test_members_at_home_are_preferred(self, ends: tuple[Client, Client], name: str) -> None:
        sender, listener = ends
        far = listener.subscribe(f"{name}.q", "group")
        listener.flush()
        eventually(lambda: _arrives(sender, listener, far, f"{name}.q"))
        near = sender.subscribe(f"{name}.q", "group")
        sender.flush()
        listener.pending(far)
        for _ in range(10):
            sender.publish(f"{name}.q", b"x")
        assert [sender.next(near).payload for _ in range(10)] == [b"x"] * 10
        assert [message for message in listener.pending(far) if message.payload == b"x"] == []


class TestDomains:
    def test_each_side_answers_its_own_api(self, pair: Joined) -> None:
        for side in pair:
            plain = side.client.request("$JS.API.INFO").json
            assert plain["domain"] == side.domain

    @pytest.mark.parametrize("domain", [HUB, LEAF])
    def test_either_side_reaches_a_domain(self, pair: Joined, domain: str) -> None:
        for side in pair:
            eventually(lambda side=side: side.client.request(f"$JS.{domain}.API.INFO").status == "")
            assert side.client.request(f"$JS.{domain}.API.INFO").json["domain"] == domain

    def test_buckets_stay_at_home(self, ends: tuple[Client, Client], name: str) -> None:
        sender, listener = ends
        listener.subscribe(f"$KV.{name}.>")
        mark = listener.subscribe(f"{name}.mark")
        listener.flush()
        eventually(lambda: _arrives(sender, listener, mark, f"{name}.mark"))
        assert sender.request(f"$KV.{name}.a").status == "503"

    def test_a_bucket_over_there(self, pair: Joined, name: str) -> None:
        """Keys are put and read through the domain's prefix."""
        for near, far in ((pair.hub, pair.leaf), (pair.leaf, pair.hub)):
            config = {
                "name": f"KV_{name}",
                "subjects": [f"$KV.{name}.>"],
                "max_msgs_per_subject": 1,
                "allow_direct": True,
            }
            far.client.api(f"STREAM.CREATE.KV_{name}", config)
            try:
                put = f"{far.api}.$KV.{name}.colour"
                eventually(lambda near=near, put=put: near.client.request(put, b"red").status != "503")
                assert near.client.request(put, b"green").json["stream"] == f"KV_{name}"
                got = near.client.request(f"{far.api}.DIRECT.GET.KV_{name}.$KV.{name}.colour")
                assert (got.payload, got.headers["Nats-Subject"]) == (b"green", f"$KV.{name}.colour")
            finally:
                far.client.api(f"STREAM.DELETE.KV_{name}")

    def test_publishing_into_a_stream_there(self, ends: tuple[Client, Client], name: str) -> None:
        sender, listener = ends
        listener.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"]})
        try:
            eventually(lambda: sender.request(f"{name}.a", b"1").status != "503")
            ack = sender.store(f"{name}.a", b"2")
            assert ack["stream"] == name
            assert ack["seq"] == 2
        finally:
            listener.api(f"STREAM.DELETE.{name}")

    def test_consuming_from_a_stream_there(self, pair: Joined, name: str) -> None:
        """Pull and push consumers deliver across the connection, and are acknowledged from there."""
        for near, far in ((pair.hub, pair.leaf), (pair.leaf, pair.hub)):
            far.client.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"]})
            try:
                self.consume(near.client, far.client, far.api, name)
            finally:
                far.client.api(f"STREAM.DELETE.{name}")

    def consume(self, near: Client, far: Client, api: str, name: str) -> None:
        for number in range(4):
            far.store(f"{name}.{number}", b"m%d" % number)
        config = {"durable_name": "P", "ack_policy": "explicit"}
        body = json.dumps({"stream_name": name, "config": config}).encode()
        made = near.request(f"{api}.CONSUMER.CREATE.{name}.P", body)
        assert made.json["name"] == "P"
        inbox = near.subscribe(f"pull.{name}")
        near.flush()
        eventually(lambda: _arrives(far, near, inbox, f"pull.{name}"))
        near.pending(inbox)
        near.publish(f"{api}.CONSUMER.MSG.NEXT.{name}.P", b'{"batch":4}', reply=f"pull.{name}")
        got = [near.next(inbox) for _ in range(4)]
        assert [(m.subject, m.payload) for m in got] == [(f"{name}.{n}", b"m%d" % n) for n in range(4)]
        for message in got:
            assert near.request(message.reply, b"+ACK").status == ""
        info = far.api(f"CONSUMER.INFO.{name}.P")
        assert (info["ack_floor"]["stream_seq"], info["num_ack_pending"]) == (4, 0)
        self.push(near, far, api, name)

    def push(self, near: Client, far: Client, api: str, name: str) -> None:
        inbox = near.subscribe(f"push.{name}")
        near.flush()
        eventually(lambda: _arrives(far, near, inbox, f"push.{name}"))
        near.pending(inbox)
        config = {"durable_name": "U", "ack_policy": "explicit", "deliver_subject": f"push.{name}"}
        body = json.dumps({"stream_name": name, "config": config}).encode()
        near.request(f"{api}.CONSUMER.CREATE.{name}.U", body)
        got = [near.next(inbox) for _ in range(4)]
        assert [(m.subject, m.payload) for m in got] == [(f"{name}.{n}", b"m%d" % n) for n in range(4)]


def _next(listener: Client, sid: str, payload: bytes) -> None:
    """Wait for a message with this payload; skip earlier probes."""
    while listener.next(sid).payload != payload:
        pass


def _nobody(sender: Client, subject: str) -> bool:
    """Return whether the sender gets "no responders"."""
    try:
        return sender.request(subject, timeout_s=0.2).status == "503"
    except TimeoutError:
        return False


def _arrives(sender: Client, listener: Client, sid: str, subject: str, timeout_s: float = 0.2) -> bool:
    """Return whether a message that is sent now arrives soon; earlier messages have been read by then."""
    mark = f"?{next(_marks)}".encode()
    sender.publish(subject, mark)
    sender.flush()
    try:
        while listener.next(sid, timeout_s).payload != mark:
            pass
    except TimeoutError:
        return False
    return True
