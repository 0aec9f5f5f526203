"""Dead letters: a message that a consumer gives up is published to another stream and acknowledged, in one frame.

`dead_letter_target` decides whether that is possible. Invariant: the dead letter and the ack are in the same frame, so
that after any crash there are both or none. If it is not possible, the message stays pending, and an advisory says why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.broker.consumers.dead_letter_target import find_target
from headrace.code_probes import sometimes
from headrace.errors import CorruptData, RequestError, StoreError
from headrace.jetstream_api import advisories as events
from headrace.jetstream_api.times import format_time
from headrace.jetstream_api.validation.dead_letter_fields import TERM
from headrace.protocol import dead_letter_headers as dead

if TYPE_CHECKING:
    from headrace.broker.consumers.consumer_context import ConsumerContext

StoredMessage = tuple[int, bytes, bytes, bytes, int]  # time, subject, header, payload, TTL

#: When to try again, unless the ack wait is longer.
RETRY_NS = 1_000_000_000
#: How many terminated messages are kept that are no longer pending, besides one for each that is.
_ENDED_MAX = 64


class DeadLetterPublisher:
    """Publishes the dead letters of one consumer.

    `published` and `failed` count them since the server started, `bytes_read` is the size of their messages.
    """

    __slots__ = (
        "_ack_state",
        "_checked_changes",
        "_consumer",
        "_had_target",
        "_log",
        "_target",
        "_terminated",
        "_totals",
        "bytes_read",
        "failed",
        "published",
    )

    def __init__(self, consumer: ConsumerContext) -> None:
        self._consumer = consumer
        self._log, self._ack_state = consumer.log, consumer.ack_state
        self._totals = consumer.jetstream.totals
        #: Messages that a client terminated, but whose dead letters failed: deliveries and reason of the client.
        self._terminated: dict[int, tuple[int, bytes]] = {}
        self._target: tuple[Any, str] = None, ""
        self._checked_changes = -1
        self._had_target = False
        self.published = self.failed = self.bytes_read = 0

    def configure(self) -> None:
        """Follow a change of the configuration, which can change where dead letters of other consumers end up."""
        config = self._consumer.config
        if config.dead_letter is not None or self._had_target:
            self._totals.config_changes += 1
        self._had_target = config.dead_letter is not None

    def wants(self, reason: str) -> bool:
        """Return whether a message that is given up for this reason becomes a dead letter."""
        config = self._consumer.config
        wanted = config.dead_letter
        return wanted is not None and reason in wanted.on

    def retry_terminated(self, seq: int) -> bool:
        """Try again to publish a message that a client terminated; return False if none did: it may be redelivered."""
        terminated = self._terminated.get(seq)
        if terminated is None:
            return False
        if seq not in self._ack_state.pending or not self.wants(TERM):
            del self._terminated[seq]
            return False
        consumer_seq, (deliveries, detail) = self._ack_state.pending[seq], terminated
        if self.publish(seq, TERM, deliveries, detail):
            reason = detail.decode("utf-8", "replace")
            self._consumer.send_advisory(
                events.make_message_terminated, consumer_seq, seq, deliveries, reason
            )
        return True

    def forget_terminated(self) -> None:
        """Clear the terminated messages: the consumer was reset, and no client has terminated one since."""
        self._terminated.clear()

    def publish(self, seq: int, reason: str, deliveries: int, detail: bytes = b"") -> bool:
        """Publish a pending message as a dead letter and acknowledge it; return False if it stays pending."""
        consumer = self._consumer
        was_full = consumer.at_max_ack_pending()
        try:
            message = self._read(seq)
        except OSError as error:  # the disk may recover
            self._on_failed(seq, deliveries, f"message {seq} could not be read: {error}", reason, detail)
            return False
        if message is None:
            consumer.ack_state.mark_skipped(seq)
            consumer.ack_state.remove(seq)
            consumer.on_acked([], was_full)
            return True
        self.bytes_read += len(message[2]) + len(message[3])
        problem = self._store(self._make_header(seq, message, reason, deliveries, detail), message[3])
        if problem:
            self._on_failed(seq, deliveries, problem, reason, detail)
            return False
        self._terminated.pop(seq, None)
        self.published += 1
        consumer.ack_state.ack(seq)
        consumer.on_acked([seq], was_full)
        if consumer.persistent:
            consumer.consumer_set.persist_with_frame(consumer)
        sometimes("message became a dead letter")
        return True

    def _read(self, seq: int) -> StoredMessage | None:
        """Return a message; None if it left the stream, or is corrupt: the store keeps and reports it."""
        try:
            return self._log.get(seq)
        except CorruptData:
            return None

    def _store(self, header: bytes, payload: bytes) -> str:
        """Store the dead letter with the open frame; return why that is not possible, "" if it was."""
        consumer = self._consumer
        wanted = consumer.config.dead_letter
        if wanted is None:
            return "the consumer has no dead letters"
        subject = wanted.subject.encode()
        target, problem = self._find_target()
        if problem:
            return problem
        try:
            target.store_unconditionally(subject, header, payload)
        except (RequestError, StoreError) as error:
            return str(error)
        return ""

    def _find_target(self) -> tuple[Any, str]:
        """Return the stream for dead letters, and why it cannot take them, "" if it can.

        Since the configuration was checked, streams may have been replaced, or capture other subjects.
        """
        consumer = self._consumer
        changes = self._totals.config_changes
        if changes != self._checked_changes:
            self._target = find_target(consumer.jetstream, consumer.stream, consumer.config)
            self._checked_changes = changes
        return self._target

    def _make_header(
        self,
        seq: int,
        message: StoredMessage,
        reason: str,
        deliveries: int,
        detail: bytes,
    ) -> bytes:
        consumer = self._consumer
        about = [
            (dead.STREAM, consumer.stream.name_bytes),
            (dead.SEQ, b"%d" % seq),
            (dead.SUBJECT, message[1]),
            (dead.CONSUMER, consumer.name_bytes),
            (dead.REASON, reason.encode()),
            (dead.DELIVERIES, b"%d" % deliveries),
            (dead.TIME, format_time(message[0]).encode()),
        ]
        if detail:
            about.append((dead.DETAIL, detail.replace(b"\r", b" ").replace(b"\n", b" ")))
        return dead.build(message[2], about)

    def _on_failed(self, seq: int, deliveries: int, problem: str, reason: str, detail: bytes) -> None:
        """Keep the message pending, and try again later."""
        self.failed += 1
        consumer = self._consumer
        sometimes("dead letter could not be published")
        wait_ns = max(consumer.get_ack_wait(deliveries), RETRY_NS)
        ack_state, config = consumer.ack_state, consumer.config
        if reason == TERM:
            self._terminated[seq] = deliveries, detail
            if len(self._terminated) > 2 * len(ack_state.pending) + _ENDED_MAX:
                self._terminated = {
                    each: value for each, value in self._terminated.items() if each in ack_state.pending
                }
        ack_state.redelivery_queue.discard(seq)
        ack_state.set_deadline(seq, consumer.now_ns() + wait_ns)
        consumer.arm_timer()
        consumer.persist_soon()
        subject = config.dead_letter.subject if config.dead_letter is not None else ""
        consumer.send_advisory(events.make_dead_letter_failed, seq, deliveries, subject, problem)
