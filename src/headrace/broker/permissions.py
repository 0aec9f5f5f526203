"""What a user may publish to and subscribe to.

Owns the rules of allow and deny lists. Deny wins; no allow list allows everything. A denial that is narrower
than a subscription does not refuse it but withholds the messages concerned.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.protocol import subjects

CACHE_MAX = 1024


class Permissions:
    """Rules of one user, shared by its sessions. A subscribe rule is `subject` or `subject queue`."""

    __slots__ = (
        "_publishable",
        "publish_allow",
        "publish_deny",
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
    ) -> None:
        self.publish_allow = None if publish_allow is None else tuple(publish_allow)
        self.publish_deny = tuple(publish_deny)
        # An empty allow list for subscriptions is as good as none; that is how the reference takes it.
        self.subscribe_allow = tuple(_rule(entry) for entry in subscribe_allow or ()) or None
        self.subscribe_deny = tuple(_rule(entry) for entry in subscribe_deny)
        self._publishable: dict[bytes, bool] = {}

    def may_publish(self, subject: bytes) -> bool:
        """Whether a message on this subject is let in."""
        known = self._publishable.get(subject)
        if known is None:
            if len(self._publishable) >= CACHE_MAX:
                self._publishable.clear()
            known = self._publishable[subject] = self._decide(subject)
        return known

    def _decide(self, subject: bytes) -> bool:
        if any(subjects.matches(entry, subject) for entry in self.publish_deny):
            return False
        allowed = self.publish_allow
        return allowed is None or any(subjects.matches(entry, subject) for entry in allowed)

    def may_subscribe(self, pattern: bytes, queue: bytes | None) -> bool:
        """Whether a subscription is accepted."""
        for subject, group in self.subscribe_deny:
            if subjects.subset(pattern, subject) and (group is None or _in_group(queue, group)):
                return False
        if self.subscribe_allow is None:
            return True
        groups = [group for subject, group in self.subscribe_allow if subjects.subset(pattern, subject)]
        if queue is None:
            return None in groups
        named = [group for group in groups if group is not None]
        # A rule with a queue narrows the queues of its subject, even beside a rule without.
        return any(_in_group(queue, group) for group in named) if named else bool(groups)

    def withholds_from(self, pattern: bytes) -> bool:
        """Whether some of what a subscription matches is denied."""
        return any(
            subjects.collides(pattern, subject) for subject, group in self.subscribe_deny if group is None
        )

    def withheld(self, subject: bytes) -> bool:
        """Whether messages on this subject are not delivered."""
        return any(subjects.matches(entry, subject) for entry, group in self.subscribe_deny if group is None)


def _rule(entry: bytes) -> tuple[bytes, bytes | None]:
    subject, *queue = entry.split()
    return subject, queue[0] if queue else None


def _in_group(queue: bytes | None, group: bytes) -> bool:
    return queue is not None and subjects.matches(group, queue)
