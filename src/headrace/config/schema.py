"""Maps the keys of a configuration file to Options.

Owns the names of the keys. An unknown or unsupported key is an error with its position and never silently ignored,
because it may be a security setting. Keys that have no effect in Headrace and are harmless to ignore cause a warning.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headrace.config.archive_options import ArchiveOptions
from headrace.config.config_parser import ConfigFileError, Section, SourcePos, parse_config
from headrace.config.options import LogFormat
from headrace.config.readers import (
    ConfigDraft,
    SectionReader,
    SectionSchema,
    fail,
    read_bool,
    read_enabled,
    read_host_port,
    read_int,
    read_seconds,
    read_section,
    read_string,
    read_strings,
    read_value,
    warn_ignored,
)
from headrace.config.schema_accounts import read_accounts, read_mappings
from headrace.config.schema_leafnodes import read_leafnodes
from headrace.config.schema_operator import read_operator, read_resolver, read_resolver_preload
from headrace.config.schema_tls_websocket import read_tls, read_websocket
from headrace.config.schema_users import read_authorization


def load_config(path: str, environment: Mapping[str, str]) -> ConfigDraft:
    """Load a configuration file; raise ConfigFileError with the position of an error."""
    try:
        text = _read_file(path)
    except OSError as error:
        raise ConfigFileError(f"cannot read the configuration file {path!r}: {error.strerror}") from error
    except ValueError as error:  # not UTF-8, or not a path
        raise ConfigFileError(f"cannot read the configuration file {path!r}: {error}") from error
    return interpret(parse_config(text, path, _read_file, environment))


def _read_file(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")


def interpret(section: Section) -> ConfigDraft:
    """Return the settings of a parsed configuration."""
    draft = ConfigDraft()
    _TOP.read_into(draft.settings, draft, section)
    return draft


# Keys that set more than one option, or are sections of their own


def _read_listen(draft: ConfigDraft, value: object, pos: SourcePos) -> None:
    host, draft.settings["port"] = read_value(read_host_port, value, "listen", pos)
    if host is not None:
        draft.settings["host"] = host


def _make_http_reader(option: str) -> SectionReader:
    def listen(draft: ConfigDraft, value: object, pos: SourcePos) -> None:
        host, draft.settings[option] = read_value(read_host_port, value, option, pos)
        if host is not None:
            draft.settings["http_host"] = host

    return listen


def _read_jetstream(draft: ConfigDraft, value: object, pos: SourcePos) -> None:
    value = read_enabled(value)
    if isinstance(value, bool):
        draft.settings["jetstream"] = value
    else:
        draft.settings |= {"jetstream": True} | _JETSTREAM.read(draft, value, pos)


def _read_jetstream_limits(draft: ConfigDraft, value: object, pos: SourcePos) -> None:
    section = read_section(value, "limits", pos)
    for key, inner in section.items():
        if key.lower() == "batch":
            draft.settings |= _BATCH.read(draft, inner, section.positions[key])
        else:
            warn_ignored(draft, key, section.positions[key])


def _read_archive(draft: ConfigDraft, value: object, pos: SourcePos) -> None:
    draft.settings["archive"] = ArchiveOptions(**_ARCHIVE.read(draft, value, pos))


def _make_cluster_reader(key: str) -> SectionReader:
    def read(draft: ConfigDraft, value: object, pos: SourcePos) -> None:
        draft.cluster_sections.append((pos, key))

    return read


def _reject_resolver_tls(draft: ConfigDraft, value: object, pos: SourcePos) -> None:
    fail(pos, "'resolver_tls' is not supported: remove it")


# Keys

_BATCH = SectionSchema(
    "batch",
    {
        "max_inflight_per_stream": ("batch_max_inflight_per_stream", read_int),
        "max_inflight_total": ("batch_max_inflight_total", read_int),
        "max_msgs": ("batch_max_msgs", read_int),
        "timeout": ("batch_timeout_s", read_seconds),
    },
)
_ARCHIVE = SectionSchema(
    "archive",
    {
        "url": read_string,
        "ack": read_string,
        "group_bytes": read_int,
        "group_delay": ("group_delay_s", read_seconds),
        "max_lag": ("max_lag_s", read_seconds),
        "keep": ("keep_s", read_seconds),
        "local_bytes": read_int,
        "takeover_after": ("takeover_after_s", read_seconds),
    },
)
_JETSTREAM = SectionSchema(
    "jetstream",
    {
        "enabled": ("jetstream", read_bool),
        "store_dir storedir": read_string,
        "domain": read_string,
        "strict": read_bool,
        "max_file_store max_file": read_int,
        "max_memory_store max_mem_store max_mem": read_int,
    },
    section_readers={"limits": _read_jetstream_limits, "archive": _read_archive},
    # Headrace syncs before it acknowledges, whatever interval is configured.
    ignored="sync sync_interval max_buffered_size max_buffered_msgs unique_tag",
)
_TOP = SectionSchema(
    "",
    {
        "port": read_int,
        "host net": read_string,
        "server_name": read_string,
        "server_tags": read_strings,
        "client_advertise": read_string,
        "standalone": read_bool,
        "standby": read_bool,
        "allow_insecure": ("allow_remote_without_auth", read_bool),
        "max_payload": read_int,
        "max_pending": read_int,
        "max_control_line": read_int,
        "max_connections max_conn": read_int,
        "max_subscriptions max_subs": read_int,
        "max_subscription_tokens max_sub_tokens": read_int,
        "ping_interval": ("ping_interval_s", read_seconds),
        "ping_max": read_int,
        "write_deadline": ("write_deadline_s", read_seconds),
        "lame_duck_duration": ("lame_duck_duration_s", read_seconds),
        "lame_duck_grace_period": ("lame_duck_grace_s", read_seconds),
        "no_auth_user": read_string,
        "system_account system": read_string,
        "trusted_keys trusted": read_strings,
        "allow_non_tls": read_bool,
        "store_dir storedir": read_string,
        "claims": read_string,
        "tables": read_string,
        "debug": read_bool,
        "trace trace_verbose": read_bool,
        "logtime": ("log_time", read_bool),
        "logtime_utc": ("log_time_utc", read_bool),
        "log_file logfile": read_string,
        "log_format": lambda value: LogFormat(read_string(value)),
        "pid_file pidfile": read_string,
        "ports_file_dir": read_string,
        "http_admin_token": read_string,
    },
    section_readers={
        "listen": _read_listen,
        "http http_port monitor_port": _make_http_reader("http_port"),
        "https https_port": _make_http_reader("https_port"),
        "jetstream": _read_jetstream,
        "tls": read_tls,
        "authorization": read_authorization,
        "accounts": read_accounts,
        "mappings maps": read_mappings,
        "websocket": read_websocket,
        "leaf leafnodes": read_leafnodes,
        "operator operators": read_operator,
        "resolver account_resolver": read_resolver,
        "resolver_preload": read_resolver_preload,
        "resolver_tls": _reject_resolver_tls,
        **{key: _make_cluster_reader(key) for key in ("cluster", "gateway", "mqtt")},
    },
    ignored="connect_error_reports disable_sublist_cache log_size_limit logfile_size_limit "
    "max_closed_clients max_traced_msg_len prof_port reconnect_error_reports",
)
