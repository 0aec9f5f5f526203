"""What the keys of a configuration file mean, in terms of Options.

Owns the names of the keys. A key that is not known, or that asks for something this server cannot do, is an
error with its place, never passed over in silence: a setting that protects must not be lost. Keys that have
no effect here, and whose loss harms nobody, are reported as warnings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from headrace.broker import Permissions
from headrace.durations import duration_ns
from headrace.net.conf import ConfigError, Place, Section, parse
from headrace.net.options import LogFormat, User

Read = Callable[[object], Any]


class Draft:
    """The settings found so far, and the warnings."""

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}
        self.warnings: list[str] = []


def load(path: str, environment: Mapping[str, str]) -> Draft:
    """The settings of a configuration file; ConfigError tells what is wrong and where."""
    try:
        text = _read_file(path)
    except OSError as error:
        raise ConfigError(f"cannot read the configuration file {path!r}: {error.strerror}") from error
    return interpret(parse(text, path, _read_file, environment))


def _read_file(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")


def interpret(section: Section) -> Draft:
    """The settings that a parsed configuration asks for."""
    draft = Draft()
    for key, value in section.items():
        place, name = section.places[key], key.lower()
        if name in _PLAIN:
            option, read = _PLAIN[name]
            draft.settings[option] = _read(read, value, key, place)
        elif name in _SPECIAL:
            _SPECIAL[name](draft, value, place)
        elif name in _NO_EFFECT:
            draft.warnings.append(f"{place}: {key!r} has no effect here")
        elif name in _NOT_YET:
            _fail(place, f"{key!r} is not supported yet: leave it out")
        elif key not in section.referred:
            _fail(place, f"unknown field {key!r}")
    return draft


def _fail(place: Place, text: str) -> NoReturn:
    raise ConfigError(f"{place}: {text}")


def _read(read: Read, value: object, key: str, place: Place) -> Any:
    try:
        return read(value)
    except (TypeError, ValueError) as error:
        _fail(place, f"{key!r} cannot be {value!r}: {error}")


# Readers of values


def _text(value: object) -> str:
    if isinstance(value, Section | list | bool):
        raise TypeError("a text is expected")
    return str(value)


def _integer(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError("a whole number is expected")
    return int(value)


def _switch(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError("true or false is expected")
    return value


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError("a duration is expected")
    return duration_ns(value) / 1e9


def _texts(value: object) -> tuple[str, ...]:
    return tuple(_text(item) for item in value) if isinstance(value, list) else (_text(value),)


def _section(value: object, key: str, place: Place) -> Section:
    if not isinstance(value, Section):
        _fail(place, f"{key!r} is a section: {key} {{ ... }}")
    return value


def _each(section: Section, readers: dict[str, tuple[str, Read]], within: str) -> dict[str, Any]:
    """The values of a section whose keys are all known, by option."""
    found: dict[str, Any] = {}
    for key, value in section.items():
        place = section.places[key]
        if key.lower() not in readers:
            if key in section.referred:
                continue
            _fail(place, f"unknown field {key!r} in {within!r}")
        option, read = readers[key.lower()]
        found[option] = _read(read, value, key, place)
    return found


# Sections


def _address(value: object) -> tuple[str | None, int]:
    """`4222`, `"host:4222"` or `"[::1]:4222"`."""
    if isinstance(value, int) and not isinstance(value, bool):
        return None, value
    host, colon, port = _text(value).rpartition(":")
    if not colon:
        return None, int(port)
    return host.strip("[]") or "0.0.0.0", int(port)


def _listen(draft: Draft, value: object, place: Place) -> None:
    host, draft.settings["port"] = _read(_address, value, "listen", place)
    if host is not None:
        draft.settings["host"] = host


def _http(option: str) -> Callable[[Draft, object, Place], None]:
    def read(draft: Draft, value: object, place: Place) -> None:
        host, draft.settings[option] = _read(_address, value, option, place)
        if host is not None:
            draft.settings["http_host"] = host

    return read


_JETSTREAM: dict[str, tuple[str, Read]] = {
    "enabled": ("jetstream", _switch),
    "store_dir": ("store_dir", _text),
    "storedir": ("store_dir", _text),
    "domain": ("domain", _text),
    "max_file": ("max_file_store", _integer),
    "max_file_store": ("max_file_store", _integer),
    "max_mem": ("max_memory_store", _integer),
    "max_memory_store": ("max_memory_store", _integer),
    "max_mem_store": ("max_memory_store", _integer),
}
_BATCH: dict[str, tuple[str, Read]] = {
    "max_inflight_per_stream": ("batch_max_inflight_per_stream", _integer),
    "max_inflight_total": ("batch_max_inflight_total", _integer),
    "max_msgs": ("batch_max_msgs", _integer),
    "timeout": ("batch_timeout_s", _seconds),
}
#: Ours syncs before it acknowledges, whatever interval is asked for.
_JETSTREAM_NO_EFFECT = {"sync", "sync_interval", "max_buffered_size", "max_buffered_msgs", "unique_tag"}


def _jetstream(draft: Draft, value: object, place: Place) -> None:
    words = {"enabled": True, "enable": True, "disabled": False, "disable": False}
    if isinstance(value, bool):
        draft.settings["jetstream"] = value
    elif isinstance(value, str) and value.lower() in words:
        draft.settings["jetstream"] = words[value.lower()]
    else:
        section = _section(value, "jetstream", place)
        kept = _without(draft, section, _JETSTREAM_NO_EFFECT)
        limits = kept.pop("limits", None)
        if limits is not None:
            _jetstream_limits(draft, limits, section.places["limits"])
        draft.settings |= {"jetstream": True} | _each(kept, _JETSTREAM, "jetstream")


def _jetstream_limits(draft: Draft, value: object, place: Place) -> None:
    section = _section(value, "limits", place)
    for key, inner in section.items():
        if key.lower() != "batch":
            draft.warnings.append(f"{section.places[key]}: {key!r} has no effect here")
            continue
        batch = _section(inner, "batch", section.places[key])
        draft.settings |= _each(batch, _BATCH, "batch")


def _without(draft: Draft, section: Section, keys: set[str]) -> Section:
    """The section without keys that have no effect, which are reported."""
    kept = Section()
    kept.places, kept.referred = section.places, section.referred
    for key, value in section.items():
        if key.lower() in keys:
            draft.warnings.append(f"{section.places[key]}: {key!r} has no effect here")
        else:
            kept[key] = value
    return kept


_TLS: dict[str, tuple[str, Read]] = {
    "cert_file": ("tls_cert", _text),
    "key_file": ("tls_key", _text),
    "ca_file": ("tls_ca", _text),
    "verify": ("tls_verify", _switch),
    "timeout": ("tls_timeout_s", _seconds),
    "handshake_first": ("tls_handshake_first", _switch),
    "first": ("tls_handshake_first", _switch),
    "immediate": ("tls_handshake_first", _switch),
}


def _tls(draft: Draft, value: object, place: Place) -> None:
    section = _section(value, "tls", place)
    kept = _without(draft, section, {"cipher_suites", "curve_preferences"})
    draft.settings |= {"tls": True} | _each(kept, _TLS, "tls")


_AUTHORIZATION: dict[str, tuple[str, Read]] = {
    "user": ("user", _text),
    "username": ("user", _text),
    "pass": ("password", _text),
    "password": ("password", _text),
    "token": ("token", _text),
    "timeout": ("auth_timeout_s", _seconds),
    "users": ("users", lambda value: value),
    "default_permissions": ("default_permissions", lambda value: value),
}
_USER: dict[str, tuple[str, Read]] = {
    "user": ("name", _text),
    "username": ("name", _text),
    "pass": ("password", _text),
    "password": ("password", _text),
    "permissions": ("permissions", lambda value: value),
    "permission": ("permissions", lambda value: value),
}


def _authorization(draft: Draft, value: object, place: Place) -> None:
    found = _each(_section(value, "authorization", place), _AUTHORIZATION, "authorization")
    users = found.pop("users", [])
    default = found.pop("default_permissions", None)
    if users and "user" in found:
        _fail(place, "a single user and a list of users cannot be used together")
    if not isinstance(users, list):
        _fail(place, "'users' is a list: users [ {user: a, password: b} ]")
    draft.settings |= found
    draft.settings["users"] = tuple(_user(user, default, place) for user in users)


def _user(value: object, default: object, place: Place) -> User:
    section = _section(value, "users", place)
    found = _each(section, _USER, "users")
    if "name" not in found or "password" not in found:
        _fail(next(iter(section.places.values()), place), "a user needs a name and a password")
    rules = found.get("permissions", default)
    permissions = None if rules is None else _permissions(rules, place)
    return User(found["name"], found["password"], permissions=permissions)


def _permissions(value: object, place: Place) -> Permissions:
    readers: dict[str, tuple[str, Read]] = {
        name: (option, lambda rules: rules)
        for name, option in (
            ("publish", "publish"),
            ("pub", "publish"),
            ("subscribe", "subscribe"),
            ("sub", "subscribe"),
        )
    }
    found = _each(_section(value, "permissions", place), readers, "permissions")
    rules: dict[str, list[bytes]] = {}
    for kind, given in found.items():
        rules |= _allow_deny(kind, given, place)
    return Permissions(**rules)


def _allow_deny(kind: str, value: object, place: Place) -> dict[str, list[bytes]]:
    def subjects(value: object) -> list[bytes]:
        return [text.encode() for text in _texts(value)]

    if not isinstance(value, Section):
        return {f"{kind}_allow": _read(subjects, value, kind, place)}
    return _each(value, {part: (f"{kind}_{part}", subjects) for part in ("allow", "deny")}, kind)


# The keys

_PLAIN: dict[str, tuple[str, Read]] = {
    "port": ("port", _integer),
    "host": ("host", _text),
    "net": ("host", _text),
    "server_name": ("server_name", _text),
    "server_tags": ("server_tags", _texts),
    "client_advertise": ("client_advertise", _text),
    "allow_insecure": ("allow_remote_without_auth", _switch),
    "max_payload": ("max_payload", _integer),
    "max_pending": ("max_pending", _integer),
    "max_control_line": ("max_control_line", _integer),
    "max_connections": ("max_connections", _integer),
    "max_conn": ("max_connections", _integer),
    "max_subscriptions": ("max_subscriptions", _integer),
    "max_subs": ("max_subscriptions", _integer),
    "max_subscription_tokens": ("max_subscription_tokens", _integer),
    "max_sub_tokens": ("max_subscription_tokens", _integer),
    "ping_interval": ("ping_interval_s", _seconds),
    "ping_max": ("ping_max", _integer),
    "write_deadline": ("write_deadline_s", _seconds),
    "lame_duck_duration": ("lame_duck_duration_s", _seconds),
    "lame_duck_grace_period": ("lame_duck_grace_s", _seconds),
    "no_auth_user": ("no_auth_user", _text),
    "allow_non_tls": ("allow_non_tls", _switch),
    "store_dir": ("store_dir", _text),
    "storedir": ("store_dir", _text),
    "debug": ("debug", _switch),
    "trace": ("trace", _switch),
    "trace_verbose": ("trace", _switch),
    "logtime": ("log_time", _switch),
    "logtime_utc": ("log_time_utc", _switch),
    "log_file": ("log_file", _text),
    "logfile": ("log_file", _text),
    "log_format": ("log_format", lambda value: LogFormat(_text(value))),
    "pid_file": ("pid_file", _text),
    "pidfile": ("pid_file", _text),
    "ports_file_dir": ("ports_file_dir", _text),
}
_SPECIAL: dict[str, Callable[[Draft, object, Place], None]] = {
    "listen": _listen,
    "http": _http("http_port"),
    "http_port": _http("http_port"),
    "monitor_port": _http("http_port"),
    "https": _http("https_port"),
    "https_port": _http("https_port"),
    "jetstream": _jetstream,
    "tls": _tls,
    "authorization": _authorization,
}
_NO_EFFECT = {
    "cluster",
    "connect_error_reports",
    "disable_sublist_cache",
    "gateway",
    "leafnodes",
    "log_size_limit",
    "logfile_size_limit",
    "max_closed_clients",
    "max_traced_msg_len",
    "mqtt",
    "prof_port",
    "reconnect_error_reports",
}
_NOT_YET = {
    "accounts",
    "mappings",
    "operator",
    "operators",
    "resolver",
    "resolver_preload",
    "resolver_tls",
    "system_account",
    "trusted_keys",
    "websocket",
}
