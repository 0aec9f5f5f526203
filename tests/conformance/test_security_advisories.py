"""Published vulnerabilities of NATS servers, and variants: none of them works here.

Each test names its advisory. nats-server 2.15.1 has them fixed, so both servers pass. Where Headrace does more, the
test runs on Headrace only and the difference is listed.
"""

from __future__ import annotations

import json
import os
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conformance.client import EOF, Client, Wire, error_of
from conformance.servers import Server, Setup
from conformance.test_websocket import CONNECT, Raw
from support.certificate_authority import Authority

Launch = Callable[[Setup], Server]
Connect = Callable[..., Client]
VIOLATION = b"-ERR 'Authorization Violation'\r\n"
EXTENSION = "permessage-deflate"
MIB = 1024 * 1024

CONFIG = """
websocket { listen: '127.0.0.1:-1', no_tls: true, compression: true }
no_auth_user: guest
accounts {
  A {
    jetstream: enabled
    users: [
      {user: all, password: x}
      {user: guest, password: x, permissions: {publish: "guest.>", subscribe: "guest.>"},
       allowed_connection_types: [STANDARD]}
      {user: queue, password: x, permissions: {subscribe: {deny: ["secret", "team.b q", "*.hidden"]}}}
      {user: narrow, password: x, permissions: {publish: {deny: ["secret", "$JS.API.STREAM.DELETE.*"]}}}
      {user: one, password: x, permissions: {
         publish: ["$JS.API.STREAM.INFO.MINE", "$JS.API.STREAM.RESTORE.MINE", "mine.>"],
         subscribe: ["_INBOX.one.>"]}}
    ]
    exports: [{service: "svc"}]
  }
  B { users: [{user: b, password: x}], imports: [{service: {account: A, subject: "svc"}}] }
}
"""


@pytest.fixture(scope="module")
def server(kind: str) -> Iterator[Server]:
    with Server(kind, Setup(config=CONFIG, accounts=("A",))) as running:
        yield running


@pytest.fixture
def user(server: Server, connect: Connect) -> Callable[..., Client]:
    return lambda name: connect(server, **{"user": name, "pass": "x"})


User = Callable[..., Client]


def resident(server: Server) -> int:
    """Return the bytes of resident memory of the server's process."""
    with open(f"/proc/{server.pid}/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def alive(server: Server) -> None:
    with Client(server.port, user="all", **{"pass": "x"}) as client:
        client.flush()


def until_pong(wire: Wire) -> bytes:
    """Return everything up to the reply to a PING, or to the end."""
    heard = b""
    while not heard.endswith((b"PONG\r\n", EOF)):
        heard += wire.frame()
    return heard


def deflated(data: bytes) -> bytes:
    deflater = zlib.compressobj(9, zlib.DEFLATED, -15)
    return (deflater.compress(data) + deflater.flush(zlib.Z_SYNC_FLUSH))[:-4]


class TestBeforeAuthentication:
    @pytest.mark.parametrize(
        "frame",
        [
            bytes((0x82, 0xFF)) + b"\x80" + b"\0" * 7,
            bytes((0x82, 0xFF)) + b"\xff" * 8 + b"abcd" + b"x" * 100,
            bytes((0x82, 0xFF)) + struct.pack("!Q", 2**63 - 1) + b"abcd" + b"x" * 1000,
            bytes((0x89, 0xFF)) + b"\xff" * 8,
            bytes((0x88, 0xFE)) + b"\xff\xff",
            bytes((0x00, 0x80)) + b"abcd",
            bytes((0xF2, 0x80)) + b"abcd",
        ],
    )
    def test_a_websocket_frame_cannot_harm(self, server: Server, frame: bytes) -> None:
        """CVE-2026-27889: the length of a frame, before authentication."""
        with Raw(server).open() as raw:
            raw.socket.sendall(frame)
            raw.socket.settimeout(0.2)
            try:
                while raw.socket.recv(65536):
                    pass
            except (TimeoutError, ConnectionResetError):
                pass
        alive(server)

    def test_a_compression_bomb_does_not_exhaust_memory(self, server: Server) -> None:
        """CVE-2026-27571: a few kilobytes that inflate to half a gigabyte."""
        bomb = deflated(b"CONNECT {" + b" " * (512 * MIB))
        assert len(bomb) < MIB
        before = resident(server)
        with Raw(server).open(Sec_WebSocket_Extensions=EXTENSION) as raw:
            try:
                raw.send(0xC2, bomb)
                raw.expect_end(1002, 1008, 1009)
            except (BrokenPipeError, ConnectionResetError):
                pass
        assert resident(server) - before < 64 * MIB
        alive(server)

    def test_buffering_without_end(self, server: Server) -> None:
        """NATS 2026-11: fragments of an endless message, before authentication."""
        before = resident(server)
        with Raw(server).open(Sec_WebSocket_Extensions=EXTENSION) as raw:
            noise = os.urandom(64 * 1024)
            try:
                raw.send(0x42, deflated(noise))
                for _ in range(1500):
                    raw.send(0x00, noise, key=b"\0\0\0\0")
            except (BrokenPipeError, ConnectionResetError):
                pass
            assert resident(server) - before < 32 * MIB
        alive(server)

    def test_a_line_without_end(self, server: Server) -> None:
        before = resident(server)
        with Raw(server).open() as raw:
            try:
                raw.send(0x02, b"CONNECT {")
                for _ in range(300):
                    raw.send(0x00, b" " * 65536, key=b"\0\0\0\0")
                raw.expect_end(1008, 1002)
            except (BrokenPipeError, ConnectionResetError):
                pass
        assert resident(server) - before < 16 * MIB


class TestStrangers:
    """NATS 2026-16: all rules of `no_auth_user` apply to clients without credentials, from the first byte on."""

    @pytest.mark.parametrize("connect", [b"", b'CONNECT {"verbose":false}\r\n'])
    def test_no_auth_user_keeps_its_permissions(self, server: Server, connect: bytes) -> None:
        with Wire(server.port) as wire:
            wire.send(connect + b"SUB secret 1\r\nPUB secret 0\r\n\r\nSUB guest.x 2\r\nPING\r\n")
            heard = until_pong(wire)
            assert b'Subscription to "secret"' in heard
            assert b'Publish to "secret"' in heard

    @pytest.mark.parametrize("connect", [b"", CONNECT])
    def test_kinds_of_connections_hold(self, server: Server, connect: bytes) -> None:
        with Raw(server).open() as raw:
            raw.send(0x82, connect + b"PUB guest.x 0\r\n\r\nPING\r\n")
            assert raw.text(b"\r\n") == VIOLATION

    def test_no_auth_user_stays_in_its_account(self, server: Server, user: User) -> None:
        b = user("b")
        sid = b.subscribe(">")
        b.flush()
        with Wire(server.port) as wire:
            wire.send(b"PUB guest.x 0\r\n\r\nPING\r\n")
            wire.frames(2)
        assert b.pending(sid) == []


class TestQueues:
    """NATS 2026-18: a queue group does not bypass a denial."""

    @pytest.mark.parametrize(
        ("subject", "queue"), [("secret", ""), ("secret", "any"), ("secret", "q"), ("team.b", "q")]
    )
    def test_a_queue_subscription_to_a_denied_subject_is_refused(
        self, user: User, subject: str, queue: str
    ) -> None:
        client = user("queue")
        client.errors.clear()
        client.subscribe(subject, queue)
        client.flush()
        assert len(client.errors) == 1

    @pytest.mark.parametrize("pattern", [">", "*", "*.*", "team.*"])
    @pytest.mark.parametrize("queue", ["", "q", "other"])
    def test_a_wider_subscription_gets_nothing_of_it(self, user: User, pattern: str, queue: str) -> None:
        client, publisher = user("queue"), user("all")
        sid = client.subscribe(pattern, queue)
        client.flush()
        for subject in ("secret", "team.hidden", "team.b", "open"):
            publisher.publish(subject)
        publisher.flush()
        got = {message.subject for message in client.pending(sid)}
        assert not got & {"secret", "team.hidden"}
        if queue == "q":
            assert "team.b" not in got


class TestStreams:
    def test_a_restore_goes_where_it_was_allowed(self, user: User) -> None:
        """CVE-2026-33222: a restore with one stream in the subject and another in the body."""
        everybody, one = user("all"), user("one")
        everybody.api("STREAM.CREATE.THEIRS", {"name": "THEIRS", "subjects": ["theirs"]})
        sid = one.subscribe("_INBOX.one.>")
        one.flush()
        body = {"config": {"name": "OTHER", "subjects": ["other"]}, "state": {}}
        one.publish("$JS.API.STREAM.RESTORE.MINE", json.dumps(body).encode(), reply="_INBOX.one.1")
        answer = one.next(sid).json
        assert "error" in answer
        body["config"] = {"name": "THEIRS", "subjects": ["theirs"]}
        one.publish("$JS.API.STREAM.RESTORE.MINE", json.dumps(body).encode(), reply="_INBOX.one.2")
        assert "error" in one.next(sid).json
        assert everybody.api("STREAM.NAMES")["streams"] == ["THEIRS"]
        everybody.api("STREAM.DELETE.THEIRS")

    @pytest.mark.parametrize("name", ["..", "a/b", "../x", "a\\b", "*", ">", "a b", "a.b", "x" * 300])
    def test_names_lead_nowhere(self, server: Server, user: User, name: str) -> None:
        """A name is not a path."""
        client = user("all")
        subject = "x" if any(c in name for c in " .*>") else name
        made = client.api(f"STREAM.CREATE.{subject}", {"name": name, "subjects": ["n.>"]})
        assert "error" in made
        folder = server.store_dir
        assert not (folder / "x").exists()
        assert not (folder.parent / "x").exists()

    @pytest.mark.parametrize("name", ["../x", "a/b", ".."])
    def test_names_of_consumers_lead_nowhere(self, user: User, name: str) -> None:
        client = user("all")
        client.api("STREAM.CREATE.NAMES", {"name": "NAMES", "subjects": ["names"]})
        config = {"durable_name": name, "ack_policy": "explicit"}
        made = client.api("CONSUMER.DURABLE.CREATE.NAMES.x", {"stream_name": "NAMES", "config": config})
        assert "error" in made
        client.api("STREAM.DELETE.NAMES")

    def test_a_wildcard_is_no_way_to_an_endpoint(self, user: User) -> None:
        """Published tokens are literal: `*` names no stream and no endpoint."""
        everybody, one = user("all"), user("one")
        everybody.api("STREAM.CREATE.KEPT", {"name": "KEPT", "subjects": ["kept"]})
        one.errors.clear()
        for subject in ("$JS.API.*.INFO.MINE", "$JS.API.STREAM.*.MINE", "$JS.API.>", "$JS.API.STREAM.INFO.*"):
            one.publish(subject, reply="_INBOX.one.x")
        one.flush()
        assert len(one.errors) == 4
        assert everybody.request("$JS.API.STREAM.INFO.*").json["error"]["err_code"] == 10059
        everybody.api("STREAM.DELETE.KEPT")

    @pytest.mark.ours_only("A reply subject below `$JS.API.` is rejected")
    def test_an_answer_is_no_request(self, user: User) -> None:
        """A reply that is a request: the empty reply would delete a stream on behalf of the service."""
        everybody, narrow = user("all"), user("narrow")
        everybody.api("STREAM.CREATE.VICTIM", {"name": "VICTIM", "subjects": ["victim"]})
        sid = everybody.subscribe("ask.me")
        everybody.flush()
        narrow.errors.clear()
        narrow.publish("ask.me", reply="$JS.API.STREAM.DELETE.VICTIM")
        narrow.publish("victim", b"x", reply="$JS.API.STREAM.PURGE.VICTIM")
        narrow.flush()
        assert len(narrow.errors) == 2
        assert everybody.pending(sid) == []
        assert everybody.api("STREAM.INFO.VICTIM")["state"]["messages"] == 0
        everybody.api("STREAM.DELETE.VICTIM")

    @pytest.mark.ours_only("A reply subject needs publish permission")
    def test_an_acknowledgement_goes_nowhere_it_may_not(self, user: User) -> None:
        everybody, narrow = user("all"), user("narrow")
        everybody.api("STREAM.CREATE.ACKED", {"name": "ACKED", "subjects": ["acked"]})
        sid = everybody.subscribe("secret")
        everybody.flush()
        narrow.errors.clear()
        narrow.publish("acked", b"x", reply="secret")
        narrow.flush()
        assert narrow.errors == ['Permissions Violation for Publish with Reply of "secret"']
        assert everybody.pending(sid) == []
        everybody.api("STREAM.DELETE.ACKED")


class TestHeaders:
    def test_the_requester_cannot_be_forged(self, user: User) -> None:
        """CVE-2026-33223: the header by which a service knows the requester."""
        a, b = user("all"), user("b")
        sid = a.subscribe("svc")
        a.flush()
        for name in ("Nats-Request-Info", "Nats-Request-Info "):
            b.ask("svc", b"", {name: '{"acc":"A","user":"all"}'})
            request = a.next(sid)
            infos = [line for line in request.header.split(b"\r\n") if line.startswith(b"Nats-Request-Info:")]
            assert len(infos) == 1
            assert json.loads(infos[0].partition(b":")[2])["acc"] == "B"

    @pytest.mark.ours_only("`Nats-Request-Info` of a client is removed whatever ends its lines")
    @pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n", b"\n\n"])
    def test_who_asks_cannot_be_made_up_with_other_line_ends(self, user: User, end: bytes) -> None:
        """Libraries of clients also take a single CR or LF for the end of a line."""
        a, b = user("all"), user("b")
        sid = a.subscribe("svc")
        a.flush()
        forged = b'nats-request-info : {"acc":"A","user":"all"}'
        for block in (
            b"NATS/1.0" + end + forged + end + b"\r\n",
            b"NATS/1.0\r\nK: v" + end + forged + end + b"L: w\r\n\r\n",
            b"NATS/1.0\r\nK: v" + end + forged + b"\r\n\r\n",
        ):
            b.send(b"HPUB svc _INBOX.x %d %d\r\n%s\r\n" % (len(block), len(block), block))
            found = a.next(sid).header
            assert found.lower().count(b"nats-request-info") == 1
            info = next(line for line in found.splitlines() if line.startswith(b"Nats-Request-Info:"))
            assert json.loads(info.partition(b":")[2])["acc"] == "B"

    def test_a_trace_is_sent_nowhere_it_may_not(self, user: User) -> None:
        """CVE-2026-33249: a header that makes the server publish."""
        everybody, narrow = user("all"), user("narrow")
        sid = everybody.subscribe("secret")
        everybody.flush()
        narrow.publish("open", b"", {"Nats-Trace-Dest": "secret"})
        narrow.publish("open", b"", {"Nats-Trace-Dest": "secret", "Nats-Trace-Only": "true"})
        narrow.flush()
        time.sleep(0.05)
        assert everybody.pending(sid) == []


class TestSecrets:
    def test_a_certificate_is_not_that_of_another_user(self, launch: Launch, tmp_path: Path) -> None:
        """CVE-2026-33248: two names with their parts in another order are equal only if all parts are."""
        authority = Authority(tmp_path)
        config = f"""tls {{ cert_file: '{authority.cert}', key_file: '{authority.key}', ca_file: '{authority.ca}'
                          verify_and_map: true }}
                     authorization {{ users: [{{user: "CN=admin,OU=ops,OU=core,O=acme"}}] }}"""
        server = launch(Setup(config=config, jetstream=False))
        for parts, good in (
            (["core", "ops"], True),
            (["ops", "core"], True),
            (["ops", "ops"], False),
            (["core", "core"], False),
            (["ops"], False),
        ):
            subject = [("O", "acme"), *(("OU", part) for part in parts), ("CN", "admin")]
            with Wire(server.port) as wire:
                wire.start_tls(authority.context(authority.issue("client", subject)))
                wire.send(b'CONNECT {"verbose":false,"protocol":0}\r\nPING\r\n')
                assert (wire.frame() == b"PONG\r\n") is good, parts

    def test_inboxes_of_others_are_protected(self, user: User) -> None:
        one, everybody = user("one"), user("all")
        one.errors.clear()
        sids = [one.subscribe(pattern) for pattern in ("_INBOX.>", "_INBOX.*.*", ">", "_INBOX.other.1")]
        one.flush()
        assert len(one.errors) == 4
        everybody.publish("_INBOX.other.1", b"private")
        everybody.flush()
        assert all(one.pending(sid) == [] for sid in sids)

    def test_credentials_stay_out_of_the_log(self, launch: Launch) -> None:
        config = "debug: true\ntrace: true\nauthorization { user: visible, password: pa55word }"
        server = launch(Setup(config=config, jetstream=False))
        for password in ("pa55word", "wr0ngpa55"):
            with Wire(server.port) as wire:
                fields = {"user": "visible", "pass": password, "auth_token": "t0ken", "jwt": "eyJsecret"}
                wire.send(b"CONNECT " + json.dumps(fields).encode() + b"\r\nPING\r\n")
                until_pong(wire)
        with Wire(server.port) as wire:
            wire.send(b'CONNECT {"user":"visible","pass":"br0ken\r\n')
            wire.frames(2)
        text = server.log_text()
        for secret in ("pa55word", "wr0ngpa55", "t0ken"):
            assert secret not in text

    def test_how_long_a_refusal_takes_tells_nothing(self, launch: Launch) -> None:
        """A token that is right in its first letters is rejected no later than one that is wrong in all."""
        token = "a" * 64
        server = launch(Setup(config=f"authorization {{ token: {token} }}", jetstream=False))

        def lasts(offered: str) -> float:
            with Wire(server.port) as wire:
                data = b'CONNECT {"auth_token":"' + offered.encode() + b'"}\r\n'
                start = time.perf_counter()
                wire.send(data)
                assert wire.frames(2) == [VIOLATION, EOF]
                return time.perf_counter() - start

        # In turn, and the shortest of each: other load makes some longer and none shorter.
        pairs = [(lasts("a" * 63 + "b"), lasts("b" * 64)) for _ in range(25)]
        near, far = (min(times) for times in zip(*pairs, strict=True))
        assert abs(near - far) < 0.02


def test_a_stream_of_another_account_cannot_be_named(user: User) -> None:
    a, b = user("all"), user("b")
    a.api("STREAM.CREATE.OURS", {"name": "OURS", "subjects": ["ours"]})
    assert error_of(b.api("STREAM.INFO.OURS"))[0] == 10039
    a.api("STREAM.DELETE.OURS")
