"""The leafnode protocol byte by byte, with a scripted peer, on both servers in both roles."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from conformance.client import Client
from conformance.consumer_client import eventually
from conformance.leafnode_pair import HUB, LEAF, hub_setup, leaf_setup
from conformance.leafnode_peer import EOF, LeafPeer, PlayedHub
from conformance.servers import Server
from support.ports import free_port


@pytest.fixture(scope="module")
def hub(kind: str) -> Iterator[tuple[Server, int]]:
    """A server that listens for leafnodes, and its port."""
    port = free_port()
    with Server(kind, hub_setup(port)) as server:
        yield server, port


@pytest.fixture
def client(hub: tuple[Server, int]) -> Iterator[Client]:
    with Client(hub[0].port) as connected:
        yield connected


@pytest.fixture
def leaf(hub: tuple[Server, int]) -> Iterator[LeafPeer]:
    """A scripted leaf that is connected and has read the initial interest."""
    with LeafPeer.dial(hub[1]) as peer:
        peer.connect()
        peer.until_pong()
        yield peer


class TestListening:
    def test_the_hub_sends_info_and_accepts_connect(self, hub: tuple[Server, int]) -> None:
        with LeafPeer.dial(hub[1]) as peer:
            info = peer.info
            assert info["client_id"] > 0
            assert info["leafnode_urls"] == [f"127.0.0.1:{hub[1]}"]
            assert (info["headers"], info["jetstream"], info["domain"]) == (True, True, HUB)
            assert info["info_on_connect"]
            assert len(info["nonce"]) > 10
            answer = peer.connect()
            assert (answer["connect_info"], answer["remote_account"]) == (True, "$G")

    def test_interest_is_announced(self, hub: tuple[Server, int], client: Client, name: str) -> None:
        client.subscribe(f"{name}.a")
        client.subscribe(f"{name}.a")
        client.subscribe(f"{name}.*.b", "q")
        client.subscribe(f"{name}.*.b", "q")
        client.subscribe("$KV.bucket.>")
        client.flush()
        with LeafPeer.dial(hub[1]) as peer:
            peer.connect()
            told = peer.until_pong()
        assert told.count(f"LS+ {name}.a\r\n".encode()) == 1
        assert told.count(f"LS+ {name}.*.b q 2\r\n".encode()) == 1
        assert len([each for each in told if each.startswith(b"LS+ $LDS.")]) == 1
        assert f"LS+ $JS.{HUB}.API.STREAM.>\r\n".encode() in told
        assert f"LS+ $JS.{HUB}.API.CONSUMER.>\r\n".encode() in told
        assert not [each for each in told if each.startswith((b"LS+ $KV", b"LS+ $OBJ"))]

    def test_changes_are_reported(self, leaf: LeafPeer, client: Client, name: str) -> None:
        one, other = client.subscribe(f"{name}.a"), client.subscribe(f"{name}.a")
        members = [client.subscribe(f"{name}.b", "q") for _ in range(2)]
        client.flush()
        ours = (f"LS+ {name}".encode(), f"LS- {name}".encode())
        told = [leaf.next(ours).decode() for _ in range(3)]
        assert told == [f"LS+ {name}.a\r\n", f"LS+ {name}.b q 1\r\n", f"LS+ {name}.b q 2\r\n"]
        client.unsubscribe(one)
        client.unsubscribe(members[0])
        client.flush()
        assert leaf.next(ours) == f"LS+ {name}.b q 1\r\n".encode()
        client.unsubscribe(members[1])
        client.unsubscribe(other)
        client.flush()
        assert leaf.next(ours) == f"LS- {name}.b q\r\n".encode()
        assert leaf.next(ours) == f"LS- {name}.a\r\n".encode()

    def test_messages_to_the_leaf(self, leaf: LeafPeer, client: Client, name: str) -> None:
        leaf.send(f"LS+ {name}.>\r\nLS+ {name}.q one 1\r\nLS+ {name}.q two 3\r\n".encode())
        leaf.until_pong()
        client.publish(f"{name}.a", b"x")
        client.publish(f"{name}.a", b"x", reply="r.1")
        client.publish(f"{name}.a", b"x", {"A": "b"}, reply="r.1")
        client.publish(f"{name}.a", b"", {"A": "b"})
        client.flush()
        subject = f"{name}.a".encode()
        assert leaf.next(b"LMSG") == b"LMSG %s 1\r\nx\r\n" % subject
        assert leaf.next(b"LMSG") == b"LMSG %s r.1 1\r\nx\r\n" % subject
        block = b"NATS/1.0\r\nA: b\r\n\r\n"
        assert leaf.next(b"HMSG") == b"HMSG %s r.1 %d %d\r\n%sx\r\n" % (
            subject,
            len(block),
            len(block) + 1,
            block,
        )
        assert leaf.next(b"HMSG") == b"HMSG %s %d %d\r\n%s\r\n" % (subject, len(block), len(block), block)

    def test_queues_are_named(self, leaf: LeafPeer, client: Client, name: str) -> None:
        leaf.send(f"LS+ {name}.q one 1\r\nLS+ {name}.* two 3\r\n".encode())
        leaf.until_pong()
        client.publish(f"{name}.q", b"x")
        client.publish(f"{name}.q", b"x", reply="r.1")
        client.flush()
        for start in (f"LMSG {name}.q | ", f"LMSG {name}.q + r.1 "):
            message = leaf.next(b"LMSG").decode()
            assert message.startswith(start)
            assert sorted(message.removeprefix(start).split()) == ["1", "one", "two", "x"]

    def test_messages_from_the_leaf(self, leaf: LeafPeer, client: Client, name: str) -> None:
        sid = client.subscribe(f"{name}.>")
        client.flush()
        leaf.send(f"LMSG {name}.a 2\r\nhi\r\n".encode())
        leaf.send(f"LMSG {name}.b r.1 0\r\n\r\n".encode())
        leaf.send(f"HMSG {name}.c r.1 18 19\r\nNATS/1.0\r\nA: b\r\n\r\nx\r\n".encode())
        got = [client.next(sid) for _ in range(3)]
        assert [(m.subject, m.reply, m.payload) for m in got] == [
            (f"{name}.a", "", b"hi"),
            (f"{name}.b", "r.1", b""),
            (f"{name}.c", "r.1", b"x"),
        ]
        assert got[2].headers == {"A": "b"}

    def test_only_the_queues_that_are_named_receive(self, leaf: LeafPeer, client: Client, name: str) -> None:
        plain = client.subscribe(f"{name}.a")
        one, two = client.subscribe(f"{name}.a", "one"), client.subscribe(f"{name}.a", "two")
        client.flush()
        leaf.send(f"LMSG {name}.a 1\r\n1\r\n".encode())
        leaf.send(f"LMSG {name}.a | one 1\r\n2\r\n".encode())
        leaf.send(f"LMSG {name}.a + r.1 two one 1\r\n3\r\n".encode())
        assert [client.next(plain).payload for _ in range(3)] == [b"1", b"2", b"3"]
        assert [m.payload for m in client.pending(one)] == [b"2", b"3"]
        assert [(m.payload, m.reply) for m in client.pending(two)] == [(b"3", "r.1")]

    def test_a_delivery_shows_the_stream_s_subject(self, leaf: LeafPeer, client: Client, name: str) -> None:
        """A consumer's delivery on the other server: routed by one subject, shown with another."""
        sid = client.subscribe(f"{name}.deliver")
        client.flush()
        ack = "$JS.ACK.O.C.1.5.1.1700000000000000000.0"
        leaf.send(f"LMSG {name}.deliver {ack}@orders.new 2\r\nhi\r\n".encode())
        message = client.next(sid)
        assert (message.subject, message.reply, message.payload) == ("orders.new", ack, b"hi")

    def test_nothing_comes_back(self, leaf: LeafPeer, client: Client, name: str) -> None:
        leaf.send(f"LS+ {name}.a\r\nLMSG {name}.a 1\r\nx\r\n".encode())
        assert [each for each in leaf.until_pong() if b"MSG" in each[:4]] == []

    def test_one_leaf_s_message_reaches_another(
        self, hub: tuple[Server, int], leaf: LeafPeer, name: str
    ) -> None:
        with LeafPeer.dial(hub[1]) as other:
            other.connect(name="other", cluster="other", server_id="OTHER")
            other.send(f"LS+ {name}.a\r\n".encode())
            other.until_pong()
            assert leaf.next(f"LS+ {name}.a".encode())
            leaf.send(f"LMSG {name}.a r.1 1\r\nx\r\n".encode())
            assert other.next(b"LMSG") == f"LMSG {name}.a r.1 1\r\nx\r\n".encode()
        assert leaf.next(f"LS- {name}".encode()) == f"LS- {name}.a\r\n".encode()

    def test_a_loop_is_noticed(self, hub: tuple[Server, int]) -> None:
        with LeafPeer.dial(hub[1]) as peer:
            peer.connect(name="looping", cluster="looping")
            mark = next(each for each in peer.until_pong() if each.startswith(b"LS+ $LDS."))
            peer.send(mark)
            assert b"Loop detected for leafnode account=" in peer.next(b"-ERR")
            assert peer.next() == EOF

    def test_the_same_server_again_replaces_the_old_connection(self, hub: tuple[Server, int]) -> None:
        with LeafPeer.dial(hub[1]) as old, LeafPeer.dial(hub[1]) as new:
            old.connect(name="twice", cluster="twice")
            old.until_pong()
            new.connect(name="twice", cluster="twice")
            assert b"Duplicate Remote LeafNode Connection" in old.next(b"-ERR")
            assert new.until_pong()

    def test_a_client_has_no_business_here(self, hub: tuple[Server, int]) -> None:
        with LeafPeer.dial(hub[1]) as peer:
            peer.send(b'CONNECT {"name":"x","lang":"python","pedantic":false}\r\n')
            assert peer.next(b"-ERR").startswith(b"-ERR '")
            assert peer.next() == EOF

    @pytest.mark.parametrize(
        "data",
        [
            b"NONSENSE\r\n",
            b"LMSG\r\n",
            b"LMSG a x\r\n",
            b"HMSG a 9 5\r\n",
            b"LMSG a ? b c 1\r\nx\r\n",
            b"LS+ a b\r\n",
        ],
        ids=repr,
    )
    def test_nonsense_ends_it(self, leaf: LeafPeer, data: bytes) -> None:
        leaf.send(data)
        while (heard := leaf.next()) != EOF:
            assert heard.startswith((b"-ERR", b"PING", b"LS", b"INFO"))


class TestDialling:
    @pytest.fixture
    def played(self) -> Iterator[PlayedHub]:
        with PlayedHub() as hub:
            yield hub

    @pytest.fixture
    def server(self, kind: str, played: PlayedHub) -> Iterator[Server]:
        """A server that dials the scripted hub."""
        url = f"nats-leaf://someone:secret@127.0.0.1:{played.port}"
        remote = "deny_imports: ['no.import.>'], deny_exports: ['no.export.>']"
        with Server(kind, leaf_setup(url, remote=remote)) as running:
            yield running

    def test_the_leaf_connects_subscribes_and_reconnects(self, played: PlayedHub, server: Server) -> None:
        """Its CONNECT, its interest, what it sends and accepts, and its reconnect."""
        peer, connect = played.meet()
        with peer, Client(server.port) as client:
            assert (connect["name"], connect["cluster"], connect["domain"]) == ("the-leaf", "the-leaf", LEAF)
            assert (connect["user"], connect["pass"]) == ("someone", "secret")
            assert (connect["headers"], connect["jetstream"], connect["remote_account"]) == (True, True, "$G")
            assert connect["deny_pub"] == ["no.import.>"]
            assert "lang" not in connect
            told = peer.until_pong()
            assert f"LS+ $JS.{LEAF}.API.CONSUMER.>\r\n".encode() in told
            self.talk(peer, client)
        again, connect = played.meet()
        with again:
            assert connect["name"] == "the-leaf"
            assert [each for each in again.until_pong() if each.startswith(b"LS+ $LDS.")]

    def talk(self, peer: LeafPeer, client: Client) -> None:
        sid = client.subscribe("some.*")
        client.subscribe("no.import.x")
        client.flush()
        assert peer.next(b"LS+ some") == b"LS+ some.*\r\n"
        peer.send(b"LMSG some.x r.1 2\r\nhi\r\nLS+ other.*\r\nLS+ no.export.*\r\n")
        assert client.next(sid).payload == b"hi"
        peer.until_pong()
        client.publish("no.export.x", b"x")
        client.publish("other.x", b"x")
        client.flush()
        assert peer.next(b"LMSG") == b"LMSG other.x 1\r\nx\r\n"
        assert client.request("no.export.x").status == "503"

    def test_permissions_are_obeyed(self, played: PlayedHub, server: Server) -> None:
        """INFO contains the hub's permissions; the leaf does not even try the rest."""
        imports, exports = ({"allow": [f"{way}.>"], "deny": [f"{way}.not"]} for way in ("in", "out"))
        peer, _ = played.meet(**{"import": imports, "export": exports})
        with peer, Client(server.port) as client:
            peer.send(b"LS+ >\r\n")
            peer.until_pong()
            for subject in ("in.a", "in.not", "other"):
                client.subscribe(subject)
            client.flush()
            for subject in ("out.not", "elsewhere", "out.a"):
                client.publish(subject, b"x")
            client.flush()
            assert peer.next(b"LMSG") == b"LMSG out.a 1\r\nx\r\n"
            told = peer.until_pong()
            assert b"LS+ in.not\r\n" not in told
            assert b"LS+ other\r\n" not in told

    def test_a_port_for_clients_is_not_joined(self, played: PlayedHub, server: Server) -> None:
        def noticed() -> bool:
            with contextlib.suppress(OSError), played.accept(leafnode_urls=None, client_id=0) as peer:
                assert not peer.next(b"CONNECT").startswith(b"CONNECT")
            return "wrong port" in server.log_text()

        eventually(noticed)

    def test_a_silent_hub_is_dialed_again(self, played: PlayedHub, server: Server) -> None:
        """The server closes a connection without INFO, and dials again."""
        connection, _ = played._server.accept()
        try:
            peer, told = played.meet()
            with peer:
                assert told
        finally:
            connection.close()
