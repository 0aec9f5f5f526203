"""A reload disconnects leafnodes whose user is gone or changed, and no others."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import headrace
from headrace.broker import Permissions
from headrace.config.leafnode_options import LeafnodeOptions
from headrace.config.options import ANY_PORT, ServerOptions, User

LEAFNODES = LeafnodeOptions(host="127.0.0.1", port=ANY_PORT)
LOCAL = ServerOptions(host="127.0.0.1", port=ANY_PORT, leafnodes=LEAFNODES)


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def join(server: headrace.Server, user: str) -> Streams:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.leafnode_port)
    fields = {"name": user, "server_id": user, "user": user, "pass": user}
    writer.write(b"CONNECT %s\r\nPING\r\n" % json.dumps(fields).encode())
    await reader.readuntil(b"PONG\r\n")
    return reader, writer


async def test_leafnodes_of_removed_and_changed_users_end() -> None:
    rules = Permissions(publish_allow=[b"a.>"], subscribe_allow=[b"b.>"])
    same = Permissions(publish_allow=[b"a.>"], subscribe_allow=[b"b.>"])
    users = [
        User("stays", "stays", permissions=rules),
        User("removed", "removed"),
        User("narrowed", "narrowed"),
    ]
    options = replace(LOCAL, users=(*users, User("password", "password")))
    async with headrace.Server(options=options) as server, asyncio.timeout(60):
        joined = {user.name: await join(server, user.name) for user in options.users}
        changed = (
            User("stays", "stays", permissions=same),
            User("narrowed", "narrowed", permissions=rules),
            User("password", "other"),
        )
        server.reload(replace(options, users=changed))
        for name in ("removed", "narrowed", "password"):
            assert b"-ERR 'Authorization Violation'" in await joined[name][0].read(), name
        assert [entry["name"] for entry in server.leafz_entries()] == ["stays"]
        for _, writer in joined.values():
            writer.close()
