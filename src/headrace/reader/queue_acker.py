"""Acknowledges what Spark or a table has finished, and nothing else, through a durable consumer of its own.

Owns the consumer and its acknowledgements. Invariant: no message at or after the horizon is ever acknowledged, so that
a work queue keeps everything that a replayed batch reads. The consumer receives headers only; the rows are read by
sequence, as from any other stream, so a batch is repeatable whatever happens to the consumer, even a reset by another
client.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from headrace.reader.blocking_connection import BlockingConnection, Msg
from headrace.reader.options import OptionError, ReadOptions
from headrace.reader.stream_admin import StreamError, call_api, with_retry

_BATCH_MAX = 1000
_ACK_WAIT_NS = 60_000_000_000
_EXPIRES_NS = 1_000_000_000
_NO_CONSUMER = "[10014]"


class QueueAcker:
    """Acknowledges for a query or a table that owns a consumer."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._consumer_path = f"{options.stream}.{options.consumer}"
        self._finished_seq = 0
        config = with_retry(options.address, options.reconnect_s, self._ensure_consumer)
        #: Maximum number of unacknowledged messages that the consumer delivers; 0 for unlimited.
        self._pending_max = max(int(config.get("max_ack_pending", 0)), 0)

    def ack_below(self, finished_seq: int) -> None:
        """Acknowledge everything below the horizon; the server has confirmed it on return."""
        if finished_seq <= self._finished_seq:
            return
        with_retry(
            self._options.address,
            self._options.reconnect_s,
            lambda connection: self._ack_waiting(connection, finished_seq),
        )
        self._finished_seq = finished_seq

    def _ensure_consumer(self, connection: BlockingConnection) -> dict[str, Any]:
        options = self._options
        try:
            config = call_api(connection, f"{options.api_prefix}.CONSUMER.INFO.{self._consumer_path}")[
                "config"
            ]
        except StreamError:
            config = self._create_consumer(connection)
        if config.get("deliver_subject") or config.get("ack_policy") != "explicit":
            raise OptionError(
                f"consumer {options.consumer!r} cannot acknowledge for a query or a table: it must be a pull consumer with "
                "explicit acknowledgement; delete it, or name another one in option `consumer`"
            )
        self._check_filters(config)
        return dict(config)

    def _check_filters(self, config: dict[str, Any]) -> None:
        """Check that consumer and query have the same filter: a wider consumer would acknowledge unread messages, a
        narrower one not all that were read.
        """
        filters = config.get("filter_subjects") or [config.get("filter_subject", "")]
        if {each or ">" for each in filters} != {self._options.subject or ">"}:
            raise OptionError(
                f"consumer {self._options.consumer!r} receives {', '.join(filter(None, filters)) or 'everything'}, the "
                f"query reads {self._options.subject or 'everything'}: use the same subject for both, or name another "
                "consumer in option `consumer`"
            )

    def _create_consumer(self, connection: BlockingConnection) -> dict[str, Any]:
        options = self._options
        config: dict[str, Any] = {
            "durable_name": options.consumer,
            "name": options.consumer,
            "ack_policy": "explicit",
            "ack_wait": _ACK_WAIT_NS,
            "deliver_policy": "all",
            "headers_only": True,
            "max_ack_pending": -1,
            "description": "messages processed by a Spark query or a table",
        }
        subject = f"{options.api_prefix}.CONSUMER.CREATE.{self._consumer_path}"
        if options.subject and options.subject != ">":
            config["filter_subject"] = options.subject
            subject = f"{subject}.{options.subject}"
        response = call_api(connection, subject, {"stream_name": options.stream, "config": config})
        return dict(response["config"])

    def _ack_waiting(self, connection: BlockingConnection, finished_seq: int) -> None:
        """Pull waiting messages, acknowledge those below the horizon, and NAK the rest."""
        deadline = time.monotonic() + self._options.reconnect_s
        while True:
            replies = list(self._pull(connection))
            to_ack = [reply for reply in replies if _parse_stream_seq(reply) < finished_seq]
            to_nak = [reply for reply in replies if _parse_stream_seq(reply) >= finished_seq]
            connection.send(b"".join(b"PUB %s 4\r\n-NAK\r\n" % reply for reply in to_nak))
            connection.send(b"".join(b"PUB %s 4\r\n+ACK\r\n" % reply for reply in to_ack[:-1]))
            if to_ack:
                # The last one requests a reply; those before it took the same path.
                connection.request(to_ack[-1].decode(), b"+ACK")
            if to_nak or (len(replies) < self._pull_batch and not self._has_more(connection)):
                return
            if replies:
                deadline = time.monotonic() + self._options.reconnect_s
            elif time.monotonic() > deadline:
                raise StreamError(
                    f"consumer {self._options.consumer!r} delivers at most {self._pending_max} unacknowledged messages "
                    "(max_ack_pending), and other clients have not acknowledged that many: only this query may use it"
                )

    @property
    def _pull_batch(self) -> int:
        """Size of a pull: one for more messages than the consumer may deliver would not end."""
        return min(_BATCH_MAX, self._pending_max or _BATCH_MAX)

    def _has_more(self, connection: BlockingConnection) -> bool:
        """Return whether a pull may have ended because too many delivered messages are unacknowledged."""
        if not self._pending_max:
            return False
        return bool(
            call_api(connection, f"{self._options.api_prefix}.CONSUMER.INFO.{self._consumer_path}")[
                "num_pending"
            ]
        )

    def _pull(self, connection: BlockingConnection) -> Iterator[bytes]:
        """Yield the reply subjects of waiting messages, one batch at most."""
        inbox = connection.new_inbox()
        # Messages delivered to other clients count too, so a consumer with a limit may keep a pull waiting.
        expires_ns = _EXPIRES_NS if self._pending_max else 0
        body = b'{"batch":%d,"no_wait":true,"expires":%d}' % (self._pull_batch, expires_ns)
        subject = f"{self._options.api_prefix}.CONSUMER.MSG.NEXT.{self._consumer_path}"
        connection.send(b"PUB %s %s %d\r\n%s\r\n" % (subject.encode(), inbox, len(body), body))
        count = 0
        for message in connection.iter_messages(connection.address.timeout_s, subject):
            # Messages have their own subjects, statuses that of the inbox.
            if message.subject == inbox and _is_end_of_pull(message, subject):
                return
            if not message.reply.startswith(b"$JS.ACK."):
                continue
            yield message.reply
            count += 1
            if count == self._pull_batch:
                return


def delete_consumer(options: ReadOptions) -> None:
    """Delete the consumer of a query or a table; nothing happens if there is none."""
    subject = f"{options.api_prefix}.CONSUMER.DELETE.{options.stream}.{options.consumer}"

    def send_request(connection: BlockingConnection) -> None:
        try:
            call_api(connection, subject)
        except StreamError as error:
            if _NO_CONSUMER not in str(error):
                raise

    with_retry(options.address, options.reconnect_s, send_request)


def _is_end_of_pull(message: Msg, subject: str) -> bool:
    """Return whether this is the status that ends a pull, not a message."""
    if message.reply or message.header[8:9] != b" ":
        return False
    code = message.header[9:12]
    if code in (b"404", b"408", b"409"):
        return True
    text = message.header.partition(b"\r\n")[0].decode(errors="replace")
    raise StreamError(f"{subject} was rejected: {text}")


def _parse_stream_seq(reply: bytes) -> int:
    """Return the stream sequence in an ack subject, in its short or long form."""
    tokens = reply.split(b".")
    return int(tokens[5] if len(tokens) == 9 else tokens[7])
