"""Two brokers in this process joined as leafnodes: their CONNECT and INFO, and reconnects."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from headrace.config.leafnode_options import LeafnodeOptions, LeafnodeRemote
from headrace.config.options import OptionsError
from headrace.server import Server
from support.sockets import until


def listening(**more: object) -> LeafnodeOptions:
    return LeafnodeOptions(port=-1, **more)  # type: ignore[arg-type]


def dialling(*ports: int, **more: object) -> LeafnodeOptions:
    urls = tuple(f"nats-leaf://127.0.0.1:{port}" for port in ports)
    return LeafnodeOptions(reconnect_s=0.05, remotes=(LeafnodeRemote(urls=urls, **more),))  # type: ignore[arg-type]


async def greeting(port: int) -> dict[str, object]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    line = await reader.readline()
    writer.close()
    await writer.wait_closed()
    found: dict[str, object] = json.loads(line[5:])
    return found


@pytest.mark.parametrize(
    ("more", "urls"),
    [
        ({"host": "127.0.0.1"}, ["127.0.0.1:{port}"]),
        ({"host": "0.0.0.0", "user": "a", "password": "b"}, []),
        ({"host": "0.0.0.0", "user": "a", "password": "b", "advertise": "hub.example:1"}, ["hub.example:1"]),
        ({"host": "127.0.0.1", "no_advertise": True}, []),
    ],
)
async def test_urls_that_other_servers_receive(more: dict[str, object], urls: list[str]) -> None:
    async with Server(leafnodes=listening(**more)) as hub:
        info = await greeting(hub.leafnode_port)
        assert info["leafnode_urls"] == [url.format(port=hub.leafnode_port) for url in urls]


async def test_it_comes_back(tmp_path: Path) -> None:
    """The leaf reconnects to a hub that restarts on the same port, and waits for one that is down."""
    async with Server(server_name="hub", leafnodes=listening()) as hub:
        port = hub.leafnode_port
        edge = Server(server_name="edge", leafnodes=dialling(port))
        await edge.start()
        try:
            await until(lambda: len(edge.leafz_entries()) == 1 and len(hub.leafz_entries()) == 1)
            await hub.stop()
            await until(lambda: edge.leafz_entries() == [])
            again = Server(server_name="hub", leafnodes=LeafnodeOptions(port=port))
            await again.start()
            try:
                await until(lambda: len(edge.leafz_entries()) == 1)
                assert [each["name"] for each in again.leafz_entries()] == ["edge"]
            finally:
                await again.stop()
        finally:
            await edge.stop()


async def test_the_next_address_is_tried() -> None:
    async with Server(server_name="hub", leafnodes=listening()) as hub:
        ports = (1, hub.leafnode_port)  # nothing listens at the first address
        async with Server(server_name="edge", leafnodes=dialling(*ports, no_randomize=True)) as edge:
            await until(lambda: len(edge.leafz_entries()) == 1)


async def test_a_remote_that_is_disabled_is_not_dialled() -> None:
    async with (
        Server(server_name="hub", leafnodes=listening()) as hub,
        Server(server_name="edge", leafnodes=dialling(hub.leafnode_port, disabled=True)) as edge,
    ):
        await asyncio.sleep(0.1)
        assert edge.leafz_entries() == []


async def test_an_account_that_is_not_there() -> None:
    server = Server(leafnodes=dialling(1, account="NOBODY"))
    with pytest.raises(OptionsError, match="NOBODY"):
        await server.start()


async def test_a_port_that_is_taken() -> None:
    async with Server(leafnodes=listening()) as hub:
        other = Server(leafnodes=LeafnodeOptions(port=hub.leafnode_port))
        with pytest.raises(OptionsError, match="cannot listen"):
            await other.start()


async def test_who_does_not_say_who_it_is_goes() -> None:
    async with Server(leafnodes=listening(auth_timeout_s=0.1)) as hub:
        reader, writer = await asyncio.open_connection("127.0.0.1", hub.leafnode_port)
        async with asyncio.timeout(90):
            rest = await reader.read()
        assert b"-ERR 'Authentication Timeout'" in rest
        writer.close()
        await writer.wait_closed()
