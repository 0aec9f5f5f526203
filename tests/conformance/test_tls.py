"""TLS: users by certificate, handshake first, optional TLS."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Callable, Iterator

import pytest
from cryptography import x509

from conformance.client import EOF, Wire
from conformance.servers import Server, Setup
from support.certificate_authority import Authority

Launch = Callable[[Setup], Server]
VIOLATION = b"-ERR 'Authorization Violation'\r\n"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def tls(authority: Authority, more: str = "") -> str:
    return f"tls {{ cert_file: '{authority.cert}', key_file: '{authority.key}', ca_file: '{authority.ca}'\n{more} }}"


USERS = """authorization { users: [
  {user: "mail@example.org"}
  {user: "host.example.org"}
  {user: "spiffe://example.org/me"}
  {user: "CN=plain"}
  {user: "CN=boss,OU=b,OU=a,O=acme,C=US"}
  {user: "CN=app,DC=example,DC=org"}
  {user: "CN=escaped\\\\, inc,O=x"}
  {user: known, password: secret}
] }"""


@pytest.fixture(scope="module")
def mapping(kind: str, authority: Authority) -> Iterator[Server]:
    config = tls(authority, "verify_and_map: true") + "\n" + USERS
    with Server(kind, Setup(config=config, jetstream=False)) as running:
        yield running


def enter(server: Server, context: ssl.SSLContext, **fields: str) -> tuple[bytes, str]:
    """Return the first frame after CONNECT, and the user that the server assigns."""
    with Wire(server.port) as wire:
        wire.start_tls(context)
        connect = {"verbose": False, "protocol": 1, **fields}
        wire.send(b"CONNECT " + json.dumps(connect).encode() + b"\r\nPING\r\n")
        first = wire.frame()
        if first != b"PONG\r\n":
            return first, ""
        wire.read_info()
        wire.send(b"SUB me 1\r\nPUB $SYS.REQ.USER.INFO me 0\r\n\r\n")
        message = wire.frame()
        return first, json.loads(message.split(b"\r\n", 1)[1])["data"]["user"]


class TestUsersByCertificate:
    @pytest.mark.parametrize(
        ("subject", "names", "user"),
        [
            ([("CN", "x")], [x509.RFC822Name("mail@example.org")], "mail@example.org"),
            ([("CN", "x")], [x509.DNSName("host.example.org")], "host.example.org"),
            (
                [("CN", "x")],
                [x509.UniformResourceIdentifier("spiffe://example.org/me")],
                "spiffe://example.org/me",
            ),
            (
                [("CN", "x")],
                [x509.DNSName("host.example.org"), x509.RFC822Name("mail@example.org")],
                "mail@example.org",
            ),
            ([("CN", "plain")], [], "CN=plain"),
            ([("CN", "plain")], [x509.DNSName("nobody.example.org")], "CN=plain"),
            (
                [("C", "US"), ("O", "acme"), ("OU", "a"), ("OU", "b"), ("CN", "boss")],
                [],
                "CN=boss,OU=b,OU=a,O=acme,C=US",
            ),
            (
                [("CN", "boss"), ("OU", "b"), ("O", "acme"), ("C", "US"), ("OU", "a")],
                [],
                "CN=boss,OU=b,OU=a,O=acme,C=US",
            ),
            ([("DC", "org"), ("DC", "example"), ("CN", "app")], [], "CN=app,DC=example,DC=org"),
        ],
    )
    def test_who_it_is(
        self,
        mapping: Server,
        authority: Authority,
        subject: list[tuple[str, str]],
        names: list[x509.GeneralName],
        user: str,
    ) -> None:
        context = authority.context(authority.issue("client", subject, names))
        assert enter(mapping, context) == (b"PONG\r\n", user)

    @pytest.mark.parametrize(
        "subject",
        [
            [("CN", "nobody")],
            [("CN", "plain"), ("O", "acme")],
            [("C", "US"), ("O", "acme"), ("OU", "a"), ("CN", "boss")],
            [("C", "US"), ("O", "acme"), ("OU", "a"), ("OU", "a"), ("CN", "boss")],
            [("C", "US"), ("O", "acme"), ("OU", "b"), ("OU", "b"), ("CN", "boss")],
            [("CN", "plain,O=acme")],
            [("O", "CN=plain")],
            [("CN", "known")],
        ],
    )
    def test_who_it_is_not(
        self, mapping: Server, authority: Authority, subject: list[tuple[str, str]]
    ) -> None:
        """Neither a part more nor a part less, and no part counted twice."""
        context = authority.context(authority.issue("client", subject))
        assert enter(mapping, context)[0] == VIOLATION

    @pytest.mark.ours_only("A repeated name in a certificate does not match the single name")
    def test_a_part_that_is_there_twice(self, mapping: Server, authority: Authority) -> None:
        context = authority.context(authority.issue("client", [("CN", "plain"), ("CN", "plain")]))
        assert enter(mapping, context)[0] == VIOLATION

    def test_a_password_does_not_help(self, mapping: Server, authority: Authority) -> None:
        context = authority.context(authority.issue("client", [("CN", "nobody")]))
        assert enter(mapping, context, user="known", **{"pass": "secret"})[0] == VIOLATION

    def test_a_name_is_not_enough(self, launch: Launch, authority: Authority) -> None:
        """Without the mapping, a user without a password is not accepted by name."""
        server = launch(
            Setup(
                config=tls(authority, "verify: true") + "\n" + USERS.replace("{user: known", "{user: known2")
            )
        )
        context = authority.context(authority.issue("client", [("CN", "plain")]))
        with Wire(server.port) as wire:
            assert wire.info["tls_verify"] is True
            wire.start_tls(context)
            wire.send(b'CONNECT {"verbose":false,"user":"nobody","pass":""}\r\nPING\r\n')
            assert wire.frame() == VIOLATION


@pytest.mark.ours_only("A user without a password can only authenticate by certificate")
def test_a_user_without_a_password(launch: Launch) -> None:
    server = launch(Setup(config="authorization { users: [{user: a}] }", jetstream=False))
    for fields in ('{"user":"a"}', '{"user":"a","pass":""}'):
        with Wire(server.port) as wire:
            wire.send(f"CONNECT {fields}\r\n".encode())
            wire.expect_end(VIOLATION)


class Silent:
    """A socket that does not wait."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)

    def __enter__(self) -> socket.socket:
        return self.socket

    def __exit__(self, *_: object) -> None:
        self.socket.close()


class TestHandshakeFirst:
    def test_nothing_is_said_before(self, launch: Launch, authority: Authority) -> None:
        server = launch(Setup(config=tls(authority, "handshake_first: true"), jetstream=False))
        with Silent(server.port) as plain:
            plain.settimeout(0.3)
            with pytest.raises(TimeoutError):
                plain.recv(1)
            plain.settimeout(60)
            with authority.context().wrap_socket(plain, server_hostname="localhost") as secure:
                assert secure.recv(4096).startswith(b"INFO ")
                secure.sendall(b'CONNECT {"verbose":false,"protocol":0}\r\nPING\r\n')
                assert secure.recv(4096) == b"PONG\r\n"

    @pytest.mark.parametrize("value", ["auto", "'100ms'"])
    def test_who_begins_by_itself_and_who_waits(
        self, launch: Launch, authority: Authority, value: str
    ) -> None:
        server = launch(Setup(config=tls(authority, f"handshake_first: {value}"), jetstream=False))
        assert any(self.begins(server, authority) for _ in range(20))
        with Wire(server.port) as wire:
            assert wire.info["tls_required"] is True
            wire.start_tls(authority.context())
            wire.send(b'CONNECT {"verbose":false,"protocol":0}\r\nPING\r\n')
            wire.expect(b"PONG\r\n")

    def begins(self, server: Server, authority: Authority) -> bool:
        """Return whether a client that starts TLS gets INFO over TLS; not if the server's timeout passed before."""
        context = authority.context()
        try:
            with (
                Silent(server.port) as plain,
                context.wrap_socket(plain, server_hostname="localhost") as secure,
            ):
                return secure.recv(4096).startswith(b"INFO ")
        except ssl.SSLError:
            return False

    def test_who_never_begins_is_cut_off(self, launch: Launch, authority: Authority) -> None:
        server = launch(
            Setup(config=tls(authority, "handshake_first: true, timeout: '300ms'"), jetstream=False)
        )
        with Silent(server.port) as plain:
            assert plain.recv(1) == b""


class TestOptional:
    def test_both_are_served(self, launch: Launch, authority: Authority) -> None:
        server = launch(Setup(config=tls(authority) + "\nallow_non_tls: true", jetstream=False))
        connect = b'CONNECT {"verbose":false,"protocol":0}\r\nPING\r\n'
        with Wire(server.port) as wire:
            assert wire.info["tls_available"] is True
            assert "tls_required" not in wire.info
            wire.send(connect)
            wire.expect(b"PONG\r\n")
        with Wire(server.port) as wire:
            wire.start_tls(authority.context())
            wire.send(connect)
            wire.expect(b"PONG\r\n")

    def test_a_silent_one_is_cut_off(self, launch: Launch, authority: Authority) -> None:
        config = tls(authority, "timeout: '300ms'")
        server = launch(Setup(config=config, jetstream=False))
        with Wire(server.port) as wire:
            assert wire.frame() == EOF
