"""Deletes consumers of this stream at upstreams, and tries again until it is confirmed that they are gone.

Before a second attempt it looks who owns the consumer by now, because the reply to the first may be lost and another
stream may use the name. Owns the requests and their timers; which consumers to delete is known by the handovers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from headrace.broker.routing.inbox import Inbox
from headrace.broker.sourcing.consumer_ownership import ConsumerOwner, parse_owner
from headrace.broker.sourcing.handover import ConsumerAddress
from headrace.broker.sourcing.reachability import ReachabilityWatch
from headrace.broker.sourcing.upstream_consumer import ConsumerResponse
from headrace.code_probes import sometimes
from headrace.jetstream_api.errors import ApiError
from headrace.protocol.json_exceptions import JSON_ERRORS

if TYPE_CHECKING:
    from headrace.broker.commit.jetstream_context import JetStreamContext
    from headrace.broker.timers import TimerHandle

_SECOND = 1_000_000_000
_TIMEOUT_NS = 5 * _SECOND
_BACKOFF_NS = 10 * _SECOND
_BACKOFF_NS_MAX = 120 * _SECOND
_GONE = (ApiError.CONSUMER_NOT_FOUND, ApiError.STREAM_NOT_FOUND)


class _Deletion:
    """Deletes one consumer."""

    __slots__ = (
        "_consumer",
        "_deletions",
        "_failures",
        "_inbox",
        "_looking",
        "_reachability",
        "_timer",
        "_timers",
    )

    def __init__(self, deletions: ConsumerDeletions, consumer: ConsumerAddress, *, look_first: bool) -> None:
        self._deletions = deletions
        self._timers = deletions.timers
        self._consumer = consumer
        self._failures = 0
        self._looking = look_first
        self._inbox: Inbox | None = None
        self._timer: TimerHandle | None = None
        self._reachability = ReachabilityWatch(deletions.router, self._on_reachable)

    def start(self) -> None:
        self._reachability.start(self._consumer.make_subject("DELETE"))
        self._request()

    def stop(self) -> None:
        self._cancel()
        self._reachability.stop()

    def _cancel(self) -> None:
        if self._inbox is not None:
            self._inbox.close()
            self._inbox = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_reachable(self) -> None:
        self._failures = 0
        self._retry()

    def _retry(self) -> None:
        self._looking = True
        self._request()

    def _request(self) -> None:
        self._cancel()
        deletions, consumer = self._deletions, self._consumer
        if consumer.key in deletions.copiers:  # another stream of the account has taken it over
            deletions.on_done(consumer)
            return
        self._inbox = Inbox(deletions.router, self._on_reply)
        self._timer = deletions.timers.after(_TIMEOUT_NS, self._on_failure)
        subject = consumer.make_subject("INFO" if self._looking else "DELETE")
        # After a crash that undoes the change of configuration, the source still needs its consumer.
        deletions.group_commit.send_after_commit(subject, self._inbox.subject, b"", b"")

    def _on_reply(self, header: bytes, payload: bytes) -> None:
        self._cancel()
        try:
            response = msgspec.json.decode(payload, type=ConsumerResponse)
        except JSON_ERRORS:
            self._on_failure()
            return
        if response.error is not None:
            if response.error.err_code in _GONE:
                self._deletions.on_done(self._consumer)
            else:
                self._on_failure()
        elif not self._looking or not self._is_own(response):
            self._deletions.on_done(self._consumer)
        else:
            self._looking = False
            self._request()

    def _is_own(self, response: ConsumerResponse) -> bool:
        found = parse_owner(response.config.metadata) if response.config is not None else None
        if found is None:
            return not response.push_bound
        own = self._deletions.owner
        return own.owns(found) or own.may_take_over_from(found, is_bound=response.push_bound)

    def _on_failure(self) -> None:
        sometimes("upstream consumer not deleted at once")
        self._cancel()
        self._failures += 1
        delay_ns = min(_BACKOFF_NS * self._failures, _BACKOFF_NS_MAX)
        self._timer = self._timers.after(delay_ns, self._retry)


class ConsumerDeletions:
    """The deletions of one stream that are in progress."""

    __slots__ = ("_active", "_on_deleted", "copiers", "group_commit", "owner", "router", "timers")

    def __init__(
        self,
        jetstream: JetStreamContext,
        owner: ConsumerOwner,
        on_deleted: Callable[[ConsumerAddress], None],
    ) -> None:
        self.router, self.timers = jetstream.router, jetstream.timers
        self.copiers, self.group_commit = jetstream.copiers, jetstream.group_commit
        self.owner = owner
        self._on_deleted = on_deleted
        self._active: dict[ConsumerAddress, _Deletion] = {}

    def start(self, consumer: ConsumerAddress, *, look_first: bool) -> None:
        """Delete a consumer, unless that is in progress."""
        if consumer not in self._active:
            deletion = self._active[consumer] = _Deletion(self, consumer, look_first=look_first)
            deletion.start()

    def cancel(self, consumer: ConsumerAddress) -> None:
        """Stop deleting a consumer: it is in use again."""
        if consumer in self._active:
            self._active.pop(consumer).stop()

    def on_done(self, consumer: ConsumerAddress) -> None:
        """Handle a consumer that is gone, or no longer this stream's."""
        self.cancel(consumer)
        self._on_deleted(consumer)

    def stop(self) -> None:
        """Stop all: the server is closing, or the stream is being deleted."""
        for deletion in self._active.values():
            deletion.stop()
        self._active.clear()
