"""What a running server can take up from changed options, and what becomes of the clients that are there."""

from __future__ import annotations

from dataclasses import fields, replace

from headrace.net.auth import Authenticator, Identity, Standing
from headrace.net.connection import Connection
from headrace.net.options import Options

RELOADABLE = {
    "user",
    "password",
    "token",
    "users",
    "no_auth_user",
    "accounts",
    "redirects",
    "operators",
    "trusted_keys",
    "resolver_preload",
    "websocket",
    "allow_non_tls",
    "tls_map",
    "tls_handshake_first",
    "tls_first_wait_s",
    "tls_cert",
    "tls_key",
    "tls_ca",
    "tls_verify",
    "tls_timeout_s",
    "debug",
    "trace",
    "auth_timeout_s",
    "max_payload",
    "max_control_line",
    "max_connections",
    "max_subscriptions",
    "max_subscription_tokens",
    "max_pending",
    "ping_interval_s",
    "ping_max",
    "write_deadline_s",
    "lame_duck_duration_s",
    "lame_duck_grace_s",
}
UNAUTHORIZED = "Authorization Violation"


def fixed_changes(before: Options, after: Options) -> set[str]:
    """The names of changed options that only a restart can take up."""
    names = {field.name for field in fields(Options)} - RELOADABLE
    changed = {name for name in names if getattr(before, name) != getattr(after, name)}
    moved = (before.websocket.host, before.websocket.port) != (after.websocket.host, after.websocket.port)
    return changed | ({"websocket address"} if moved else set())


def merged(before: Options, after: Options) -> Options:
    """The options to go by from now on: what can be taken up from `after`, the rest as it was."""
    made = replace(before, **{name: getattr(after, name) for name in RELOADABLE})
    # A door that is open stays where it is; one that is not there is not opened.
    open_door = before.websocket
    return replace(made, websocket=replace(after.websocket, host=open_door.host, port=open_door.port))


def review(connection: Connection, judge: Authenticator, before: Authenticator) -> None:
    """Let a client stay, with its new permissions, or send it away as the reference does."""
    identity = connection.session.identity
    if not isinstance(identity, Identity):
        return
    standing, identity_now = judge.review(identity, before)
    if standing is Standing.STAYS:
        connection.session.admit_as(identity_now)
    elif standing is Standing.GONE:
        connection.close()
    else:
        connection.fail(UNAUTHORIZED)
