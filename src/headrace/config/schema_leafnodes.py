"""The section `leafnodes` of a configuration file.

Owns the names of its keys. As in `schema`, an unsupported security setting is an error.
"""

from __future__ import annotations

from typing import Any

from headrace.config.config_parser import Section, SourcePos
from headrace.config.leafnode_options import (
    LeafnodeCompressionOptions,
    LeafnodeOptions,
    LeafnodeRemote,
    LeafnodeTlsOptions,
)
from headrace.config.options import User
from headrace.config.readers import (
    ConfigDraft,
    SectionSchema,
    fail,
    read_any,
    read_bool,
    read_int,
    read_list,
    read_seconds,
    read_string,
    read_strings,
    read_value,
)

_LEAFNODES = SectionSchema(
    "leafnodes",
    {
        "listen": read_string,
        "port": read_int,
        "host net": read_string,
        "advertise leafnode_advertise": read_string,
        "no_advertise": read_bool,
        "reconnect reconnect_delay reconnect_interval": ("reconnect_s", read_seconds),
        "authorization": read_any,
        "tls": read_any,
        "remotes": read_any,
        "compression": read_any,
        "dial_timeout": ("dial_timeout_s", read_seconds),
    },
    ignored="min_version minimum_version write_deadline write_timeout",
)
_AUTHORIZATION = SectionSchema(
    "authorization",
    {
        "user username": read_string,
        "password pass": read_string,
        "account": read_string,
        "timeout": ("auth_timeout_s", read_seconds),
        "users": read_any,
    },
)
_USER = SectionSchema(
    "users", {"user username": ("name", read_string), "password pass": read_string, "account": read_string}
)
_TLS = SectionSchema(
    "tls",
    {
        "cert_file": ("cert", read_string),
        "key_file": ("key", read_string),
        "ca_file": ("ca", read_string),
        "verify": read_bool,
        "insecure": read_bool,
        "timeout": ("timeout_s", read_seconds),
        "handshake_first first immediate": read_bool,
    },
    ignored="cipher_suites curve_preferences",
)
#: Names of a mode in a configuration file.
_COMPRESSION_MODES = {
    **dict.fromkeys(("off", "disabled", "false"), "off"),
    **dict.fromkeys(("on", "enabled", "true", "s2_auto", "auto"), "s2_auto"),
    **{
        name: f"s2_{name.removeprefix('s2_')}"
        for name in ("s2_fast", "fast", "s2_better", "better", "s2_best", "best")
    },
    "accept": "accept",
    "not supported": "not supported",
}
RTT_THRESHOLDS_MAX = 4
_COMPRESSION = SectionSchema("compression", {"mode": read_any, "rtt_thresholds thresholds": read_any})
_REMOTE = SectionSchema(
    "remotes",
    {
        "urls url": read_strings,
        "account local": read_string,
        "credentials creds": read_string,
        "nkey seed": read_string,
        "tls": read_any,
        "hub": read_bool,
        "deny_imports deny_import": read_strings,
        "deny_exports deny_export": read_strings,
        "no_randomize dont_randomize": read_bool,
        "ignore_discovered_servers": ("ignore_discovered", read_bool),
        "disabled": read_bool,
        "dial_timeout": ("dial_timeout_s", read_seconds),
        "first_info_timeout": ("first_info_timeout_s", read_seconds),
        "compression": read_any,
    },
    ignored="jetstream_cluster_migrate js_cluster_migrate",
)


def read_leafnodes(draft: ConfigDraft, value: object, pos: SourcePos) -> None:
    """Read the section `leafnodes`."""
    found = _LEAFNODES.read(draft, value, pos)
    _read_compression(draft, found, pos)
    if "listen" in found:
        found |= _read_address(found.pop("listen"), pos)
    if "tls" in found:
        found["tls"] = LeafnodeTlsOptions(**_TLS.read(draft, found["tls"], pos))
    dial_timeout_s = found.pop("dial_timeout_s", None)
    if "authorization" in found:
        found |= _read_authorization(draft, found.pop("authorization"), pos)
    remotes = read_list(found.pop("remotes", []), "remotes", "url: ...", pos)
    found["remotes"] = tuple(_read_remote(draft, remote, pos, dial_timeout_s) for remote in remotes)
    draft.settings["leafnodes"] = LeafnodeOptions(**found)


def _read_address(listen: str, pos: SourcePos) -> dict[str, Any]:
    host, _, port = listen.rpartition(":")
    return {"port": read_value(read_int, port, "listen", pos)} | ({"host": host.strip("[]")} if host else {})


def _read_compression(draft: ConfigDraft, found: dict[str, Any], pos: SourcePos) -> None:
    """Replace the value of `compression`, a mode or a section, by options."""
    if "compression" not in found:
        return
    value = found["compression"]
    section = _COMPRESSION.read(draft, value, pos) if isinstance(value, Section) else {"mode": value}
    options: dict[str, Any] = {}
    mode = str(section.get("mode", "")).lower()
    if mode:
        if mode not in _COMPRESSION_MODES:
            fail(
                pos,
                f"unsupported compression mode {mode!r}: use off, accept, s2_fast, s2_better, s2_best or s2_auto",
            )
        options["mode"] = _COMPRESSION_MODES[mode]
    if section.get("rtt_thresholds"):
        thresholds = tuple(
            read_value(read_seconds, each, "rtt_thresholds", pos)
            for each in read_list(section["rtt_thresholds"], "rtt_thresholds", "10ms", pos)
        )
        if list(thresholds) != sorted(thresholds) or len(thresholds) > RTT_THRESHOLDS_MAX:
            fail(pos, f"rtt_thresholds must be ascending and at most {RTT_THRESHOLDS_MAX}")
        options["rtt_thresholds_s"] = thresholds
    found["compression"] = LeafnodeCompressionOptions(**options)


def _read_authorization(draft: ConfigDraft, value: object, pos: SourcePos) -> dict[str, Any]:
    found = _AUTHORIZATION.read(draft, value, pos)
    users = read_list(found.get("users", []), "users", "user: a, password: b", pos)
    found["users"] = tuple(User(**_USER.read(draft, user, pos)) for user in users)
    return found


def _read_remote(
    draft: ConfigDraft, value: object, pos: SourcePos, dial_timeout_s: float | None
) -> LeafnodeRemote:
    found = _REMOTE.read(draft, value, pos)
    _read_compression(draft, found, pos)
    if "urls" not in found:
        fail(pos, "a leafnode remote has no url")
    if "tls" in found:
        found["tls"] = LeafnodeTlsOptions(**_TLS.read(draft, found["tls"], pos))
    if dial_timeout_s is not None:
        found.setdefault("dial_timeout_s", dial_timeout_s)
    return LeafnodeRemote(**found)
