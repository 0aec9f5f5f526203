"""The consumer that reads a stream without direct gets is deleted, whatever is still on its way to it."""

from __future__ import annotations

from headrace.reader.blocking_connection import ServerAddress
from headrace.reader.options import ReadOptions
from headrace.reader.pull_reader import fetch_blocks
from spark.conftest import Broker


def test_a_reader_that_stops_early_deletes_its_consumer(broker: Broker, name: str) -> None:
    """Closing a connection with unread deliveries resets it; a request that was sent before would be lost."""
    broker.create(name, allow_direct=False)
    broker.publish(name, ((f"{name}.x", b"", b"x" * 4000) for _ in range(2000)))
    options = ReadOptions(ServerAddress(servers=(broker.url,)), name)
    for end in range(2, 12):
        blocks = list(fetch_blocks(options, 1, end))
        assert sum(len(block.seqs) for block in blocks) == end - 1
        assert broker.api(f"CONSUMER.NAMES.{name}")["total"] == 0
