"""Reload: which changed options a running server can apply, and what happens to clients that are connected."""

from __future__ import annotations

from dataclasses import fields, replace

from headrace.auth.authenticator import Authenticator, RecheckResult, UserIdentity
from headrace.config.open_listeners import find_open_listener
from headrace.config.options import OptionsError, ServerOptions
from headrace.net.client_connection import ClientConnection

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


def find_restart_only_changes(before: ServerOptions, after: ServerOptions) -> set[str]:
    """Return the names of changed options that need a restart."""
    names = {field.name for field in fields(ServerOptions)} - RELOADABLE
    changed = {name for name in names if getattr(before, name) != getattr(after, name)}
    address_changed = (before.websocket.host, before.websocket.port) != (
        after.websocket.host,
        after.websocket.port,
    )
    return changed | ({"websocket address"} if address_changed else set())


def merge_options(before: ServerOptions, after: ServerOptions) -> ServerOptions:
    """Return the new options: the reloadable ones from `after`, the rest from `before`.

    Raise OptionsError if a listener, whose address stays as it was, would lose its authentication.
    """
    new_options = replace(before, **{name: getattr(after, name) for name in RELOADABLE})
    # A WebSocket listener keeps its address; a reload does not open a new one.
    old_websocket = before.websocket
    websocket = replace(after.websocket, host=old_websocket.host, port=old_websocket.port)
    merged = replace(new_options, websocket=websocket)
    if error_text := find_open_listener(merged):
        raise OptionsError(error_text)
    return merged


def recheck_connection(
    connection: ClientConnection, authenticator: Authenticator, old_authenticator: Authenticator
) -> None:
    """Apply new permissions to a client, or disconnect it as nats-server does."""
    identity = connection.session.identity
    if not isinstance(identity, UserIdentity):
        return
    result, new_identity = authenticator.recheck(identity, old_authenticator)
    if result is RecheckResult.ACCEPTED:
        connection.session.authenticate_as(new_identity)
    elif result is RecheckResult.USER_REMOVED:
        connection.close()
    else:
        connection.fail(UNAUTHORIZED)
