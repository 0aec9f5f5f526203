"""Pins of all stores of a server: one moment, durable, readable on disk and over HTTP, and gone with their lease."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.backup.needed_files import find_needed_files
from headrace.backup.pinned_stores import HttpPin, open_pinned_stores
from headrace.cli.serve_flags import parse
from headrace.client import Client
from headrace.errors import BackupError
from headrace.monitor import server_pins

ACCOUNTS = """
jetstream {{ store_dir: "{folder}" }}
accounts {{
  SYS {{ users: [{{user: admin, password: x}}] }}
  A {{ jetstream: enabled, users: [{{user: a, password: x}}] }}
  B {{ jetstream: enabled, users: [{{user: b, password: x}}] }}
}}
system_account: SYS
"""


async def connect(server: headrace.Server, **options: Any) -> Client:
    client = Client()
    await client.connect(server.url, **options)
    return client


async def request(client: Client, name: str = "PIN", **body: object) -> dict[str, Any]:
    reply = await client.request(f"$SYS.REQ.SERVER.{name}", json.dumps(body).encode(), timeout=60)
    response: dict[str, Any] = json.loads(reply.data)
    return response


async def test_a_pin_has_all_that_was_acknowledged(tmp_path: Path) -> None:
    async with headrace.Server(tmp_path) as server:
        client = await connect(server)
        js = client.jetstream()
        await js.add_stream(name="S", subjects=["s"])
        for number in range(50):
            await js.publish("s", b"%d" % number * 100)
        data = (await request(client))["data"]
        await js.publish("s", b"later")
        [store] = open_pinned_stores(data, "")
        needed = find_needed_files(store)
        assert needed.streams == 1
        assert store.folder == "headrace"
        assert (tmp_path / "headrace" / "lineage").read_text() == f"{store.lineage}\n"
        again = (await request(client))["data"]
        assert again["stores"][0]["ancestors"] == [store.lineage]
        assert (await request(client, "UNPIN", pin=data["pin"]))["data"] == {"success": True}
        await wait_removed(tmp_path / "headrace" / "pins" / data["stores"][0]["pin"])
        await client.close()


async def wait_removed(folder: Path) -> None:
    async with asyncio.timeout(60):
        while folder.exists():
            await asyncio.sleep(0.005)


async def test_the_lease_ends_and_can_be_renewed(tmp_path: Path) -> None:
    async with headrace.Server(tmp_path) as server:
        client = await connect(server)
        data = (await request(client, lease=30))["data"]
        renewed = (await request(client, pin=data["pin"], lease=60))["data"]
        assert renewed["expires_ns"] > data["expires_ns"]
        short = (await request(client, lease=0.05))["data"]
        await wait_removed(tmp_path / "headrace" / "pins" / short["stores"][0]["pin"])
        assert "error" in await request(client, pin=short["pin"])
        assert (tmp_path / "headrace" / "pins" / data["stores"][0]["pin"]).exists()
        await client.close()


async def test_each_of_several_pins_at_the_same_time_has_a_token(tmp_path: Path) -> None:
    async with headrace.Server(tmp_path) as server:
        client = await connect(server)
        made = await asyncio.gather(*(request(client) for _ in range(5)))
        stores = sorted((each["data"]["stores"][0] for each in made), key=lambda each: len(each["ancestors"]))
        tokens = [each["lineage"] for each in stores]
        assert len(set(tokens)) == 5
        assert [each["ancestors"] for each in stores] == [tokens[:number] for number in range(5)]
        await client.close()


async def test_a_restart_removes_pins(tmp_path: Path) -> None:
    async with headrace.Server(tmp_path) as server:
        client = await connect(server)
        data = (await request(client))["data"]
        await client.close()
    pin = tmp_path / "headrace" / "pins" / data["stores"][0]["pin"]
    assert pin.exists()
    async with headrace.Server(tmp_path):
        assert not pin.exists()


async def test_the_files_are_served_with_the_token_only(tmp_path: Path) -> None:
    async with headrace.Server(tmp_path, http_port=-1) as server:
        client = await connect(server)
        await client.jetstream().add_stream(name="S", subjects=["s"])
        data = (await request(client))["data"]
        [store] = data["stores"]
        path = f"checkpoints/{store['checkpoint']:016x}.a"
        pin = HttpPin(server.monitor_url, store["pin"], data["token"], store["journal"])
        local = tmp_path / "headrace" / "pins" / store["pin"] / path.replace("/", ".")
        assert await asyncio.to_thread(pin.read, path, 0, 1 << 20) == local.read_bytes()
        assert not await asyncio.to_thread(pin.exists, "checkpoints/00000000000000ff.a")
        other = HttpPin(server.monitor_url, store["pin"], "wrong", store["journal"])
        with pytest.raises(BackupError, match="no longer pins"):
            await asyncio.to_thread(other.read, path, 0, 10)
        await request(client, "UNPIN", pin=data["pin"])
        with pytest.raises(BackupError, match="no longer pins"):
            await asyncio.to_thread(pin.read, path, 0, 10)
        await client.close()


async def test_users_of_accounts_may_not_pin(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(ACCOUNTS.format(folder=tmp_path / "data"))
    options, _ = parse(["-c", str(config), "-p", "-1"]).resolve()
    async with headrace.Server(options=options) as server:
        for user in ("a", "b"):
            client = await connect(server, user=user, password="x")
            await client.jetstream().add_stream(name="S", subjects=["s"])
            await client.jetstream().publish("s", user.encode())
            with pytest.raises(Exception, match="no responders"):
                await request(client)
            await client.close()
        admin = await connect(server, user="admin", password="x")
        data = (await request(admin))["data"]
        assert [store["account"] for store in data["stores"]] == ["A", "B"]
        stores = open_pinned_stores(data, "")
        assert [store.folder for store in stores] == ["headrace-accounts/A", "headrace-accounts/B"]
        assert [find_needed_files(store).streams for store in stores] == [1, 1]
        await admin.close()


async def test_what_is_no_request_gets_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_pins, "PINS_MAX", 1)
    async with headrace.Server(tmp_path) as server:
        client = await connect(server)
        for body in (b"[]", b"{", b'{"lease": "x"}', b'{"lease": 0}', b'{"pin": 1}'):
            reply = await client.request("$SYS.REQ.SERVER.PIN", body, timeout=60)
            assert "error" in json.loads(reply.data), body
        assert "data" in await request(client)
        assert "wait until one is released" in (await request(client))["error"]["description"]
        await client.close()
