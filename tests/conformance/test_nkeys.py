"""NKeys and JWTs: a client that signs the nonce is accepted, with the permissions that were signed."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nats
import pytest

from conformance.client import EOF, Client, Wire
from conformance.servers import Server, Setup
from support.identities import Key, Realm

Launch = Callable[[Setup], Server]
VIOLATION = b"-ERR 'Authorization Violation'\r\n"
#: How long a token or import is valid; longer on a machine that needs this long to start.
LIFETIMES_S = (2, 5, 15)


def answer(wire: Wire, **fields: Any) -> bytes:
    """Return the first frame after CONNECT with these fields and a PING."""
    connect = {"verbose": False, "protocol": 0, **fields}
    wire.send(b"CONNECT " + json.dumps(connect).encode() + b"\r\nPING\r\n")
    return wire.frame()


USER, OTHER = Key("U"), Key("U")


@pytest.fixture(scope="module")
def keyed(kind: str) -> Iterator[Server]:
    users = f"""authorization {{ users: [
        {{nkey: {USER.public}, permissions: {{publish: "ok.>"}}}}
        {{user: plain, password: x}} ] }}"""
    with Server(kind, Setup(config=users, jetstream=False)) as running:
        yield running


class TestKeys:
    def test_everybody_gets_another_nonce(self, keyed: Server) -> None:
        nonces = set()
        for _ in range(3):
            with Wire(keyed.port) as wire:
                nonces.add(wire.info["nonce"])
        assert len(nonces) == 3
        assert all(len(nonce) == 15 for nonce in nonces)

    def test_the_signature_lets_in(self, keyed: Server) -> None:
        with Wire(keyed.port) as wire:
            sig = USER.sign_nonce(wire.info["nonce"])
            assert answer(wire, nkey=USER.public, sig=sig) == b"PONG\r\n"
            wire.send(b"PUB no 0\r\n\r\n")
            assert wire.frame() == b"-ERR 'Permissions Violation for Publish to \"no\"'\r\n"

    def test_padded_standard_base64_does_too(self, keyed: Server) -> None:
        with Wire(keyed.port) as wire:
            sig = base64.b64encode(USER.sign(wire.info["nonce"].encode())).decode()
            assert answer(wire, nkey=USER.public, sig=sig) == b"PONG\r\n"

    def test_a_password_still_does(self, keyed: Server) -> None:
        with Wire(keyed.port) as wire:
            assert answer(wire, user="plain", **{"pass": "x"}) == b"PONG\r\n"

    @pytest.mark.parametrize(
        "case", ["none", "empty", "other key", "other nonce", "unknown", "junk", "no key"]
    )
    def test_nothing_else_does(self, keyed: Server, case: str) -> None:
        with Wire(keyed.port) as wire:
            nonce, good = wire.info["nonce"], USER.public
            fields: dict[str, Any] = {
                "none": {"nkey": good},
                "empty": {"nkey": good, "sig": ""},
                "other key": {"nkey": good, "sig": OTHER.sign_nonce(nonce)},
                "other nonce": {"nkey": good, "sig": USER.sign_nonce("x" * 15)},
                "unknown": {"nkey": OTHER.public, "sig": OTHER.sign_nonce(nonce)},
                "junk": {"nkey": good, "sig": "!!!"},
                "no key": {"sig": USER.sign_nonce(nonce)},
            }[case]
            assert answer(wire, **fields) == VIOLATION
            assert wire.frame() == EOF

    def test_a_key_is_no_name(self, keyed: Server) -> None:
        with Wire(keyed.port) as wire:
            assert answer(wire, user=USER.public, **{"pass": ""}) == VIOLATION

    async def test_nats_py_connects_with_credentials(self, keyed: Server, tmp_path: Path) -> None:
        seed = tmp_path / "user.nk"
        seed.write_text(USER.seed)
        connection = await nats.connect(
            keyed.url, nkeys_seed=str(seed), allow_reconnect=False, connect_timeout=20
        )
        await connection.flush()
        await connection.close()


def realm() -> Realm:
    """The accounts of the tests; keys are new, and both servers get the same ones."""
    made = Realm()
    made.signing, made.scoped = Key("A"), Key("A")  # type: ignore[attr-defined]
    scope = {
        "kind": "user_scope",
        "key": made.scoped.public,  # type: ignore[attr-defined]
        "role": "app",
        "template": {"pub": {"allow": ["{{name()}}.>"]}, "sub": {}, "subs": -1, "data": -1, "payload": -1},
    }
    storage = {"mem_storage": 1000, "disk_storage": 100_000, "streams": 1, "consumer": -1}
    made.account("FEW", limits={"conn": 3, "subs": 3, "payload": 100})
    made.account(
        "A",
        limits=storage,
        signing_keys=[made.signing.public, scope],  # type: ignore[attr-defined]
        exports=[
            {"name": "s", "subject": "s.>", "type": "stream"},
            {"name": "q", "subject": "q", "type": "service"},
            {"name": "p", "subject": "private.>", "type": "stream", "token_req": True},
        ],
    )
    a = made.accounts["A"]
    b = made.accounts["B"] = Key("A")
    activation = a.token(b.public, "activation", subject="private.>", kind="stream")
    imports = [
        {"name": "s", "subject": "s.>", "account": a.public, "type": "stream", "local_subject": "from.a.>"},
        {"name": "q", "subject": "q", "account": a.public, "type": "service", "local_subject": "ask"},
        {"name": "p", "subject": "private.>", "account": a.public, "type": "stream", "token": activation},
    ]
    made.account("B", imports=imports)
    made.account("EXPIRED", claims={"exp": int(time.time()) - 10})
    made.account("FOREIGN", signer=Key("O"))
    gone = made.gone = made.user("A")  # type: ignore[attr-defined]
    made.account("R", revocations={})
    revoked = made.revoked = made.user("R")  # type: ignore[attr-defined]
    made.account("R", revocations={revoked[0].public: int(time.time()) + 1})
    made.account("ALL", revocations={"*": int(time.time()) + 10**8})  # later than any token of any run
    assert gone
    return made


REALM = realm()


@pytest.fixture(scope="module")
def trusting(kind: str) -> Iterator[Server]:
    with Server(kind, Setup(config=REALM.config())) as running:
        yield running


class TestTokens:
    def enter(self, wire: Wire, user: tuple[Key, str], **more: Any) -> bytes:
        key, token = user
        sig = key.sign_nonce(wire.info["nonce"])
        return answer(wire, **{"jwt": token, "sig": sig, **more})

    def client(self, trusting: Server, user: tuple[Key, str]) -> Client:
        """A client that signs; the nonce comes with INFO, so it connects twice."""
        key, token = user

        class Signing(Client):
            def send(self, data: bytes) -> None:
                if data.startswith(b"CONNECT "):
                    fields = json.loads(data[8:]) | {"jwt": token, "sig": key.sign_nonce(self.info["nonce"])}
                    data = b"CONNECT " + json.dumps(fields).encode() + b"\r\n"
                super().send(data)

        return Signing(trusting.port)

    def test_a_user_of_an_account(self, trusting: Server) -> None:
        with self.client(trusting, REALM.user("B")) as client:
            assert client.infos[-1]["remote_account"] == REALM.accounts["B"].public

    def test_a_user_jwt_of_a_signing_key_connects(self, trusting: Server) -> None:
        with Wire(trusting.port) as wire:
            assert self.enter(wire, REALM.user("A", signer=REALM.signing)) == b"PONG\r\n"  # type: ignore[attr-defined]

    def test_a_scoped_key_gives_its_rules(self, trusting: Server) -> None:
        key = Key("U")
        token = REALM.scoped.token(  # type: ignore[attr-defined]
            key.public, "user", name="bob", issuer_account=REALM.accounts["A"].public
        )
        with Wire(trusting.port) as wire:
            assert self.enter(wire, (key, token)) == b"PONG\r\n"
            wire.send(b"PUB bob.x 0\r\n\r\nPUB alice.x 0\r\n\r\nPING\r\n")
            assert wire.frame() == b"-ERR 'Permissions Violation for Publish to \"alice.x\"'\r\n"
            assert wire.frame() == b"PONG\r\n"

    @pytest.mark.parametrize(
        "case",
        [
            "not signed",
            "signed by another",
            "expired",
            "not yet",
            "unknown account",
            "another's account",
            "expired account",
            "foreign operator",
            "revoked",
            "all revoked",
            "altered",
            "no token",
            "wrong network",
            "wrong connection",
            "account token",
        ],
    )
    def test_what_does_not_let_in(self, trusting: Server, case: str) -> None:
        made, now = REALM, int(time.time())
        user = made.user("B")
        more: dict[str, Any] = {}
        if case == "not signed":
            more["sig"] = ""
        elif case == "signed by another":
            user = (Key("U"), user[1])
        elif case == "expired":
            user = made.user("B", claims={"exp": now - 5})
        elif case == "not yet":
            user = made.user("B", claims={"nbf": now + 100})
        elif case == "unknown account":
            stranger = Key("A")
            user = (user[0], stranger.token(user[0].public, "user"))
        elif case == "another's account":
            user = made.user("B", signer=made.accounts["A"])
        elif case == "expired account":
            user = made.user("EXPIRED")
        elif case == "foreign operator":
            user = made.user("FOREIGN")
        elif case == "revoked":
            user = made.revoked  # type: ignore[attr-defined]
        elif case == "all revoked":
            user = made.user("ALL")
        elif case == "altered":
            head, body, signature = user[1].split(".")
            user = (user[0], f"{head}.{body[:-2]}AA.{signature}")
        elif case == "no token":
            more["jwt"] = ""
        elif case == "wrong network":
            user = made.user("B", src=["10.0.0.0/8"])
        elif case == "wrong connection":
            user = made.user("B", allowed_connection_types=["WEBSOCKET"])
        elif case == "account token":
            user = (user[0], made.tokens["B"])
        with Wire(trusting.port) as wire:
            assert self.enter(wire, user, **more) == VIOLATION
            assert wire.frame() == EOF

    def test_a_bearer_needs_no_signature(self, trusting: Server) -> None:
        _, token = REALM.user("B", bearer_token=True)
        with Wire(trusting.port) as wire:
            assert answer(wire, jwt=token) == b"PONG\r\n"

    def test_rules_of_the_token(self, trusting: Server) -> None:
        user = REALM.user("B", pub={"allow": ["ok"]}, sub={"deny": ["no"]})
        with self.client(trusting, user) as client:
            client.errors.clear()
            client.publish("no")
            client.subscribe("no")
            client.publish("ok")
            client.flush()
            assert len(client.errors) == 2

    def test_an_end_of_the_token_ends_the_connection(self, trusting: Server) -> None:
        for lifetime_s in LIFETIMES_S:
            end_s = int(time.time()) + lifetime_s
            with Wire(trusting.port) as wire:
                if self.enter(wire, REALM.user("B", claims={"exp": end_s})) == b"PONG\r\n":
                    wire.expect_end(b"-ERR 'User Authentication Expired'\r\n")
                    return
            assert time.time() >= end_s
        raise AssertionError("every token had ended before it was shown")

    def test_an_end_of_the_account_ends_it_too(self, kind: str) -> None:
        for lifetime_s in LIFETIMES_S[1:]:
            made, end_s = Realm(), int(time.time()) + lifetime_s
            made.account("SOON", claims={"exp": end_s})
            setup = Setup(config=made.config(), jetstream=False)
            with Server(kind, setup) as server, Wire(server.port) as wire:
                if self.enter(wire, made.user("SOON")) == b"PONG\r\n":
                    wire.expect_end(b"-ERR 'Account Authentication Expired'\r\n")
                    return
            assert time.time() >= end_s
        raise AssertionError("every account had ended before its server was ready")

    def test_limits_of_the_account(self, trusting: Server) -> None:
        """Three connections, three subscriptions each, a hundred bytes."""
        made = REALM
        with self.client(trusting, made.user("FEW")) as one:
            one.subscribe("x")
            one.subscribe("y")
            one.subscribe("z")
            one.flush()
            assert one.errors == ["maximum subscriptions exceeded"]
            with self.client(trusting, made.user("FEW")) as two, self.client(trusting, made.user("FEW")):
                with Wire(trusting.port) as wire:
                    full = self.enter(wire, made.user("FEW"))
                    assert full == b"-ERR 'maximum account active connections exceeded'\r\n"
                two.send(b"PUB x 101\r\n")
                assert two.frame() == b"-ERR 'Maximum Payload Violation'\r\n"

    def test_streams_of_the_account(self, trusting: Server) -> None:
        with self.client(trusting, REALM.user("A")) as client:
            limits = client.api("INFO")["limits"]
            assert (limits["max_memory"], limits["max_storage"], limits["max_streams"]) == (1000, 100_000, 1)
        with self.client(trusting, REALM.user("B")) as client:
            assert client.api("INFO")["error"]["err_code"] == 10039

    def test_imports_of_account_jwts_deliver(self, trusting: Server) -> None:
        made = REALM
        with self.client(trusting, made.user("A")) as a, self.client(trusting, made.user("B")) as b:
            sid, private = b.subscribe("from.a.>"), b.subscribe("private.>")
            asked = a.subscribe("q")
            a.flush()
            b.flush()
            a.publish("s.x", b"1")
            a.publish("private.y", b"2")
            a.flush()
            assert [message.subject for message in b.pending(sid)] == ["from.a.x"]
            assert [message.subject for message in b.pending(private)] == ["private.y"]
            b.ask("ask", b"?")
            a.publish(a.next(asked).reply, b"!")
            a.flush()
            assert b.next("1").payload == b"!"

    def test_an_import_ends_with_its_token(self, kind: str) -> None:
        assert any(self.import_ended(kind, lifetime_s) for lifetime_s in LIFETIMES_S[1:])

    def import_ended(self, kind: str, lifetime_s: int) -> bool:
        """Return whether an import worked before its token expired, and not afterwards."""
        made, end_s = Realm(), int(time.time()) + lifetime_s
        exports = [
            {"name": "p", "subject": "private.>", "type": "stream", "token_req": True},
            {"name": "q", "subject": "q", "type": "service", "token_req": True},
        ]
        a, b = made.account("A", exports=exports), made.account("B")
        imports = [
            {
                "name": each["name"],
                "subject": each["subject"],
                "account": a.public,
                "type": each["type"],
                "token": a.token(
                    b.public, "activation", claims={"exp": end_s}, subject=each["subject"], kind=each["type"]
                ),
            }
            for each in exports
        ]
        made.account("B", imports=imports)
        with (
            Server(kind, Setup(config=made.config(), jetstream=False)) as server,
            self.client(server, made.user("A")) as there,
            self.client(server, made.user("B")) as here,
        ):
            private, asked = here.subscribe("private.>"), there.subscribe("q")
            here.flush()
            there.flush()

            def passed() -> tuple[int, int]:
                there.publish("private.y", b"1")
                there.flush()
                here.flush()
                here.publish("q", b"2")
                here.flush()
                there.flush()
                return len(here.pending(private)), len(there.pending(asked))

            if passed() != (1, 1):
                assert time.time() >= end_s
                return False
            while passed() != (0, 0):
                assert time.time() < end_s + 20
                time.sleep(0.05)
            assert time.time() >= end_s
            return True

    def test_a_user_of_the_system_account_reads_statsz(self, trusting: Server) -> None:
        with self.client(trusting, REALM.user("SYS")) as client:
            assert client.infos[-1]["acc_is_sys"] is True
            assert "statsz" in client.request("$SYS.REQ.SERVER.PING").json

    async def test_nats_py_connects_with_credentials(self, trusting: Server, tmp_path: Path) -> None:
        key, token = REALM.user("B")
        creds = tmp_path / "user.creds"
        creds.write_text(
            f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{key.seed}\n------END USER NKEY SEED------\n"
        )
        connection = await nats.connect(
            trusting.url, user_credentials=str(creds), allow_reconnect=False, connect_timeout=20
        )
        await connection.flush()
        await connection.close()


TIER = {
    "mem_storage": 1_000_000,
    "disk_storage": 2_000_000,
    "streams": 5,
    "consumer": 6,
    "max_ack_pending": 9,
}
OTHER_TIER = {"mem_storage": 1, "disk_storage": 2, "streams": 3, "consumer": 4}


@pytest.fixture(scope="module")
def tiers() -> Realm:
    realm = Realm()
    realm.account("BOTH", limits={"tiered_limits": {"R1": TIER, "R3": OTHER_TIER}})
    realm.account("OTHER", limits={"tiered_limits": {"R3": OTHER_TIER}})
    realm.account("PLAIN", limits={"mem_storage": -1, "disk_storage": -1})
    return realm


@pytest.fixture(scope="module")
def tiered(kind: str, tiers: Realm) -> Iterator[Server]:
    with Server(kind, Setup(config=tiers.config())) as running:
        yield running


class TestTieredLimits:
    """An account may have limits for each number of replicas instead of one limit for all streams."""

    def connect(self, server: Server, realm: Realm, account: str) -> Client:
        key, token = realm.user(account)
        return SignedClient(server.port, key, token)

    def test_are_part_of_the_account_info(self, tiered: Server, tiers: Realm) -> None:
        with self.connect(tiered, tiers, "BOTH") as client:
            client.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "max_bytes": 5000})
            client.store("s", b"x")
            info = client.api("INFO")
        assert set(info["limits"].values()) == {0}
        assert (info["streams"], info["reserved_storage"]) == (1, 5000)
        own, other = info["tiers"]["R1"], info["tiers"]["R3"]
        assert (own["streams"], own["reserved_storage"], own["storage"]) == (1, 5000, info["storage"])
        assert own["limits"] == {
            "max_memory": 1_000_000,
            "max_storage": 2_000_000,
            "max_streams": 5,
            "max_consumers": 6,
            "max_ack_pending": 9,
            "memory_max_stream_bytes": -1,
            "storage_max_stream_bytes": -1,
            "max_bytes_required": False,
        }
        assert (other["streams"], other["storage"]) == (0, 0)
        assert (other["limits"]["max_storage"], other["limits"]["max_ack_pending"]) == (2, -1)

    def test_without_the_tier_of_one_replica_there_are_no_streams(self, tiered: Server, tiers: Realm) -> None:
        with self.connect(tiered, tiers, "OTHER") as client:
            assert list(client.api("INFO")["tiers"]) == ["R3"]
            error = client.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})["error"]
            assert (error["code"], error["err_code"]) == (400, 10120)

    def test_other_accounts_have_none(self, tiered: Server, tiers: Realm) -> None:
        with self.connect(tiered, tiers, "PLAIN") as client:
            assert "tiers" not in client.api("INFO")


class SignedClient(Client):
    """A client that signs the nonce of its connection."""

    def __init__(self, port: int, key: Key, token: str) -> None:
        self._key, self._token = key, token
        super().__init__(port)

    def send(self, data: bytes) -> None:
        if data.startswith(b"CONNECT "):
            signed = {"jwt": self._token, "sig": self._key.sign_nonce(self.info["nonce"])}
            data = b"CONNECT " + json.dumps(json.loads(data[8:]) | signed).encode() + b"\r\n"
        super().send(data)
