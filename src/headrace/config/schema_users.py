"""The keys that decide which clients may connect: `authorization`, users, their permissions and responses."""

from __future__ import annotations

from typing import Any

from headrace.auth.nkeys import is_public_key
from headrace.broker import Permissions
from headrace.broker.routing.permissions import ResponsePermission
from headrace.config.config_parser import Section, SourcePos
from headrace.config.options import User
from headrace.config.readers import (
    ConfigDraft,
    SectionSchema,
    fail,
    get_section_pos,
    read_any,
    read_int,
    read_list,
    read_seconds,
    read_string,
    read_strings,
    read_value,
)
from headrace.durations import parse_duration_ns
from headrace.protocol import subjects

#: The connection types that a user may be restricted to; types that this server does not have may be named too.
CONNECTION_TYPES = frozenset(
    ("STANDARD", "WEBSOCKET", "LEAFNODE", "LEAFNODE_WS", "MQTT", "MQTT_WS", "IN_PROCESS")
)

_AUTHORIZATION = SectionSchema(
    "authorization",
    {
        "user username": read_string,
        "password pass": read_string,
        "token": read_string,
        "timeout": ("auth_timeout_s", read_seconds),
        "users": read_any,
        "default_permissions default_permission permissions": read_any,
    },
)
_USER = SectionSchema(
    "users",
    {
        "user username": ("name", read_string),
        "nkey": read_string,
        "password pass": read_string,
        "permissions permission authorization": read_any,
        "allowed_connection_types connection_types clients": ("connections", read_strings),
    },
)


def read_authorization(draft: ConfigDraft, value: object, pos: SourcePos) -> None:
    """Read `authorization { ... }`: one user, a token, or a list of users of the global account."""
    found = _AUTHORIZATION.read(draft, value, pos)
    user_list = found.pop("users", [])
    default = found.pop("default_permissions", None)
    if user_list and "user" in found:
        fail(pos, "a single user and a list of users cannot be used together")
    draft.settings |= found
    add_users(draft, user_list, default, "", pos)


def add_users(draft: ConfigDraft, value: object, default: object, account: str, pos: SourcePos) -> None:
    """Add a list of users, all of one account."""
    user_list = read_list(value, "users", "user: a, password: b", pos)
    found = tuple(_read_user(draft, user, default, account, pos) for user in user_list)
    draft.settings["users"] = draft.settings.get("users", ()) + found


def _read_user(draft: ConfigDraft, value: object, default: object, account: str, pos: SourcePos) -> User:
    found = _USER.read(draft, value, pos)
    inner_pos = get_section_pos(value, pos)
    rules = found.get("permissions", default)
    allowed = None if rules is None else read_permissions(draft, rules, inner_pos)
    connection_types = _read_connection_types(found.get("connections", ()), inner_pos)
    if "nkey" in found:
        if "name" in found or "password" in found:
            fail(inner_pos, "a user has either a name with a password or an nkey")
        if not is_public_key(found["nkey"], "U"):
            fail(inner_pos, f"invalid nkey {found['nkey']!r}: expected the public key of a user (U...)")
        return User(
            found["nkey"], account=account, permissions=allowed, nkey=True, connections=connection_types
        )
    if "name" not in found:
        fail(inner_pos, "a user needs a name and a password")
    return User(found["name"], found.get("password", ""), account, allowed, connections=connection_types)


def _read_connection_types(names: tuple[str, ...], pos: SourcePos) -> frozenset[str]:
    found = frozenset(name.upper() for name in names)
    unknown = sorted(found - CONNECTION_TYPES)
    if unknown:
        fail(pos, f"unknown connection type {unknown[0]!r}: use {', '.join(sorted(CONNECTION_TYPES))}")
    return found


# Permissions


def read_signed_duration(value: object) -> int:
    """Read nanoseconds; a negative duration is no limit."""
    duration_text = read_string(value)
    return (
        -1
        if duration_text.startswith("-") and parse_duration_ns(duration_text[1:])
        else parse_duration_ns(duration_text)
    )


_PERMISSIONS = SectionSchema(
    "permissions",
    {
        "publish pub import": read_any,
        "subscribe sub export": read_any,
        "allow_responses publish_allow_responses": ("responses", read_any),
    },
)
_RESPONSES = SectionSchema(
    "allow_responses",
    {
        "max max_msgs max_messages max_responses": ("most", read_int),
        "expires expiration ttl": ("expires", read_signed_duration),
    },
)


def read_permissions(draft: ConfigDraft, value: object, pos: SourcePos) -> Permissions:
    """Read permissions for publishing, subscribing and responses."""
    found = _PERMISSIONS.read(draft, value, pos)
    rules: dict[str, Any] = {}
    for kind in ("publish", "subscribe"):
        if kind in found:
            rules |= _read_allow_deny(draft, kind, found[kind], pos)
    responses = _read_responses(draft, found.get("responses", False), pos)
    if responses is not None:
        rules["responses"] = responses
        rules.setdefault("publish_allow", [])
    return Permissions(**rules)


def _read_responses(draft: ConfigDraft, value: object, pos: SourcePos) -> ResponsePermission | None:
    if isinstance(value, bool):
        return ResponsePermission() if value else None
    if not isinstance(value, Section):
        fail(pos, "'allow_responses' is true, false or a section with max and expires")
    found = _RESPONSES.read(draft, value, pos)
    default = ResponsePermission()
    return ResponsePermission(
        found.get("most") or default.max_msgs, found.get("expires") or default.expires_ns
    )


def _read_allow_deny(draft: ConfigDraft, kind: str, value: object, pos: SourcePos) -> dict[str, list[bytes]]:
    def rules(value: object) -> list[bytes]:
        return [_parse_rule(kind, entry) for entry in read_strings(value)]

    if not isinstance(value, Section):
        return {f"{kind}_allow": read_value(rules, value, kind, pos)}
    table = {part: (f"{kind}_{part}", rules) for part in ("allow", "deny")}
    return SectionSchema(kind, table).read(draft, value, pos)


def _parse_rule(kind: str, entry: str) -> bytes:
    """Parse a subject; a subscribe rule may have a queue after it."""
    tokens = entry.encode().split()
    if not 1 <= len(tokens) <= (2 if kind == "subscribe" else 1) or not all(map(subjects.is_valid, tokens)):
        raise ValueError(f"invalid subject {entry!r}")
    return b" ".join(tokens)
