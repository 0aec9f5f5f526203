"""What the web page reads and does, on a running server."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import nats
import pytest

import headrace

TOKEN = "open sesame"
ADMIN = {"Authorization": f"Bearer {TOKEN}"}
BILLING = {
    "name": "billing",
    "durable_name": "billing",
    "ack_policy": "explicit",
    "filter_subject": "orders.eu.*",
}


class Site:
    def __init__(self, server: headrace.Server, client: nats.NATS) -> None:
        self.server, self.client, self.js = server, client, client.jetstream()

    async def get(self, path: str, **query: object) -> Any:
        return (await self.ask(f"{path}?{urlencode(query)}"))[1]

    async def get_all(self, path: str, **query: object) -> list[dict[str, Any]]:
        """Return the messages of all answers: each stops after a short time."""
        answer = await self.get(path, **query)
        found: list[dict[str, Any]] = answer["messages"]
        while answer["next"]:
            answer = await self.get(path, **query | {"seq": answer["next"]})
            found += answer["messages"]
        return found

    async def ask(
        self, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        url = f"http://127.0.0.1:{self.server.stats().http_port}/headrace/{path}"
        data = None if body is None else json.dumps(body).encode()
        status, text = await asyncio.to_thread(_open, urllib.request.Request(url, data, headers or {}))
        return status, json.loads(text)

    async def api(self, subject: str, body: dict[str, Any]) -> Any:
        reply = await self.client.request(f"$JS.API.{subject}", json.dumps(body).encode(), timeout=60)
        assert "error" not in json.loads(reply.data), reply.data


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
        client = await nats.connect(server.url)
        site = Site(server, client)
        await site.js.add_stream(name="ORDERS", subjects=["orders.>"])
        await site.api("CONSUMER.CREATE.ORDERS.billing", {"stream_name": "ORDERS", "config": BILLING})
        for number in range(6):
            await server.advance("10ms")
            await site.js.publish(f"orders.{('eu', 'us')[number % 2]}.{number}", b'{"n": %d}' % number)
        yield site
        await client.close()


async def test_streams_are_searched_sorted_and_paged(site: Site) -> None:
    for name in ("ALPHA", "BETA"):
        await site.js.add_stream(name=name, subjects=[f"{name.lower()}.>"])
    page = await site.get("streams", sort="-messages", limit=2)
    assert [row["name"] for row in page["rows"]] == ["ORDERS", "ALPHA"]
    assert (page["matching"], page["total"]) == (3, 3)
    assert [row["name"] for row in (await site.get("streams", search="beta."))["rows"]] == ["BETA"]
    assert (await site.get("streams", kind="kv"))["rows"] == []
    assert (await site.ask("streams?sort=color"))[0] == 400
    assert (await site.ask("streams?kind=odd"))[0] == 400
    detail = await site.get("stream", stream="ORDERS")
    assert detail["info"]["config"]["subjects"] == ["orders.>"]
    assert (await site.ask("stream?stream=NONE"))[0] == 404
    assert (await site.ask("stream?stream=ORDERS&account=NONE"))[0] == 404


async def test_a_consumer_says_why_it_is_stuck(site: Site) -> None:
    [row] = (await site.get("consumers"))["rows"]
    assert (row["name"], row["state"], row["pending"]) == ("billing", "no pulls", 3)
    for search, found in (("no pull", 1), ("EU.*", 1), ("paused", 0), ("billing", 1), ("us.*", 0)):
        assert (await site.get("consumers", search=search))["matching"] == found
    detail = await site.get("consumer", stream="ORDERS", name="billing", seq=2)
    assert [each["state"] for each in detail["reasons"]] == ["no pulls"]
    assert detail["ages"][0] == {"below_s": 1, "count": 3}
    assert "filters" in detail["message"]["text"]
    await site.server.advance("2m")
    detail = await site.get("consumer", stream="ORDERS", name="billing", seq=1)
    assert [(each["below_s"], each["count"]) for each in detail["ages"] if each["count"]] == [(600, 3)]
    assert "no client requests" in detail["message"]["text"]
    assert detail["oldest"]["seq"] == 1


async def test_unacknowledged_messages_are_listed_and_explained(site: Site) -> None:
    subscription = await site.js.pull_subscribe_bind("billing", "ORDERS")
    first, _ = await subscription.fetch(2, timeout=60)
    detail = await site.get("consumer", stream="ORDERS", name="billing", seq=3)
    assert [row["seq"] for row in detail["ack_pending"]] == [1, 3]
    assert "waits for its ack" in detail["message"]["text"]
    await first.ack_sync(timeout=60)
    detail = await site.get("consumer", stream="ORDERS", name="billing", seq=1)
    assert "acknowledged" in detail["message"]["text"]
    assert detail["row"]["ack_floor"] == 2
    after = await site.get("consumer", stream="ORDERS", name="billing", seq=99)
    assert "no message 99 yet" in after["message"]["text"]


async def test_messages_from_a_sequence_or_time_in_both_directions(site: Site) -> None:
    newer = await site.get("messages", stream="ORDERS", seq=3, order="newer", limit=2)
    assert [each["seq"] for each in newer["messages"]] == [4, 3]
    assert (newer["newer"], newer["older"], newer["last_seq"]) == (5, 2, 6)
    time = newer["messages"][0]["time"]
    at = await site.get("messages", stream="ORDERS", time=time, order="newer", limit=1)
    assert [each["seq"] for each in at["messages"]] == [4]
    late = await site.get("messages", stream="ORDERS", time="2999-01-01T00:00:00Z", order="newer")
    assert late["messages"] == []
    assert (await site.ask("messages?stream=ORDERS&time=noon"))[0] == 400
    assert (await site.ask("messages?stream=ORDERS&order=random"))[0] == 400


async def test_messages_are_found_by_content(site: Site) -> None:
    async def find(**query: object) -> list[int]:
        return [each["seq"] for each in await site.get_all("search", stream="ORDERS", **query)]

    assert await find(text='"N": 4') == [5]
    assert await find(text='"N": 4', case=1) == []
    assert await find(text="n", subject="orders.us.*") == [6, 4, 2]
    assert await find(text="orders.eu.2") == [3]
    assert (await site.ask("search?stream=ORDERS"))[0] == 400


async def test_an_export_has_whole_messages_of_a_time(site: Site) -> None:
    await site.server.advance("10ms")
    await site.js.publish("orders.eu.big", b"x" * 10_000)
    found = await site.get_all("export", stream="ORDERS", subject="orders.eu.*")
    assert [each["seq"] for each in found] == [1, 3, 5, 7]
    assert len(found[-1]["text"]) == 10_000
    since, until = found[1]["time"], found[3]["time"]
    part = await site.get_all("export", stream="ORDERS", since=since, until=until)
    assert [each["seq"] for each in part] == [3, 4, 5, 6]


async def test_keys_have_values_and_subjects_have_pages(site: Site) -> None:
    bucket = await site.js.create_key_value(bucket="settings", history=3)
    for value in (b"green", b"blue"):
        await bucket.put("color", value)
    [row] = (await site.get("subjects", stream="KV_settings", last=1))["rows"]
    assert (row["subject"], row["messages"], row["message"]["text"]) == ("$KV.settings.color", 2, "blue")
    page = await site.get("subjects", stream="ORDERS", sort="-subject", limit=2, subject="orders.us.*")
    assert [each["subject"] for each in page["rows"]] == ["orders.us.5", "orders.us.3"]
    assert page["matching"] == 3


async def test_two_streams_are_compared(site: Site) -> None:
    await site.api("STREAM.CREATE.COPY", {"name": "COPY", "subjects": ["copy.>"], "retention": "limits"})
    await site.js.publish("copy.1", b"x")
    found = await site.get("compare", stream="ORDERS", other="COPY")
    assert found["different_subjects"] == 7
    assert {"name": "subjects", "left": ["orders.>"], "right": ["copy.>"]} in found["config"]
    assert found["subjects"][0] | {"left_seq": 0} == {
        "subject": "orders.eu.0", "left": 1, "right": 0, "left_seq": 0, "right_seq": 0, "newest_differs": True,
    }  # fmt: skip
    same = await site.get("compare", stream="ORDERS", other="ORDERS")
    assert (same["different_subjects"], same["config"], same["compared_subjects"]) == (0, [], 6)


async def test_where_a_subject_goes(site: Site) -> None:
    found = await site.get("route", subject="orders.eu.9")
    assert (found["stream"], [each["name"] for each in found["consumers"]]) == ("ORDERS", ["billing"])
    assert (await site.get("route", subject="orders.us.9"))["consumers"] == []
    assert (await site.get("route", subject="order.eu.9"))["stream"] == ""
    assert (await site.ask("route?subject=orders.*"))[0] == 400


async def test_schedules_are_listed(site: Site) -> None:
    config = {"name": "JOBS", "subjects": ["jobs.>"], "allow_msg_schedules": True, "allow_rollup_hdrs": True}
    await site.api("STREAM.CREATE.JOBS", config)
    headers = {"Nats-Schedule": "@every 5m", "Nats-Schedule-Target": "jobs.run"}
    await site.js.publish("jobs.daily", b"x", headers=headers)
    [row] = (await site.get("schedules", stream="JOBS"))["rows"]
    assert (row["subject"], row["schedule"], row["target"]) == ("jobs.daily", "@every 5m", "jobs.run")
    assert [each["name"] for each in (await site.get("streams", kind="schedules"))["rows"]] == ["JOBS"]


async def test_dead_letters_are_listed_and_redriven(site: Site) -> None:
    await site.js.add_stream(name="FAILED", subjects=["failed.>"])
    config = {
        **BILLING,
        "name": "packer",
        "durable_name": "packer",
        "dead_letter": {"subject": "failed.orders"},
    }
    await site.api("CONSUMER.CREATE.ORDERS.packer", {"stream_name": "ORDERS", "config": config})
    subscription = await site.js.pull_subscribe_bind("packer", "ORDERS")
    [message] = await subscription.fetch(1, timeout=60)
    await message.term()
    await site.client.flush()
    [row] = (await site.get("dead_letters"))["rows"]
    assert (row["name"], row["target"], row["stored"]) == ("packer", "FAILED", 1)
    request = {"subject": "STREAM.MSG.REDRIVE.FAILED", "body": {"seq": 1}}
    assert (await site.ask("request", request))[0] == 403
    assert (await site.ask("request", request, ADMIN))[1]["seq"] == 7
    assert (await site.get("dead_letters"))["rows"][0]["stored"] == 0


async def test_an_admin_publishes(site: Site) -> None:
    message = {"subject": "orders.eu.9", "text": "hello", "headers": [["Kind", "a"]]}
    assert (await site.ask("publish", message))[0] == 403
    assert (await site.ask("publish", message, ADMIN))[1] == {"stream": "ORDERS", "seq": 7}
    stored = (await site.get("messages", stream="ORDERS", limit=1))["messages"][0]
    assert (stored["text"], stored["headers"]) == ("hello", [["Kind", "a"]])
    assert (await site.ask("publish", {"subject": "nobody"}, ADMIN))[1] == {"receivers": 0}
    binary = {"subject": "orders.eu.9", "base64": "AAE="}
    assert (await site.ask("publish", binary, ADMIN))[1]["seq"] == 8


@pytest.mark.parametrize(
    "message",
    [
        {}, [], {"subject": "a.*"}, {"subject": "$JS.API.INFO"}, {"subject": "_INBOX.x"},
        {"subject": "a", "headers": [["A\r\nB", "x"]]}, {"subject": "a", "headers": ["A"]}, {"subject": "a", "base64": "!"},
    ],
)  # fmt: skip
async def test_a_message_that_is_not_valid_is_refused(site: Site, message: Any) -> None:
    assert (await site.ask("publish", message, ADMIN))[0] == 400


async def test_a_stream_and_a_consumer_are_created_and_changed(site: Site) -> None:
    async def change(subject: str, body: dict[str, Any]) -> Any:
        return (await site.ask("request", {"subject": subject, "body": body}, ADMIN))[1]

    made = await change("STREAM.CREATE.NEW", {"name": "NEW", "subjects": ["new.>"]})
    config = made["config"]
    assert (await change("STREAM.UPDATE.NEW", {**config, "max_msgs": 5}))["config"]["max_msgs"] == 5
    consumer = {"stream_name": "NEW", "config": {"name": "c", "durable_name": "c", "ack_policy": "explicit"}}
    assert (await change("CONSUMER.CREATE.NEW.c", consumer))["name"] == "c"
    assert "error" in await change("STREAM.CREATE.NEW", {"name": "NEW", "subjects": ["orders.>"]})


async def test_contents_need_the_token_where_the_host_is_foreign(site: Site) -> None:
    for path in ("messages", "search", "export", "subjects", "schedules", "compare"):
        status, _ = await site.ask(
            f"{path}?stream=ORDERS&text=n&other=ORDERS", headers={"Host": "rebound.example"}
        )
        assert status == 403


async def test_figures_for_a_foreign_host_have_no_subjects_of_messages(site: Site) -> None:
    config = {"name": "M", "subjects": ["m.>"], "max_age": 10**9, "allow_rollup_hdrs": True,
              "allow_msg_ttl": True, "subject_delete_marker_ttl": 10**9 * 60}  # fmt: skip
    await site.api("STREAM.CREATE.M", config)
    keyed = {**BILLING, "name": "keyed", "durable_name": "keyed", "filter_subject": "orders.>",
             "max_ack_pending_per_subject": 1}  # fmt: skip
    await site.api("CONSUMER.CREATE.ORDERS.keyed", {"stream_name": "ORDERS", "config": keyed})
    await site.js.publish("orders.us.secret", b"1")
    await site.js.publish("orders.us.secret", b"2")
    inbox = site.client.new_inbox()
    await site.client.subscribe(inbox)
    await site.client.publish("$JS.API.CONSUMER.MSG.NEXT.ORDERS.keyed", b'{"batch": 20}', reply=inbox)
    await site.js.publish("m.secret", b"x")
    await site.server.advance("5s")
    paths = ("summary", "overview", "consumer?stream=ORDERS&name=keyed",
             "consumer?stream=ORDERS&name=billing&seq=7")  # fmt: skip
    for path in paths:
        assert "secret" in json.dumps((await site.ask(path))[1]), path
        foreign = await site.ask(path, headers={"Host": "rebound.example"})
        assert foreign[0] == 200
        assert "secret" not in json.dumps(foreign[1]), path


async def test_connections_have_pages_and_the_summary_is_small(site: Site) -> None:
    other = await nats.connect(site.server.url, name="other")
    page = await site.get("connections", search="OTHER")
    assert [row["name"] for row in page["rows"]] == ["other"]
    assert page["total"] == 2
    summary = await site.get("summary")
    assert summary["totals"] == {"streams": 1, "consumers": 1, "connections": 2}
    assert "streams" not in summary
    assert summary["host"]
    assert sum(summary["commits"][0]["counts"]) == summary["commits"][0]["count"]
    await other.close()


async def test_claims_are_counted_only_on_their_own_page(site: Site) -> None:
    await site.js.add_stream(name="CLAIMS", subjects=["$CLAIMS.namespace.*", "$CLAIMS.claim.>"])
    await site.js.add_stream(name="CLAIMS_AUDIT", subjects=["$CLAIMS.audit.>"])
    for subject in ("namespace.a", "namespace.b", "claim.a.1", "claim.a.2", "audit.a.1.created"):
        await site.js.publish(f"$CLAIMS.{subject}", b"{}")
    page = await site.get("claims", sort="-namespace")
    assert [(row["namespace"], row["live"]) for row in page["rows"]] == [("b", 0), ("a", 2)]
    assert page["rows"][1]["events"]["created"] == 1
    assert "claims" not in await site.get("summary")
