"""Collector: handles the delete markers that the server writes when a claim's timer expires.

Collectors of a namespace share one durable consumer, so any number may run; each marker goes to one of them, and back
into the queue if that collector dies or the store refuses. Time is the server's, whose TTLs made the markers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from headrace.claims.ack_floors import Floors
from headrace.claims.background_tasks import run_until_cancelled
from headrace.claims.claim_deletion import ClaimDeleter, CollectReport
from headrace.claims.clock import SECOND_NS
from headrace.claims.config import ClaimConfig
from headrace.claims.gc_policy import decide
from headrace.claims.jetstream_client import (
    CONSUMER_NOT_FOUND,
    ConsumerUnavailable,
    JetStreamClient,
    RequestTimeout,
)
from headrace.claims.records import RejectedRecord
from headrace.claims.reference import is_claim_id
from headrace.claims.registry import MARKER_REASON, STREAM, ClaimEntry, Registry, due_subject
from headrace.claims.stores import ObjectStoreError
from headrace.claims.sweeper import Sweeper
from headrace.clock import Clock
from headrace.errors import RequestError

_LOG = logging.getLogger("headrace.claims")
_BATCH = 1000
_CONCURRENT_DRAINS = 3
_ACK_WAIT_S = 60
_RETRY_S = 30.0
#: Pauses between attempts to reach a new consumer.
_LEADER_PAUSES_S = (0.05, 0.1, 0.2, 0.5, 1.0)


class Collector:
    """Collects the claims of one namespace; with `clock=None` it asks the server for the time."""

    def __init__(
        self,
        jetstream: JetStreamClient,
        config: ClaimConfig,
        registry: Registry,
        deleter: ClaimDeleter,
        sweeper: Sweeper,
        clock: Clock | None = None,
        *,
        retry_s: float = _RETRY_S,
    ) -> None:
        self._jetstream = jetstream
        self._config = config
        self._registry = registry
        self._deleter = deleter
        self._sweeper = sweeper
        self._clock = clock
        self._retry_s = retry_s
        self._consumer_name = f"collectors-{config.namespace}"

    async def ensure(self) -> None:
        """Create the shared consumer if it is missing.

        The request names the filter, so that a permission for it covers the markers of this namespace only.
        """
        due = due_subject(self._config.namespace, "*")
        await self._jetstream.api_request(
            f"CONSUMER.CREATE.{STREAM}.{self._consumer_name}.{due}",
            {
                "stream_name": STREAM,
                "config": {
                    "name": self._consumer_name,
                    "durable_name": self._consumer_name,
                    "filter_subject": due,
                    "ack_policy": "explicit",
                    "ack_wait": _ACK_WAIT_S * SECOND_NS,
                    "max_ack_pending": 20 * _BATCH,
                },
            },
        )

    async def collect(self, *, sweep: bool = True, dry_run: bool = False) -> CollectReport:
        """Collect everything that is due now, and sweep for what was missed."""
        report = CollectReport()
        if not dry_run:
            report.add(await self.collect_due())
        if sweep or dry_run:
            report.add(await self._sweeper.sweep(await self._now_ns(), dry_run=dry_run))
        return report

    async def collect_due(self, expires_s: float = 0) -> CollectReport:
        """Process all existing markers; with `expires_s`, also those that arrive within that time."""
        report = CollectReport()
        if expires_s:
            await self._process_markers(await self._pull(expires_s), report)
        # Several at once: one deletes while the server answers another.
        await asyncio.gather(*(self._drain(report) for _ in range(_CONCURRENT_DRAINS)))
        return report

    async def _drain(self, report: CollectReport) -> None:
        while messages := await self._pull(0):
            await self._process_markers(messages, report)

    async def watch(self, sweep_every_s: float = 300.0, poll_s: float = 5.0) -> None:
        """Collect forever. Failures are retried; the store or the server may come back."""
        await run_until_cancelled(
            self._repeat(lambda: self.collect_due(poll_s), 0, poll_s),
            self._repeat(self._sweep, sweep_every_s, poll_s),
        )

    async def _sweep(self) -> CollectReport:
        return await self._sweeper.sweep(await self._now_ns())

    async def _repeat(
        self, work: Callable[[], Awaitable[CollectReport]], pause_s: float, poll_s: float
    ) -> None:
        """Do some work again and again; after a failure soon."""
        while True:
            try:
                await work()
                await asyncio.sleep(pause_s)
            except (RequestTimeout, RequestError, ObjectStoreError, NatsError, OSError) as error:
                _LOG.warning("collecting claims of %s failed, retrying: %s", self._config.namespace, error)
                await asyncio.sleep(min(poll_s, 1.0))

    async def _pull(self, expires_s: float) -> list[Msg]:
        try:
            return await self._jetstream.pull(STREAM, self._consumer_name, _BATCH, expires_s)
        except RequestError as error:
            if error.err_code != CONSUMER_NOT_FOUND:
                raise
        except RequestTimeout:
            _LOG.info("consumer %s does not respond; creating it again", self._consumer_name)
        await self.ensure()  # it was deleted meanwhile
        return await self._pull_new(expires_s)

    async def _pull_new(self, expires_s: float) -> list[Msg]:
        """Pull from a consumer that was just created: in a cluster it has no leader for a moment."""
        for pause_s in _LEADER_PAUSES_S:
            with suppress(ConsumerUnavailable):
                return await self._jetstream.pull(STREAM, self._consumer_name, _BATCH, expires_s)
            await asyncio.sleep(pause_s)
        return await self._jetstream.pull(STREAM, self._consumer_name, _BATCH, expires_s)

    async def _process_markers(self, messages: Sequence[Msg], report: CollectReport) -> None:
        if not messages:
            return
        markers = {
            message.subject.rpartition(".")[2]: message
            for message in messages
            if message.headers and MARKER_REASON in message.headers
        }
        await self._report_strange(markers)
        ids = [claim_id for claim_id in markers if is_claim_id(claim_id)]
        entries = await self._registry.find_all(self._config.namespace, ids)
        unread: dict[str, str] = {}
        to_delete, waiting, unknown = await self._decide(entries.values(), markers, unread)
        _, failed = await self._deleter.delete(to_delete, await self._now_ns(), report, unread)
        await self._registry.reset_timers(waiting)
        report.waiting += len(waiting)
        report.failed += len(unknown)
        await self._ack_markers(messages, markers, waiting, [*failed, *unknown])

    async def _report_strange(self, markers: Mapping[str, Msg]) -> None:
        """Report markers whose ids cannot be claims. A `*` in a request would match every claim."""
        for claim_id, message in markers.items():
            if not is_claim_id(claim_id):
                seq = message.metadata.sequence.stream
                reason = f"{message.subject}: {claim_id!r} is not a claim id"
                await self._registry.on_rejected(RejectedRecord("due", message.subject, seq, reason))

    async def _decide(
        self, entries: Iterable[ClaimEntry], markers: dict[str, Msg], unread: dict[str, str]
    ) -> tuple[list[tuple[ClaimEntry, str]], list[tuple[ClaimEntry, float, int]], list[ClaimEntry]]:
        """Return the claims to delete, those that must wait, and those that cannot be decided now: a stream that may
        not be queried, or does not answer, must not prevent other claims from being collected. Adds to `unread`.
        """
        floors, now_ns = Floors(self._jetstream, self._registry.on_rejected), await self._now_ns()
        to_delete: list[tuple[ClaimEntry, str]] = []
        waiting: list[tuple[ClaimEntry, float, int]] = []
        unknown: list[ClaimEntry] = []
        entries = list(entries)
        await floors.preload(stream for entry in entries for stream in entry.places)
        found = await asyncio.gather(
            *(decide(entry, self._config, now_ns, floors) for entry in entries), return_exceptions=True
        )
        for entry, decision in zip(entries, found, strict=True):
            if isinstance(decision, RequestTimeout | RequestError):
                _LOG.warning(
                    "cannot determine whether claim %s is still needed, will retry: %s",
                    entry.claim_id,
                    decision,
                )
                unknown.append(entry)
                continue
            if isinstance(decision, BaseException):
                raise decision
            if decision.event:
                to_delete.append((entry, decision.event))
                if decision.unread_by:
                    unread[entry.object_key] = decision.unread_by
            else:
                seq = markers[entry.claim_id].metadata.sequence.stream
                waiting.append((entry, decision.wait_s, seq))
        return to_delete, waiting, unknown

    async def _ack_markers(
        self,
        messages: Sequence[Msg],
        markers: dict[str, Msg],
        waiting: Sequence[tuple[ClaimEntry, float, int]],
        failed: Sequence[ClaimEntry],
    ) -> None:
        """NAK the markers of failed claims, so that they come back; ack the rest, and delete markers that are done."""
        failed_ids = {entry.claim_id for entry in failed}
        deferred_ids = {entry.claim_id for entry, _, _ in waiting}
        for message in messages:
            claim_id = message.subject.rpartition(".")[2]
            if claim_id in failed_ids and markers.get(claim_id) is message:
                await message.nak(delay=self._retry_s)
            else:
                await message.ack()
        await self._registry.delete_markers(
            message.metadata.sequence.stream
            for claim_id, message in markers.items()
            if claim_id not in failed_ids and claim_id not in deferred_ids
        )

    async def _now_ns(self) -> int:
        return self._clock.now_ns() if self._clock else await self._registry.get_server_time_ns()
