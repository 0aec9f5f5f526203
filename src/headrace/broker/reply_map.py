"""Replies across accounts: a request through a service import gets a reply subject in the exporter's account.

Owns the replies that are still expected, with one heap of their deadlines. Invariant: at most `PENDING_MAX` for each
account that sends requests; beyond that its oldest is given up, so that requests which nobody answers cost others nothing.
"""

from __future__ import annotations

import heapq
import random
from typing import TYPE_CHECKING, Any

from headrace.broker.routing.message_trace import disable
from headrace.broker.routing.subscription_trie import ImportTarget

if TYPE_CHECKING:
    from headrace.broker.routing.router import SubjectRouter
    from headrace.broker.routing.traced_delivery import TracedDelivery, TracedMessage
    from headrace.broker.timers import TimerHandle, Timers

PENDING_MAX = 65_536
#: Deadlines of replies that came are removed when there are this many more than replies expected.
_STALE_DEADLINES_MAX = 4096
#: Maximum number of overdue replies that are removed at a time, so that other clients do not wait long.
_EXPIRED_AT_ONCE = 500
_ACK = b"$JS.ACK."
_ALPHABET = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
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


class ReplyMap:
    """The pending replies of one account to requesters in other accounts."""

    def __init__(self, router: SubjectRouter, timers: Timers) -> None:
        self.router = router
        self._timers = timers
        self._prefix = b"_R_." + _random_name(_NAME_SIZE) + b"."
        self._pending: dict[bytes, PendingReply] = {}
        #: The same by requester, oldest first.
        self._pending_of: dict[ReplyMap, dict[bytes, PendingReply]] = {}
        #: When to look at each pending reply; one whose deadline was extended is looked at again later.
        self._deadlines: list[tuple[int, bytes]] = []
        self._expiry_timer: TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._pending)

    def new_subject(self) -> bytes:
        return self._prefix + _random_name(_REPLY_SIZE)

    def map_reply(self, requester: ReplyMap, reply: bytes, *, many: bool, timeout_ns: int) -> bytes:
        """Return the reply subject to use in this account, so that the reply reaches `reply` in the requester's account."""
        if not reply or reply.startswith(_ACK):
            return reply
        pending = PendingReply(self, self.router, requester, reply, many, timeout_ns)
        own_pending = self._pending_of.setdefault(requester, {})
        if len(own_pending) >= PENDING_MAX:
            self.remove(next(iter(own_pending.values())))
        self._pending[pending.subject] = own_pending[pending.subject] = pending
        pending.deadline_ns = self._timers.now_ns() + timeout_ns
        heapq.heappush(self._deadlines, (pending.deadline_ns, pending.subject))
        if len(self._deadlines) > 2 * len(self._pending) + _STALE_DEADLINES_MAX:
            self._deadlines = [(each.deadline_ns, subject) for subject, each in self._pending.items()]
            heapq.heapify(self._deadlines)
        if self._expiry_timer is None:
            self._expiry_timer = self._timers.after(timeout_ns, self._expire)
        return pending.subject

    def extend(self, pending: PendingReply) -> None:
        """Extend the deadline: more replies may come."""
        pending.deadline_ns = self._timers.now_ns() + pending.timeout_ns

    def remove(self, pending: PendingReply) -> None:
        """Stop waiting for this reply."""
        if self._pending.pop(pending.subject, None) is not None:
            own_pending = self._pending_of[pending.requester]
            del own_pending[pending.subject]
            if not own_pending:
                del self._pending_of[pending.requester]
            pending.close()

    def cancel(self, subject: bytes) -> None:
        """Remove the pending reply of a request that had no receiver."""
        pending = self._pending.get(subject)
        if pending is not None:
            self.remove(pending)

    def _expire(self) -> None:
        """Remove replies that are overdue, some at a time."""
        self._expiry_timer = None
        now_ns, deadlines = self._timers.now_ns(), self._deadlines
        for _ in range(_EXPIRED_AT_ONCE):
            if not deadlines or deadlines[0][0] > now_ns:
                break
            _, subject = heapq.heappop(deadlines)
            pending = self._pending.get(subject)
            if pending is None:
                continue
            if pending.deadline_ns > now_ns:
                heapq.heappush(deadlines, (pending.deadline_ns, subject))
            else:
                self.remove(pending)
        if deadlines:
            self._expiry_timer = self._timers.at_monotonic(max(deadlines[0][0], now_ns + 1), self._expire)

    def close(self) -> None:
        for pending in list(self._pending.values()):
            self.remove(pending)
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()


def _random_name(size: int) -> bytes:
    return bytes(random.SystemRandom().choices(_ALPHABET, k=size))
