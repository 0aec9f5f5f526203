from __future__ import annotations

from typing import Any

import pytest

from headrace.reader.blocking_connection import ConnectionFailed, ServerAddress
from headrace.spark.write import publish_pipeline
from headrace.spark.write.publish_pipeline import PublishPipeline


class Recorder:
    """Publishes numbers; replies are lost on the connections in `broken`."""

    def __init__(self, broken: set[str]) -> None:
        self.broken = broken
        self.log: list[tuple[str, str, int]] = []

    def send(self, connection: Any, item: int) -> bytes:
        self.log.append(("send", connection, item))
        return b"inbox"

    def receive(self, connection: Any, item: int, inbox: bytes) -> None:
        if connection in self.broken:
            raise ConnectionFailed("lost")
        self.log.append(("receive", connection, item))


def test_items_without_a_reply_are_sent_again_on_the_next_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    connections = ["first", "second"]

    def retrying(_: Any, __: float, work: Any) -> Any:
        try:
            return work(connections[0])
        except ConnectionFailed:
            connections.pop(0)
            return work(connections[0])

    monkeypatch.setattr(publish_pipeline, "with_retry", retrying)
    recorder = Recorder({"first"})
    pipeline = PublishPipeline(ServerAddress(), 1.0, recorder, ahead=2)
    for number in range(4):
        pipeline.publish(number)
    pipeline.drain()
    assert recorder.log == [
        *(("send", "first", number) for number in range(3)),
        *(("send", "second", number) for number in range(3)),
        ("receive", "second", 0),
        ("send", "second", 3),
        *(("receive", "second", number) for number in range(1, 4)),
    ]
