"""The page /connz."""

import asyncio
from typing import Any

import msgspec
import pytest

import headrace
from headrace.client import connect
from headrace.monitor import connz as connz_module
from headrace.monitor.connz import connz
from headrace.monitor.query import Query
from headrace.monitor.sliced_page import iter_json


def page(server: headrace.Server, **query: str) -> dict[str, Any]:
    found: Query = query
    loop_s = asyncio.get_running_loop().time()
    content = connz(server.listener.connections, found, server.server_id, server.now_ns(), loop_s)
    decoded: dict[str, Any] = msgspec.json.decode(b"".join(iter_json(content)))
    return decoded


async def test_what_a_connection_moved() -> None:
    async with headrace.Server() as server:
        client = await connect(server.url, name="miller")
        sub = await client.subscribe("a.*", queue="q")
        await client.publish("a.b", b"12345")
        await sub.next_msg(60)
        found = page(server, auth="1")
        assert (found["server_id"], found["num_connections"], found["total"]) == (server.server_id, 1, 1)
        (entry,) = found["connections"]
        assert (entry["cid"], entry["ip"], entry["name"], entry["lang"]) == (
            1,
            "127.0.0.1",
            "miller",
            "python3",
        )
        assert (entry["in_msgs"], entry["in_bytes"], entry["out_msgs"], entry["out_bytes"]) == (1, 5, 1, 5)
        assert (entry["subscriptions"], entry["account"], entry["authorized_user"]) == (1, "$G", "")
        assert "subscriptions_list" not in entry
        assert page(server, subs="1")["connections"][0]["subscriptions_list"] == ["a.*"]
        detail = page(server, subs="detail")["connections"][0]["subscriptions_list_detail"]
        assert detail == [{"subject": "a.*", "sid": "1", "msgs": 1, "cid": 1, "qgroup": "q"}]
        await client.close()


async def test_connz_selects_and_sorts_connections() -> None:
    async with headrace.Server() as server:
        clients = [await connect(server.url) for _ in range(3)]
        await clients[1].publish("a", b"")
        await clients[1].flush()

        def cids(**query: str) -> list[int]:
            return [entry["cid"] for entry in page(server, **query)["connections"]]

        assert cids() == [1, 2, 3]
        assert cids(cid="2") == [2]
        assert cids(cid="9") == []
        assert cids(acc="$G") == [1, 2, 3]
        assert cids(acc="B", cid="2") == []
        assert cids(offset="1", limit="1") == [2]
        assert cids(sort="msgs_from") == [2, 1, 3]
        with pytest.raises(ValueError, match="cannot sort"):
            page(server, sort="beauty")
        for client in clients:
            await client.close()


async def test_connections_are_selected_and_sorted_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connz_module, "_CONNECTIONS_PER_SLICE", 2)
    async with headrace.Server() as server:
        clients = [await connect(server.url) for _ in range(5)]
        await clients[3].publish("a", b"")
        await clients[3].flush()
        content = connz(server.listener.connections, {"sort": "msgs_from"}, "S", 0, 0.0)
        assert list(content["num_connections"]) == [*[0] * 6, 5], "three slices to select, three to merge"
        assert list(content["total"]) == [5], "once is enough"
        found = page(server, sort="msgs_from", offset="1", limit="3")
        assert [entry["cid"] for entry in found["connections"]] == [1, 2, 3]
        assert (found["num_connections"], found["total"]) == (3, 5)
        for client in clients:
            await client.close()
