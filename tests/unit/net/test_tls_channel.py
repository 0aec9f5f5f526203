"""TLS on a client's socket, in every order that nats-server supports."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from support import certificates
from support.sockets import CONNECT, TIMEOUT_S, Start, Wire, listeners, until


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    async with listeners() as begin:
        yield begin


@pytest.fixture
def made(tmp_path: Path) -> certificates.Certificates:
    return certificates.make(tmp_path)


def settings(made: certificates.Certificates, **more: Any) -> dict[str, Any]:
    return {"tls": True, "tls_cert": made.cert, "tls_key": made.key, **more}


def context(made: certificates.Certificates, *, certificate: bool = False) -> ssl.SSLContext:
    trust = ssl.create_default_context(cafile=made.ca)
    if certificate:
        trust.load_cert_chain(made.client_cert, made.client_key)
    return trust


async def upgrade(wire: Wire, trust: ssl.SSLContext) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        await wire.writer.start_tls(trust, server_hostname="127.0.0.1")


async def speak(wire: Wire, trust: ssl.SSLContext) -> None:
    """Start TLS and wait for a reply, or fail; with TLS 1.3 a rejection shows only when reading."""
    await upgrade(wire, trust)
    wire.send(CONNECT + b"PING\r\n")
    if not await wire.line():
        raise ConnectionError("closed")


async def test_info_first_then_tls(start: Start, made: certificates.Certificates) -> None:
    wire = await Wire.dial(await start(**settings(made)), b"")
    assert wire.info["tls_required"] is True
    await upgrade(wire, context(made))
    wire.send(CONNECT)
    assert await wire.ask(b"SUB a 1\r\nPUB a 2\r\nhi\r\n") == b"MSG a 1 2\r\nhi\r\n"
    await wire.close()


async def test_a_closed_connection_keeps_no_channel(start: Start, made: certificates.Certificates) -> None:
    listener = await start(**settings(made))
    wire = await Wire.dial(listener, b"")
    await upgrade(wire, context(made))
    wire.send(CONNECT)
    await wire.ask(b"")
    (connection,) = listener.connections.values()
    assert connection._tls is not None  # type: ignore[attr-defined]
    await wire.close()
    await until(lambda: not listener.connections)
    assert connection._tls is None  # type: ignore[attr-defined]


async def test_much_data_both_ways(start: Start, made: certificates.Certificates) -> None:
    wire = await Wire.dial(await start(**settings(made)), b"")
    await upgrade(wire, context(made))
    wire.send(CONNECT)
    payload = bytes(range(256)) * 2000
    await wire.ask(b"SUB a 1\r\n")
    for _ in range(4):
        wire.send(b"PUB a %d\r\n" % len(payload) + payload + b"\r\n")
    expected = (b"MSG a 1 %d\r\n" % len(payload) + payload + b"\r\n") * 4
    async with asyncio.timeout(TIMEOUT_S):
        assert await wire.reader.readexactly(len(expected)) == expected
    await wire.close()


async def test_plain_bytes_and_silence_end_without_a_word(
    start: Start, made: certificates.Certificates
) -> None:
    listener = await start(**settings(made, tls_timeout_s=0.1))
    plain = await Wire.dial(listener)
    assert b"-ERR" not in await plain.rest()
    silent = await Wire.dial(listener, b"")
    assert await silent.rest() == b""
    await plain.close()
    await silent.close()


async def test_tls_before_anything_else(start: Start, made: certificates.Certificates) -> None:
    listener = await start(**settings(made, tls_handshake_first=True))
    wire = await Wire.dial(listener, ssl=context(made))
    assert wire.info["tls_required"] is True
    assert await wire.ask(b"") == b""
    await wire.close()


async def test_tls_or_not_as_the_client_likes(start: Start, made: certificates.Certificates) -> None:
    listener = await start(**settings(made, allow_non_tls=True))
    plain, secret = await Wire.dial(listener), await Wire.dial(listener, b"")
    assert "tls_required" not in plain.info
    assert plain.info["tls_available"] is True
    await upgrade(secret, context(made))
    secret.send(CONNECT)
    await secret.ask(b"SUB a 1\r\n")
    await plain.ask(b"PUB a 2\r\nhi\r\n")
    assert await secret.line() == b"MSG a 1 2\r\n"
    await plain.close()
    await secret.close()


async def test_clients_without_a_required_certificate_are_refused(
    start: Start, made: certificates.Certificates
) -> None:
    listener = await start(**settings(made, tls_verify=True, tls_ca=made.ca))
    known = await Wire.dial(listener, b"")
    assert known.info["tls_verify"] is True
    await upgrade(known, context(made, certificate=True))
    known.send(CONNECT)
    assert await known.ask(b"") == b""
    stranger = await Wire.dial(listener, b"")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await speak(stranger, context(made))
    await until(lambda: len(listener.connections) == 1)
    await known.close()
    await stranger.close()


async def test_authentication_counts_after_the_handshake(
    start: Start, made: certificates.Certificates
) -> None:
    listener = await start(**settings(made, user="a", password="b", auth_timeout_s=0.1))
    wire = await Wire.dial(listener, b"")
    await upgrade(wire, context(made))
    assert await wire.rest() == b"-ERR 'Authentication Timeout'\r\n"
    await wire.close()
