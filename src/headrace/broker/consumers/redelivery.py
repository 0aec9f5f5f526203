"""Redelivery: which pending messages are delivered again, given up, or dropped because they left the stream.

Owns those decisions for one consumer; `AckState` has the queue of redeliveries, the delivery loop serves it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from headrace.broker.consumers.dead_letters import RETRY_NS, StoredMessage
from headrace.broker.consumers.retention_interest import tracked_among
from headrace.code_probes import sometimes
from headrace.errors import CorruptData
from headrace.jetstream_api import advisories as events
from headrace.jetstream_api.validation.dead_letter_fields import MAX_DELIVER

if TYPE_CHECKING:
    from headrace.broker.consumers.ack_handling import AckHandler
    from headrace.broker.consumers.consumer_context import ConsumerContext


#: Maximum number of messages that are given up, as dead letters or not, in one turn of the event loop.
LETTERS_PER_TURN = 64
#: Maximum size of the messages that become dead letters in one turn; one may be larger.
LETTER_BYTES_PER_TURN = 256 * 1024
#: What each of these bytes counts against the budget of a delivery: it is read, checked and stored.
_LETTER_FACTOR = 4
#: Maximum number of overdue messages that one turn looks at.
EXPIRED_PER_TURN = 1_024
#: What a search counts that does not find as many as it may: many were acknowledged.
_SPARSE_COST = 256


class Redelivery:
    """Decides about the pending messages of one consumer."""

    __slots__ = ("_ack_handler", "_ack_state", "_consumer", "_dead_letters")

    def __init__(self, consumer: ConsumerContext, ack_handler: AckHandler) -> None:
        self._consumer = consumer
        self._ack_handler = ack_handler
        self._dead_letters = ack_handler.dead_letters
        self._ack_state = consumer.ack_state

    def redeliver_expired(self, now_ns: int) -> None:
        """Redeliver messages that were not acknowledged in time; some of them, if there are many.

        The others stay due, in memory and on disk.
        """
        ack_state = self._ack_state
        looked_at = given_up = 0
        bytes_max = self._dead_letters.bytes_read + LETTER_BYTES_PER_TURN
        while (
            looked_at < EXPIRED_PER_TURN
            and given_up < LETTERS_PER_TURN
            and self._dead_letters.bytes_read < bytes_max
        ):
            limit = LETTERS_PER_TURN - given_up
            due = ack_state.pop_due(now_ns, limit)
            if not due and not 0 < ack_state.next_deadline() <= now_ns:
                break
            looked_at += limit if len(due) == limit else _SPARSE_COST
            given_up += self._redeliver(due, now_ns, bytes_max)
        if looked_at:
            sometimes("ack wait expired")
            self._consumer.persist_soon()
            self._consumer.schedule_delivery()

    def _redeliver(self, due: list[int], now_ns: int, bytes_max: int) -> int:
        """Redeliver or give up messages, until enough bytes were read; the others stay due. Return how many it gave up."""
        config = self._consumer.config
        given_up = done = 0
        try:
            for seq in due:
                given_up += self._redeliver_one(seq, config.max_deliver, now_ns)
                done += 1
                if self._dead_letters.bytes_read >= bytes_max:
                    break
        except Exception:
            self._postpone(due[done:], now_ns + RETRY_NS)
            self._consumer.arm_timer()
            raise
        self._postpone(due[done:], now_ns)
        return given_up

    def _postpone(self, seqs: list[int], deadline_ns: int) -> None:
        """Make messages that were taken out of the deadlines due then."""
        for seq in seqs:
            if seq in self._ack_state.pending:
                self._ack_state.set_deadline(seq, deadline_ns)

    def redeliver_all(self) -> None:
        """Redeliver all pending messages: their receivers are gone."""
        now_ns = self._consumer.now_ns()
        self._ack_state.expire_all(now_ns)
        self.redeliver_expired(now_ns)
        self._consumer.arm_timer()

    def _redeliver_one(self, seq: int, max_deliver: int, now_ns: int) -> bool:
        """Queue a message for redelivery, or give it up if it was delivered `max_deliver` times; return whether it was."""
        ack_state = self._ack_state
        if seq not in ack_state.pending:
            return False
        count = ack_state.get_delivery_count(seq)
        if self._dead_letters.retry_terminated(seq):
            return True
        if (
            0 < max_deliver <= count
        ):  # also if it is queued: a nak of the last delivery, and nobody asked for more
            self.on_max_deliver(seq, count)
            return True
        if seq in ack_state.redelivery_queue:
            return False
        ack_state.enqueue(seq)
        if wait_ns := self._consumer.get_ack_wait(count):
            ack_state.set_deadline(seq, now_ns + wait_ns)
        return False

    def read_message(self, seq: int, now_ns: int) -> StoredMessage | None:
        """Read a message that was queued; None if it is corrupt, or left the stream. After an error it is due later."""
        consumer = self._consumer
        try:
            return consumer.log.get(seq)
        except CorruptData:
            return None
        except OSError:
            self._postpone([seq], now_ns + RETRY_NS)
            consumer.arm_timer()
            raise

    def on_max_deliver(self, seq: int, deliveries: int) -> int:
        """Give up a message that was delivered `max_deliver` times; return what that costs."""
        was_full = self._consumer.at_max_ack_pending()
        dead_letters = self._dead_letters
        bytes_before = dead_letters.bytes_read
        if dead_letters.retry_terminated(seq):
            return _LETTER_FACTOR * (dead_letters.bytes_read - bytes_before)
        if dead_letters.wants(MAX_DELIVER) and seq in self._ack_state.pending:
            if dead_letters.publish(seq, MAX_DELIVER, deliveries):
                self._consumer.send_advisory(events.make_max_deliveries, seq, deliveries)
            return _LETTER_FACTOR * (dead_letters.bytes_read - bytes_before)
        sometimes("max_deliver reached")
        self._consumer.send_advisory(events.make_max_deliveries, seq, deliveries)
        self._ack_state.stop_redelivery(seq, deliveries)
        self._consumer.persist_soon()
        if was_full:
            self._consumer.schedule_delivery()
        return 0

    def on_pending_removed(self, seq: int) -> None:
        """Drop a message that left the stream before its redelivery."""
        self._ack_handler.on_pending_removed(seq)
        self._consumer.persist_soon()

    def on_messages_removed(self, seqs: np.ndarray | Sequence[int], *, suppress_advisories: bool) -> None:
        """Drop messages that left the stream."""
        ack_state = self._ack_state
        was_full, removed = self._consumer.at_max_ack_pending(), tracked_among(self._ack_state, seqs)
        for seq in removed:
            if seq in ack_state.pending and not suppress_advisories:
                self._ack_handler.on_pending_removed(seq)
            else:
                ack_state.remove(seq)
        if removed:
            self._consumer.persist_soon()
            if was_full:
                self._consumer.schedule_delivery()
