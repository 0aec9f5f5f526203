"""A reload revokes what it no longer grants; a rejected one changes nothing."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client

import headrace
from headrace.broker import Permissions
from headrace.broker.routing.exports import Export, Import
from headrace.client import connect
from headrace.config.options import ANY_PORT, AccountOptions, OptionsError, ServerOptions, User

LOCAL = ServerOptions(host="127.0.0.1", port=ANY_PORT)


@asynccontextmanager
async def connected(server: headrace.Server, user: str) -> AsyncIterator[Client]:
    client = await connect(server.url, user=user, password=user)
    try:
        yield client
    finally:
        await client.close()


async def test_a_subscription_that_is_no_longer_allowed_ends() -> None:
    options = replace(LOCAL, users=(User("a", "a"), User("b", "b")))
    async with (
        headrace.Server(options=options) as server,
        connected(server, "a") as listener,
        connected(server, "b") as sender,
    ):
        kept, lost = await listener.subscribe("open.x"), await listener.subscribe("secret.x", queue="q")
        await listener.flush()
        rules = Permissions(subscribe_allow=[b"open.>", b"_INBOX.>"])
        server.reload(replace(options, users=(User("a", "a", permissions=rules), User("b", "b"))))
        for subject in ("secret.x", "open.x"):
            await sender.publish(subject, b"")
        await sender.flush()
        assert (await kept.next_msg(60)).subject == "open.x"
        assert lost.pending_msgs == 0
        assert 'for subscription to "secret.x" using queue "q" (sid "2")' in str(listener.last_error).lower()


async def test_a_refused_reload_leaves_the_imports_as_they_were() -> None:
    source = AccountOptions("A", exports=(Export("stream", b"a.>"),))
    taker = AccountOptions("B", imports=(Import("stream", "A", b"a.>", b"a.>"),))
    users = (User("a", "a", account="A"), User("b", "b", account="B"))
    options = replace(LOCAL, accounts=(source, taker), users=users)
    async with (
        headrace.Server(options=options) as server,
        connected(server, "a") as sender,
        connected(server, "b") as listener,
    ):
        messages = await listener.subscribe("a.>")
        await listener.flush()
        greedy = replace(taker, imports=(Import("stream", "A", b"secret.>", b"x.>"),))
        with pytest.raises(OptionsError, match=r"may not import stream 'secret\.>'"):
            server.reload(replace(options, accounts=(source, greedy)))
        await sender.publish("a.1", b"")
        assert (await messages.next_msg(60)).subject == "a.1"


async def test_contents_are_closed_by_a_reload_that_asks_for_passwords(tmp_path: Path) -> None:
    options = replace(LOCAL, jetstream=True, store_dir=str(tmp_path), http_port=ANY_PORT)
    async with headrace.Server(options=options) as server:
        client = await connect(server.url)
        await client.jetstream().add_stream(name="S", subjects=["s"])
        await client.close()
        page = f"http://127.0.0.1:{server.stats().http_port}/headrace/messages?stream=S"
        assert json.loads(await asyncio.to_thread(read, page))["messages"] == []
        server.reload(replace(options, user="u", password="p"))
        with pytest.raises(urllib.error.HTTPError) as refused:
            await asyncio.to_thread(read, page)
        refused.value.close()
        assert refused.value.code == 403


def read(url: str) -> bytes:
    with urllib.request.urlopen(url) as answer:
        found: bytes = answer.read()
        return found


async def test_a_reload_that_would_open_a_listener_is_refused() -> None:
    options = replace(LOCAL, host="0.0.0.0", user="u", password="p")
    async with headrace.Server(options=options) as server:
        # The new address needs a restart, so the listener would stay where it is, without users.
        with pytest.raises(OptionsError, match="without authentication"):
            server.reload(LOCAL)
        with pytest.raises(nats.errors.Error):
            await connect(f"nats://127.0.0.1:{server.port}", allow_reconnect=False, connect_timeout=60)
