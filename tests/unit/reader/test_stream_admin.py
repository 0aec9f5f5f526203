"""Streams are listed completely, even if some come and go between two pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.reader import stream_admin
from headrace.reader.options import parse_read_options

PAGE = 10


class Listing:
    """A server that lists streams in pages; `on_page` runs after each page, with its number."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, on_page: Callable[[int], None]) -> None:
        self.names = [f"s{number:02d}" for number in range(25)]
        self.pages = 0
        self._on_page = on_page
        monkeypatch.setattr(stream_admin, "call_leader", self._list)
        monkeypatch.setattr(stream_admin, "with_retry", lambda address, timeout_s, work: work(None))

    def _list(self, connection: Any, subject: str, body: dict[str, int]) -> dict[str, Any]:
        offset = body["offset"]
        page = {"streams": self.names[offset : offset + PAGE], "total": len(self.names)}
        self.pages += 1
        self._on_page(self.pages)
        return page

    def find_all(self) -> set[str]:
        options = parse_read_options({"servers": "nats://127.0.0.1:4222", "streamPattern": ".*"})
        return stream_admin.list_stream_names(options)


def test_a_listing_has_all_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    listing = Listing(monkeypatch, lambda page: None)
    assert listing.find_all() == set(listing.names)
    assert listing.pages == 3


def test_a_stream_that_is_deleted_between_two_pages_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def delete_one(page: int) -> None:
        if page == 1:
            listing.names.remove("s03")

    listing = Listing(monkeypatch, delete_one)
    assert listing.find_all() == set(listing.names)


def test_a_deletion_and_a_creation_between_two_pages_hide_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The total stays the same, but one name moved to the page before."""

    def replace_one(page: int) -> None:
        if page == 1:
            listing.names.remove("s03")
            listing.names.append("s99")

    listing = Listing(monkeypatch, replace_one)
    assert listing.find_all() == set(listing.names)


def test_a_listing_that_always_changes_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def add_one(page: int) -> None:
        listing.names.append(f"t{page:02d}")

    listing = Listing(monkeypatch, add_one)
    assert {f"s{number:02d}" for number in range(25)} <= listing.find_all()
