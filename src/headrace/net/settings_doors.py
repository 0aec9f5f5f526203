"""The keys that say how doors are secured and what other doors there are: `tls`, `websocket`."""

from __future__ import annotations

from headrace.net.conf import Place, Section
from headrace.net.options import TlsFiles, WebSocketOptions
from headrace.net.values import (
    Draft,
    Keys,
    address,
    anything,
    fail,
    integer,
    read,
    seconds,
    switch,
    text,
    texts,
)

#: What the reference waits for a client to begin TLS by itself when told `auto`.
AUTO_WAIT_S = 0.05


def _handshake_first(value: object) -> tuple[bool, float]:
    """`true`, `false`, `auto`, or how long to wait for the client."""
    if isinstance(value, bool):
        return value, 0.0
    if isinstance(value, str) and value.lower() in ("true", "on", "false", "off"):
        return value.lower() in ("true", "on"), 0.0
    if value == "auto":
        return True, AUTO_WAIT_S
    return True, seconds(value)


_TLS = Keys(
    "tls",
    {
        "cert_file": ("cert", text),
        "key_file": ("key", text),
        "ca_file": ("ca", text),
        "verify": switch,
        "verify_and_map": ("map", switch),
        "timeout": ("timeout_s", seconds),
        "handshake_first first immediate": ("first", _handshake_first),
    },
    idle="cipher_suites curve_preferences min_version connection_rate_limit",
)


def tls(draft: Draft, value: object, place: Place) -> None:
    """`tls { ... }` of the door for clients."""
    found = _TLS.read(draft, value, place)
    if "first" in found:
        found["handshake_first"], wait_s = found.pop("first")
        if wait_s:
            found["first_wait_s"] = wait_s
    draft.settings |= {"tls": True} | {f"tls_{option}": inner for option, inner in found.items()}


_WEBSOCKET = Keys(
    "websocket",
    {
        "listen": address,
        "port": integer,
        "host net": text,
        "advertise": text,
        "no_tls": switch,
        "tls": anything,
        "compression": switch,
        "same_origin": switch,
        "allowed_origins allowed_origin allow_origins allow_origin": texts,
        "handshake_timeout": ("handshake_timeout_s", seconds),
        "no_auth_user": text,
        "jwt_cookie": text,
        "user_cookie": text,
        "pass_cookie": text,
        "token_cookie": text,
        "headers": anything,
    },
    idle="ping_interval",
)


def websocket(draft: Draft, value: object, place: Place) -> None:
    """`websocket { ... }`: a door for browsers."""
    found = _WEBSOCKET.read(draft, value, place)
    if "listen" in found:
        host, found["port"] = found.pop("listen")
        if host is not None:
            found["host"] = host
    if "tls" in found:
        found["tls"] = _tls_files(draft, found["tls"], place)
    if "headers" in found:
        found["headers"] = _headers(found["headers"], place)
    draft.settings["websocket"] = WebSocketOptions(**found)


def _tls_files(draft: Draft, value: object, place: Place) -> TlsFiles:
    found = _TLS.read(draft, value, place)
    files = {option: found[option] for option in ("cert", "key", "ca") if option in found}
    mapped = found.get("map", False)
    return TlsFiles(**files, verify=mapped or found.get("verify", False), map_users=mapped)


def _headers(value: object, place: Place) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, Section):
        fail(place, "'headers' is a section of names and values")
    pairs = tuple((name, read(text, inner, name, place)) for name, inner in value.items())
    if any("\r" in part or "\n" in part or "\0" in part for pair in pairs for part in pair):
        fail(place, "a header is one line")
    return pairs
