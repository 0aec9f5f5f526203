"""What may cross a leafnode connection, in one direction.

Owns the merging of what the user may do, what a configuration denies, and what never crosses: the JetStream API of an
account without its domain, and buckets, because each side has its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from headrace.broker.permissions import Permissions
from headrace.protocol import subjects

#: Each side answers these itself.
OWN = (b"$JS.API.>", b"$KV.>", b"$OBJ.>")
#: Which cross whatever the rules are.
FREE = (b"$LDS.", b"_GR_.", b"$GR.")
_REPLIES = (b"_R_.", b"$JS.ACK.")


class Rules:
    """Deny wins; no allow list allows everything."""

    __slots__ = ("allow", "deny")

    def __init__(self, allow: Iterable[bytes] | None = None, deny: Iterable[bytes] = ()) -> None:
        self.allow = None if allow is None else tuple(allow)
        self.deny = tuple(deny)

    def without(self, deny: Iterable[bytes]) -> Rules:
        """The same with more denied."""
        return Rules(self.allow, (*self.deny, *deny))

    def permit(self, subject: bytes) -> bool:
        """Whether a message on this subject may cross."""
        if any(subjects.matches(entry, subject) for entry in self.deny):
            return False
        return self.allow is None or any(subjects.matches(entry, subject) for entry in self.allow)

    def admit(self, subject: bytes) -> bool:
        """Whether a message that arrived is taken; answers to what was sent across always are."""
        return subject.startswith(_REPLIES) or self.permit(subject)

    def cover(self, pattern: bytes) -> bool:
        """Whether interest in a pattern may be told."""
        if pattern.startswith(FREE):
            return True
        if any(subjects.subset(pattern, entry) for entry in self.deny):
            return False
        return self.allow is None or any(subjects.subset(pattern, entry) for entry in self.allow)


def rules_for(permissions: Permissions | None) -> tuple[Rules, Rules]:
    """What a user may publish and what it may subscribe to."""
    if permissions is None:
        return Rules(), Rules()
    publish = Rules(permissions.publish_allow, permissions.publish_deny)
    allow = permissions.subscribe_allow
    deny = (subject for subject, queue in permissions.subscribe_deny if queue is None)
    return publish, Rules(None if allow is None else (subject for subject, _ in allow), deny)


def told(rules: Rules) -> dict[str, list[str]] | None:
    """The rules as INFO tells them; None when there are none."""
    found = {"allow": rules.allow, "deny": rules.deny}
    return {key: [each.decode() for each in value] for key, value in found.items() if value} or None


def heard(value: object) -> Rules:
    """What INFO told; malformed parts tell nothing."""
    fields: Mapping[str, Any] = value if isinstance(value, dict) else {}

    def texts(key: str) -> list[bytes] | None:
        found = fields.get(key)
        return [each.encode() for each in found if isinstance(each, str)] if isinstance(found, list) else None

    return Rules(texts("allow"), texts("deny") or ())


def own(subject: bytes) -> bool:
    """Whether each side answers this itself."""
    return any(subjects.matches(entry, subject) for entry in OWN)
