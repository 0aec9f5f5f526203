"""The keys of the sections `tls` and `websocket`."""

from __future__ import annotations

from headrace.config.config_parser import Section, SourcePos
from headrace.config.options import TlsFiles, WebSocketOptions
from headrace.config.readers import (
    ConfigDraft,
    SectionSchema,
    fail,
    read_any,
    read_bool,
    read_host_port,
    read_int,
    read_seconds,
    read_string,
    read_strings,
    read_value,
)

#: How long nats-server waits for a client to start TLS with `auto`.
AUTO_HANDSHAKE_WAIT_S = 0.05


def _read_handshake_first(value: object) -> tuple[bool, float]:
    """Read `true`, `false`, `auto`, or how long to wait for the client."""
    if isinstance(value, bool):
        return value, 0.0
    if isinstance(value, str) and value.lower() in ("true", "on", "false", "off"):
        return value.lower() in ("true", "on"), 0.0
    if value == "auto":
        return True, AUTO_HANDSHAKE_WAIT_S
    return True, read_seconds(value)


_TLS = SectionSchema(
    "tls",
    {
        "cert_file": ("cert", read_string),
        "key_file": ("key", read_string),
        "ca_file": ("ca", read_string),
        "verify": read_bool,
        "verify_and_map": ("map", read_bool),
        "timeout": ("timeout_s", read_seconds),
        "handshake_first first immediate": ("first", _read_handshake_first),
    },
    ignored="cipher_suites curve_preferences min_version connection_rate_limit",
)


def read_tls(draft: ConfigDraft, value: object, pos: SourcePos) -> None:
    """Read `tls { ... }` of the client listener."""
    found = _TLS.read(draft, value, pos)
    if "first" in found:
        found["handshake_first"], wait_s = found.pop("first")
        if wait_s:
            found["first_wait_s"] = wait_s
    draft.settings |= {"tls": True} | {f"tls_{option}": inner for option, inner in found.items()}


_WEBSOCKET = SectionSchema(
    "websocket",
    {
        "listen": read_host_port,
        "port": read_int,
        "host net": read_string,
        "advertise": read_string,
        "no_tls": read_bool,
        "tls": read_any,
        "compression": read_bool,
        "same_origin": read_bool,
        "allowed_origins allowed_origin allow_origins allow_origin": read_strings,
        "handshake_timeout": ("handshake_timeout_s", read_seconds),
        "no_auth_user": read_string,
        "jwt_cookie": read_string,
        "user_cookie": read_string,
        "pass_cookie": read_string,
        "token_cookie": read_string,
        "headers": read_any,
    },
    ignored="ping_interval",
)


def read_websocket(draft: ConfigDraft, value: object, pos: SourcePos) -> None:
    """Read `websocket { ... }`."""
    found = _WEBSOCKET.read(draft, value, pos)
    if "listen" in found:
        host, found["port"] = found.pop("listen")
        if host is not None:
            found["host"] = host
    if "tls" in found:
        found["tls"] = _read_tls_files(draft, found["tls"], pos)
    if "headers" in found:
        found["headers"] = _read_headers(found["headers"], pos)
    draft.settings["websocket"] = WebSocketOptions(**found)


def _read_tls_files(draft: ConfigDraft, value: object, pos: SourcePos) -> TlsFiles:
    found = _TLS.read(draft, value, pos)
    files = {option: found[option] for option in ("cert", "key", "ca") if option in found}
    map_users = found.get("map", False)
    return TlsFiles(**files, verify=map_users or found.get("verify", False), map_users=map_users)


def _read_headers(value: object, pos: SourcePos) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, Section):
        fail(pos, "'headers' must be a section: headers { NAME: VALUE }")
    pairs = tuple((name, read_value(read_string, inner, name, pos)) for name, inner in value.items())
    if any("\r" in part or "\n" in part or "\0" in part for pair in pairs for part in pair):
        fail(pos, "a header must not contain line breaks")
    return pairs
