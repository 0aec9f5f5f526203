"""Accounts of a shared server: what one test leaves, no other test sees."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import nats.errors
import pytest
from nats.aio.client import Client as Connection

from headrace.testing import AccountPool, HostedServer

TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostedServer]:
    options = AccountPool.make_options(store_dir=tmp_path_factory.mktemp("shared"))
    with HostedServer(**options) as running:
        yield running


async def connect(url: str, **options: Any) -> Connection:
    return await nats.connect(url, connect_timeout=TIMEOUT_S, **options)


@pytest.fixture
def pool(server: HostedServer) -> AccountPool:
    return AccountPool(server)


async def test_accounts_do_not_see_each_other(pool: AccountPool) -> None:
    first, second = await asyncio.to_thread(pool.acquire), await asyncio.to_thread(pool.acquire)
    assert first.name != second.name
    one, two = await connect(first.url), await connect(second.url)
    messages = await two.subscribe("*")
    await two.flush()
    await one.jetstream(timeout=TIMEOUT_S).add_stream(name="S", subjects=["s"])
    await one.jetstream(timeout=TIMEOUT_S).publish("s", b"1")
    assert await two.jetstream(timeout=TIMEOUT_S).streams_info() == []
    await two.publish("own", b"2")
    assert (await messages.next_msg(TIMEOUT_S)).subject == "own"
    await one.close()
    await two.close()
    for account in (first, second):
        await asyncio.to_thread(pool.release, account)


async def test_a_released_account_is_empty_and_its_clients_are_gone(pool: AccountPool) -> None:
    account = await asyncio.to_thread(pool.acquire)
    closed = asyncio.Event()

    async def on_closed() -> None:
        closed.set()

    leaked = await connect(account.url, allow_reconnect=False, closed_cb=on_closed)
    await leaked.subscribe("s")
    await leaked.jetstream(timeout=TIMEOUT_S).add_stream(name="S", subjects=["s"])
    await asyncio.to_thread(pool.release, account)
    await asyncio.wait_for(closed.wait(), TIMEOUT_S)
    again = await asyncio.to_thread(pool.acquire)
    assert again.name == account.name, "an account is used again"
    client = await connect(again.url)
    assert await client.jetstream(timeout=TIMEOUT_S).streams_info() == []
    await client.close()
    with pytest.raises(nats.errors.Error):
        await connect(account.url, allow_reconnect=False, max_reconnect_attempts=0)
    await asyncio.to_thread(pool.release, again)


def test_an_account_is_released_once(pool: AccountPool) -> None:
    account = pool.acquire()
    pool.release(account)
    with pytest.raises(ValueError, match="released already"):
        pool.release(account)


def test_an_account_that_cannot_be_emptied_is_not_used_again(
    pool: AccountPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(url: str) -> None:
        raise OSError("broken")

    account = pool.acquire()
    monkeypatch.setattr("headrace.testing.account_pool._delete_streams", fail)
    with pytest.warns(UserWarning, match="not used again"):
        pool.release(account)
    assert pool.acquire().name != account.name


def test_a_client_without_a_user_is_rejected(server: HostedServer) -> None:
    with pytest.raises(nats.errors.Error, match="Authorization"):
        asyncio.run(connect(server.url, allow_reconnect=False, max_reconnect_attempts=0))


def test_passwords_are_not_shown(pool: AccountPool, tmp_path: Path) -> None:
    account = pool.acquire()
    assert account.password not in repr(account)
    assert account.password in account.url
    pool.release(account)
