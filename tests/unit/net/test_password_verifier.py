"""Passwords with bcrypt hashes are checked away from the event loop, and nothing is processed before the result."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator

import pytest

import headrace
from headrace.auth.authenticator import (
    AuthContext,
    Authenticator,
    SlowPassword,
    VerifiedPassword,
    verify_secret,
)
from headrace.config.options import ServerOptions, User
from headrace.net import password_verifier

bcrypt = pytest.importorskip("bcrypt")

HASH = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
USERS = (User("ann", HASH), User("bob", "plain"))
VIOLATION = b"-ERR 'Authorization Violation'\r\n"
TIMEOUT_S = 60.0


@contextlib.asynccontextmanager
async def connect(
    server: headrace.Server,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    await reader.readline()
    try:
        yield reader, writer
    finally:
        writer.close()


def greeting(user: str, password: str, rest: bytes = b"PING\r\n") -> bytes:
    return f'CONNECT {{"user":"{user}","pass":"{password}","verbose":false}}\r\n'.encode() + rest


async def read_until(reader: asyncio.StreamReader, end: bytes) -> bytes:
    async with asyncio.timeout(TIMEOUT_S):
        return await reader.readuntil(end)


@pytest.mark.parametrize("user", ["ann", "bob"])
@pytest.mark.parametrize("step", [1, 7, 10_000])
async def test_what_follows_connect_is_processed_once(user: str, step: int) -> None:
    password = "secret" if user == "ann" else "plain"
    data = greeting(user, password, b"SUB a 1\r\nPUB a 2\r\nhi\r\nPING\r\n")
    async with headrace.Server(users=USERS) as server, connect(server) as (reader, writer):
        for at in range(0, len(data), step):
            writer.write(data[at : at + step])
            await writer.drain()
        assert await read_until(reader, b"PONG\r\n") == b"MSG a 1 2\r\nhi\r\nPONG\r\n"


@pytest.mark.parametrize("password", ["secret", "wrong"])
@pytest.mark.parametrize("step", [1, 10_000])
async def test_a_client_that_needs_no_password_may_use_one(password: str, step: int) -> None:
    """With `no_auth_user` a connection is accepted before CONNECT, which may still name another user."""
    data = greeting("ann", password, b"SUB a 1\r\nPUB a 2\r\nhi\r\nPING\r\n")
    async with (
        headrace.Server(users=USERS, no_auth_user="bob") as server,
        connect(server) as (reader, writer),
    ):
        for at in range(0, len(data), step):
            writer.write(data[at : at + step])
            await writer.drain()
        if password == "secret":
            assert await read_until(reader, b"PONG\r\n") == b"MSG a 1 2\r\nhi\r\nPONG\r\n"
        else:
            async with asyncio.timeout(TIMEOUT_S):
                assert await reader.read() == VIOLATION


async def test_a_client_without_a_password_is_not_held_back() -> None:
    async with (
        headrace.Server(users=USERS, no_auth_user="bob") as server,
        connect(server) as (reader, writer),
    ):
        writer.write(b"SUB a 1\r\n" + b"PUB a 2\r\nhi\r\n" * 3 + b"PING\r\n")
        assert (await read_until(reader, b"PONG\r\n")).count(b"MSG a 1 2\r\nhi\r\n") == 3
        assert server.listener is not None
        [connection] = server.listener.connections.values()
        assert connection._greeting is None, "what it sends is not kept"


@pytest.mark.parametrize(
    ("user", "password"), [("ann", "wrong"), ("bob", "wrong"), ("eve", "secret"), ("ann", "")]
)
async def test_a_wrong_password_is_refused(user: str, password: str) -> None:
    async with headrace.Server(users=USERS) as server, connect(server) as (reader, writer):
        writer.write(greeting(user, password))
        async with asyncio.timeout(TIMEOUT_S):
            assert await reader.read() == VIOLATION


async def test_others_are_served_while_a_password_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    def verify_later(stored: str, provided: object) -> bool:
        assert go_on.wait(TIMEOUT_S)
        return verify_secret(stored, provided)

    async with headrace.Server(users=USERS) as server, connect(server) as (reader, writer):
        writer.write(greeting("ann", "secret"))
        await read_until(reader, b"PONG\r\n")
        monkeypatch.setattr(password_verifier, "verify_secret", verify_later)
        async with connect(server) as (late_reader, late_writer), connect(server) as (_, leaving):
            late_writer.write(greeting("ann", "secret"))
            leaving.write(greeting("eve", "secret"))
            await asyncio.sleep(0.05)
            leaving.close()
            for _ in range(5):
                writer.write(b"PING\r\n")
                await read_until(reader, b"PONG\r\n")
            go_on.set()
            await read_until(late_reader, b"PONG\r\n")


async def test_remote_addresses_are_served_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many passwords from one address delay the login from another by one check only."""
    all_queued, all_checked = threading.Event(), asyncio.Event()
    order: list[object] = []

    def verify_later(stored: str, provided: object) -> bool:
        assert all_queued.wait(TIMEOUT_S)
        if provided == "flood 3":
            raise ValueError("the library rejects it")
        return provided == "login"

    def on_verified(result: VerifiedPassword) -> None:
        order.append(result.provided)
        assert result.is_correct == (result.provided == "login")
        if len(order) == 21:
            all_checked.set()

    monkeypatch.setattr(password_verifier, "verify_secret", verify_later)
    monkeypatch.setattr(password_verifier.os, "cpu_count", lambda: 2)  # one thread for checks
    verifier = password_verifier.PasswordVerifier(asyncio.get_running_loop())
    for number in range(20):
        verifier.verify("192.0.2.1", SlowPassword(HASH, f"flood {number}"), on_verified)
    verifier.verify("192.0.2.2", SlowPassword(HASH, "login"), on_verified)
    all_queued.set()
    async with asyncio.timeout(TIMEOUT_S):
        await all_checked.wait()
    verifier.close()
    assert order == ["flood 0", "flood 1", "login", *(f"flood {number}" for number in range(2, 20))]


async def test_a_second_connect_with_another_password_is_refused() -> None:
    async with headrace.Server(users=USERS) as server, connect(server) as (reader, writer):
        writer.write(greeting("ann", "secret"))
        await read_until(reader, b"PONG\r\n")
        writer.write(greeting("ann", "other"))
        async with asyncio.timeout(TIMEOUT_S):
            assert (await reader.read()).endswith(VIOLATION)


def test_every_refusal_costs_the_same() -> None:
    authenticator = Authenticator(ServerOptions(users=USERS))
    for user in ("ann", "bob", "eve"):
        connect_fields = {"user": user, "pass": "wrong"}
        with pytest.raises(SlowPassword) as raised:
            authenticator.check(connect_fields)
        stored = raised.value.stored
        assert stored[:7] == HASH[:7], "the same algorithm and cost"
        assert not verify_secret(stored, "wrong")
        context = AuthContext(verified=VerifiedPassword(stored, "wrong", is_correct=False))
        assert authenticator.check(connect_fields, context) is None


def test_a_result_counts_only_for_its_password() -> None:
    authenticator = Authenticator(ServerOptions(users=USERS))
    forged = AuthContext(verified=VerifiedPassword(HASH, "other", is_correct=True))
    with pytest.raises(SlowPassword):
        authenticator.check({"user": "ann", "pass": "wrong"}, forged)
    decoy = AuthContext(verified=VerifiedPassword(authenticator._decoy_hash, "x", is_correct=True))
    assert authenticator.check({"user": "eve", "pass": "x"}, decoy) is None
