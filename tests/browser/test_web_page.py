"""Tests the web page in a real browser: live numbers, escaped contents, phone layout.

Screenshots are kept in out/browser.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import pytest
from playwright.async_api import Browser, Page, async_playwright, expect

import headrace

CHROMIUM = shutil.which("chromium")
SHOTS = Path("out/browser")
HTML = b"<img src=x onerror=\"document.title='owned'\"><b>bold</b>"
TOKEN = "sesame"
expect.set_options(timeout=30_000)

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
        await page.get_by_role("link", name="ORDERS").click()
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


async def test_keyboard_alone_reaches_the_content(site: Site) -> None:
    async with site.page() as page:
        await page.keyboard.press("Tab")
        await expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
        for _ in range(3):
            await page.keyboard.press("Tab")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", level=1)).to_have_text("Streams")
        assert await page.evaluate("document.activeElement.id") == "main"


async def test_an_admin_purges_after_confirming(site: Site) -> None:
    async with site.page() as page:
        await page.get_by_role("link", name="ORDERS").click()
        await expect(page.get_by_role("button", name="Purge…")).to_be_hidden()
        await page.get_by_role("button", name="Admin…").click()
        await page.get_by_label("Token").fill(TOKEN)
        await page.get_by_role("button", name="Use it").click()
        await page.get_by_role("button", name="Purge…").click()
        await page.get_by_role("button", name="Purge", exact=True).click()
        await expect(page.locator(".card .value").first).to_have_text("0")
        assert (await site.js.stream_info("ORDERS")).state.messages == 0
