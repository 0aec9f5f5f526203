"""Replies to changes of a bucket that are not final are retried."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.reader import stream_admin
from headrace.reader.blocking_connection import BlockingConnection, Msg, ServerAddress
from headrace.spark.kv.kv_writer import KvChange, KvTarget, KvWriteError, KvWriter

ADDRESS = ServerAddress(("nats://127.0.0.1:1",))


class Replies(BlockingConnection):
    """A connection that gives each publish the next of some replies."""

    def __init__(self, replies: list[tuple[bytes, Any]]) -> None:
        self.address = ADDRESS
        self.replies = replies
        self.inboxes: list[bytes] = []

    def new_inbox(self) -> bytes:
        self.inboxes.append(b"inbox.%d" % len(self.inboxes))
        return self.inboxes[-1]

    def send(self, data: bytes | bytearray) -> None:
        """Drop it."""

    def iter_messages(self, timeout_s: float, operation: str = "") -> Iterator[Msg]:
        header, body = self.replies.pop(0)
        yield Msg(self.inboxes[-1], b"", header, json.dumps(body).encode())


def publish(monkeypatch: pytest.MonkeyPatch, *replies: tuple[bytes, Any]) -> int:
    connection = Replies(list(replies))
    monkeypatch.setattr(stream_admin, "connection_for", lambda _: connection)
    monkeypatch.setattr(stream_admin, "drop_connection", lambda _: None)
    monkeypatch.setattr(stream_admin, "_RETRY_PAUSE_S", 0.0)
    stream_admin.mark_reachable(ADDRESS)
    return KvWriter(KvTarget(ADDRESS, "B", "w")).publish([KvChange("a")])


def make_error(code: int, err_code: int) -> dict[str, Any]:
    return {"error": {"code": code, "err_code": err_code, "description": "why"}}


@pytest.mark.parametrize(
    "first", [(b"NATS/1.0 503\r\n\r\n", {}), (b"", make_error(503, 10008)), (b"", make_error(503, 10009))]
)
def test_an_election_is_waited_for(monkeypatch: pytest.MonkeyPatch, first: tuple[bytes, Any]) -> None:
    assert publish(monkeypatch, first, (b"", {"stream": "KV_B", "seq": 1})) == 1


@pytest.mark.parametrize("error", [make_error(503, 10077), make_error(503, 10039), make_error(400, 10071)])
def test_a_final_error_is_not_retried(monkeypatch: pytest.MonkeyPatch, error: dict[str, Any]) -> None:
    with pytest.raises(KvWriteError, match="rejected key 'a': why"):
        publish(monkeypatch, (b"", error))
