"""The keys that say how doors are secured and what other doors there are: `tls`, `websocket`."""

from __future__ import annotations

from typing import Any

from headrace.net.conf import Place, Section
from headrace.net.options import TlsFiles, WebSocketOptions
from headrace.net.values import (
    Draft,
    Keys,
    address,
    anything,
    each,
    fail,
    integer,
    read,
    seconds,
    section,
    switch,
    text,
    texts,
    without,
)

#: What the reference waits for a client to begin TLS by itself when told `auto`.
AUTO_WAIT_S = 0.05
_CIPHERS = {"cipher_suites", "curve_preferences", "min_version", "connection_rate_limit"}


def _handshake_first(value: object) -> tuple[bool, float]:
    """`true`, `false`, `auto`, or how long to wait for the client."""
    if isinstance(value, bool):
        return value, 0.0
    if isinstance(value, str) and value.lower() in ("true", "on", "false", "off"):
        return value.lower() in ("true", "on"), 0.0
    if value == "auto":
        return True, AUTO_WAIT_S
    return True, seconds(value)


_TLS: Keys = {
    "cert_file": ("cert", text),
    "key_file": ("key", text),
    "ca_file": ("ca", text),
    "verify": ("verify", switch),
    "verify_and_map": ("map_users", switch),
    "timeout": ("timeout_s", seconds),
    "handshake_first": ("first", _handshake_first),
    "first": ("first", _handshake_first),
    "immediate": ("first", _handshake_first),
}


def _tls_of(draft: Draft, value: object, place: Place) -> dict[str, Any]:
    return each(without(draft, section(value, "tls", place), _CIPHERS), _TLS, "tls")


def tls(draft: Draft, value: object, place: Place) -> None:
    """`tls { ... }` of the door for clients."""
    found = _tls_of(draft, value, place)
    names = {
        "cert": "tls_cert",
        "key": "tls_key",
        "ca": "tls_ca",
        "verify": "tls_verify",
        "map_users": "tls_map",
    }
    settings: dict[str, Any] = {"tls": True}
    settings |= {names[key]: found[key] for key in names if key in found}
    if "timeout_s" in found:
        settings["tls_timeout_s"] = found["timeout_s"]
    if "first" in found:
        settings["tls_handshake_first"], wait_s = found["first"]
        if wait_s:
            settings["tls_first_wait_s"] = wait_s
    draft.settings |= settings


_WEBSOCKET: Keys = {
    "listen": ("listen", address),
    "port": ("port", integer),
    "host": ("host", text),
    "net": ("host", text),
    "advertise": ("advertise", text),
    "no_tls": ("no_tls", switch),
    "tls": ("tls", anything),
    "compression": ("compression", switch),
    "same_origin": ("same_origin", switch),
    "allowed_origins": ("allowed_origins", texts),
    "allowed_origin": ("allowed_origins", texts),
    "allow_origins": ("allowed_origins", texts),
    "allow_origin": ("allowed_origins", texts),
    "handshake_timeout": ("handshake_timeout_s", seconds),
    "no_auth_user": ("no_auth_user", text),
    "jwt_cookie": ("jwt_cookie", text),
    "user_cookie": ("user_cookie", text),
    "pass_cookie": ("pass_cookie", text),
    "token_cookie": ("token_cookie", text),
    "headers": ("headers", anything),
}


def websocket(draft: Draft, value: object, place: Place) -> None:
    """`websocket { ... }`: a door for browsers."""
    written = without(draft, section(value, "websocket", place), {"ping_interval"})
    found = each(written, _WEBSOCKET, "websocket")
    if "listen" in found:
        host, found["port"] = found.pop("listen")
        if host is not None:
            found["host"] = host
    if "tls" in found:
        files = _tls_of(draft, found["tls"], place)
        for key in ("timeout_s", "first"):
            files.pop(key, None)
        if files.get("map_users"):
            files["verify"] = True
        found["tls"] = TlsFiles(**files)
    if "headers" in found:
        found["headers"] = _headers(found["headers"], place)
    draft.settings["websocket"] = WebSocketOptions(**found)


def _headers(value: object, place: Place) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, Section):
        fail(place, "'headers' is a section of names and values")
    pairs = tuple((name, read(text, inner, name, place)) for name, inner in value.items())
    if any("\r" in part or "\n" in part or "\0" in part for pair in pairs for part in pair):
        fail(place, "a header is one line")
    return pairs
