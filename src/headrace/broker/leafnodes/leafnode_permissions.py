"""Permissions of a leafnode connection, in each direction and in both.

Owns the combination of the user's permissions, the subjects that a configuration denies, and subjects that never cross:
the JetStream API of an account without its domain, and buckets, because each side has its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from headrace._native.reserved_subjects import is_api_subject
from headrace.broker.routing.permissions import Permissions
from headrace.protocol import subjects

#: Each side serves these subjects itself.
LOCAL_ONLY = (b"$JS.API.>", b"$KV.>", b"$OBJ.>")
#: These subjects cross regardless of permissions.
ALWAYS_ALLOWED = (b"$LDS.", b"_GR_.", b"$GR.")
_REPLY_PREFIXES = (b"_R_.", b"$JS.ACK.")


class LeafnodePermissions:
    """Deny wins; no allow list allows everything."""

    __slots__ = ("_deny_other", "_deny_plain", "_deny_prefixes", "allow", "deny")

    def __init__(self, allow: Iterable[bytes] | None = None, deny: Iterable[bytes] = ()) -> None:
        self.allow = None if allow is None else tuple(allow)
        self.deny = tuple(deny)
        #: The denied patterns that may match a subject without `$`, such as an inbox.
        self._deny_plain = tuple(entry for entry in self.deny if not entry.startswith(b"$"))
        #: What the denied patterns of the form `literal.>` begin with: most subjects are compared with these only.
        prefixes = {entry: entry[:-1] for entry in self.deny if _is_literal_prefix(entry)}
        self._deny_prefixes = tuple(prefixes.values())
        self._deny_other = tuple(entry for entry in self.deny if entry not in prefixes)

    def with_denied(self, deny: Iterable[bytes]) -> LeafnodePermissions:
        """Return the same permissions with more subjects denied."""
        return LeafnodePermissions(self.allow, (*self.deny, *deny))

    def allows(self, subject: bytes) -> bool:
        """Whether a message on this subject may cross."""
        if any(subjects.matches(entry, subject) for entry in self.deny):
            return False
        return self.allow is None or any(subjects.matches(entry, subject) for entry in self.allow)

    def allows_inbound(self, subject: bytes) -> bool:
        """Whether a message that arrived is accepted; replies to what was sent always are."""
        return subject.startswith(_REPLY_PREFIXES) or self.allows(subject)

    def allows_reply(self, reply: bytes) -> bool:
        """Whether the other side may name this reply subject: nobody here may be made to publish where it may not."""
        if not reply.startswith(b"$"):
            return not any(subjects.matches(entry, reply) for entry in self._deny_plain)
        if is_api_subject(reply) or reply.startswith(b"$SYS."):
            return False
        if not self._deny_other and not reply.startswith(self._deny_prefixes):
            return True
        return not any(subjects.matches(entry, reply) for entry in self.deny)

    def allows_replies_below(self, prefix: bytes) -> bool:
        """Whether the other side may name every reply subject of the form `prefix`, four tokens."""
        return not is_api_subject(prefix) and not any(
            subjects.overlaps(entry, prefix + b"*.*.*.*") for entry in self.deny
        )

    def allows_interest(self, pattern: bytes) -> bool:
        """Whether interest in a pattern may be announced."""
        if pattern.startswith(ALWAYS_ALLOWED):
            return True
        if any(subjects.is_subset(pattern, entry) for entry in self.deny):
            return False
        return self.allow is None or any(subjects.is_subset(pattern, entry) for entry in self.allow)


class ConnectionPermissions:
    """The permissions of one connection: `inbound` for messages that arrive, `outbound` for those that are sent.

    `deny_imports` and `deny_exports` are the subjects that this side's configuration denies.
    """

    __slots__ = ("_deny_exports", "deny_imports", "inbound", "outbound")

    def __init__(self, deny_imports: Iterable[bytes] = (), deny_exports: Iterable[bytes] = ()) -> None:
        self.deny_imports, self._deny_exports = tuple(deny_imports), tuple(deny_exports)
        self.inbound = LeafnodePermissions(deny=self.deny_imports)
        self.outbound = LeafnodePermissions(deny=self._deny_exports)

    def apply_info(self, fields: Mapping[str, Any]) -> bool:
        """Apply the permissions that the other side grants in an INFO; return whether there are some."""
        if "export" not in fields and "import" not in fields:
            return False
        self.outbound = from_info(fields.get("export")).with_denied(self._deny_exports)
        self.inbound = from_info(fields.get("import")).with_denied(self.deny_imports)
        return True

    def apply_user(
        self, publish: LeafnodePermissions, subscribe: LeafnodePermissions, deny_pub: object
    ) -> None:
        """Apply the permissions of the user that dialed in; `deny_pub` is what its CONNECT denies."""
        self.inbound = publish
        self.outbound = subscribe.with_denied(
            each.encode()
            for each in (deny_pub if isinstance(deny_pub, list) else ())
            if isinstance(each, str)
        )

    def deny_local_subjects(self, domain: str, remote_domain: str) -> None:
        """Keep the JetStream API and buckets local: each side serves its own, and requests for ours are not sent away."""
        self.outbound = self.outbound.with_denied(LOCAL_ONLY)
        self.inbound = self.inbound.with_denied(LOCAL_ONLY)
        if domain and domain != remote_domain:
            self.outbound = self.outbound.with_denied([f"$JS.{domain}.API.>".encode()])

    def may_announce(self, pattern: bytes) -> bool:
        """Whether interest in a pattern may be announced to the other side."""
        return self.inbound.allows_interest(pattern)

    def may_receive(self, subject: bytes) -> bool:
        """Whether messages on this subject are accepted from the other side."""
        return self.inbound.allows_inbound(subject)

    def may_name_replies_below(self, prefix: bytes) -> bool:
        """Whether the other side may name every reply subject of the form `prefix`, four tokens."""
        return self.inbound.allows_replies_below(prefix)

    def may_send(self, subject: bytes) -> bool:
        """Whether messages on this subject may be sent to the other side."""
        return subject.startswith(ALWAYS_ALLOWED) or self.outbound.allows(subject)


def permissions_for(permissions: Permissions | None) -> tuple[LeafnodePermissions, LeafnodePermissions]:
    """Return a user's permissions for publishing and subscribing."""
    if permissions is None:
        return LeafnodePermissions(), LeafnodePermissions()
    publish = LeafnodePermissions(permissions.publish_allow, permissions.publish_deny)
    allow = permissions.subscribe_allow
    deny = (subject for subject, queue in permissions.subscribe_deny if queue is None)
    return publish, LeafnodePermissions(None if allow is None else (subject for subject, _ in allow), deny)


def to_info(permissions: LeafnodePermissions) -> dict[str, list[str]] | None:
    """Encode permissions for INFO; None if there are no restrictions."""
    found = {"allow": permissions.allow, "deny": permissions.deny}
    return {key: [each.decode() for each in value] for key, value in found.items() if value} or None


def from_info(value: object) -> LeafnodePermissions:
    """Parse permissions from INFO; malformed parts are ignored."""
    fields: Mapping[str, Any] = value if isinstance(value, dict) else {}

    def read_subjects(key: str) -> list[bytes] | None:
        found = fields.get(key)
        return [each.encode() for each in found if isinstance(each, str)] if isinstance(found, list) else None

    return LeafnodePermissions(read_subjects("allow"), read_subjects("deny") or ())


def _is_literal_prefix(pattern: bytes) -> bool:
    """Whether a pattern matches exactly the subjects below one literal prefix."""
    return pattern.endswith(b".>") and subjects.is_literal(pattern[:-2])


def is_local_only(subject: bytes) -> bool:
    """Whether each side serves this subject itself."""
    return any(subjects.matches(entry, subject) for entry in LOCAL_ONLY)
