"""Dialing a hostile hub: it gets no secrets without TLS, and cannot stop the dialer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import headrace
from headrace.config.leafnode_options import LeafnodeOptions, LeafnodeRemote, LeafnodeTlsOptions
from headrace.config.options import ANY_PORT, ServerOptions


class Hub:
    """Sends one INFO to every connection and records what it receives."""

    def __init__(self, urls: list[str]) -> None:
        self._urls = urls
        self.heard: list[bytes] = []
        self.came = asyncio.Event()
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        fields = {"server_id": "X", "server_name": "X", "client_id": 1, "leafnode_urls": self._urls}
        writer.write(b"INFO %s\r\n" % json.dumps(fields).encode())
        try:
            self.heard.append(await reader.read(2000))
        finally:
            writer.close()
            self.came.set()


@asynccontextmanager
async def hub(urls: list[str]) -> AsyncIterator[Hub]:
    made = Hub(urls)
    async with await asyncio.start_server(made.serve, "127.0.0.1", 0) as server:
        made.port = server.sockets[0].getsockname()[1]
        yield made


def dialling(remote: LeafnodeRemote) -> headrace.Server:
    leafnodes = LeafnodeOptions(reconnect_s=0.01, remotes=(remote,))
    return headrace.Server(options=ServerOptions(host="127.0.0.1", port=ANY_PORT, leafnodes=leafnodes))


@pytest.mark.parametrize(("scheme", "tls"), [("tls", None), ("nats-leaf", LeafnodeTlsOptions())])
async def test_a_client_that_requires_tls_sends_nothing_without_it(
    scheme: str, tls: LeafnodeTlsOptions | None
) -> None:
    async with hub([]) as other:
        url = f"{scheme}://user:pw@127.0.0.1:{other.port}"
        async with dialling(LeafnodeRemote(urls=(url,), tls=tls)), asyncio.timeout(90):
            await other.came.wait()
        assert other.heard
        assert all(b"CONNECT" not in data for data in other.heard)


@pytest.mark.parametrize("url", ["a..b:4222", "h" * 80 + ":1"])
async def test_an_address_that_is_none_does_not_end_the_dialling(url: str) -> None:
    async with hub([url]) as other, asyncio.timeout(90):
        remote = LeafnodeRemote(urls=(f"nats-leaf://127.0.0.1:{other.port}",))
        async with dialling(remote):
            while len(other.heard) < 3:
                await other.came.wait()
                other.came.clear()


@pytest.mark.parametrize("credentials", ["user:pw@", "token@", ""])
async def test_a_password_goes_to_configured_addresses_only(credentials: str) -> None:
    async with hub([]) as named, hub([f"127.0.0.1:{named.port}"]) as configured, asyncio.timeout(90):
        remote = LeafnodeRemote(urls=(f"nats-leaf://{credentials}127.0.0.1:{configured.port}",))
        async with dialling(remote):
            while len(configured.heard) < 4:
                await configured.came.wait()
                configured.came.clear()
    assert bool(named.heard) == (not credentials)
    assert all(b'"pass"' not in data and b'"auth_token"' not in data for data in named.heard)
