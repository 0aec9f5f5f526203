"""Replies across accounts: a request through a service import gets a reply subject in the exporter's account.

Owns the replies that are still expected, in the order of their deadlines. Invariant: at most `PENDING_MAX` for each
account that sends requests; beyond that its oldest is given up, so that requests which nobody answers cost others nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headrace.broker.routing.message_trace import disable
from headrace.broker.routing.subscription_trie import ImportTarget

if TYPE_CHECKING:
    from headrace.broker.routing.router import SubjectRouter
    from headrace.broker.routing.traced_delivery import TracedDelivery, TracedMessage
    from headrace.broker.timers import TimerHandle, Timers

PENDING_MAX = 65_536
#: Maximum number of overdue replies that are removed at a time, so that other clients do not wait long.
_EXPIRED_AT_ONCE = 500
_ACK = b"$JS.ACK."
#: A character for each value of a byte; eight are a quarter more likely than the others.
_CHARACTERS = (b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz" * 5)[:256]
_NAME_SIZE = 6
_REPLY_SIZE = 8


class PendingReply(ImportTarget):
    """A reply expected in one account that belongs to a requester in another."""

    __slots__ = (
        "_many",
        "_reply",
        "_reply_map",
        "_requester_router",
        "_router",
        "deadline_ns",
        "following",
        "preceding",
        "requester",
        "subject",
        "timeout_ns",
    )

    def __init__(
        self,
        reply_map: ReplyMap,
        router: SubjectRouter,
        requester: ReplyMap,
        reply: bytes,
        many: bool,
        timeout_ns: int,
    ) -> None:
        self._reply_map, self._router = reply_map, router
        self.requester, self._requester_router = requester, requester.router
        self._reply = reply
        self._many = many
        self.timeout_ns = timeout_ns
        self.deadline_ns = 0
        #: Its neighbours in the queue.
        self.preceding: PendingReply | None = None
        self.following: PendingReply | None = None
        self.subject = reply_map.new_subject()
        router.subscribe_internal(self.subject, self)

    def on_message(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> int:
        requester, router = self.requester, self._requester_router
        onward_reply = requester.map_reply(self._reply_map, reply, many=False, timeout_ns=self.timeout_ns)
        if subject == self.subject:
            received = router.publish(self._reply, onward_reply, header, payload)
        else:
            received = router.deliver(self._reply, subject, onward_reply, header, payload)
        if not received or not self._many or not (header or payload):
            self._reply_map.remove(self)
            if not received:
                requester.cancel(onward_reply)
        else:
            self._reply_map.extend(self)
        return received

    def on_traced(self, delivery: TracedDelivery, message: TracedMessage) -> int:
        """Forward a traced reply: the trace ends at the border of the account."""
        tracing = self._requester_router.tracing
        delivery.trace.add_service_import(
            tracing.account if tracing is not None else "", message.subject, self._reply
        )
        if delivery.trace.trace_only:
            return 0
        return self.on_message(delivery.source, *message._replace(header=disable(message.header)))

    def has_interest(self, queue: bytes | None) -> bool:
        return self._requester_router.has_interest(self._reply, queue)

    def close(self) -> None:
        self._router.unsubscribe_internal(self.subject, self)


class _DeadlineQueue:
    """Pending replies with the same timeout, so in the order of their deadlines.

    A linked list: adding and removing one takes equally long with any number of others, and nothing is ever copied.
    """

    __slots__ = ("first", "last")

    def __init__(self) -> None:
        self.first: PendingReply | None = None
        self.last: PendingReply | None = None

    def append(self, pending: PendingReply) -> None:
        pending.preceding = self.last
        if self.last is None:
            self.first = pending
        else:
            self.last.following = pending
        self.last = pending

    def remove(self, pending: PendingReply) -> None:
        preceding, following = pending.preceding, pending.following
        if preceding is None:
            self.first = following
        else:
            preceding.following = following
        if following is None:
            self.last = preceding
        else:
            following.preceding = preceding
        pending.preceding = pending.following = None


class _RequesterReplies:
    """The pending replies of one requester: how many, and their queues by timeout."""

    __slots__ = ("count", "queues")

    def __init__(self) -> None:
        self.count = 0
        self.queues: dict[int, _DeadlineQueue] = {}

    def add(self, pending: PendingReply) -> None:
        self.count += 1
        self.queues.setdefault(pending.timeout_ns, _DeadlineQueue()).append(pending)

    def remove(self, pending: PendingReply) -> None:
        self.count -= 1
        self.queues[pending.timeout_ns].remove(pending)

    def find_oldest(self) -> PendingReply:
        return min(self.iter_first(), key=lambda pending: pending.deadline_ns - pending.timeout_ns)

    def iter_first(self) -> Iterator[PendingReply]:
        """Iterate over the first of each queue."""
        return (queue.first for queue in self.queues.values() if queue.first is not None)


class ReplyMap:
    """The pending replies of one account to requesters in other accounts."""

    def __init__(self, router: SubjectRouter, timers: Timers) -> None:
        self.router = router
        self._timers = timers
        self._prefix = b"_R_." + _random_name(_NAME_SIZE) + b"."
        self._pending: dict[bytes, PendingReply] = {}
        self._replies_of: dict[ReplyMap, _RequesterReplies] = {}
        self._expiry_timer: TimerHandle | None = None
        self._expiry_ns = 0  # when the timer runs

    def __len__(self) -> int:
        return len(self._pending)

    def new_subject(self) -> bytes:
        return self._prefix + _random_name(_REPLY_SIZE)

    def map_reply(self, requester: ReplyMap, reply: bytes, *, many: bool, timeout_ns: int) -> bytes:
        """Return the reply subject to use in this account, so that the reply reaches `reply` in the requester's account."""
        if not reply or reply.startswith(_ACK):
            return reply
        replies = self._replies_of.get(requester)
        if replies is not None and replies.count >= PENDING_MAX:
            self.remove(replies.find_oldest())
        pending = PendingReply(self, self.router, requester, reply, many, timeout_ns)
        pending.deadline_ns = self._timers.now_ns() + timeout_ns
        self._pending[pending.subject] = pending
        self._replies_of.setdefault(requester, _RequesterReplies()).add(pending)
        if self._expiry_timer is None or pending.deadline_ns < self._expiry_ns:
            self._schedule_expiry(pending.deadline_ns)
        return pending.subject

    def extend(self, pending: PendingReply) -> None:
        """Extend the deadline: more replies may come."""
        if pending.subject not in self._pending:
            return
        replies = self._replies_of[pending.requester]
        replies.remove(pending)
        pending.deadline_ns = self._timers.now_ns() + pending.timeout_ns
        replies.add(pending)

    def remove(self, pending: PendingReply) -> None:
        """Stop waiting for this reply."""
        if self._pending.pop(pending.subject, None) is not None:
            replies = self._replies_of[pending.requester]
            replies.remove(pending)
            if not replies.count:
                del self._replies_of[pending.requester]
            pending.close()

    def cancel(self, subject: bytes) -> None:
        """Remove the pending reply of a request that had no receiver."""
        pending = self._pending.get(subject)
        if pending is not None:
            self.remove(pending)

    def _expire(self) -> None:
        """Remove replies that are overdue, some at a time."""
        self._expiry_timer = None
        now_ns = self._timers.now_ns()
        overdue = [first for first in self._iter_first() if first.deadline_ns <= now_ns]
        removed = 0
        while overdue and removed < _EXPIRED_AT_ONCE:
            pending = overdue.pop()
            following = pending.following
            self.remove(pending)
            removed += 1
            if following is not None and following.deadline_ns <= now_ns:
                overdue.append(following)
        next_ns = min((first.deadline_ns for first in self._iter_first()), default=None)
        if next_ns is not None:
            self._schedule_expiry(max(next_ns, now_ns + 1))

    def _schedule_expiry(self, deadline_ns: int) -> None:
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
        self._expiry_ns = deadline_ns
        self._expiry_timer = self._timers.at_monotonic(deadline_ns, self._expire)

    def _iter_first(self) -> Iterator[PendingReply]:
        return (first for replies in self._replies_of.values() for first in replies.iter_first())

    def close(self) -> None:
        for pending in list(self._pending.values()):
            self.remove(pending)
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()


def _random_name(size: int) -> bytes:
    return os.urandom(size).translate(_CHARACTERS)
