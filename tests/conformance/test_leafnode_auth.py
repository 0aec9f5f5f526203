"""Leafnode authentication and permissions: passwords, keys, TLS, accounts; loops and chains.

Every pairing of Headrace and nats-server, where both take part.
"""

from __future__ import annotations

import json
import urllib.request
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conformance.client import Client
from conformance.consumer_client import eventually
from conformance.leafnode_pair import PAIRINGS, await_joined, hub_setup, joined, leaf_setup
from conformance.leafnode_peer import LeafPeer
from conformance.servers import KINDS, OURS, Server, Setup
from conformance.sourcing import Copying
from support import certificates
from support.identities import Key, Realm
from support.ports import free_port


@pytest.fixture(params=[pair for pair in PAIRINGS if OURS in pair], ids=lambda p: f"hub={p[0]},leaf={p[1]}")
def kinds(request: pytest.FixtureRequest) -> tuple[str, str]:
    """A pairing that includes Headrace."""
    pairing: tuple[str, str] = request.param
    return pairing


def reaches(sender: Client, listener: Client, subject: str) -> bool:
    """Return whether a message arrives, however long it takes."""
    return crosses(sender, listener, subject, 600)


def crosses(sender: Client, listener: Client, subject: str, tries: int = 10) -> bool:
    """Return whether one of some messages arrives soon."""
    sid = listener.subscribe(subject)
    listener.flush()
    try:
        for _ in range(tries):
            sender.publish(subject, b"?")
            sender.flush()
            try:
                listener.next(sid, 0.05)
            except TimeoutError:
                continue
            return True
        return False
    finally:
        listener.unsubscribe(sid)
        listener.flush()


class TestPasswords:
    def test_the_right_password_connects(self, kinds: tuple[str, str]) -> None:
        auth = "authorization { user: edge, password: 's3cret' }"
        with joined(*kinds, user="edge:s3cret", hub={"extra": auth}) as pair:
            assert reaches(pair.leaf.client, pair.hub.client, "hello")

    def test_one_of_several_users(self, kinds: tuple[str, str]) -> None:
        auth = "authorization { users: [ {user: a, password: one}, {user: b, password: two} ] }"
        with joined(*kinds, user="b:two", hub={"extra": auth}) as pair:
            assert reaches(pair.leaf.client, pair.hub.client, "hello")

    def test_the_users_of_the_server_count_where_there_are_no_others(self, kinds: tuple[str, str]) -> None:
        port = free_port()
        users = "authorization { users: [ {user: c, password: three} ] }"
        with ExitStack() as stack:
            hub = stack.enter_context(Server(kinds[0], hub_setup(port, more=users)))
            leaf = stack.enter_context(Server(kinds[1], leaf_setup(f"nats-leaf://c:three@127.0.0.1:{port}")))
            upper = stack.enter_context(Client(hub.port, user="c", **{"pass": "three"}))
            lower = stack.enter_context(Client(leaf.port))
            eventually(lambda: crosses(lower, upper, "hello"), 40.0)

    def test_a_wrong_password_is_refused(self, kinds: tuple[str, str]) -> None:
        port = free_port()
        auth = "authorization { user: edge, password: 's3cret' }"
        with ExitStack() as stack:
            stack.enter_context(Server(kinds[0], hub_setup(port, extra=auth)))
            leaf = stack.enter_context(Server(kinds[1], leaf_setup(f"nats-leaf://edge:no@127.0.0.1:{port}")))
            eventually(lambda: "Authorization Violation" in leaf.log_text(), 40.0)
            assert "s3cret" not in leaf.log_text()


class TestKeys:
    def test_a_user_s_key(self, kinds: tuple[str, str]) -> None:
        key = Key("U")
        users = f"authorization {{ users: [ {{nkey: {key.public}}} , {{user: c, password: three}} ] }}"
        port = free_port()
        with ExitStack() as stack:
            hub = stack.enter_context(Server(kinds[0], hub_setup(port, more=users)))
            remote = f"nkey: {key.seed}"
            leaf = stack.enter_context(
                Server(kinds[1], leaf_setup(f"nats-leaf://127.0.0.1:{port}", remote=remote))
            )
            upper = stack.enter_context(Client(hub.port, user="c", **{"pass": "three"}))
            lower = stack.enter_context(Client(leaf.port))
            eventually(lambda: crosses(lower, upper, "hello"), 40.0)
            assert key.seed not in leaf.log_text()

    def test_a_credentials_file_connects(self, kinds: tuple[str, str], tmp_path: Path) -> None:
        """The hub trusts an operator; the leaf sends a JWT and signs with the user's key."""
        realm = Realm()
        realm.account("EDGES")
        key, token = realm.user("EDGES")
        path = tmp_path / "edge.creds"
        path.write_text(credentials(token, key.seed))
        port = free_port()
        with ExitStack() as stack:
            hub = stack.enter_context(Server(kinds[0], hub_setup(port, more=realm.config(), jetstream=False)))
            leaf = stack.enter_context(
                Server(kinds[1], leaf_setup(f"nats-leaf://127.0.0.1:{port}", remote=f"credentials: '{path}'"))
            )
            lower = stack.enter_context(Client(leaf.port))
            upper = stack.enter_context(known(hub, *realm.user("EDGES")))
            eventually(lambda: crosses(lower, upper, "hello"), 40.0)
            assert reaches(upper, lower, "hello")
            assert key.seed not in leaf.log_text()


def credentials(token: str, seed: str) -> str:
    """Return a credentials file in the format of `nsc`."""
    return (
        f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )


class SigningClient(Client):
    """A client that signs the nonce."""

    def __init__(self, port: int, key: Key, token: str) -> None:
        self._key, self._token = key, token
        super().__init__(port, jwt=token)

    def read_info(self) -> dict[str, Any]:
        self.first_info = super().read_info()
        return self.first_info

    def send(self, data: bytes) -> None:
        if data.startswith(b"CONNECT "):
            fields = json.loads(data[8:])
            fields["sig"] = self._key.sign_nonce(self.first_info["nonce"])
            data = b"CONNECT " + json.dumps(fields).encode() + b"\r\n"
        super().send(data)


def known(server: Server, key: Key, token: str) -> Client:
    return SigningClient(server.port, key, token)


class TestTls:
    @pytest.fixture
    def certs(self, tmp_path: Path) -> certificates.Certificates:
        return certificates.make(tmp_path)

    @pytest.mark.parametrize(("verify", "first"), [(False, False), (True, False), (True, True)])
    def test_a_leafnode_connects_over_tls(
        self, kinds: tuple[str, str], certs: certificates.Certificates, verify: bool, first: bool
    ) -> None:
        more = f"verify: {str(verify).lower()}, handshake_first: {str(first).lower()}"
        listening = (
            f"tls {{ cert_file: '{certs.cert}', key_file: '{certs.key}', ca_file: '{certs.ca}', {more} }}"
        )
        own = f"cert_file: '{certs.client_cert}', key_file: '{certs.client_key}'," if verify else ""
        dialling = f"tls {{ ca_file: '{certs.ca}', {own} handshake_first: {str(first).lower()} }}"
        with joined(*kinds, hub={"extra": listening}, leaf={"remote": dialling}) as pair:
            assert reaches(pair.leaf.client, pair.hub.client, "hello")
            assert reaches(pair.hub.client, pair.leaf.client, "hello")

    def test_an_unknown_authority_is_not_believed(
        self, kinds: tuple[str, str], certs: certificates.Certificates
    ) -> None:
        port = free_port()
        listening = f"tls {{ cert_file: '{certs.cert}', key_file: '{certs.key}' }}"
        with ExitStack() as stack:
            stack.enter_context(Server(kinds[0], hub_setup(port, extra=listening)))
            leaf = stack.enter_context(
                Server(kinds[1], leaf_setup(f"tls://127.0.0.1:{port}", remote="tls { timeout: 2 }"))
            )
            eventually(lambda: "certificate" in leaf.log_text().lower(), 40.0)


class TestPermissions:
    def test_what_a_user_may(self, kinds: tuple[str, str]) -> None:
        """A leaf sends only what its user may publish, and receives only what it may subscribe to."""
        users = (
            "authorization { users: [ {user: edge, password: pw, permissions: {"
            " publish: {allow: ['up.>'], deny: ['up.not']}, subscribe: {allow: ['down.>'], deny: ['down.not']} }},"
            " {user: c, password: three} ] }"
        )
        port = free_port()
        with ExitStack() as stack:
            hub = stack.enter_context(Server(kinds[0], hub_setup(port, more=users)))
            leaf = stack.enter_context(Server(kinds[1], leaf_setup(f"nats-leaf://edge:pw@127.0.0.1:{port}")))
            upper = stack.enter_context(Client(hub.port, user="c", **{"pass": "three"}))
            lower = stack.enter_context(Client(leaf.port))
            eventually(lambda: crosses(lower, upper, "up.a"), 40.0)
            assert reaches(upper, lower, "down.a")
            for sender, listener, subject in (
                (lower, upper, "up.not"),
                (lower, upper, "down.a"),
                (upper, lower, "down.not"),
                (upper, lower, "up.a"),
            ):
                assert not crosses(sender, listener, subject), subject
            assert reaches(lower, upper, "up.b"), "the connection stays"

    def test_as_little_as_copying_needs(self, kinds: tuple[str, str], name: str) -> None:
        """The permissions in docs/reference/mirrors-and-sources.md are enough for an edge that copies both ways."""
        said = ["$JSC.R.>", "edge.deliver.>", "$JS.HUB.API.CONSUMER.>", "$JS.FC.>"]
        heard = ["$JS.LEAF.API.CONSUMER.>", "$JS.FC.>", "$JSC.R.>", "hub.deliver.>"]
        users = (
            "authorization { users: [ {user: edge, password: pw, permissions: {"
            f" publish: {json.dumps(said)}, subscribe: {json.dumps(heard)} }}}},"
            " {user: c, password: three} ] }"
        )
        port = free_port()
        with ExitStack() as stack:
            hub = stack.enter_context(Server(kinds[0], hub_setup(port, more=users)))
            leaf = stack.enter_context(Server(kinds[1], leaf_setup(f"nats-leaf://edge:pw@127.0.0.1:{port}")))
            upper = Copying(stack.enter_context(Client(hub.port, user="c", **{"pass": "three"})), name)
            lower = Copying(stack.enter_context(Client(leaf.port)), name)
            for origin, copy, domain, deliver in (
                (lower, upper, "LEAF", "edge.deliver"),
                (upper, lower, "HUB", "hub.deliver"),
            ):
                origin.made(domain)
                origin.put(domain, "a", "b")
                external = {"api": f"$JS.{domain}.API", "deliver": deliver}
                copy.made("C" + domain, sources=[{"name": f"{name}{domain}", "external": external}])
                copy.until("C" + domain, 2, 40.0)
            assert not crosses(lower.client, upper.client, "anything.else")


class TestAccounts:
    def test_a_leaf_is_in_one_account(self, kinds: tuple[str, str]) -> None:
        accounts = (
            "accounts { A { users: [ {user: a, password: pw} ] }, B { users: [ {user: b, password: pw} ] } }"
        )
        auth = "authorization { users: [ {user: edge, password: pw, account: B} ] }"
        port = free_port()
        with ExitStack() as stack:
            hub = stack.enter_context(
                Server(kinds[0], hub_setup(port, extra=auth, more=accounts, jetstream=False))
            )
            leaf = stack.enter_context(Server(kinds[1], leaf_setup(f"nats-leaf://edge:pw@127.0.0.1:{port}")))
            others = stack.enter_context(Client(hub.port, user="a", **{"pass": "pw"}))
            upper = stack.enter_context(Client(hub.port, user="b", **{"pass": "pw"}))
            lower = stack.enter_context(Client(leaf.port))
            eventually(lambda: crosses(lower, upper, "hello"), 40.0)
            assert not crosses(lower, others, "hello")

    def test_no_more_than_an_account_may_have(self) -> None:
        """One leafnode is accepted, the next is not."""
        realm = Realm()
        realm.account("EDGES", limits={"leaf": 1})
        port = free_port()
        with ExitStack() as stack:
            stack.enter_context(Server(OURS, hub_setup(port, more=realm.config(), jetstream=False)))
            peers = []
            for _ in range(2):
                key, token = realm.user("EDGES")
                peer = stack.enter_context(LeafPeer.dial(port))
                peers.append((peer, {"jwt": token, "sig": key.sign_nonce(peer.info["nonce"])}))
            (first, known), (second, refused) = peers
            assert first.connect(name="one", cluster="one", **known)["connect_info"]
            second.send(b"CONNECT " + json.dumps({"name": "two", **refused}).encode() + b"\r\n")
            assert b"maximum account active" in second.next(b"-ERR")


class TestMonitoring:
    @pytest.mark.parametrize("kind", KINDS)
    def test_the_page_of_leafnodes(self, kind: str) -> None:
        port = free_port()
        watched = replace(hub_setup(port), flags=("-m", "-1"))
        with (
            Server(kind, watched) as hub,
            Server(OURS, leaf_setup(f"nats-leaf://127.0.0.1:{port}")) as leaf,
            Client(hub.port) as upper,
            Client(leaf.port) as lower,
        ):
            await_joined(lower, upper)
            with urllib.request.urlopen(hub.monitoring_url("/leafz?subs=1"), timeout=90) as answer:
                page = json.load(answer)
            with urllib.request.urlopen(hub.monitoring_url("/varz"), timeout=90) as answer:
                assert json.load(answer)["leafnodes"] == 1
            assert page["leafnodes"] == 1
            (shown,) = page["leafs"]
            assert (shown["name"], shown["account"], shown["is_spoke"]) == ("the-leaf", "$G", False)
            assert shown["subscriptions"] == len(shown["subscriptions_list"]) > 5
            assert {"ip", "port", "in_msgs", "out_msgs", "in_bytes", "out_bytes"} <= shown.keys()


class TestTopologies:
    def test_the_one_that_dials_can_be_the_hub(self, kinds: tuple[str, str]) -> None:
        with joined(*kinds, leaf={"remote": "hub: true"}) as pair:
            assert reaches(pair.leaf.client, pair.hub.client, "hello")
            assert reaches(pair.hub.client, pair.leaf.client, "hello")

    @pytest.mark.parametrize("kind", KINDS)
    def test_two_that_dial_each_other_notice(self, kind: str) -> None:
        ports = [free_port(), free_port()]
        with ExitStack() as stack:
            servers = [
                stack.enter_context(
                    Server(
                        kind,
                        Setup(
                            settings={"server_name": f"ring-{number}"},
                            config=f"leafnodes {{ listen: '127.0.0.1:{ports[number]}', reconnect: '200ms', "
                            f"remotes: [ {{ url: 'nats-leaf://127.0.0.1:{ports[1 - number]}' }} ] }}",
                            jetstream=False,
                        ),
                    )
                )
                for number in range(2)
            ]
            eventually(lambda: any("Loop detected" in each.log_text() for each in servers), 40.0)

    @pytest.mark.parametrize("middle", KINDS)
    def test_messages_pass_through_a_chain_of_leafnodes(self, middle: str) -> None:
        """Interest and messages pass through the server in the middle, in both directions."""
        outer = OURS
        ports = [free_port(), free_port()]
        with ExitStack() as stack:
            top = stack.enter_context(Server(outer, hub_setup(ports[0])))
            config = (
                f"jetstream {{ domain: MID }}\nleafnodes {{ listen: '127.0.0.1:{ports[1]}', "
                f"remotes: [ {{ url: 'nats-leaf://127.0.0.1:{ports[0]}' }} ] }}"
            )
            stack.enter_context(Server(middle, Setup(settings={"server_name": "mid"}, config=config)))
            low = stack.enter_context(Server(outer, leaf_setup(f"nats-leaf://127.0.0.1:{ports[1]}")))
            upper, lower = stack.enter_context(Client(top.port)), stack.enter_context(Client(low.port))
            eventually(lambda: crosses(lower, upper, "hello"), 40.0)
            assert reaches(upper, lower, "hello")
            answer = upper.request("$JS.LEAF.API.INFO")
            assert answer.json["domain"] == "LEAF"

    def test_one_server_joins_two_hubs_without_connecting_them(self) -> None:
        """One server joins two systems; messages of one system arrive here, and not in the other."""
        ports = [free_port(), free_port()]
        with ExitStack() as stack:
            hubs = [
                stack.enter_context(
                    Server(
                        kind,
                        Setup(
                            settings={"server_name": f"hub-{kind}"},
                            config=f"leafnodes {{ listen: '127.0.0.1:{port}' }}",
                            jetstream=False,
                        ),
                    )
                )
                for kind, port in zip(KINDS, ports, strict=True)
            ]
            remotes = ", ".join(f"{{ url: 'nats-leaf://127.0.0.1:{port}' }}" for port in ports)
            config = f"leafnodes {{ reconnect: '200ms', remotes: [ {remotes} ] }}"
            setup = Setup(settings={"server_name": "both"}, config=config, jetstream=False)
            edge = stack.enter_context(Server(OURS, setup))
            here = stack.enter_context(Client(edge.port))
            there = [stack.enter_context(Client(hub.port)) for hub in hubs]
            for client in there:
                eventually(lambda client=client: crosses(here, client, "hello"), 40.0)
                assert reaches(client, here, "hello")
            assert not crosses(there[0], there[1], "hello")
