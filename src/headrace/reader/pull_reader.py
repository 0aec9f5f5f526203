"""Fetches messages of a stream that does not allow direct gets, through an ordered pull consumer.

Owns the consumer: it is created for one range, keeps no state on disk, and is deleted afterwards. Invariant: what is
passed on has no gap; a delivery that is missing starts another consumer after the last message. Only for streams with
limits retention: a consumer on a work queue would take messages away, and one on an interest stream would keep them.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from headrace.reader.blocking_connection import (
    BlockingConnection,
    ConnectionFailed,
    Msg,
    connection_for,
    drop_connection,
)
from headrace.reader.direct_get_decode import ReplyBlock, StoredMessage, block_of
from headrace.reader.options import ReadOptions
from headrace.reader.range_reader import BLOCK_BYTES_MAX, fetch_from_leader
from headrace.reader.stream_admin import StreamError, call_leader

_NS = 1_000_000_000
#: The server deletes a consumer that nobody uses for this long, such as that of a task that was killed.
_INACTIVE_S = 30
#: Errors that say that this stream allows no further consumer: the limit of the stream, or of the account.
_NO_CONSUMER = ("[10026]", "[10002]", "[10023]")


def fetch_blocks(options: ReadOptions, start: int, end: int) -> Iterator[ReplyBlock]:
    """Yield the messages of a range as far as the consumer delivers them."""
    connection = connection_for(options.address)
    try:
        consumer = _OrderedConsumer(connection, options, start)
    except StreamError as error:
        if not any(code in str(error) for code in _NO_CONSUMER):
            raise
        yield from fetch_from_leader(options, start, end)
        return
    try:
        while start < end and (messages := consumer.pull(end)):
            start = messages[-1].seq + 1
            yield block_of(messages)
    finally:
        consumer.close()


class _OrderedConsumer:
    """An ephemeral consumer that needs no acknowledgements."""

    def __init__(self, connection: BlockingConnection, options: ReadOptions, start: int) -> None:
        self._connection = connection
        self._options = options
        self._name = f"headrace_read_{secrets.token_hex(8)}"
        self._api = f"{options.api_prefix}.CONSUMER"
        self._delivered = 0
        #: How many deliveries of the last request may still arrive.
        self.outstanding = 0
        config: dict[str, Any] = {
            "name": self._name,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": max(start, 1),
            "ack_policy": "none",
            "inactive_threshold": _INACTIVE_S * _NS,
            "mem_storage": True,
            "num_replicas": 1,
        }
        subject = f"{self._api}.CREATE.{options.stream}.{self._name}"
        if options.subject and options.subject != ">":
            config["filter_subject"] = options.subject
            subject += f".{options.subject}"
        created = call_leader(connection, subject, {"stream_name": options.stream, "config": config})
        self._pending = int(created["num_pending"])

    def pull(self, end: int) -> list[StoredMessage]:
        """Return the next messages below `end`; nothing if there are none now."""
        count = min(self._options.batch_rows, self._pending)
        if not count:
            return []
        connection, found = self._connection, list[StoredMessage]()
        timeout_s = connection.address.timeout_s
        request = {"batch": count, "max_bytes": BLOCK_BYTES_MAX, "expires": int(timeout_s * _NS)}
        body, reply = json.dumps(request).encode(), connection.new_inbox()
        subject = f"{self._api}.MSG.NEXT.{self._options.stream}.{self._name}"
        connection.send(b"PUB %s %s %d\r\n%s\r\n" % (subject.encode(), reply, len(body), body))
        self.outstanding = count
        for message in connection.iter_messages(timeout_s, subject):
            if message.subject == reply:  # a status: the request has ended
                self.outstanding = 0
                break
            stored = self._parse(message)
            if stored is None:
                continue
            self.outstanding -= 1
            if stored.seq >= end:
                self._pending = 0
                break
            found.append(stored)
            if not self.outstanding:
                break
        return found

    def _parse(self, message: Msg) -> StoredMessage | None:
        """Return the message of a delivery; None if it is a status, or a reply to an earlier request."""
        tokens = message.reply.split(b".")
        if tokens[:2] != [b"$JS", b"ACK"]:
            return None
        consumer, _, seq, delivered, time_ns, pending = tokens[-6:] if len(tokens) == 9 else tokens[5:11]
        if consumer != self._name.encode():
            return None
        self._delivered += 1
        if int(delivered) != self._delivered:
            raise ConnectionFailed(f"a delivery of stream {self._options.stream!r} is missing")
        self._pending = int(pending)
        return StoredMessage(int(seq), int(time_ns), message.subject, message.header, message.payload)

    def close(self) -> None:
        """Delete the consumer; if that fails, the server deletes it later."""
        if self._connection.closed:
            return
        subject = f"{self._api}.DELETE.{self._options.stream}.{self._name}"
        if not self.outstanding:
            self._connection.send(b"PUB %s 0\r\n\r\n" % subject.encode())
            return
        # Deliveries still in transit must not be taken for replies to the next request, so the connection is closed.
        # Not before the reply: closing it with unread data would reset it, and the server would drop the request.
        with suppress(ConnectionFailed):
            self._connection.request(subject)
        drop_connection(self._options.address)
