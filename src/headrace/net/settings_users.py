"""The keys that say who may connect: `authorization`, users, their permissions and responses."""

from __future__ import annotations

from typing import Any

from headrace.broker import Permissions
from headrace.broker.permissions import Responses
from headrace.durations import duration_ns
from headrace.net.conf import Place, Section
from headrace.net.nkeys import is_public_key
from headrace.net.options import User
from headrace.net.values import (
    Draft,
    Keys,
    anything,
    entries,
    fail,
    inside,
    integer,
    read,
    seconds,
    text,
    texts,
)
from headrace.protocol import subjects

#: The kinds of connection a user may be bound to; those that this server has not got can be named all the same.
CONNECTIONS = frozenset(("STANDARD", "WEBSOCKET", "LEAFNODE", "LEAFNODE_WS", "MQTT", "MQTT_WS", "IN_PROCESS"))

_AUTHORIZATION = Keys(
    "authorization",
    {
        "user username": text,
        "password pass": text,
        "token": text,
        "timeout": ("auth_timeout_s", seconds),
        "users": anything,
        "default_permissions default_permission permissions": anything,
    },
)
_USER = Keys(
    "users",
    {
        "user username": ("name", text),
        "nkey": text,
        "password pass": text,
        "permissions permission authorization": anything,
        "allowed_connection_types connection_types clients": ("connections", texts),
    },
)


def authorization(draft: Draft, value: object, place: Place) -> None:
    """`authorization { ... }`: one user, a token, or a list of users of the global account."""
    found = _AUTHORIZATION.read(draft, value, place)
    listed = found.pop("users", [])
    default = found.pop("default_permissions", None)
    if listed and "user" in found:
        fail(place, "a single user and a list of users cannot be used together")
    draft.settings |= found
    add_users(draft, listed, default, "", place)


def add_users(draft: Draft, value: object, default: object, account: str, place: Place) -> None:
    """A list of users, all of one account, besides those that are there."""
    listed = entries(value, "users", "user: a, password: b", place)
    found = tuple(_user(draft, user, default, account, place) for user in listed)
    draft.settings["users"] = draft.settings.get("users", ()) + found


def _user(draft: Draft, value: object, default: object, account: str, place: Place) -> User:
    found = _USER.read(draft, value, place)
    here = inside(value, place)
    rules = found.get("permissions", default)
    allowed = None if rules is None else permissions(draft, rules, here)
    kinds = _kinds(found.get("connections", ()), here)
    if "nkey" in found:
        if "name" in found or "password" in found:
            fail(here, "a user has either a name with a password or an nkey")
        if not is_public_key(found["nkey"], "U"):
            fail(here, f"{found['nkey']!r} is no public nkey of a user")
        return User(found["nkey"], account=account, permissions=allowed, nkey=True, connections=kinds)
    if "name" not in found:
        fail(here, "a user needs a name and a password")
    return User(found["name"], found.get("password", ""), account, allowed, connections=kinds)


def _kinds(names: tuple[str, ...], place: Place) -> frozenset[str]:
    found = frozenset(name.upper() for name in names)
    unknown = sorted(found - CONNECTIONS)
    if unknown:
        fail(place, f"unknown connection type {unknown[0]!r}; there are {', '.join(sorted(CONNECTIONS))}")
    return found


# Permissions


def signed_duration(value: object) -> int:
    """Nanoseconds; a negative duration is for ever."""
    written = text(value)
    return -1 if written.startswith("-") and duration_ns(written[1:]) else duration_ns(written)


_PERMISSIONS = Keys(
    "permissions",
    {
        "publish pub import": anything,
        "subscribe sub export": anything,
        "allow_responses publish_allow_responses": ("responses", anything),
    },
)
_RESPONSES = Keys(
    "allow_responses",
    {
        "max max_msgs max_messages max_responses": ("most", integer),
        "expires expiration ttl": ("expires", signed_duration),
    },
)


def permissions(draft: Draft, value: object, place: Place) -> Permissions:
    """What may be published to and subscribed to, and whether requests may be answered."""
    found = _PERMISSIONS.read(draft, value, place)
    rules: dict[str, Any] = {}
    for kind in ("publish", "subscribe"):
        if kind in found:
            rules |= _allow_deny(draft, kind, found[kind], place)
    responses = _responses(draft, found.get("responses", False), place)
    if responses is not None:
        rules["responses"] = responses
        rules.setdefault("publish_allow", [])
    return Permissions(**rules)


def _responses(draft: Draft, value: object, place: Place) -> Responses | None:
    if isinstance(value, bool):
        return Responses() if value else None
    if not isinstance(value, Section):
        fail(place, "'allow_responses' is true, false or a section with max and expires")
    found = _RESPONSES.read(draft, value, place)
    default = Responses()
    return Responses(found.get("most") or default.most, found.get("expires") or default.expires_ns)


def _allow_deny(draft: Draft, kind: str, value: object, place: Place) -> dict[str, list[bytes]]:
    def rules(value: object) -> list[bytes]:
        return [_rule(kind, entry) for entry in texts(value)]

    if not isinstance(value, Section):
        return {f"{kind}_allow": read(rules, value, kind, place)}
    table = {part: (f"{kind}_{part}", rules) for part in ("allow", "deny")}
    return Keys(kind, table).read(draft, value, place)


def _rule(kind: str, entry: str) -> bytes:
    """A subject, for subscriptions optionally with a queue behind it."""
    words = entry.encode().split()
    if not 1 <= len(words) <= (2 if kind == "subscribe" else 1) or not all(map(subjects.valid, words)):
        raise ValueError(f"{entry!r} is no subject")
    return b" ".join(words)
