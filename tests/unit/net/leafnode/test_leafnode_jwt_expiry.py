"""A leafnode that connected with a JWT is disconnected when the JWT expires."""

from __future__ import annotations

import asyncio
import json
import time

from headrace.config.leafnode_options import LeafnodeOptions
from headrace.config.options import ANY_PORT
from headrace.server import Server
from support.identities import Realm


async def test_a_leafnode_goes_when_its_token_ends() -> None:
    for lifetime_s in (2, 6, 20):  # longer if it had expired before it was used
        end_s = int(time.time()) + lifetime_s
        said = await until_it_goes(end_s)
        if b"LS+" in said:
            break
        assert time.time() >= end_s
    assert b"LS+" in said
    assert b"-ERR 'User Authentication Expired'" in said


async def until_it_goes(end_s: int) -> bytes:
    """Return what a leafnode receives whose JWT expires at this time."""
    realm = Realm()
    realm.account("A")
    key, token = realm.user("A", claims={"exp": end_s})
    operator = realm.operator.token(realm.operator.public, "operator", name="OP")
    preload = tuple((realm.accounts[name].public, made) for name, made in realm.tokens.items())
    leafnodes = LeafnodeOptions(host="127.0.0.1", port=ANY_PORT)
    async with Server(operators=(operator,), resolver_preload=preload, leafnodes=leafnodes) as hub:
        reader, writer = await asyncio.open_connection("127.0.0.1", hub.leafnode_port)
        info = json.loads((await reader.readline())[5:])
        fields = {"name": "edge", "jwt": token, "sig": key.sign_nonce(info["nonce"])}
        writer.write(b"CONNECT %s\r\n" % json.dumps(fields).encode())
        async with asyncio.timeout(90):
            rest = await reader.read()
        writer.close()
        await writer.wait_closed()
        return rest
