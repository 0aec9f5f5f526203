"""A consumer: a position in a stream, those who receive from it, and the rules between the two.

Owns the life of one consumer - its subscriptions, its alarm, its facts in the journal - and joins the parts that do the
work: `Progress` (how far), `Pump` (delivery), `Pulls` or `Push` (who receives), `Acks` (what comes back). Invariant: one
alarm, set to the earliest moment at which any part has something to do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from headrace.api import advisories as events
from headrace.api import times
from headrace.api.configs import ConsumerConfig
from headrace.broker import consumer_facts, statuses
from headrace.broker.acks import Acks
from headrace.broker.alarm import Alarm
from headrace.broker.backlog import Backlog
from headrace.broker.consumer_subjects import Subjects
from headrace.broker.delivery import Pump, Verdict
from headrace.broker.needs import known_among, needs
from headrace.broker.progress import Progress
from headrace.broker.pulls import Pulls
from headrace.broker.push import Push
from headrace.probes import probe

if TYPE_CHECKING:
    from headrace.broker.stream import Stream

_MANY = 1 << 40


class Consumer:
    """One consumer of a stream."""

    __slots__ = (
        "_alarm",
        "_keys",
        "_subjects",
        "ack_first",
        "ack_stem",
        "acks",
        "active_ns",
        "backlog",
        "closed",
        "config",
        "created_ns",
        "durable",
        "filter",
        "filters",
        "hub",
        "jetstream",
        "name",
        "name_bytes",
        "outlet",
        "pause_ns",
        "progress",
        "pump",
        "stream",
        "verdict",
    )

    def __init__(
        self, stream: Stream, name: str, config: ConsumerConfig, created_ns: int, progress: Progress
    ) -> None:
        self.stream = stream
        self.jetstream = stream.jetstream
        self.hub = stream.jetstream.hub
        self.name = name
        self.name_bytes = name.encode()
        self.created_ns = created_ns
        self.progress = progress
        self.config = config
        self.closed = False
        self.verdict = Verdict.SHUT
        self.active_ns = self.now_ns()
        self.durable = not (config.direct or config.mem_storage or stream.config.storage == "memory")
        self.ack_stem = b"$JS.ACK.%s.%s." % (stream.name_bytes, self.name_bytes)
        self.ack_first = self.ack_stem + b"1."
        self._keys = consumer_facts.keys(stream.log.ident, name)
        domain, account = self.jetstream.domain, self.jetstream.account
        self._subjects = Subjects(stream.name, name, domain, account, flow_control=config.flow_control)
        self.acks = Acks(self)
        self.outlet: Pulls | Push = Push(self) if config.push() else Pulls(self)
        self.backlog = Backlog(stream.log, progress, None)
        self._adopt()
        self.pump = Pump(self)
        self._alarm = Alarm(self)

    def now_ns(self) -> int:
        """The time, for how long something takes; it never goes back."""
        return self.jetstream.timers.now_ns()

    # Configuration

    def _adopt(self) -> None:
        """Derive what follows from the configuration."""
        config = self.config
        self.filters = tuple(pattern.encode() for pattern in config.filters())
        self.filter = self.stream.log.filter(self.filters) if self.filters else None
        self.backlog.refilter(self.filter)
        self.pause_ns = times.nanos(config.pause_until) if config.pause_until else 0

    def configure(self, config: ConsumerConfig) -> None:
        """Take a validated new configuration; position and pending messages stay."""
        old, self.config = self.config, config
        wanted = self.filter
        moved = old.deliver_subject != config.deliver_subject
        if isinstance(self.outlet, Push) and (moved or old.deliver_group != config.deliver_group):
            self.outlet.unlisten()
            self.outlet.configure()
            self.outlet.listen()
        self._adopt()
        self.acks.configure()
        if isinstance(self.outlet, Pulls) and config.priority_policy != "pinned_client":
            self.outlet.pin.release()
        self.pump.pace.configure(self)
        if old.ack_wait != config.ack_wait:
            # With a backoff a message that was delivered again waits for its step of that.
            own = not old.backoff and not config.backoff
            self.progress.shift(config.ack_wait - old.ack_wait, own=own)
            self.touch()
        if old.filters() != config.filters():
            self.stream.readers.sated(self)
            self.stream.readers.refresh()
            if self.stream.config.retention == "interest":
                self.stream.readers.release_all(wanted)
        if moved:
            self._redeliver(list(self.progress.pending))
        self.keep()
        self.wake()

    def keep(self) -> None:
        """The configuration becomes durable with the frame under construction."""
        if self.durable:
            kept = consumer_facts.encode(self.created_ns, self.config, self.name)
            self.jetstream.store.facts.put(self._keys[0], kept)
            self.stream.changed()

    # Life

    def open(self) -> None:
        """Take requests and acknowledgements."""
        config = self.config
        if config.ack_policy in ("explicit", "all"):
            for key in self._subjects.ack_keys:
                self.jetstream.ack_door.consumers[key] = self
                self.hub.declare(b"$JS.ACK.%s.>" % key)
        self.hub.subscribe_internal(self._subjects.next, self)
        if isinstance(self.outlet, Push):
            self.outlet.listen()
            for subject in self._subjects.flow:
                self.hub.subscribe_internal(subject, self.outlet)
        self.wake()
        self.rearm()

    def close(self) -> None:
        """It is being deleted, or its stream is."""
        self.closed = True
        for key in self._subjects.ack_keys:
            self.jetstream.ack_door.consumers.pop(key, None)
            self.hub.retract(b"$JS.ACK.%s.>" % key)
        self.hub.unsubscribe_internal(self._subjects.next, self)
        if isinstance(self.outlet, Push):
            self.outlet.unlisten()
            for subject in self._subjects.flow:
                self.hub.unsubscribe_internal(subject, self.outlet)
        self.outlet.close()
        self._alarm.cancel()
        if self.durable:
            for key in self._keys:
                self.jetstream.store.facts.delete(key)

    def reconcile(self) -> None:
        """After a restart: what has left the stream is not pending, and what was done is not in it."""
        log, progress = self.stream.log, self.progress
        known = [*progress.pending, *progress.counts]
        self.forget([seq for seq in known if log.next(None, seq) != seq], quietly=True)
        if self.config.ack_policy in ("explicit", "all"):
            for seq in progress.overdue():
                probe("overdue at a restart")
                progress.enqueue(seq)
        # Of a queue what is done left with its acknowledgement, and what was passed over was never delivered.
        if self.stream.config.retention == "interest" and self.progress.next_seq > log.first_seq:
            done = log.seqs(self.filter, log.first_seq, min(progress.next_seq - 1, log.last_seq))
            probe("what is done is looked for at a restart")
            self.stream.readers.release(done[~needs(self, done)].tolist() if len(done) else [])

    def offer(self, session: object, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """CONSUMER.MSG.NEXT."""
        if isinstance(self.outlet, Pulls):
            self.outlet.offer(session, subject, reply, header, payload)
        elif reply:
            self.hub.publish(reply, b"", statuses.PUSH_BASED, b"")

    def pull(self, reply: bytes, body: bytes) -> None:
        """A pull request that came with an acknowledgement."""
        if isinstance(self.outlet, Pulls):
            self.outlet.request(reply, body)
        else:
            self.hub.publish(reply, b"", statuses.PUSH_BASED, b"")

    # Delivery

    @property
    def releases(self) -> bool:
        """Whether messages leave the stream when everybody is done with them."""
        return self.stream.config.retention != "limits"

    def wake(self) -> None:
        """Deliver at the end of this turn."""
        if not self.closed:
            self.jetstream.scribe.serve(self)

    def serve(self) -> None:
        """Deliver what can be delivered now."""
        if self.closed:
            return
        now_ns = self.now_ns()
        if self.paused():
            self.verdict = Verdict.SHUT
            self.outlet.look(now_ns, at_end=True)
        else:
            self.verdict = self.pump.turn(now_ns)
            self._after_turn(now_ns)
        self.rearm()

    def _after_turn(self, now_ns: int) -> None:
        verdict, readers = self.verdict, self.stream.readers
        if verdict is Verdict.DRY:
            readers.hungry(self)
            self.pump.pace.caught_up(self.progress.next_seq)
            if self.stream.log.committed_seq >= self.stream.log.last_seq or not self.num_pending():
                self.outlet.look(now_ns, at_end=True)
        elif verdict is Verdict.SHUT and isinstance(self.outlet, Pulls) and self.outlet.waiting:
            readers.hungry(self)  # somebody waits for more than there is
        else:
            readers.sated(self)
        if verdict is Verdict.MORE:
            self.wake()
        if isinstance(self.outlet, Push):
            self.outlet.ask_if_full()
        if self.progress.changed:
            self.touch()

    def full(self) -> bool:
        """Whether as many messages as allowed wait for their acknowledgement."""
        return 0 < self.config.max_ack_pending <= len(self.progress.pending)

    def room(self) -> int:
        """How many more may wait for their acknowledgement."""
        most = self.config.max_ack_pending
        return most - len(self.progress.pending) if most > 0 else _MANY

    def ack_wait(self, count: int) -> int:
        """How long to wait for the acknowledgement of the `count`-th delivery; 0 for ever."""
        config = self.config
        if config.backoff:
            return config.backoff[min(count, len(config.backoff)) - 1]
        return config.ack_wait if config.ack_policy in ("explicit", "all") else 0

    def num_pending(self) -> int:
        """How many messages are still to be delivered for the first time."""
        return self.backlog.total()

    def heartbeat(self) -> bytes:
        """What is sent instead of a message to show that somebody is there."""
        window = self.outlet.window if isinstance(self.outlet, Push) else None
        stalled = window.asked if window is not None else b""
        progress = self.progress
        return statuses.heartbeat(progress.consumer_seq, progress.stream_seq, stalled)

    # Acknowledgements

    def acked(self, seqs: list[int], was_full: bool) -> None:
        """Messages were pending and are done."""
        self.progress.acked_ns = self.active_ns = self.now_ns()
        if self.releases and seqs:
            self.stream.readers.release(seqs)
            if self.durable:
                self.stream.readers.save(self)
        else:
            self.touch()
        if was_full:
            self.wake()

    def confirm(self, reply: bytes) -> None:
        """Answer an acknowledgement once it is durable."""
        self.progress.acked_ns = self.active_ns = self.now_ns()
        if self.durable and self.progress.changed:
            self.stream.readers.save(self)
        self.jetstream.ticker.hold(reply, b"", b"", b"")
        self.jetstream.ticker.arm()

    def exhausted(self, seq: int, deliveries: int) -> None:
        """A message was delivered as often as allowed."""
        was_full = self.full()
        probe("delivered as often as allowed")
        self.advise(events.max_deliveries, seq, deliveries)
        self.progress.give_up(seq, deliveries)
        self.touch()
        if was_full:
            self.wake()

    def lost(self, seq: int) -> None:
        """A message that was to be delivered again has left the stream."""
        self.acks.lost(seq)
        self.touch()

    def forget(self, seqs: np.ndarray | Sequence[int], *, quietly: bool) -> None:
        """These messages have left the stream."""
        progress = self.progress
        was_full, gone = self.full(), known_among(self.progress, seqs)
        for seq in gone:
            if seq in progress.pending and not quietly:
                self.acks.lost(seq)
            else:
                progress.forget(seq)
        if gone:
            self.touch()
            if was_full:
                self.wake()

    def purged(self) -> None:
        """The stream begins later than before."""
        first = self.stream.log.first_seq
        if self.progress.next_seq < first or self.progress.floor()[1] < first - 1:
            probe("a purge overtakes a consumer")
            self.progress.move_to(first)
            self.touch()

    def _redeliver(self, seqs: list[int]) -> None:
        now_ns = self.now_ns()
        for seq in seqs:
            if seq in self.progress.queued:
                continue
            count = self.progress.count(seq)
            if 0 < self.config.max_deliver <= count:
                self.exhausted(seq, count)
                continue
            self.progress.enqueue(seq)
            if wait_ns := self.ack_wait(count):
                self.progress.postpone(seq, now_ns + wait_ns)

    # Time

    def paused(self) -> bool:
        return self.pause_ns > self.jetstream.clock_ns()

    def pause_remaining(self) -> int:
        return max(self.pause_ns - self.jetstream.clock_ns(), 0)

    def rearm(self) -> None:
        """Something changed that may bring the next moment to act closer."""
        if not self.closed:
            self._alarm.set()

    def expire(self, now_ns: int) -> None:
        """Deliver again what nobody acknowledged in time."""
        due = self.progress.deadlines.due(now_ns, self.progress.pending)
        if due:
            probe("not acknowledged in time")
            self._redeliver(due)
            self.touch()
            self.wake()

    def resume(self) -> None:
        """The pause is over, if it is."""
        if self.pause_ns and not self.paused():
            self.pause_ns = 0
            self.advise(events.consumer_paused, False, self.config.pause_until or times.ZERO)
            self.wake()

    # Writing down

    def touch(self) -> None:
        """Progress changed, without anybody waiting for it to be durable."""
        if self.durable:
            self.jetstream.scribe.note(self)
        else:
            self.progress.forget_changes()

    def save(self) -> None:
        """Put what changed into the frame under construction."""
        progress = self.progress
        if self.closed or not self.durable or not progress.changed:
            return
        facts = self.jetstream.store.facts
        if progress.afresh:
            facts.put(self._keys[1], progress.snapshot(self.jetstream.timers.behind_ns))
            progress.forget_changes()
        else:
            facts.note(self._keys[1], progress.delta(self.jetstream.timers.behind_ns))

    # Telling

    def advise(self, make: Callable[..., events.Event], *facts: object) -> None:
        """Publish an event about this consumer to whoever listens."""
        self.jetstream.advisories.send(make, self.stream.name, self.name, *facts)
