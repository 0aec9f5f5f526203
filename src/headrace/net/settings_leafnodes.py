"""The section `leafnodes` of a configuration file, in terms of options.

Owns the names of its keys. What would protect and is not supported is an error, as everywhere.
"""

from __future__ import annotations

from typing import Any

from headrace.net.conf import Place, Section
from headrace.net.leaf_options import Leafnodes, LeafRemote, LeafTls
from headrace.net.options import User
from headrace.net.values import (
    Draft,
    Keys,
    anything,
    entries,
    fail,
    integer,
    read,
    seconds,
    switch,
    text,
    texts,
)

_LEAFNODES = Keys(
    "leafnodes",
    {
        "listen": text,
        "port": integer,
        "host net": text,
        "advertise leafnode_advertise": text,
        "no_advertise": switch,
        "reconnect reconnect_delay reconnect_interval": ("reconnect_s", seconds),
        "authorization": anything,
        "tls": anything,
        "remotes": anything,
        "compression": anything,
        "dial_timeout": ("dial_timeout_s", seconds),
    },
    idle="min_version minimum_version write_deadline write_timeout",
)
_AUTHORIZATION = Keys(
    "authorization",
    {
        "user username": text,
        "password pass": text,
        "account": text,
        "timeout": ("auth_timeout_s", seconds),
        "users": anything,
    },
)
_USER = Keys("users", {"user username": ("name", text), "password pass": text, "account": text})
_TLS = Keys(
    "tls",
    {
        "cert_file": ("cert", text),
        "key_file": ("key", text),
        "ca_file": ("ca", text),
        "verify": switch,
        "insecure": switch,
        "timeout": ("timeout_s", seconds),
        "handshake_first first immediate": switch,
    },
    idle="cipher_suites curve_preferences",
)
_REMOTE = Keys(
    "remotes",
    {
        "urls url": texts,
        "account local": text,
        "credentials creds": text,
        "nkey seed": text,
        "tls": anything,
        "hub": switch,
        "deny_imports deny_import": texts,
        "deny_exports deny_export": texts,
        "no_randomize dont_randomize": switch,
        "ignore_discovered_servers": ("ignore_discovered", switch),
        "disabled": switch,
        "dial_timeout": ("dial_timeout_s", seconds),
        "first_info_timeout": ("first_info_timeout_s", seconds),
        "compression": anything,
    },
    idle="jetstream_cluster_migrate js_cluster_migrate",
)


def leafnodes(draft: Draft, value: object, place: Place) -> None:
    """Read the section."""
    found = _LEAFNODES.read(draft, value, place)
    _uncompressed(draft, found, place)
    if "listen" in found:
        found |= _address(found.pop("listen"), place)
    if "tls" in found:
        found["tls"] = LeafTls(**_TLS.read(draft, found["tls"], place))
    dial_timeout_s = found.pop("dial_timeout_s", None)
    if "authorization" in found:
        found |= _authorization(draft, found.pop("authorization"), place)
    given = entries(found.pop("remotes", []), "remotes", "url: ...", place)
    found["remotes"] = tuple(_remote(draft, each_one, place, dial_timeout_s) for each_one in given)
    draft.settings["leafnodes"] = Leafnodes(**found)


def _address(listen: str, place: Place) -> dict[str, Any]:
    host, _, port = listen.rpartition(":")
    return {"port": read(integer, port, "listen", place)} | ({"host": host.strip("[]")} if host else {})


def _uncompressed(draft: Draft, found: dict[str, Any], place: Place) -> None:
    """Connections stay uncompressed whatever is asked for; both sides agree on that when they meet."""
    asked = found.pop("compression", "off")
    if isinstance(asked, Section):
        asked = asked.get("mode", "off")
    if str(asked).lower() not in ("off", "false", "not supported"):
        draft.warnings.append(f"{place}: leafnode connections are not compressed")


def _authorization(draft: Draft, value: object, place: Place) -> dict[str, Any]:
    found = _AUTHORIZATION.read(draft, value, place)
    users = entries(found.get("users", []), "users", "user: a, password: b", place)
    found["users"] = tuple(User(**_USER.read(draft, user, place)) for user in users)
    return found


def _remote(draft: Draft, value: object, place: Place, dial_timeout_s: float | None) -> LeafRemote:
    found = _REMOTE.read(draft, value, place)
    _uncompressed(draft, found, place)
    if "urls" not in found:
        fail(place, "a leafnode remote needs a url")
    if "tls" in found:
        found["tls"] = LeafTls(**_TLS.read(draft, found["tls"], place))
    if dial_timeout_s is not None:
        found.setdefault("dial_timeout_s", dial_timeout_s)
    return LeafRemote(**found)
