"""Permissions: the subjects that a user may publish and subscribe to.

Owns the rules of allow and deny lists, and which responses are allowed. Deny wins; no allow list allows everything. A
deny pattern that is narrower than a subscription does not reject it but withholds the messages that match.
See ADR 75.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.protocol import subjects
from headrace.protocol.pattern_index import PatternIndex

CACHE_MAX = 1024
ALLOWED_RESPONSES_MAX = 4096


@dataclass(frozen=True, slots=True)
class ResponsePermission:
    """How often, and for how long, the reply subject of a request may be published to; no limit if not positive."""

    max_msgs: int = 1
    expires_ns: int = 120_000_000_000


class AllowedResponses:
    """The reply subjects that one session may publish to because it received requests with them."""

    __slots__ = ("_open", "_rule")

    def __init__(self, rule: ResponsePermission) -> None:
        self._rule = rule
        self._open: dict[bytes, list[int]] = {}

    def allow(self, reply: bytes, now_ns: int) -> None:
        """Allow responses to a request that was delivered."""
        if len(self._open) >= ALLOWED_RESPONSES_MAX:
            self._prune(now_ns)
        self._open[reply] = [now_ns, 0]

    def use(self, subject: bytes, now_ns: int) -> bool:
        """Return whether a response may be sent, and count it."""
        entry = self._open.get(subject)
        if entry is None:
            return False
        entry[1] += 1
        rule = self._rule
        late = 0 < rule.expires_ns < now_ns - entry[0]
        if late or 0 < rule.max_msgs < entry[1]:
            del self._open[subject]
            return False
        return True

    def _prune(self, now_ns: int) -> None:
        """Remove expired and used entries, and the oldest ones if more than half of the maximum remain."""
        rule = self._rule
        self._open = {
            reply: entry
            for reply, entry in self._open.items()
            if not (0 < rule.expires_ns < now_ns - entry[0] or 0 < rule.max_msgs <= entry[1])
        }
        for reply in list(self._open)[: max(len(self._open) - ALLOWED_RESPONSES_MAX // 2, 0)]:
            del self._open[reply]


class Permissions:
    """Permissions of one user, shared by its sessions. A subscribe rule is `subject` or `subject queue`."""

    __slots__ = (
        "_denied_to_publish",
        "_publish_cache",
        "_publishable",
        "publish_allow",
        "publish_deny",
        "responses",
        "subscribe_allow",
        "subscribe_deny",
    )

    def __init__(
        self,
        *,
        publish_allow: Iterable[bytes] | None = None,
        publish_deny: Iterable[bytes] = (),
        subscribe_allow: Iterable[bytes] | None = None,
        subscribe_deny: Iterable[bytes] = (),
        responses: ResponsePermission | None = None,
    ) -> None:
        self.publish_allow = None if publish_allow is None else tuple(publish_allow)
        self.publish_deny = tuple(publish_deny)
        self._publishable = PatternIndex(self.publish_allow or ())
        self._denied_to_publish = PatternIndex(self.publish_deny)
        # As in nats-server, an empty allow list for subscriptions is the same as none.
        self.subscribe_allow = tuple(_parse_rule(entry) for entry in subscribe_allow or ()) or None
        self.subscribe_deny = tuple(_parse_rule(entry) for entry in subscribe_deny)
        self.responses = responses
        self._publish_cache: dict[bytes, bool] = {}

    def may_publish(self, subject: bytes) -> bool:
        """Whether a message on this subject is accepted."""
        known = self._publish_cache.get(subject)
        if known is None:
            if len(self._publish_cache) >= CACHE_MAX:
                self._publish_cache.clear()
            known = self._publish_cache[subject] = self._is_publish_allowed(subject)
        return known

    def _is_publish_allowed(self, subject: bytes) -> bool:
        if self._denied_to_publish.matches_any(subject):
            return False
        return self.publish_allow is None or self._publishable.matches_any(subject)

    def may_reply(self, subject: bytes) -> bool:
        """Whether the user may use this reply subject: not if it is denied for publishing."""
        return not self._denied_to_publish.matches_any(subject)

    def may_subscribe(self, pattern: bytes, queue: bytes | None) -> bool:
        """Whether a subscription is accepted."""
        for subject, group in self.subscribe_deny:
            if subjects.is_subset(pattern, subject) and (group is None or _queue_matches(queue, group)):
                return False
        if self.subscribe_allow is None:
            return True
        groups = [group for subject, group in self.subscribe_allow if subjects.is_subset(pattern, subject)]
        if queue is None:
            return None in groups
        named = [group for group in groups if group is not None]
        # A rule with a queue narrows the queues of its subject, even beside a rule without.
        return any(_queue_matches(queue, group) for group in named) if named else bool(groups)

    def denies_part_of(self, pattern: bytes, queue: bytes | None = None) -> bool:
        """Whether a part of what a subscription matches is denied."""
        return any(
            subjects.overlaps(pattern, subject) and (group is None or _queue_matches(queue, group))
            for subject, group in self.subscribe_deny
        )

    def denies_delivery(self, subject: bytes, queue: bytes | None = None) -> bool:
        """Whether messages on this subject are not delivered."""
        return any(
            subjects.matches(entry, subject) and (group is None or _queue_matches(queue, group))
            for entry, group in self.subscribe_deny
        )


def have_equal_rules(one: Permissions | None, other: Permissions | None) -> bool:
    """Whether two sets of permissions allow the same."""
    if one is None or other is None:
        return one is other
    names = ("publish_allow", "publish_deny", "subscribe_allow", "subscribe_deny", "responses")
    return all(getattr(one, name) == getattr(other, name) for name in names)


def _parse_rule(entry: bytes) -> tuple[bytes, bytes | None]:
    subject, *queue = entry.split()
    return subject, queue[0] if queue else None


def _queue_matches(queue: bytes | None, group: bytes) -> bool:
    # `*` and `>` may also be names of queues.
    return queue is not None and (queue == group or subjects.is_subset(queue, group))
