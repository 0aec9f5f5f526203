"""Serves the files of pins over HTTP, for readers that share no disk with the broker.

Owns `/pins/<pin>/<file>`. Invariants: a file is served only to a request with the token that was granted with its pin,
and only while the pin exists; only exact names of a pin's files are looked up, which prevents path traversal. A
response has at most `BYTES_MAX` bytes, read by a separate thread, so that the event loop never waits for the disk.
See ADR 50.
"""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from headrace.broker.handlers.snapshot_leases import find_lease, is_valid_token
from headrace.broker.jetstream import AccountJetStream
from headrace.monitor.http import HttpRequest, HttpResponse, PageHandler, make_text_response
from headrace.storage import FileDisk
from headrace.storage.snapshot.store_pin import parse_pinned_name

BYTES_MAX = 8 << 20
_PATH = re.compile(
    r"/pins/([0-9a-f]{1,32}-[0-9]{1,9})/(manifest|[0-9a-f]{8}\.(?:seg|col)|subjects\.[0-9]{1,19})"
)
_STORE_PATH = re.compile(r"/pins/([0-9a-f]{16}-[0-9]{1,9})/([a-z]{7,11}\.[0-9a-f.]{8,17}\.[a-z]{1,3})")
_RANGE = re.compile(r"bytes=([0-9]{1,18})-([0-9]{0,18})")
_AUTH_HEADERS = (("WWW-Authenticate", 'Bearer realm="pins"'),)


def make_pin_file_page(get_jetstreams: Callable[[], Iterable[AccountJetStream]]) -> PageHandler:
    """Create the page; it serves the pins of these stores."""

    async def page(request: HttpRequest) -> HttpResponse:
        store_path = _STORE_PATH.fullmatch(request.path)
        if store_path is not None and parse_pinned_name(store_path[2]):
            return await _serve_store_file(get_jetstreams(), request, store_path[1], store_path[2])
        path = _PATH.fullmatch(request.path)
        if path is None:
            return make_text_response(404, "404 page not found")
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        jetstream = next(
            (each for each in get_jetstreams() if is_valid_token(each, path[1], token.strip())), None
        )
        if jetstream is None or scheme.lower() != "bearer":
            return _make_denied_response()
        if find_lease(jetstream, path[1]) is None:
            return _make_gone_response()
        disk = jetstream.store.disk
        assert isinstance(disk, FileDisk), "a simulated disk has no monitoring port"
        # Opened each time: a cached handle would keep the file alive after the pin is gone.
        file_path = disk.root / "pins" / path[1] / path[2]
        response = await asyncio.to_thread(_read_range, file_path, request.headers.get("range", "bytes=0-"))
        # The pin may have been released while its file was opened.
        return (
            response
            if response.status != 404 or find_lease(jetstream, path[1]) is not None
            else _make_gone_response()
        )

    return page


async def _serve_store_file(
    jetstreams: Iterable[AccountJetStream], request: HttpRequest, pin: str, name: str
) -> HttpResponse:
    """Serve a file of a pin of a whole store: see `headrace.monitor.server_pins`."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    jetstream = next((each for each in jetstreams if pin in each.pin_leases.store_tokens), None)
    if jetstream is None or scheme.lower() != "bearer":
        return _make_denied_response()
    expected = jetstream.pin_leases.store_tokens[pin]
    if not hmac.compare_digest(expected.encode(), token.strip().encode("utf-8", "replace")):
        return _make_denied_response()
    disk = jetstream.store.disk
    assert isinstance(disk, FileDisk), "a simulated disk has no monitoring port"
    file_path = disk.root / "pins" / pin / name
    response = await asyncio.to_thread(_read_range, file_path, request.headers.get("range", "bytes=0-"))
    is_released = response.status == 404 and pin not in jetstream.pin_leases.store_tokens
    return _make_gone_response() if is_released else response


def _make_denied_response() -> HttpResponse:
    return make_text_response(401, "the token of the pin is required")._replace(headers=_AUTH_HEADERS)


def _make_gone_response() -> HttpResponse:
    return make_text_response(410, "the pin expired or was released")


def _read_range(file_path: Path, range_header: str) -> HttpResponse:
    byte_range = _RANGE.fullmatch(range_header)
    if byte_range is None:
        return make_text_response(400, "invalid range: use a single range, bytes=first-last")
    try:
        with file_path.open("rb") as file:
            size = file.seek(0, 2)
            first = int(byte_range[1])
            last = min(int(byte_range[2] or size), size - 1, first + BYTES_MAX - 1)
            if last < first:
                return make_text_response(416, "the range is outside the file")._replace(
                    headers=(("Content-Range", f"bytes */{size}"),)
                )
            file.seek(first)
            body = file.read(last - first + 1)
    except FileNotFoundError:
        return make_text_response(404, "the pin has no such file")
    headers = (
        ("Content-Range", f"bytes {first}-{first + len(body) - 1}/{size}"),
        ("Cache-Control", "no-store"),
    )
    return HttpResponse(206, "application/octet-stream", body, headers)
