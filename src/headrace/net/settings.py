"""What the keys of a configuration file mean, in terms of Options.

Owns the names of the keys. A key that is not known, or that asks for something this server cannot do, is an
error with its place, never passed over in silence: a setting that protects must not be lost. Keys that have
no effect here, and whose loss harms nobody, are reported as warnings.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headrace.net.conf import ConfigError, Place, Section, parse
from headrace.net.options import LogFormat
from headrace.net.settings_accounts import accounts, mappings
from headrace.net.settings_doors import tls, websocket
from headrace.net.settings_leafnodes import leafnodes
from headrace.net.settings_trust import operator, resolver, resolver_preload
from headrace.net.settings_users import authorization
from headrace.net.values import (
    Draft,
    Keys,
    Part,
    address,
    enabling,
    fail,
    integer,
    read,
    seconds,
    section,
    switch,
    text,
    texts,
    without_effect,
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
    _TOP.read_into(draft.settings, draft, written)
    return draft


# Parts that set more than one option, or are sections of their own


def _listen(draft: Draft, value: object, place: Place) -> None:
    host, draft.settings["port"] = read(address, value, "listen", place)
    if host is not None:
        draft.settings["host"] = host


def _http(option: str) -> Part:
    def listen(draft: Draft, value: object, place: Place) -> None:
        host, draft.settings[option] = read(address, value, option, place)
        if host is not None:
            draft.settings["http_host"] = host

    return listen


def _jetstream(draft: Draft, value: object, place: Place) -> None:
    value = enabling(value)
    if isinstance(value, bool):
        draft.settings["jetstream"] = value
    else:
        draft.settings |= {"jetstream": True} | _JETSTREAM.read(draft, value, place)


def _jetstream_limits(draft: Draft, value: object, place: Place) -> None:
    written = section(value, "limits", place)
    for key, inner in written.items():
        if key.lower() == "batch":
            draft.settings |= _BATCH.read(draft, inner, written.places[key])
        else:
            without_effect(draft, key, written.places[key])


def _resolver_tls(draft: Draft, value: object, place: Place) -> None:
    fail(place, "'resolver_tls' is not supported yet: leave it out")


# The keys

_BATCH = Keys(
    "batch",
    {
        "max_inflight_per_stream": ("batch_max_inflight_per_stream", integer),
        "max_inflight_total": ("batch_max_inflight_total", integer),
        "max_msgs": ("batch_max_msgs", integer),
        "timeout": ("batch_timeout_s", seconds),
    },
)
_JETSTREAM = Keys(
    "jetstream",
    {
        "enabled": ("jetstream", switch),
        "store_dir storedir": text,
        "domain": text,
        "strict": switch,
        "max_file_store max_file": integer,
        "max_memory_store max_mem_store max_mem": integer,
    },
    parts={"limits": _jetstream_limits},
    # Ours syncs before it acknowledges, whatever interval is asked for.
    idle="sync sync_interval max_buffered_size max_buffered_msgs unique_tag",
)
_TOP = Keys(
    "",
    {
        "port": integer,
        "host net": text,
        "server_name": text,
        "server_tags": texts,
        "client_advertise": text,
        "allow_insecure": ("allow_remote_without_auth", switch),
        "max_payload": integer,
        "max_pending": integer,
        "max_control_line": integer,
        "max_connections max_conn": integer,
        "max_subscriptions max_subs": integer,
        "max_subscription_tokens max_sub_tokens": integer,
        "ping_interval": ("ping_interval_s", seconds),
        "ping_max": integer,
        "write_deadline": ("write_deadline_s", seconds),
        "lame_duck_duration": ("lame_duck_duration_s", seconds),
        "lame_duck_grace_period": ("lame_duck_grace_s", seconds),
        "no_auth_user": text,
        "system_account system": text,
        "trusted_keys trusted": texts,
        "allow_non_tls": switch,
        "store_dir storedir": text,
        "claims": text,
        "debug": switch,
        "trace trace_verbose": switch,
        "logtime": ("log_time", switch),
        "logtime_utc": ("log_time_utc", switch),
        "log_file logfile": text,
        "log_format": lambda value: LogFormat(text(value)),
        "pid_file pidfile": text,
        "ports_file_dir": text,
        "http_admin_token": text,
    },
    parts={
        "listen": _listen,
        "http http_port monitor_port": _http("http_port"),
        "https https_port": _http("https_port"),
        "jetstream": _jetstream,
        "tls": tls,
        "authorization": authorization,
        "accounts": accounts,
        "mappings maps": mappings,
        "websocket": websocket,
        "leaf leafnodes": leafnodes,
        "operator operators": operator,
        "resolver account_resolver": resolver,
        "resolver_preload": resolver_preload,
        "resolver_tls": _resolver_tls,
    },
    idle="cluster connect_error_reports disable_sublist_cache gateway log_size_limit logfile_size_limit "
    "max_closed_clients max_traced_msg_len mqtt prof_port reconnect_error_reports",
)
