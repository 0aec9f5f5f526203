"""Files of pins over HTTP, for readers that share no disk with the broker.

Owns `/pins/<pin>/<file>`. Invariants: a file is served only to who shows the token that was granted with its pin, and
only while that is held; a name that is not exactly one of a pin's files is never looked for, so that no path leads
elsewhere. An answer holds at most `BYTES_MAX`, read by a thread: the broker's own never waits for a disk.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from headrace.broker.jetstream import JetStream
from headrace.broker.pin_api import find, granted
from headrace.monitor.http import Answer, HttpRequest, Page, text_answer
from headrace.store import FileDisk

BYTES_MAX = 8 << 20
_PATH = re.compile(
    r"/pins/([0-9a-f]{1,32}-[0-9]{1,9})/(manifest|[0-9a-f]{8}\.(?:seg|col)|subjects\.[0-9]{1,19})"
)
_RANGE = re.compile(r"bytes=([0-9]{1,18})-([0-9]{0,18})")
_REFUSED = (("WWW-Authenticate", 'Bearer realm="pins"'),)


def segments(stores: Callable[[], Iterable[JetStream]]) -> Page:
    """The page; `stores` are those whose pins it serves."""

    async def page(request: HttpRequest) -> Answer:
        path = _PATH.fullmatch(request.path)
        if path is None:
            return text_answer(404, "404 page not found")
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        owner = next((each for each in stores() if granted(each, path[1], token.strip())), None)
        if owner is None or scheme.lower() != "bearer":
            return text_answer(401, "the token of the pin is needed")._replace(headers=_REFUSED)
        if find(owner, path[1]) is None:
            return _gone()
        disk = owner.store.disk
        assert isinstance(disk, FileDisk), "a simulated disk has no monitoring port"
        # Opened anew each time: a handle that the store keeps would hold the file when the pin is long gone.
        place = disk.root / "pins" / path[1] / path[2]
        answer = await asyncio.to_thread(_read, place, request.headers.get("range", "bytes=0-"))
        # It may have been let go of while its file was looked for.
        return answer if answer.status != 404 or find(owner, path[1]) is not None else _gone()

    return page


def _gone() -> Answer:
    return text_answer(410, "this pin is not held any more")


def _read(place: Path, wanted: str) -> Answer:
    span = _RANGE.fullmatch(wanted)
    if span is None:
        return text_answer(400, "one range of bytes is served, as bytes=first-last")
    try:
        with place.open("rb") as file:
            size = file.seek(0, 2)
            first = int(span[1])
            last = min(int(span[2] or size), size - 1, first + BYTES_MAX - 1)
            if last < first:
                return text_answer(416, "nothing is there")._replace(
                    headers=(("Content-Range", f"bytes */{size}"),)
                )
            file.seek(first)
            body = file.read(last - first + 1)
    except FileNotFoundError:
        return text_answer(404, "the pin has no such file")
    headers = (
        ("Content-Range", f"bytes {first}-{first + len(body) - 1}/{size}"),
        ("Cache-Control", "no-store"),
    )
    return Answer(206, "application/octet-stream", body, headers)
