"""Sends messages ahead of their acknowledgements, and again after a broken connection.

Owns the order of sending and waiting. Invariant: an item is finished only after the server's reply to it; items whose
replies were lost are sent again, so sending one twice must be harmless. Must not know what the items are.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from headrace.reader.blocking_connection import BlockingConnection, ServerAddress
from headrace.reader.stream_admin import with_retry

Item = TypeVar("Item")
ItemIn = TypeVar("ItemIn", contravariant=True)


class ItemPublisher(Protocol[ItemIn]):
    """Sends an item, and handles the replies to it."""

    def send(self, connection: BlockingConnection, item: ItemIn) -> bytes:
        """Send the messages of an item; return the inbox for the replies."""

    def receive(self, connection: BlockingConnection, item: ItemIn, inbox: bytes) -> None:
        """Wait for the replies; raise ConnectionFailed if the item must be sent again."""


@dataclass
class _Entry(Generic[Item]):
    item: Item
    inbox: bytes = b""


class PublishPipeline(Generic[Item]):
    """Publishes the items of one task, at most `ahead` of them before the first is acknowledged."""

    def __init__(
        self, address: ServerAddress, reconnect_s: float, publisher: ItemPublisher[Item], ahead: int
    ) -> None:
        self._address = address
        self._reconnect_s = reconnect_s
        self._publisher = publisher
        self._ahead = ahead
        self._entries: deque[_Entry[Item]] = deque()
        self._connection: BlockingConnection | None = None

    def publish(self, item: Item) -> None:
        """Send an item; wait only if too many are unacknowledged."""
        self._entries.append(_Entry(item))
        self._advance(self._ahead)

    def drain(self) -> None:
        """Wait until everything is acknowledged."""
        self._advance(0)

    def _advance(self, unfinished: int) -> None:
        with_retry(
            self._address, self._reconnect_s, lambda connection: self._advance_on(connection, unfinished)
        )

    def _advance_on(self, connection: BlockingConnection, unfinished: int) -> None:
        if connection is not self._connection:
            self._connection = connection
            for entry in self._entries:
                entry.inbox = b""
        for entry in self._entries:
            if not entry.inbox:
                entry.inbox = self._publisher.send(connection, entry.item)
        while len(self._entries) > unfinished:
            entry = self._entries[0]
            self._publisher.receive(connection, entry.item, entry.inbox)
            self._entries.popleft()
