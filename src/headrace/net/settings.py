"""What the keys of a configuration file mean, in terms of Options.

Owns the names of the keys. A key that is not known, or that asks for something this server cannot do, is an
error with its place, never passed over in silence: a setting that protects must not be lost. Keys that have
no effect here, and whose loss harms nobody, are reported as warnings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from headrace.net.conf import ConfigError, Place, Section, parse
from headrace.net.leaf_settings import leafnodes
from headrace.net.options import LogFormat
from headrace.net.settings_accounts import accounts, mappings
from headrace.net.settings_doors import tls, websocket
from headrace.net.settings_trust import operator, resolver, resolver_preload
from headrace.net.settings_users import authorization
from headrace.net.values import (
    Draft,
    Keys,
    address,
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


def load(path: str, environment: Mapping[str, str]) -> Draft:
    """The settings of a configuration file; ConfigError tells what is wrong and where."""
    try:
        text = _read_file(path)
    except OSError as error:
        raise ConfigError(f"cannot read the configuration file {path!r}: {error.strerror}") from error
    except ValueError as error:  # not UTF-8, or no path
        raise ConfigError(f"cannot read the configuration file {path!r}: {error}") from error
    return interpret(parse(text, path, _read_file, environment))


def _read_file(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")


def interpret(written: Section) -> Draft:
    """The settings that a parsed configuration asks for."""
    draft = Draft()
    for key, value in written.items():
        place, name = written.places[key], key.lower()
        if name in _PLAIN:
            option, reader = _PLAIN[name]
            draft.settings[option] = read(reader, value, key, place)
        elif name in _SPECIAL:
            _SPECIAL[name](draft, value, place)
        elif name in _NO_EFFECT:
            draft.warnings.append(f"{place}: {key!r} has no effect here")
        elif name in _NOT_YET:
            fail(place, f"{key!r} is not supported yet: leave it out")
        elif key not in written.referred:
            fail(place, f"unknown field {key!r}")
    return draft


# Sections


def _listen(draft: Draft, value: object, place: Place) -> None:
    host, draft.settings["port"] = read(address, value, "listen", place)
    if host is not None:
        draft.settings["host"] = host


def _http(option: str) -> Callable[[Draft, object, Place], None]:
    def listen(draft: Draft, value: object, place: Place) -> None:
        host, draft.settings[option] = read(address, value, option, place)
        if host is not None:
            draft.settings["http_host"] = host

    return listen


_JETSTREAM: Keys = {
    "enabled": ("jetstream", switch),
    "store_dir": ("store_dir", text),
    "storedir": ("store_dir", text),
    "domain": ("domain", text),
    "strict": ("strict", switch),
    "max_file": ("max_file_store", integer),
    "max_file_store": ("max_file_store", integer),
    "max_mem": ("max_memory_store", integer),
    "max_memory_store": ("max_memory_store", integer),
    "max_mem_store": ("max_memory_store", integer),
}
_BATCH: Keys = {
    "max_inflight_per_stream": ("batch_max_inflight_per_stream", integer),
    "max_inflight_total": ("batch_max_inflight_total", integer),
    "max_msgs": ("batch_max_msgs", integer),
    "timeout": ("batch_timeout_s", seconds),
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
        written = section(value, "jetstream", place)
        kept = without(draft, written, _JETSTREAM_NO_EFFECT)
        limits = kept.pop("limits", None)
        if limits is not None:
            _jetstream_limits(draft, limits, written.places["limits"])
        draft.settings |= {"jetstream": True} | each(kept, _JETSTREAM, "jetstream")


def _jetstream_limits(draft: Draft, value: object, place: Place) -> None:
    written = section(value, "limits", place)
    for key, inner in written.items():
        if key.lower() != "batch":
            draft.warnings.append(f"{written.places[key]}: {key!r} has no effect here")
            continue
        batch = section(inner, "batch", written.places[key])
        draft.settings |= each(batch, _BATCH, "batch")


# The keys

_PLAIN: Keys = {
    "port": ("port", integer),
    "host": ("host", text),
    "net": ("host", text),
    "server_name": ("server_name", text),
    "server_tags": ("server_tags", texts),
    "client_advertise": ("client_advertise", text),
    "allow_insecure": ("allow_remote_without_auth", switch),
    "max_payload": ("max_payload", integer),
    "max_pending": ("max_pending", integer),
    "max_control_line": ("max_control_line", integer),
    "max_connections": ("max_connections", integer),
    "max_conn": ("max_connections", integer),
    "max_subscriptions": ("max_subscriptions", integer),
    "max_subs": ("max_subscriptions", integer),
    "max_subscription_tokens": ("max_subscription_tokens", integer),
    "max_sub_tokens": ("max_subscription_tokens", integer),
    "ping_interval": ("ping_interval_s", seconds),
    "ping_max": ("ping_max", integer),
    "write_deadline": ("write_deadline_s", seconds),
    "lame_duck_duration": ("lame_duck_duration_s", seconds),
    "lame_duck_grace_period": ("lame_duck_grace_s", seconds),
    "no_auth_user": ("no_auth_user", text),
    "system_account": ("system_account", text),
    "system": ("system_account", text),
    "trusted_keys": ("trusted_keys", texts),
    "trusted": ("trusted_keys", texts),
    "allow_non_tls": ("allow_non_tls", switch),
    "store_dir": ("store_dir", text),
    "storedir": ("store_dir", text),
    "claims": ("claims", text),
    "debug": ("debug", switch),
    "trace": ("trace", switch),
    "trace_verbose": ("trace", switch),
    "logtime": ("log_time", switch),
    "logtime_utc": ("log_time_utc", switch),
    "log_file": ("log_file", text),
    "logfile": ("log_file", text),
    "log_format": ("log_format", lambda value: LogFormat(text(value))),
    "pid_file": ("pid_file", text),
    "pidfile": ("pid_file", text),
    "ports_file_dir": ("ports_file_dir", text),
    "http_admin_token": ("http_admin_token", text),
}
_SPECIAL: dict[str, Callable[[Draft, object, Place], None]] = {
    "listen": _listen,
    "http": _http("http_port"),
    "http_port": _http("http_port"),
    "monitor_port": _http("http_port"),
    "https": _http("https_port"),
    "https_port": _http("https_port"),
    "jetstream": _jetstream,
    "tls": tls,
    "authorization": authorization,
    "accounts": accounts,
    "mappings": mappings,
    "maps": mappings,
    "websocket": websocket,
    "leaf": leafnodes,
    "leafnodes": leafnodes,
    "operator": operator,
    "operators": operator,
    "resolver": resolver,
    "account_resolver": resolver,
    "resolver_preload": resolver_preload,
}
_NO_EFFECT = {
    "cluster",
    "connect_error_reports",
    "disable_sublist_cache",
    "gateway",
    "log_size_limit",
    "logfile_size_limit",
    "max_closed_clients",
    "max_traced_msg_len",
    "mqtt",
    "prof_port",
    "reconnect_error_reports",
}
_NOT_YET = {
    "resolver_tls",
}
