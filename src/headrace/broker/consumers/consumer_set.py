"""The consumers of one stream, and which of them want a new message.

Owns the consumers and the index from subjects to them; what no consumer needs any more, `InterestSweep` removes. An idle
consumer costs nothing at a commit: only consumers waiting for messages are checked, and of those with filters only the
ones whose filter matches a subject of the new messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from headrace._native import collect_subjects
from headrace.broker.consumers.ack_state import AckState
from headrace.broker.consumers.consumer import Consumer
from headrace.broker.consumers.consumer_storage import load_consumers
from headrace.broker.consumers.filter_index import FilterIndex
from headrace.broker.consumers.interest_sweep import InterestSweep
from headrace.jetstream_api import advisories as events
from headrace.jetstream_api.configs import ConsumerConfig
from headrace.storage import Filter

if TYPE_CHECKING:
    from headrace.broker.consumers.consumer_context import ConsumerStream
    from headrace.storage.metadata_store import PreparedDelete

#: Up to this many waiting consumers with filters, it is cheaper to try each than to look at the new subjects.
FEW_WAITING = 8
VIEW_BYTES = 256 * 1024
#: Number of consumers of a deleted stream stopped at a time, so that other clients do not wait long.
CLOSED_AT_ONCE = 32


class ConsumerSet:
    """The consumers of one stream; `stream.consumers` are those that clients see, `internal` ones only serve copies."""

    __slots__ = (
        "_deletes",
        "_dirty",
        "_filter_index",
        "_interest_sweep",
        "_jetstream",
        "_keyed",
        "_last_committed_seq",
        "_log",
        "_metadata",
        "_stream",
        "_totals",
        "_visible",
        "_waiting_filtered",
        "_waiting_unfiltered",
        "_with_pending",
        "internal",
        "suppress_advisories",
    )

    def __init__(self, stream: ConsumerStream) -> None:
        self._stream = stream
        self._log = stream.log
        jetstream = self._jetstream = stream.jetstream
        self._visible = stream.consumers
        self._totals = jetstream.totals
        self.internal: dict[str, Consumer] = {}
        self.suppress_advisories = False
        self._filter_index = FilterIndex()
        self._waiting_filtered: dict[Consumer, None] = {}
        self._waiting_unfiltered: dict[Consumer, None] = {}
        self._with_pending: dict[Consumer, None] = {}
        self._keyed: dict[Consumer, None] = {}  # those that keep order per key
        self._deletes: list[PreparedDelete] = []  # of what is stored of closed consumers
        self._dirty: dict[Consumer, None] = {}
        self._last_committed_seq = self._log.committed_seq
        self._metadata = jetstream.store.metadata
        self._interest_sweep = InterestSweep(stream, self, self._filter_index, self._metadata)

    def __iter__(self) -> Iterator[Consumer]:
        yield from self._visible.values()
        yield from self.internal.values()

    def find(self, name: str) -> Consumer | None:
        """Find a consumer by name, including internal ones."""
        return self._visible.get(name) or self.internal.get(name)

    def add(self, consumer: Consumer) -> None:
        if consumer.config.direct:
            self.internal[consumer.name] = consumer
        else:
            self._totals.consumers += consumer.name not in self._visible
            self._visible[consumer.name] = consumer
        self.track_pending(consumer)
        self._filter_index.add(consumer, consumer.filters, consumer.filter)

    def create(self, name: str, config: ConsumerConfig, ack_state: AckState) -> Consumer:
        """Create a consumer from a validated configuration and its initial state."""
        stream = self._stream
        consumer = Consumer(stream, name, config, stream.clock.now_ns(), ack_state)
        self.add(consumer)
        consumer.persist_config()
        consumer.persist_state()
        consumer.open()
        return consumer

    def delete(self, consumer: Consumer) -> None:
        """Delete a consumer, and the messages that only it needed."""
        stream = self._stream
        self._interest_sweep.remove_acked()
        consumer.send_advisory(events.make_consumer_action, "delete")
        consumer.close()
        consumer.delete_stored()
        self._remove(consumer)
        stream.mark_dirty()
        self.on_interest_reduced(consumer, consumer.filter)

    def iter_close(self) -> Iterator[None]:
        """Stop all consumers, some at a time: their stream is being deleted."""
        for number, consumer in enumerate(list(self), 1):
            if not consumer.closed:  # otherwise its timer has deleted it since the last slice
                self._deletes += consumer.prepare_delete_stored()
                consumer.send_advisory(events.make_consumer_action, "delete")
                consumer.close()
                self._remove(consumer)
            if number % CLOSED_AT_ONCE == 0:
                yield

    def delete_stored(self) -> None:
        """Delete what is stored of the consumers that `iter_close` stopped, all in one frame."""
        self._metadata.delete_prepared(self._deletes)
        self._deletes = []

    def recover(self) -> None:
        """Load the stored consumers; they open with the stream."""
        stream, jetstream = self._stream, self._jetstream
        metadata, timers = jetstream.store.metadata, jetstream.timers
        for name, created_ns, config, deltas in load_consumers(metadata, stream.log.ident):
            ack_state = AckState(1)
            for delta in deltas:
                ack_state.apply_delta(delta)
            ack_state.ack_deadlines.cap_runs(timers.now_ns() + max(config.ack_wait, *config.backoff, 0))
            self.add(Consumer(stream, name, config, created_ns, ack_state))

    def open(self) -> None:
        """Recover and open all consumers after a restart."""
        for consumer in self:
            consumer.recover()
            consumer.open()
        self._interest_sweep.resume()

    def _remove(self, consumer: Consumer) -> None:
        if self._visible.pop(consumer.name, None) is not None:
            self._totals.consumers -= 1
        self.internal.pop(consumer.name, None)
        self.stop_waiting(consumer)
        self._filter_index.remove(consumer, consumer.filters)
        self._dirty.pop(consumer, None)
        self._with_pending.pop(consumer, None)
        self._keyed.pop(consumer, None)
        self._totals.ended += 1

    def on_filters_changed(self, consumer: Consumer, old_filters: Sequence[bytes]) -> None:
        """Update the index after a consumer changed its filters."""
        self._filter_index.remove(consumer, old_filters)
        self._filter_index.add(consumer, consumer.filters, consumer.filter)

    def has_interest(self, subject: bytes) -> bool:
        """Whether the filter of any consumer matches a subject."""
        return bool(self._filter_index.find_matching(subject))

    # Waiting for messages

    def wait_for_messages(self, consumer: Consumer) -> None:
        """Deliver to this consumer when there are new messages."""
        (self._waiting_filtered if consumer.filters else self._waiting_unfiltered)[consumer] = None

    def stop_waiting(self, consumer: Consumer) -> None:
        """Do not deliver to this consumer when there are new messages."""
        self._waiting_filtered.pop(consumer, None)
        self._waiting_unfiltered.pop(consumer, None)

    def on_committed(self) -> None:
        """Deliver messages that became durable to the consumers that wait for them."""
        last = self._log.committed_seq
        first, self._last_committed_seq = self._last_committed_seq + 1, last
        if first > last or not (self._waiting_filtered or self._waiting_unfiltered):
            return
        to_deliver = list(self._waiting_unfiltered)
        if len(self._waiting_filtered) <= FEW_WAITING:
            to_deliver += self._waiting_filtered
        else:
            to_deliver += self._find_waiting_for(first, last)
        for consumer in to_deliver:
            consumer.deliver()

    def _find_waiting_for(self, first: int, last: int) -> list[Consumer]:
        """Return the waiting consumers whose filters match one of these messages."""
        found: dict[Consumer, None] = {}
        waiting, find_matching = self._waiting_filtered, self._filter_index.find_matching
        for subject in self._find_new_subjects(first, last):
            for consumer in find_matching(subject):
                if consumer in waiting:
                    found[consumer] = None
        return list(found)

    def _find_new_subjects(self, first: int, last: int) -> set[bytes]:
        log = self._log
        found: set[bytes] = set()
        if last - first < FEW_WAITING:
            messages = (log.get(seq) for seq in range(first, last + 1))
            return {message[1] for message in messages if message is not None}
        seq = log.find_next(None, first)
        while seq and seq <= last:
            view, _ = log.read_view(seq, VIEW_BYTES)
            seq = log.find_next(None, max(collect_subjects(view, last, found), seq + 1))
        return found

    # Removing messages

    def mark_acked(self, seqs: list[int], *, recheck: bool = False) -> None:
        """Mark messages that a consumer no longer needs; without other consumers they are removed with the frame."""
        self._interest_sweep.mark_acked(seqs, recheck=recheck)

    def recheck_interest(self) -> None:
        """Look again at which messages are still needed, after the retention has changed."""
        self._interest_sweep.recheck()

    def on_interest_reduced(self, consumer: Consumer, subject_filter: Filter | None) -> None:
        """Remove what a consumer was the last to need, after it was deleted, reset or changed.

        A work queue keeps what no consumer has acknowledged. There, only the consumers of copies share messages with
        others, which may have acknowledged them before.
        """
        stream = self._stream
        retention = stream.config.retention
        shares = consumer.config.ack_policy == "flow_control" and any(each is not consumer for each in self)
        if retention == "interest" or (retention == "workqueue" and shares):
            self._interest_sweep.recheck(subject_filter)

    def remove_acked(self) -> bool:
        """Remove messages that no consumer needs, before the frame closes or anything is shown.

        Returns whether there are more to look at, after a consumer was deleted or changed.
        """
        interest_sweep = self._interest_sweep
        if not interest_sweep.acked_seqs and not interest_sweep.backlog:  # this runs for every commit
            return False
        interest_sweep.run()
        return bool(interest_sweep.backlog)

    def on_messages_removed(self, seqs: np.ndarray | Sequence[int]) -> None:
        """Notify consumers of messages that left the stream, acknowledged or not."""
        for consumer in list(self._with_pending):
            if consumer.ack_state.pending or consumer.ack_state.delivery_counts:
                consumer.redelivery.on_messages_removed(seqs, suppress_advisories=self.suppress_advisories)
            else:
                del self._with_pending[consumer]

    def before_removal(self, seqs: np.ndarray | Sequence[int]) -> None:
        """Notify consumers that keep order per key of messages that are about to leave the stream."""
        for consumer in self._keyed:
            key_order = consumer.ack_state.key_order
            if key_order is not None:
                key_order.before_removal(seqs)

    def before_trim(self, seq: int) -> None:
        """Notify them that all messages before `seq` are about to leave the stream."""
        for consumer in self._keyed:
            key_order = consumer.ack_state.key_order
            if key_order is not None:
                key_order.before_trim(seq)

    def on_trimmed(self, seq: int) -> None:
        """Notify consumers that all messages before `seq` left the stream."""
        for consumer in list(self._with_pending):
            ack_state = consumer.ack_state
            tracked = {*ack_state.pending, *ack_state.delivery_counts}
            consumer.redelivery.on_messages_removed(
                sorted(each for each in tracked if each < seq), suppress_advisories=self.suppress_advisories
            )

    def on_key_order_changed(self, consumer: Consumer) -> None:
        """Update the list of consumers that keep order per key."""
        if consumer.ack_state.key_order is None:
            self._keyed.pop(consumer, None)
        else:
            self._keyed[consumer] = None

    @property
    def has_keyed(self) -> bool:
        """Whether a consumer keeps order per key."""
        return bool(self._keyed)

    def track_pending(self, consumer: Consumer) -> None:
        """Notify this consumer when messages leave the stream, because it has some pending."""
        self._with_pending[consumer] = None

    def on_purge(self) -> None:
        """Advance all positions to the new first sequence after a purge."""
        for consumer in self:
            consumer.on_purge()

    # Persistence

    def persist_with_frame(self, consumer: Consumer) -> None:
        """Persist a consumer's ack state with the open frame."""
        self._dirty[consumer] = None
        self._stream.mark_dirty()

    def persist_dirty(self) -> None:
        """Put the changed ack states into the frame before it closes."""
        if not self._dirty:
            return
        dirty, self._dirty = self._dirty, {}
        for consumer in dirty:
            consumer.persist_state()
