"""Authentication: users, passwords, tokens and TLS."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import nats
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from conformance.client import EOF, Client, Wire
from conformance.servers import Server, Setup
from support.certificates import make_key_usage

Launch = Callable[[Setup], Server]
VIOLATION = b"-ERR 'Authorization Violation'\r\n"
#: bcrypt of "secret", cost 4
HASHED = "$2a$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW"


@pytest.fixture(scope="module")
def guarded(kind: str) -> Iterator[Server]:
    with Server(kind, Setup(flags=("--user", "ivan", "--pass", "foo"), jetstream=False)) as running:
        yield running


@pytest.fixture(scope="module")
def tokened(kind: str) -> Iterator[Server]:
    with Server(kind, Setup(flags=("--auth", "s3cr3t"), jetstream=False)) as running:
        yield running


class TestUsers:
    def test_it_is_announced(self, guarded: Server) -> None:
        with Wire(guarded.port) as wire:
            assert wire.info["auth_required"] is True

    def test_the_right_ones_come_in(self, guarded: Server) -> None:
        with Client(guarded.port, **{"user": "ivan", "pass": "foo"}) as client:
            client.flush()

    @pytest.mark.parametrize(
        "credentials",
        [
            "{}",
            '{"user":"ivan"}',
            '{"user":"ivan","pass":""}',
            '{"user":"ivan","pass":"Foo"}',
            '{"user":"ivan","pass":"foo "}',
            '{"user":"Ivan","pass":"foo"}',
            '{"user":"","pass":"foo"}',
            '{"auth_token":"foo"}',
        ],
    )
    def test_others_do_not(self, guarded: Server, credentials: str) -> None:
        with Wire(guarded.port) as wire:
            wire.send(f"CONNECT {credentials}\r\n".encode())
            wire.expect_end(VIOLATION)

    @pytest.mark.parametrize(
        "operation", [b"SUB a 1\r\n", b"PUB a 0\r\n\r\n", b"PING\r\n", b"INFO {}\r\n", b"\r\n"]
    )
    def test_nothing_comes_before_connect(self, guarded: Server, operation: bytes) -> None:
        with Wire(guarded.port) as wire:
            wire.send(operation)
            wire.expect_end(VIOLATION)

    async def test_nats_py_connects_over_tls(self, guarded: Server) -> None:
        connection = await nats.connect(
            guarded.url, user="ivan", password="foo", allow_reconnect=False, connect_timeout=20
        )
        await connection.flush()
        await connection.close()
        with pytest.raises(nats.errors.Error, match="Authorization Violation"):
            await nats.connect(
                guarded.url,
                user="ivan",
                password="no",
                allow_reconnect=False,
                connect_timeout=60,
                error_cb=_ignore,
            )

    def test_a_hashed_password(self, launch: Launch) -> None:
        server = launch(Setup(flags=("--user", "ivan", "--pass", HASHED), jetstream=False))
        with Client(server.port, **{"user": "ivan", "pass": "secret"}) as client:
            client.flush()
        with Wire(server.port) as wire:
            wire.send(b'CONNECT {"user":"ivan","pass":"%s"}\r\n' % HASHED.encode())
            wire.expect_end(VIOLATION)


async def _ignore(_: Exception) -> None:
    """Ignore the error: nats-py reports each failed attempt, and the test checks the one that it raises."""


class TestTokens:
    def test_the_right_token_connects(self, tokened: Server) -> None:
        with Client(tokened.port, auth_token="s3cr3t") as client:
            client.flush()

    @pytest.mark.parametrize("token", ["", "S3cr3t", "s3cr3t2", "s3cr3"])
    def test_a_wrong_token_is_refused(self, tokened: Server, token: str) -> None:
        with Wire(tokened.port) as wire:
            wire.send(f'CONNECT {{"auth_token":"{token}"}}\r\n'.encode())
            wire.expect_end(VIOLATION)


class TestAccounts:
    CONFIG = """accounts { A { users = [ { user: a, password: a } ] }, B { users = [ { user: b, password: b } ] } }
                no_auth_user: a"""

    def test_each_has_its_own_subjects(self, launch: Launch) -> None:
        server = launch(Setup(config=self.CONFIG, jetstream=False))
        with (
            Client(server.port, **{"user": "a", "pass": "a"}) as first,
            Client(server.port, **{"user": "b", "pass": "b"}) as second,
        ):
            here, there = first.subscribe("x"), second.subscribe("x")
            second.flush()
            first.publish("x", b"1")
            assert len(first.pending(here)) == 1
            assert second.pending(there) == []

    @pytest.mark.parametrize("fields", [{"jwt": "x"}, {"nkey": "UX"}, {"jwt": "x", "sig": "y", "nkey": "UX"}])
    def test_keys_and_tokens_count_for_nothing_where_nobody_has_any(
        self, launch: Launch, fields: dict[str, str]
    ) -> None:
        server = launch(Setup(config=self.CONFIG, jetstream=False))
        with Client(server.port, **fields) as client:
            assert client.infos[-1]["remote_account"] == "A"
        with Client(server.port, **fields, **{"user": "b", "pass": "b"}) as client:
            assert client.infos[-1]["remote_account"] == "B"

    def test_strangers_can_be_somebody(self, launch: Launch) -> None:
        server = launch(Setup(config=self.CONFIG, jetstream=False))
        with Client(server.port) as client:
            assert client.infos[-1]["remote_account"] == "A"


class Papers(NamedTuple):
    """Files of a certificate authority for one test module."""

    authority: Path
    server_cert: Path
    server_key: Path
    client_cert: Path
    client_key: Path

    def trusting(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.authority))


def _certificate(
    folder: Path, name: str, issuer: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey, Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    signer = issuer[1] if issuer else key
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer[0].subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(make_key_usage(authority=issuer is None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
        .sign(signer, hashes.SHA256())
    )
    cert_file, key_file = folder / f"{name}.pem", folder / f"{name}.key"
    cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8
    key_file.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return certificate, key, cert_file, key_file


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    folder = tmp_path_factory.mktemp("papers")
    authority, key, authority_file, _ = _certificate(folder, "authority", None)
    _, _, server_cert, server_key = _certificate(folder, "server", (authority, key))
    _, _, client_cert, client_key = _certificate(folder, "client", (authority, key))
    return Papers(authority_file, server_cert, server_key, client_cert, client_key)


def _tls_flags(papers: Papers) -> tuple[str, ...]:
    return ("--tls", "--tlscert", str(papers.server_cert), "--tlskey", str(papers.server_key))


@pytest.fixture(scope="module")
def sealed(kind: str, papers: Papers) -> Iterator[Server]:
    with Server(kind, Setup(flags=_tls_flags(papers), jetstream=False)) as running:
        yield running


@pytest.fixture(scope="module")
def verifying(kind: str, papers: Papers) -> Iterator[Server]:
    flags = (*_tls_flags(papers), "--tlsverify", "--tlscacert", str(papers.authority))
    with Server(kind, Setup(flags=flags, jetstream=False)) as running:
        yield running


class TestTls:
    def test_info_comes_in_the_clear_and_asks_for_it(self, sealed: Server, papers: Papers) -> None:
        with Wire(sealed.port) as wire:
            assert wire.info["tls_required"] is True
            assert "tls_verify" not in wire.info
            wire.start_tls(papers.trusting())
            wire.send(b'CONNECT {"verbose":false,"protocol":1}\r\nPING\r\n')
            wire.expect(b"PONG\r\n")
            assert wire.read_info()["connect_info"] is True

    def test_plain_bytes_are_not_understood(self, sealed: Server) -> None:
        with Wire(sealed.port) as wire:
            wire.send(b'CONNECT {"verbose":false}\r\nPING\r\n')
            received = wire.frames(3)
            assert received[-1] == EOF
            assert b"PONG\r\n" not in received

    def test_messages_pass_over_tls(self, sealed: Server, papers: Papers) -> None:
        with Wire(sealed.port) as wire:
            wire.start_tls(papers.trusting())
            payload = b"x" * 300_000
            wire.send(
                b'CONNECT {"verbose":false,"protocol":0}\r\nSUB a 1\r\nPUB a 300000\r\n' + payload + b"\r\n"
            )
            wire.expect(b"MSG a 1 300000\r\n" + payload + b"\r\n")

    def test_a_goodbye_is_answered(self, sealed: Server, papers: Papers) -> None:
        """Clients wait for the reply when they close; without it they would wait for the PING after two seconds."""
        with Wire(sealed.port) as wire:
            wire.start_tls(papers.trusting())
            wire.send(b'CONNECT {"verbose":false,"protocol":0}\r\nPING\r\n')
            wire.expect(b"PONG\r\n")
            wire.socket.settimeout(60)
            assert isinstance(wire.socket, ssl.SSLSocket)
            wire.socket = wire.socket.unwrap()
            assert wire.socket.recv(1) == b""

    async def test_nats_py_connects_over_tls(self, sealed: Server, papers: Papers) -> None:
        url = sealed.url.replace("nats://", "tls://")
        connection = await nats.connect(url, tls=papers.trusting(), allow_reconnect=False, connect_timeout=60)
        await connection.flush()
        await connection.close()

    def test_a_client_certificate_can_be_required(self, verifying: Server, papers: Papers) -> None:
        context = papers.trusting()
        context.load_cert_chain(papers.client_cert, papers.client_key)
        with Wire(verifying.port) as wire:
            assert wire.info["tls_verify"] is True
            wire.start_tls(context)
            wire.send(b'CONNECT {"verbose":false}\r\nPING\r\n')
            wire.expect(b"PONG\r\n")

    def test_without_one_nobody_comes_in(self, verifying: Server, papers: Papers) -> None:
        with Wire(verifying.port) as wire:
            try:
                wire.start_tls(papers.trusting())
                wire.send(b'CONNECT {"verbose":false}\r\nPING\r\n')
                assert wire.frame() == EOF
            except ssl.SSLError:
                pass  # the alert may arrive while writing or while reading
