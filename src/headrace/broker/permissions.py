"""What a user may publish to and subscribe to.

Owns the rules of allow and deny lists, and which answers may be given. Deny wins; no allow list allows everything.
A denial that is narrower than a subscription does not refuse it but withholds the messages concerned.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.protocol import subjects

CACHE_MAX = 1024
REPLIES_MAX = 4096


@dataclass(frozen=True, slots=True)
class Responses:
    """How often, and for how long, a reply subject that came with a request may be published to; negative: any."""

    most: int = 1
    expires_ns: int = 120_000_000_000


class Replies:
    """The reply subjects that one session may publish to because it was asked there."""

    __slots__ = ("_open", "_rule")

    def __init__(self, rule: Responses) -> None:
        self._rule = rule
        self._open: dict[bytes, list[int]] = {}

    def asked(self, reply: bytes, now_ns: int) -> None:
        """A request with this reply was delivered."""
        if len(self._open) >= REPLIES_MAX:
            self._prune(now_ns)
        self._open[reply] = [now_ns, 0]

    def take(self, subject: bytes, now_ns: int) -> bool:
        """Whether an answer may go there; it counts as given."""
        entry = self._open.get(subject)
        if entry is None:
            return False
        entry[1] += 1
        rule = self._rule
        late = 0 < rule.expires_ns < now_ns - entry[0]
        if late or 0 < rule.most < entry[1]:
            del self._open[subject]
            return False
        return True

    def _prune(self, now_ns: int) -> None:
        """Forget what is over, and the older half when that is not enough."""
        rule = self._rule
        self._open = {
            reply: entry
            for reply, entry in self._open.items()
            if not (0 < rule.expires_ns < now_ns - entry[0] or 0 < rule.most <= entry[1])
        }
        for reply in list(self._open)[: max(len(self._open) - REPLIES_MAX // 2, 0)]:
            del self._open[reply]


class Permissions:
    """Rules of one user, shared by its sessions. A subscribe rule is `subject` or `subject queue`."""

    __slots__ = (
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
        responses: Responses | None = None,
    ) -> None:
        self.publish_allow = None if publish_allow is None else tuple(publish_allow)
        self.publish_deny = tuple(publish_deny)
        # An empty allow list for subscriptions is as good as none; that is how the reference takes it.
        self.subscribe_allow = tuple(_rule(entry) for entry in subscribe_allow or ()) or None
        self.subscribe_deny = tuple(_rule(entry) for entry in subscribe_deny)
        self.responses = responses
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

    def may_reply(self, subject: bytes) -> bool:
        """Whether others may be asked to answer there: not where the user itself must not publish."""
        return not any(subjects.matches(entry, subject) for entry in self.publish_deny)

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

    def withholds_from(self, pattern: bytes, queue: bytes | None = None) -> bool:
        """Whether some of what a subscription matches is denied."""
        return any(
            subjects.collides(pattern, subject) and (group is None or _in_group(queue, group))
            for subject, group in self.subscribe_deny
        )

    def withheld(self, subject: bytes, queue: bytes | None = None) -> bool:
        """Whether messages on this subject are not delivered."""
        return any(
            subjects.matches(entry, subject) and (group is None or _in_group(queue, group))
            for entry, group in self.subscribe_deny
        )


def _rule(entry: bytes) -> tuple[bytes, bytes | None]:
    subject, *queue = entry.split()
    return subject, queue[0] if queue else None


def _in_group(queue: bytes | None, group: bytes) -> bool:
    # `*` and `>` may themselves be names of queues.
    return queue is not None and (queue == group or subjects.subset(queue, group))
