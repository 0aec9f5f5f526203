"""Tests the web page in a real browser: live numbers, escaped contents, phone layout, keyboard, and changes by an admin.

Screenshots are kept in out/browser.
"""

from __future__ import annotations

import asyncio
import csv
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import nats
import pytest
from playwright.async_api import Browser, Page, async_playwright, expect

import headrace

CHROMIUM = shutil.which("chromium")
SHOTS = Path("out/browser")
HTML = b"<img src=x onerror=\"document.title='owned'\"><b>bold</b>"
TOKEN = "sesame"
#: What a screen reader could not name: controls without a name, pictures without a text, tables without a caption.
UNNAMED = """() => [...document.querySelectorAll('main button, main input, main select, main [role=img], main table')]
  .filter((each) => each.checkVisibility())
  .filter((each) => !(each.getAttribute('aria-label') || each.labels?.length || each.caption?.textContent
    || (each.tagName === 'BUTTON' && each.textContent.trim())))
  .map((each) => each.outerHTML.slice(0, 100))"""
TIMEOUT_MS = 90_000
expect.set_options(timeout=TIMEOUT_MS)

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="Debian's chromium is not installed"),
    pytest.mark.xdist_group("browser"),
]


class Site:
    def __init__(self, url: str, js: Any, browser: Browser) -> None:
        self.url, self.js, self.browser = url, js, browser

    @asynccontextmanager
    async def page(self, **options: Any) -> AsyncIterator[Page]:
        """Open a page; any error in its console fails the test."""
        context = await self.browser.new_context(**options)
        page = await context.new_page()
        page.set_default_timeout(TIMEOUT_MS)
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        await page.goto(self.url)
        await expect(page.locator("#health")).to_have_text("healthy")
        yield page
        await context.close()
        assert errors == []


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    SHOTS.mkdir(parents=True, exist_ok=True)
    async with (
        headrace.Server(
            store_dir=tmp_path, http_port=-1, http_admin_token=TOKEN, server_name="mill-1"
        ) as server,
        async_playwright() as playwright,
    ):
        client = await nats.connect(server.url, name="<i>client</i>")
        js = client.jetstream()
        await js.add_stream(name="ORDERS", subjects=["orders.>"])
        await js.add_consumer("ORDERS", durable_name="billing", ack_policy="explicit")
        await js.publish("orders.eu", HTML, headers={"Note": "<u>x</u>"})
        bucket = await js.create_key_value(bucket="settings", history=5)
        for value in (b'{"max": 1, "unit": "EUR"}', b'{"max": 2, "unit": "EUR"}'):
            await bucket.put("limit", value)
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield Site(server.monitor_url, js, browser)
        await browser.close()
        await client.close()


async def test_numbers_move_while_messages_flow(site: Site) -> None:
    async with site.page(viewport={"width": 1200, "height": 800}) as page:
        flow = asyncio.create_task(_flow(site.js))
        await expect(page.locator("#server")).to_contain_text("mill-1 · version ")
        row = page.get_by_role("row", name="ORDERS")
        await expect(row).to_be_visible()
        before = await row.inner_text()
        await page.wait_for_function(
            "(was) => document.querySelector('tbody tr').innerText !== was", arg=before
        )
        await expect(row.locator("td").nth(2)).not_to_have_text("0/s")
        await page.screenshot(path=SHOTS / "overview.png")
        flow.cancel()


async def _flow(js: Any) -> None:
    while True:
        await js.publish("orders.eu", b"x")
        await asyncio.sleep(0.01)


async def test_contents_that_look_like_html_stay_text(site: Site) -> None:
    async with site.page() as page:
        await page.get_by_role("link", name="ORDERS", exact=True).click()
        await expect(page.locator(".message pre")).to_have_text(HTML.decode())
        await expect(page.locator(".message dd")).to_have_text("<u>x</u>")
        assert await page.locator("main img, main b, main u").count() == 0
        assert "owned" not in await page.title()
        await page.screenshot(path=SHOTS / "stream.png")
        await page.get_by_role("link", name="Connections").click()
        await expect(page.get_by_role("cell", name="<i>client</i>")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_a_phone_can_read_every_section(site: Site, scheme: str) -> None:
    async with site.page(viewport={"width": 360, "height": 740}, color_scheme=scheme) as page:
        for name in await page.locator("nav a").all_inner_texts():
            await page.get_by_role("link", name=name, exact=True).click()
            await expect(page.locator("nav a[aria-current]")).to_have_text(name)
            assert await page.evaluate("document.documentElement.scrollWidth") <= 360
            await page.screenshot(path=SHOTS / f"phone-{scheme}-{name.lower()}.png")


async def test_a_phone_can_search_messages_with_long_headers(site: Site) -> None:
    await site.js.publish("orders.eu", b"x", headers={"Trace": "z" * 300})
    async with site.page(viewport={"width": 360, "height": 740}) as page:
        await page.get_by_role("link", name="ORDERS", exact=True).click()
        await expect(page.locator(".message")).to_have_count(2)
        assert await page.evaluate("document.documentElement.scrollWidth") <= 360
        for name in ("Subject filter", "Sequence", "Time", "Content to find"):
            box = await page.get_by_label(name, exact=True).bounding_box()
            assert box is not None
            assert box["height"] < 60, name


async def test_keyboard_alone_reaches_the_content(site: Site) -> None:
    async with site.page() as page:
        await page.keyboard.press("Tab")
        await expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
        for _ in range(3):
            await page.keyboard.press("Tab")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", level=1)).to_have_text("Streams")
        assert await page.evaluate("document.activeElement.id") == "main"
        await page.keyboard.press("/")
        await page.keyboard.type("order")
        await expect(page.get_by_role("row", name="KV_settings")).to_be_hidden()
        await expect(page.get_by_role("row", name="ORDERS")).to_be_visible()
        await page.get_by_role("button", name="Messages", exact=True).focus()
        await page.keyboard.press("Enter")
        heading = page.get_by_role("columnheader", name="Messages", exact=True)
        await expect(heading).to_have_attribute("aria-sort", "descending")


async def test_a_screen_reader_gets_names_for_everything(site: Site) -> None:
    """Controls have names, pictures texts, tables captions; the tree of the page names what it shows."""
    async with site.page() as page:
        for section, title, content in (
            ("overview", "Overview", page.get_by_role("row", name="ORDERS")),
            ("streams", "Streams", page.get_by_role("row", name="ORDERS")),
            ("stream/$G/ORDERS", "ORDERS", page.locator(".message pre")),
            ("consumer/$G/ORDERS/billing", "billing", page.locator(".reason")),
            ("key/$G/settings/limit", "Key limit", page.locator(".diff ins")),
        ):
            await page.evaluate("(hash) => { location.hash = hash }", f"#{section}")
            await expect(page.get_by_role("heading", level=1)).to_have_text(title)
            await expect(content.first).to_be_visible()
            assert await page.evaluate(UNNAMED) == [], section
        tree = await page.locator("main").aria_snapshot()
        assert 'heading "Key limit" [level=1]' in tree
        assert "deletion" in tree
        assert "insertion" in tree


async def enter_token(page: Page) -> None:
    await page.get_by_role("button", name="Admin…").click()
    await page.get_by_label("Token").fill(TOKEN)
    await page.get_by_role("button", name="Use it").click()
    await expect(page.locator("#admin")).to_have_text("Admin: on")


async def test_an_admin_purges_after_confirming(site: Site) -> None:
    async with site.page() as page:
        await page.get_by_role("link", name="ORDERS", exact=True).click()
        await expect(page.get_by_role("button", name="Purge…")).to_be_hidden()
        await enter_token(page)
        await page.get_by_role("button", name="Purge…").click()
        await page.get_by_role("button", name="Purge", exact=True).click()
        await page.get_by_role("button", name="OK").click()
        await expect(page.locator(".card .value").first).to_have_text("0")
        assert (await site.js.stream_info("ORDERS")).state.messages == 0


async def test_an_admin_creates_a_stream_and_publishes(site: Site) -> None:
    async with site.page() as page:
        await enter_token(page)
        await page.get_by_role("link", name="Streams").click()
        await page.get_by_role("button", name="New stream…").click()
        await page.get_by_label("Name").fill("NEW")
        await page.get_by_label("Subjects").fill("new.>")
        await page.get_by_role("button", name="Create").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("NEW")
        await page.get_by_role("button", name="Publish…").click()
        await page.get_by_label("Subject", exact=True).fill("new.1")
        await page.get_by_label("Payload").fill('{"n": 12345678901234567890}')
        await page.get_by_role("button", name="Publish", exact=True).click()
        await expect(page.get_by_text("Stored in NEW as sequence 1.")).to_be_visible()
        await page.get_by_role("button", name="OK").click()
        await page.get_by_role("button", name="Newest").click()
        await expect(page.locator(".json-number")).to_have_text("12345678901234567890")


async def test_a_stuck_consumer_explains_itself(site: Site) -> None:
    async with site.page() as page:
        await page.get_by_role("link", name="Consumers").click()
        row = page.get_by_role("row", name="billing")
        await expect(row).to_contain_text("no pulls")
        await row.get_by_role("link", name="billing").click()
        await expect(page.locator(".reason")).to_contain_text("no client requests them")
        await page.get_by_label("Sequence of a message").fill("1")
        await page.get_by_role("button", name="Explain").click()
        await expect(page.get_by_text("It has not been delivered yet")).to_be_visible()
        await page.screenshot(path=SHOTS / "consumer.png")


async def test_messages_are_found_followed_and_exported(site: Site) -> None:
    async with site.page() as page:
        await page.get_by_role("link", name="ORDERS", exact=True).click()
        await expect(page.locator(".message")).to_have_count(1)
        await page.get_by_label("Content to find").fill("nothing like this")
        await page.get_by_role("button", name="Show", exact=True).click()
        await expect(page.get_by_text("No message contains this.")).to_be_visible()
        await page.get_by_role("button", name="Follow live").click()
        await expect(page.get_by_text("Following; new messages")).to_be_visible()
        await site.js.publish("orders.eu", b"fresh")
        await expect(page.locator(".message pre")).to_have_text("fresh")
        await page.get_by_role("button", name="Hex").click()
        await expect(page.locator(".message pre")).to_contain_text("66 72 65 73 68")
        await page.get_by_role("button", name="Export…").click()
        async with page.expect_download() as download:
            await page.get_by_role("button", name="Export", exact=True).click()
        path = await (await download.value).path()
        assert [json.loads(line)["seq"] for line in path.read_text().splitlines()] == [1, 2]


async def test_a_key_shows_its_history_with_differences(site: Site) -> None:
    async with site.page() as page:
        await page.get_by_role("link", name="Buckets").click()
        await page.get_by_role("link", name="settings").click()
        await page.get_by_role("link", name="limit").click()
        await expect(page.locator(".diff ins")).to_contain_text('"max": 2')
        await expect(page.locator(".diff del")).to_contain_text('"max": 1')
        await page.screenshot(path=SHOTS / "key.png")
        bucket = await site.js.key_value("settings")
        await bucket.delete("limit")
        await expect(page.get_by_text("Changed to revision 3")).to_be_visible()


@pytest.mark.parametrize("value", [b"long " * 2_000, bytes(range(256))], ids=["long", "binary"])
async def test_a_key_that_is_changed_keeps_the_rest_of_its_value(site: Site, value: bytes) -> None:
    bucket = await site.js.key_value("settings")
    await bucket.put("limit", value)
    async with site.page() as page:
        await enter_token(page)
        await page.evaluate("location.hash = 'key/$G/settings/limit'")
        await page.get_by_role("button", name="Change…").click()
        field = page.get_by_role("textbox", name="Value")
        await expect(field).not_to_have_value("")
        await page.get_by_role("button", name="Save").click()
        await expect(page.get_by_text("Changed to revision 4")).to_be_visible()
        assert (await bucket.get("limit")).value == value


async def test_a_message_that_is_published_again_is_whole(site: Site) -> None:
    await site.js.publish("orders.eu", b"long " * 2_000)
    async with site.page() as page:
        await enter_token(page)
        await page.evaluate("location.hash = 'message/$G/ORDERS/2'")
        await page.get_by_role("button", name="Publish again…").first.click()
        await page.get_by_role("button", name="Publish", exact=True).click()
        await expect(page.get_by_text("Stored in ORDERS as sequence 3.")).to_be_visible()
        assert (await site.js.get_msg("ORDERS", 3)).data == b"long " * 2_000


async def test_a_message_too_large_for_the_page_names_the_command(site: Site) -> None:
    async with site.page() as page:
        await enter_token(page)
        await page.get_by_role("link", name="Streams").click()
        await page.get_by_role("button", name="Publish…").click()
        await page.get_by_label("Subject", exact=True).fill("orders.eu")
        await page.get_by_label("Payload").fill("x" * 70_000)
        await page.get_by_role("button", name="Publish", exact=True).click()
        await expect(page.get_by_text("use headrace pub")).to_be_visible()


async def test_times_are_those_of_the_fields_for_times(site: Site) -> None:
    stored = (await site.js.get_msg("ORDERS", 1)).time
    assert stored is not None
    local = stored.astimezone(ZoneInfo("Asia/Kolkata")).strftime("%Y-%m-%d %H:%M:%S")
    async with site.page(timezone_id="Asia/Kolkata") as page:
        await page.get_by_role("link", name="ORDERS", exact=True).click()
        await expect(page.locator(".message")).to_contain_text(local)
        await page.get_by_label("Time", exact=True).fill(local.replace(" ", "T"))
        await page.get_by_role("button", name="Show", exact=True).click()
        await expect(page.get_by_text("Messages 1 to 1")).to_be_visible()


async def test_an_exported_table_has_headers_and_binary_payloads(site: Site) -> None:
    await site.js.publish("orders.eu", b"\xff", headers={"Kind": 'a "b", c'})
    async with site.page() as page:
        await page.get_by_role("link", name="ORDERS", exact=True).click()
        await page.get_by_role("button", name="Export…").click()
        await page.get_by_label("Format").select_option("CSV")
        async with page.expect_download() as download:
            await page.get_by_role("button", name="Export", exact=True).click()
        rows = list(csv.DictReader((await (await download.value).path()).open()))
        assert [row["data"] for row in rows] == [HTML.decode(), ""]
        assert (rows[1]["data_base64"], json.loads(rows[1]["headers"])) == ("/w==", {"Kind": 'a "b", c'})
