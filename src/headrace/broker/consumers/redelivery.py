"""Redelivery: which pending messages are delivered again, given up, or dropped because they left the stream.

Owns those decisions for one consumer; `AckState` has the queue of redeliveries, the delivery loop serves it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from headrace.broker.consumers.retention_interest import tracked_among
from headrace.code_probes import sometimes
from headrace.jetstream_api import advisories as events

if TYPE_CHECKING:
    from headrace.broker.consumers.ack_handling import AckHandler
    from headrace.broker.consumers.consumer_context import ConsumerContext


class Redelivery:
    """Decides about the pending messages of one consumer."""

    __slots__ = ("_ack_handler", "_ack_state", "_consumer")

    def __init__(self, consumer: ConsumerContext, ack_handler: AckHandler) -> None:
        self._consumer = consumer
        self._ack_handler = ack_handler
        self._ack_state = consumer.ack_state

    def redeliver_expired(self, now_ns: int) -> None:
        """Redeliver messages that were not acknowledged in time."""
        due = self._ack_state.pop_due(now_ns)
        if due:
            sometimes("ack wait expired")
            self.redeliver(due)
            self._consumer.persist_soon()
            self._consumer.schedule_delivery()

    def redeliver(self, seqs: list[int]) -> None:
        """Queue messages for redelivery, or give them up if they were delivered `max_deliver` times."""
        now_ns, config = self._consumer.now_ns(), self._consumer.config
        for seq in seqs:
            if seq in self._ack_state.redelivery_queue:
                continue
            count = self._ack_state.get_delivery_count(seq)
            if 0 < config.max_deliver <= count:
                self.on_max_deliver(seq, count)
                continue
            self._ack_state.enqueue(seq)
            if wait_ns := self._consumer.get_ack_wait(count):
                self._ack_state.set_deadline(seq, now_ns + wait_ns)

    def on_max_deliver(self, seq: int, deliveries: int) -> None:
        """Give up a message that was delivered `max_deliver` times."""
        was_full = self._consumer.at_max_ack_pending()
        sometimes("max_deliver reached")
        self._consumer.send_advisory(events.make_max_deliveries, seq, deliveries)
        self._ack_state.stop_redelivery(seq, deliveries)
        self._consumer.persist_soon()
        if was_full:
            self._consumer.schedule_delivery()

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
