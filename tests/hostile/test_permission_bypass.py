"""A client with few permissions tries everything else, and names that lead out of the store: nothing works."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.claims import ClaimConfig
from headrace.claims.errors import ConfigError
from headrace.errors import HeadraceError

from .attacked_server import GOOD, NARROW, TIMEOUT_S, Peer, Scene, scene

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("hostile")]

FORBIDDEN_TO_PUBLISH = (
    b"other", b"mine", b"*", b">", b"mine", b"$JS.API.STREAM.DELETE.MINE", b"$JS.API.STREAM.INFO.OTHER",
    b"$JS.API.STREAM.CREATE.X", b"$JS.API.CONSUMER.CREATE.MINE.C", b"$JS.API.STREAM.INFO.MINE.x", b"$JS.API.INFO",
    b"$JS.ACK.MINE.C.1.1.1.1.0", b"$SYS.REQ.SERVER.PING", b"$JS.API.STREAM.PIN.MINE", b"$KV.b.k", b"_INBOX.n.1", b"MINE.a",
    b"mine\xc2\xa0.a", b"$JS.API.STREAM.MSG.GET.MINE", b"$JS.API.DIRECT.GET.MINE", b"$JS.SNAPSHOT.RESTORE.MINE.x",
)  # fmt: skip
FORBIDDEN_TO_HEAR = (
    b">", b"*", b"*.>", b"_INBOX.>", b"_INBOX.*.>", b"$JS.>", b"$SYS.>", b"$JS.EVENT.ADVISORY.>",
    b"other", b"mine.not", b"mine", b"_INBOX.other.1", b"$JS.API.>", b"*.a", b"mine.not q",
)  # fmt: skip
TRAVERSAL = (
    "..", ".", "../x", "../../etc/passwd", "a/../../x", "/etc/passwd", "a/b", "a\\b", "..\\x", "a b", "a\tb", "*", ">", "a*",
    "%2e%2e", "\u2024\u2024", "a\x00b", "x" * 256, "CON", "C:", "é", "~", "$(id)", "`id`", "-rf",
)  # fmt: skip
#: Unusual but valid names: the files of a stream are not named after it.
HARMLESS = {"%2e%2e", "\u2024\u2024", "CON", "C:", "é", "~", "$(id)", "`id`", "-rf"}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with scene(
        tmp_path_factory.mktemp("bypass") / "" if False else tmp_path_factory.mktemp("bypass")
    ) as running:
        yield running


async def call(peer: Peer, endpoint: bytes, body: object) -> dict[str, object]:
    """Return a reply of the API."""
    payload = json.dumps(body).encode()
    peer.writer.write(b"PUB $JS.API.%s _INBOX.t.1 %d\r\n%s\r\n" % (endpoint, len(payload), payload))
    async with asyncio.timeout(TIMEOUT_S):
        while not (line := await peer.reader.readline()).startswith(b"MSG _INBOX.t.1"):
            assert line
        found: dict[str, object] = json.loads(await peer.reader.readexactly(int(line.split()[-1])))
        return found


async def test_what_is_not_allowed_is_not_published(stage: Scene) -> None:
    watcher = await Peer.dial(stage.port, GOOD + b"SUB > 1\r\n")
    await watcher.ask(b"")
    peer = await Peer.dial(stage.port, NARROW)
    for subject in FORBIDDEN_TO_PUBLISH:
        for line in (
            b"PUB %s 1\r\nx\r\n",
            b"PUB %s _INBOX.n.2 1\r\nx\r\n",
            b"HPUB %s 12 13\r\nNATS/1.0\r\n\r\nx\r\n",
        ):
            heard = await peer.ask(line % subject)
            assert b'Permissions Violation for Publish to "%s"' % subject in heard, heard
    assert b"MSG" not in await watcher.ask(b"")
    assert await peer.ask(b"PUB mine.a 1\r\nx\r\n") == b""
    assert b"MSG mine.a" in await watcher.ask(b"")
    for each in (peer, watcher):
        each.close()


async def test_denied_messages_are_not_delivered(stage: Scene) -> None:
    speaker = await Peer.dial(stage.port, GOOD)
    peer = await Peer.dial(stage.port, NARROW)
    for number, subject in enumerate(FORBIDDEN_TO_HEAR):
        heard = await peer.ask(b"SUB %s %d\r\n" % (subject, number))
        assert heard.startswith(b"-ERR 'Permissions Violation for Subscription to "), (subject, heard)
    await speaker.ask(
        b"".join(b"PUB %s 1\r\nx\r\n" % each for each in (b"other", b"mine.not", b"_INBOX.other.1", b"z.a"))
    )
    assert await peer.ask(b"") == b""
    await peer.ask(b"SUB mine.> 99\r\n")  # allowed, but denied messages are not delivered
    await speaker.ask(b"PUB mine.not 1\r\nx\r\nPUB mine.yes 1\r\ny\r\n")
    heard = await peer.ask(b"")
    assert b"mine.yes" in heard
    assert b"mine.not" not in heard
    for each in (peer, speaker):
        each.close()


async def test_a_reply_subject_gives_no_rights_over_the_api(stage: Scene) -> None:
    """The server replies to any subject that the client names, but a reply is never a request or an ack."""
    good = await Peer.dial(stage.port, GOOD + b"SUB _INBOX.t.* 1\r\n")
    await call(good, b"STREAM.CREATE.MINE", {"name": "MINE", "subjects": ["mine.>"]})
    await call(good, b"STREAM.CREATE.VICTIM", {"name": "VICTIM", "subjects": ["victim"]})
    peer = await Peer.dial(stage.port, NARROW)
    for reply in (b"$JS.API.STREAM.DELETE.VICTIM", b"$JS.ACK.VICTIM.C.1.1.1.1.0", b"_R_.x.y"):
        heard = await peer.ask(b"PUB mine.a %s 1\r\nx\r\n" % reply)
        assert heard.startswith(b"-ERR 'Permissions Violation for Publish with Reply of"), heard
    assert "error" not in await call(good, b"STREAM.INFO.VICTIM", {})
    for each in (peer, good):
        each.close()


@pytest.mark.parametrize("name", TRAVERSAL)
async def test_names_lead_nowhere(stage: Scene, name: str) -> None:
    before = outside(stage.folder)
    peer = await Peer.dial(stage.port, GOOD + b"SUB _INBOX.t.* 1\r\n")
    await call(peer, b"STREAM.CREATE.HOME", {"name": "HOME", "subjects": ["home"]})
    token = name.replace(" ", "_").replace("\t", "_").replace("\x00", "_") or "_"
    safe = token.encode() if "." not in token and not set(token) & {"*", ">"} else b"N"
    made = await call(peer, b"STREAM.CREATE." + safe, {"name": name, "subjects": ["t.x"]})
    assert ("error" not in made) == (name in HARMLESS), made
    bucket = await call(peer, b"STREAM.CREATE.KV_" + safe, {"name": "KV_" + name, "subjects": ["t.k"]})
    assert ("error" not in bucket) == (name in HARMLESS and safe != b"N"), bucket
    config = {"durable_name": name, "name": name, "ack_policy": "explicit"}
    reader = await call(peer, b"CONSUMER.CREATE.HOME." + safe, {"stream_name": "HOME", "config": config})
    assert ("error" not in reader) == (name in HARMLESS), reader
    restored = await call(peer, b"STREAM.RESTORE." + safe, {"config": {"name": name}, "state": {}})
    assert "error" in restored
    pinned = await call(peer, b"STREAM.UNPIN.HOME", {"pin": name})
    assert "error" in pinned
    for stream in (safe, b"KV_" + safe):
        await call(peer, b"STREAM.DELETE." + stream, {})
    peer.close()
    assert outside(stage.folder) == before
    streams = [path.name for path in (stage.folder / "data").rglob("*") if path.is_dir()]
    assert name not in streams


def outside(folder: Path) -> set[str]:
    """Return the files next to the server's data."""
    return {str(path) for path in [*folder.parent.iterdir(), *folder.iterdir()]}


@pytest.mark.parametrize("name", [name for name in TRAVERSAL if name not in ("CON",)])
def test_claims_have_names_that_lead_nowhere(name: str) -> None:
    with pytest.raises((ConfigError, HeadraceError, ValueError)):
        ClaimConfig(name, bucket="b")


async def test_keys_of_claims_lead_nowhere(tmp_path: Path) -> None:
    from headrace.claims.stores.folder import FolderStore

    (tmp_path / "secret").write_text("x")
    store = FolderStore(str(tmp_path / "bucket"), "b")
    await store.ensure_bucket()
    for key in (
        "../secret",
        "../../secret",
        "a/../../secret",
        "/etc/passwd",
        "",
        ".",
        "..",
        "a//b",
        "a/./b",
        "a\x00b",
    ):
        with pytest.raises((HeadraceError, ValueError)):
            await store.put(key, b"y", {})  # type: ignore[arg-type]
        with pytest.raises((HeadraceError, ValueError)):
            await store.head(key)
    assert (tmp_path / "secret").read_text() == "x"
    assert sorted(os.listdir(tmp_path)) == ["bucket", "secret"]
