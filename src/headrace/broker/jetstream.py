"""JetStream of one account: puts the parts together, and starts and stops them.

The parts have the work: `StreamRegistry` the streams, `AccountQuota` the limits, `AccountClock` the times, `GroupCommit` the
commits, `ApiDispatcher` the API. They name this object by protocols (`*_context.py`), never by its type.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from headrace._native import AccountClock
from headrace.broker.commit.account_quota import AccountQuota
from headrace.broker.commit.account_totals import AccountTotals
from headrace.broker.commit.advisories import Advisories
from headrace.broker.commit.disk_backpressure import DiskBackpressure
from headrace.broker.commit.event_history import EventHistory
from headrace.broker.commit.group_commit import make_group_commit
from headrace.broker.commit.idle_timer import IdleTimer
from headrace.broker.commit.server_quota import ServerQuota
from headrace.broker.consumers import ack_handling
from headrace.broker.consumers.ack_handling import AckDispatcher
from headrace.broker.consumers.consumer_flush import ConsumerFlusher
from headrace.broker.consumers.delivery_scheduler import DeliveryScheduler
from headrace.broker.handlers import (
    backup_send,
    consumer_handlers,
    dead_letter_handlers,
    restore_receiver,
    restore_writer,
    snapshot_leases,
    stream_handlers,
)
from headrace.broker.handlers.api_dispatch import ApiDispatcher
from headrace.broker.handlers.js_domain import DomainPrefix
from headrace.broker.handlers.lease_registry import LeaseRegistry
from headrace.broker.jetstream_settings import JetStreamSettings
from headrace.broker.routing.router import SubjectRouter
from headrace.broker.stream import Stream
from headrace.broker.stream_registry import StreamRegistry
from headrace.broker.timers import Timers
from headrace.clock import Clock
from headrace.storage import Store

if TYPE_CHECKING:
    from headrace.broker.sourcing.replicator import Replicator

ENDPOINTS = (
    stream_handlers.ENDPOINTS
    | consumer_handlers.ENDPOINTS
    | dead_letter_handlers.ENDPOINTS
    | snapshot_leases.ENDPOINTS
    | backup_send.ENDPOINTS
    | restore_receiver.ENDPOINTS
)


class AccountJetStream:
    """All streams of one account."""

    def __init__(
        self,
        router: SubjectRouter,
        store: Store,
        clock: Clock,
        timers: Timers,
        call_soon: Callable[[Callable[[], None]], object],
        settings: JetStreamSettings,
        server_quota: ServerQuota | None = None,
    ) -> None:
        self.router, self.store = router, store
        self.timers = timers
        self.clock = AccountClock(clock)
        self.server_name, self.account, self.domain = settings.server_name, settings.account, settings.domain
        self.reject_unknown_fields = settings.reject_unknown_fields
        self.pending_max = settings.pending_max
        self.flow_bytes = settings.flow_bytes
        self.call_soon = call_soon
        self.run_operation, self.run_off_loop = settings.run_operation, settings.run_off_loop
        self.disk_backpressure = DiskBackpressure(store, timers)
        self.group_commit = make_group_commit(store, router, call_soon, self._make_after_commit())
        self.advisories = Advisories(self)
        self.event_history = EventHistory()
        self.batch_budget = settings.batch_budget
        self.fast_ingest_budget = settings.fast_ingest_budget
        self.streams: dict[str, Stream] = {}
        #: The replicator that reads through each durable consumer (subject of the upstream API, name): one at a time.
        self.copiers: dict[tuple[bytes, str], Replicator] = {}
        server_quota = server_quota or ServerQuota()
        self.quota = AccountQuota(settings.limits, server_quota, store, self.streams, call_soon)
        self.backups: set[backup_send.BackupSender] = set()
        self.restores: dict[str, restore_receiver.BackupRestore] = {}
        self.pin_leases = LeaseRegistry(store, timers)
        self.api_total, self.api_errors, self.totals = 0, 0, AccountTotals()
        self._api = ApiDispatcher(self, ENDPOINTS)
        self.ack_dispatcher = AckDispatcher()
        self.consumer_flusher = ConsumerFlusher(timers, self.group_commit)
        self.delivery_scheduler = DeliveryScheduler(call_soon)
        self.registry = StreamRegistry(self, self.streams, self.restores)
        self._discard_unfinished_restores()
        self.registry.recover()

    @property
    def is_quiescent(self) -> bool:
        """Whether waiting would make nothing more durable."""
        store = self.store
        is_durable = not (store.dirty or store.in_flight or store.memory_frames.dirty)
        return is_durable or store.waiting_for_space or store.poisoned is not None

    def _discard_unfinished_restores(self) -> None:
        store = self.store
        for log in list(store.logs.values()):
            if store.metadata.get(restore_writer.unfinished_key_for(log)) is not None:
                restore_writer.discard(self, log)

    def _make_after_commit(self) -> Callable[[], None]:
        return partial(_after_commit, IdleTimer(self.store, self.timers), self.disk_backpressure)

    def start(self) -> None:
        """Start serving."""
        for pattern in self._api.subscriptions():
            self.router.subscribe_internal(pattern, self._api)
        self.router.subscribe_internal(ack_handling.PATTERN, self.ack_dispatcher)
        if self.domain:
            DomainPrefix(self.router, self.domain).subscribe()
        self.registry.start()
        self.pin_leases.load(self.clock.wall_ns())
        self.quota.start()

    def end_pulls(self) -> None:
        """End the pull requests that wait: the server shuts down."""
        for stream in self.streams.values():
            for consumer in stream.consumer_set:
                consumer.delivery_mode.on_shutdown()

    def stop(self) -> None:
        """Stop serving, and commit what was accepted; call it again to commit what has come since."""
        if not self._api.is_stopped:
            self._stop_parts()
        self.consumer_flusher.flush()
        self.group_commit.commit_all()

    def _stop_parts(self) -> None:
        self.end_pulls()
        self._api.stop()
        for backup in list(self.backups):
            backup.close()
        for restore in self.restores.values():
            restore.close()
        self.registry.stop()
        self.quota.stop()

    def close(self) -> None:
        """Stop serving and make everything durable; pending replies are sent."""
        self.stop()
        self.store.close()


def _after_commit(idle_timer: IdleTimer, disk_backpressure: DiskBackpressure) -> None:
    """Handle a durable frame, or a full disk."""
    idle_timer.start()
    disk_backpressure.on_committed()
