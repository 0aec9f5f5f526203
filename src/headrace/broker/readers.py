"""The consumers of one stream: who wants which subjects, whom a commit concerns, who still needs a message.

Owns the index from subjects to consumers and the queue of messages that were acknowledged and may have to leave. A
consumer that has nothing to do costs nothing at a commit: only hungry ones are looked at, and of those with filters only
the ones that want a subject of the new messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.api import advisories as events
from headrace.api.configs import ConsumerConfig
from headrace.broker.consumer import Consumer
from headrace.broker.consumer_facts import recovered
from headrace.broker.entries import Node, step
from headrace.broker.needs import needs
from headrace.broker.progress import Progress
from headrace.broker.start import starting
from headrace.kernel import subjects_of
from headrace.protocol import subjects
from headrace.store import Filter

if TYPE_CHECKING:
    from headrace.broker.progress_codec import Seqs
    from headrace.broker.stream import Stream

CACHE_MAX = 16_384
#: Up to this many hungry consumers with filters it is cheaper to ask each than to look at what is new.
FEW = 8
VIEW_BYTES = 256 * 1024


class Interest:
    """Which consumers want a subject; literal filters by name, patterns in a trie, answers cached."""

    __slots__ = ("_cache", "_everything", "_literals", "_root")

    def __init__(self) -> None:
        self.rebuild([])

    def rebuild(self, consumers: list[Consumer]) -> None:
        """Consumers went or changed their filters."""
        self._cache: dict[bytes, tuple[Consumer, ...]] = {}
        self._literals: dict[bytes, list[Consumer]] = {}
        self._everything: list[Consumer] = []
        self._root = Node()
        for consumer in consumers:
            self.add(consumer)

    def add(self, consumer: Consumer) -> None:
        """A consumer came."""
        self._cache.clear()
        if not consumer.filters:
            self._everything.append(consumer)
        for pattern in consumer.filters:
            if subjects.literal(pattern):
                self._literals.setdefault(pattern, []).append(consumer)
            else:
                self._root.place(pattern).append(consumer)

    def of(self, subject: bytes) -> tuple[Consumer, ...]:
        """Those who want a subject."""
        found = self._cache.get(subject)
        if found is None:
            if len(self._cache) >= CACHE_MAX:
                self._cache.clear()
            found = self._cache[subject] = self._find(subject)
        return found

    def _find(self, subject: bytes) -> tuple[Consumer, ...]:
        found: list[Any] = [*self._everything, *self._literals.get(subject, ())]
        frontier = [self._root]
        for token in subjects.tokens(subject):
            frontier = step(frontier, token, found)
        for node in frontier:
            found += node.entries
        return tuple(dict.fromkeys(found))


class Readers:
    """The consumers of one stream; `stream.consumers` are those that clients see, the others only serve copies."""

    __slots__ = (
        "_doubtful",
        "_holders",
        "_hungry",
        "_hungry_all",
        "_interest",
        "_released",
        "_saving",
        "_seen",
        "_stream",
        "hidden",
        "quiet",
    )

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.hidden: dict[str, Consumer] = {}
        self.quiet = False
        self._interest = Interest()
        self._hungry: dict[Consumer, None] = {}
        self._hungry_all: dict[Consumer, None] = {}
        self._holders: dict[Consumer, None] = {}
        self._released: list[int] = []
        self._doubtful = False  # whoever released them may still need some
        self._saving: dict[Consumer, None] = {}
        self._seen = stream.log.committed_seq

    def __iter__(self) -> Iterator[Consumer]:
        yield from self._stream.consumers.values()
        yield from self.hidden.values()

    def find(self, name: str) -> Consumer | None:
        """A consumer by name, whether it is seen or not."""
        return self._stream.consumers.get(name) or self.hidden.get(name)

    def add(self, consumer: Consumer) -> None:
        place = self.hidden if consumer.config.direct else self._stream.consumers
        place[consumer.name] = consumer
        self.holds(consumer)
        self._interest.add(consumer)

    def create(self, name: str, config: ConsumerConfig) -> Consumer:
        """Make a consumer; its configuration has been validated."""
        stream = self._stream
        wanted = tuple(pattern.encode() for pattern in config.filters())
        where = stream.log.filter(wanted) if wanted else None
        progress = starting(config, stream.config, stream.log, where)
        consumer = Consumer(stream, name, config, stream.jetstream.now_ns(), progress)
        self.add(consumer)
        consumer.keep()
        consumer.save()
        consumer.open()
        return consumer

    def delete(self, consumer: Consumer) -> None:
        """Remove a consumer; what only it kept in an interest stream goes too."""
        consumer.advise(events.consumer_action, "delete")
        consumer.close()
        self._remove(consumer)
        self._stream.changed()
        if self._stream.config.retention == "interest":
            self.release_all(consumer.filter)

    def close(self) -> None:
        """The stream is being deleted with all its consumers."""
        for consumer in list(self):
            consumer.advise(events.consumer_action, "delete")
            consumer.close()
            self._remove(consumer)

    def recover(self) -> None:
        """Bring back the consumers that were kept; they open with the stream."""
        stream = self._stream
        for name, created_ns, config, written in recovered(stream.jetstream.store.facts, stream.log.ident):
            progress = Progress(1)
            for delta in written:
                progress.apply(delta)
            progress.deadlines.cap(
                stream.jetstream.timers.now_ns() + max(config.ack_wait, *config.backoff, 0)
            )
            self.add(Consumer(stream, name, config, created_ns, progress))

    def open(self) -> None:
        """Open for business after a restart."""
        for consumer in self:
            consumer.reconcile()
            consumer.open()

    def _remove(self, consumer: Consumer) -> None:
        self._stream.consumers.pop(consumer.name, None)
        self.hidden.pop(consumer.name, None)
        self.sated(consumer)
        self._saving.pop(consumer, None)
        self._holders.pop(consumer, None)
        self.refresh()

    def refresh(self) -> None:
        """A consumer went or changed its filters."""
        self._interest.rebuild(list(self))

    def wants(self, subject: bytes) -> bool:
        """Whether anybody is interested in a subject."""
        return bool(self._interest.of(subject))

    # Waking

    def hungry(self, consumer: Consumer) -> None:
        """A consumer could deliver more than there is."""
        (self._hungry if consumer.filters else self._hungry_all)[consumer] = None

    def sated(self, consumer: Consumer) -> None:
        """A consumer needs no waking."""
        self._hungry.pop(consumer, None)
        self._hungry_all.pop(consumer, None)

    def committed(self) -> None:
        """New messages may be durable: serve those who wait for them."""
        last = self._stream.log.committed_seq
        first, self._seen = self._seen + 1, last
        if first > last or not (self._hungry or self._hungry_all):
            return
        woken = list(self._hungry_all)
        if len(self._hungry) <= FEW:
            woken += self._hungry
        else:
            woken += self._concerned(first, last)
        for consumer in woken:
            consumer.serve()

    def _concerned(self, first: int, last: int) -> list[Consumer]:
        found: dict[Consumer, None] = {}
        hungry, of = self._hungry, self._interest.of
        for subject in self._subjects(first, last):
            for consumer in of(subject):
                if consumer in hungry:
                    found[consumer] = None
        return list(found)

    def _subjects(self, first: int, last: int) -> set[bytes]:
        log = self._stream.log
        found: set[bytes] = set()
        if last - first < FEW:
            messages = (log.get(seq) for seq in range(first, last + 1))
            return {message[1] for message in messages if message is not None}
        seq = log.next(None, first)
        while seq and seq <= last:
            view, _ = log.view(seq, VIEW_BYTES)
            seq = log.next(None, max(subjects_of(view, last, found), seq + 1))
        return found

    # What leaves

    def release(self, seqs: list[int], *, doubtful: bool = False) -> None:
        """Somebody needs these no longer; without other takers they leave with the frame."""
        self._doubtful = self._doubtful or doubtful
        self._released += seqs
        self._stream.changed()

    def release_all(self, wanted: Filter | None = None) -> None:
        """Look again at everything that may have been kept; `wanted` is what a consumer was interested in."""
        log = self._stream.log
        if not any(True for _ in self):
            self._released.clear()
            log.remove_below(log.last_seq + 1)
            self._stream.changed()
        elif log.messages:
            self.release(log.seqs(wanted, log.first_seq, log.last_seq).tolist(), doubtful=True)

    def settle(self) -> None:
        """Before the frame closes or anybody looks: what is free to leave leaves."""
        if self._released:
            seqs = np.array(sorted(set(self._released)), dtype=np.uint64)
            self._released.clear()
            victims = self._unneeded(seqs)
            if len(victims):
                self._stream.log.remove_many(victims)

    def _unneeded(self, seqs: Seqs) -> Seqs:
        everybody = list(self)
        doubtful, self._doubtful = self._doubtful, False
        alone = len(everybody) == 1
        if self._stream.config.retention == "workqueue" and not any(
            each.config.sourcing for each in everybody
        ):
            alone = True
        if alone and not doubtful and not any(each.progress.counts for each in everybody):
            return seqs
        for consumer in everybody:
            if len(seqs):
                seqs = seqs[~needs(consumer, seqs)]
        return seqs

    def forget(self, seqs: np.ndarray | Sequence[int]) -> None:
        """Messages have left the stream whatever their consumers say."""
        for consumer in list(self._holders):
            if consumer.progress.pending or consumer.progress.counts:
                consumer.forget(seqs, quietly=self.quiet)
            else:
                del self._holders[consumer]

    def holds(self, consumer: Consumer) -> None:
        """A consumer has messages pending, and has to hear when one of them leaves."""
        self._holders[consumer] = None

    def purged(self) -> None:
        """The stream was purged: nobody's position stays before its beginning."""
        for consumer in self:
            consumer.purged()

    # Writing down

    def save(self, consumer: Consumer) -> None:
        """A consumer's progress has to be durable with the frame under construction."""
        self._saving[consumer] = None
        self._stream.changed()

    def save_all(self) -> None:
        """The frame is about to close."""
        saving, self._saving = self._saving, {}
        for consumer in saving:
            consumer.save()
