"""The pages of a running server, as launchers, dashboards and the web page read them, and access to them."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import pytest

import headrace
from headrace.config.options import ServerOptions
from headrace.monitor.access_control import AccessControl
from headrace.monitor.http import HttpRequest

TOKEN = "open sesame"


class Site:
    """A server with its monitoring port."""

    def __init__(self, server: headrace.Server) -> None:
        self.server = server
        self.port = server.stats().http_port

    async def get(self, path: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data=data, headers=headers)
        return await asyncio.to_thread(_open, request)

    async def json(self, path: str, body: Any = None, **headers: str) -> Any:
        return json.loads((await self.get(path, body, **headers))[1])


def _open(request: urllib.request.Request) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read()


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with headrace.Server(
        store_dir=tmp_path, http_port=-1, http_admin_token=TOKEN, clock="virtual"
    ) as server:
        connection = await nats.connect(server.url, name="<b>client</b>")
        js = connection.jetstream()
        await js.add_stream(name="ORDERS", subjects=["orders.>"], max_age=60)
        await js.add_consumer("ORDERS", durable_name="billing", ack_policy="explicit")
        for number in range(5):
            await js.publish(f"orders.{number}", b"<script>%d</script>" % number, headers={"Kind": "a"})
        yield Site(server)
        await connection.close()


async def test_streams_by_the_names_of_nats_server(site: Site) -> None:
    shown = await site.json("/jsz?consumers=1&config=1")
    assert (shown["streams"], shown["consumers"], shown["messages"]) == (1, 1, 5)
    assert shown["account_details"][0]["name"] == "$G"
    stream = shown["account_details"][0]["stream_detail"][0]
    assert stream["name"] == "ORDERS"
    assert stream["state"]["messages"] == 5
    assert stream["config"]["subjects"] == ["orders.>"]
    assert stream["consumer_detail"][0]["num_pending"] == 5
    assert "account_details" not in await site.json("/jsz")
    assert (await site.json("/varz"))["jetstream"]["stats"]["api"]["total"] == 2
    assert (await site.get("/jsz?streams=1&offset=x"))[0] == 400


async def test_interest_and_leafnodes(site: Site) -> None:
    assert (await site.json("/subsz"))["num_subscriptions"] == 1
    shown = await site.json("/subsz?subs=1&test=_INBOX.a.b")
    assert shown["total"] == 0
    assert (await site.json("/subsz?subs=1"))["subscriptions_list"][0]["cid"] == 1
    assert (await site.get("/subsz?test=a.*"))[0] == 400
    assert (await site.json("/leafz"))["leafnodes"] == 0


async def test_metrics_are_prometheus_text(site: Site) -> None:
    text = (await site.get("/metrics"))[1].decode()
    assert 'headrace_stream_messages{account="$G",stream="ORDERS"} 5\n' in text
    assert 'headrace_consumer_pending{account="$G",stream="ORDERS",consumer="billing"} 5\n' in text
    assert 'headrace_commit_seconds_bucket{account="$G",le="+Inf"}' in text
    assert "headrace_healthy 1\n" in text
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names))


async def test_expiry_is_counted_and_reported(site: Site) -> None:
    await site.server.advance("61s")
    shown = await site.json("/headrace/overview")
    assert shown["streams"][0]["expired"] == 5
    assert shown["events"][-1]["kind"] == "expired"
    assert b'headrace_stream_expired_total{account="$G",stream="ORDERS"} 5' in (await site.get("/metrics"))[1]


async def test_messages_newest_first_by_page_and_subject(site: Site) -> None:
    shown = await site.json("/headrace/messages?stream=ORDERS&limit=2")
    assert [m["seq"] for m in shown["messages"]] == [5, 4]
    assert shown["messages"][0]["text"] == "<script>4</script>"
    assert shown["messages"][0]["headers"] == [["Kind", "a"]]
    older = await site.json(f"/headrace/messages?stream=ORDERS&seq={shown['older']}")
    assert [m["seq"] for m in older["messages"]] == [3, 2, 1]
    one = await site.json("/headrace/messages?stream=ORDERS&subject=orders.2")
    assert [m["seq"] for m in one["messages"]] == [3]
    assert (await site.get("/headrace/messages?stream=NONE"))[0] == 404
    assert (await site.get("/headrace/messages?stream=ORDERS&subject=a..b"))[0] == 400


async def test_the_page_names_nothing_elsewhere(site: Site) -> None:
    for path in ("/", "/headrace/headrace.js", "/headrace/headrace.css"):
        status, body = await site.get(path)
        assert status == 200
        assert b"http://" not in body.replace(b"http://www.w3.org/", b"")
        assert b"https://" not in body
    assert (await site.get("/headrace/../server.py"))[0] == 404
    assert (await site.get("/headrace/%2e%2e/pages.py"))[0] == 404


PURGE = {"subject": "STREAM.PURGE.ORDERS"}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": f"Bearer {TOKEN}", "Origin": "http://evil.example"},
        {"Authorization": f"Bearer {TOKEN}", "Sec-Fetch-Site": "cross-site"},
    ],
)
async def test_changes_need_the_token_and_this_page(site: Site, headers: dict[str, str]) -> None:
    status, _ = await site.get("/headrace/request", PURGE, **headers)
    assert status == 403
    assert (await site.json("/jsz"))["messages"] == 5


async def test_an_admin_changes_what_the_page_offers_and_nothing_else(site: Site) -> None:
    admin = {"Authorization": f"Bearer {TOKEN}"}
    assert (await site.json("/headrace/request", PURGE, **admin))["purged"] == 5
    assert (await site.json("/jsz"))["messages"] == 0
    for subject in ("STREAM.RESTORE.X", "STREAM.PURGE.*", "STREAM.PURGE.a b", "$SYS.X"):
        assert (await site.get("/headrace/request", {"subject": subject}, **admin))[0] == 400
    assert (await site.get("/headrace/request", ["x"], **admin))[0] == 400
    gone = await site.json("/headrace/request", {"subject": "CONSUMER.DELETE.ORDERS.nobody"}, **admin)
    assert gone["error"]["err_code"] == 10014


def request(**headers: str) -> HttpRequest:
    return HttpRequest("GET", "/headrace/messages", headers=headers)


@pytest.mark.parametrize(
    ("host", "shown"),
    [
        ("127.0.0.1:8222", True),
        ("[::1]:8222", True),
        ("localhost:8222", True),
        ("", True),
        ("rebound.example:8222", False),
    ],
)
def test_contents_are_not_shown_to_a_page_that_points_its_name_here(host: str, shown: bool) -> None:
    assert AccessControl(ServerOptions).may_read(request(host=host)) is shown


def test_contents_need_the_token_where_clients_need_a_password() -> None:
    guard = AccessControl(lambda: ServerOptions(token="t", http_admin_token=TOKEN))
    assert not guard.may_read(request(host="127.0.0.1"))
    assert guard.may_read(request(authorization=f"Bearer {TOKEN}"))
    assert not AccessControl(lambda: ServerOptions(token="t")).is_admin(request(authorization="Bearer "))


async def test_batches_are_counted_and_told(site: Site) -> None:
    client = await nats.connect(site.server.url)
    js = client.jetstream()
    request = {"name": "B", "subjects": ["b.>"], "allow_atomic": True}
    await client.request("$JS.API.STREAM.CREATE.B", json.dumps(request).encode(), timeout=60)
    for position, commit in ((1, {}), (2, {"Nats-Batch-Commit": "1"})):
        headers = {"Nats-Batch-Id": "one", "Nats-Batch-Sequence": str(position)} | commit
        await client.request(f"b.{position}", b"x", timeout=20, headers=headers)
    assert (await js.stream_info("B")).state.messages == 2
    shown = await site.json("/headrace/overview")
    assert [event["text"] for event in shown["events"] if event["kind"] == "batch"] == ["one: 2 messages"]
    await client.close()
