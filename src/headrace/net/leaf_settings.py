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

_LISTENER: Keys = {
    "listen": ("listen", text),
    "port": ("port", integer),
    "host": ("host", text),
    "net": ("host", text),
    "advertise": ("advertise", text),
    "leafnode_advertise": ("advertise", text),
    "no_advertise": ("no_advertise", switch),
    "reconnect": ("reconnect_s", seconds),
    "reconnect_delay": ("reconnect_s", seconds),
    "reconnect_interval": ("reconnect_s", seconds),
    "authorization": ("authorization", anything),
    "tls": ("tls", anything),
    "remotes": ("remotes", anything),
    "compression": ("compression", anything),
    "dial_timeout": ("dial_timeout_s", seconds),
}
_AUTHORIZATION: Keys = {
    "user": ("user", text),
    "username": ("user", text),
    "pass": ("password", text),
    "password": ("password", text),
    "account": ("account", text),
    "timeout": ("auth_timeout_s", seconds),
    "users": ("users", anything),
}
_USER: Keys = {
    "user": ("name", text),
    "username": ("name", text),
    "pass": ("password", text),
    "password": ("password", text),
    "account": ("account", text),
}
_TLS: Keys = {
    "cert_file": ("cert", text),
    "key_file": ("key", text),
    "ca_file": ("ca", text),
    "verify": ("verify", switch),
    "insecure": ("insecure", switch),
    "timeout": ("timeout_s", seconds),
    "handshake_first": ("handshake_first", switch),
    "first": ("handshake_first", switch),
    "immediate": ("handshake_first", switch),
}
_REMOTE: Keys = {
    "url": ("urls", texts),
    "urls": ("urls", texts),
    "account": ("account", text),
    "local": ("account", text),
    "creds": ("credentials", text),
    "credentials": ("credentials", text),
    "nkey": ("nkey", text),
    "seed": ("nkey", text),
    "tls": ("tls", anything),
    "hub": ("hub", switch),
    "deny_imports": ("deny_imports", texts),
    "deny_import": ("deny_imports", texts),
    "deny_exports": ("deny_exports", texts),
    "deny_export": ("deny_exports", texts),
    "no_randomize": ("no_randomize", switch),
    "dont_randomize": ("no_randomize", switch),
    "ignore_discovered_servers": ("ignore_discovered", switch),
    "disabled": ("disabled", switch),
    "dial_timeout": ("dial_timeout_s", seconds),
    "first_info_timeout": ("first_info_timeout_s", seconds),
    "compression": ("compression", anything),
}
_TLS_NO_EFFECT = {"cipher_suites", "curve_preferences"}
_NO_EFFECT = {"min_version", "minimum_version", "write_deadline", "write_timeout"}
_REMOTE_NO_EFFECT = {"jetstream_cluster_migrate", "js_cluster_migrate"}
#: Connections stay uncompressed whatever is asked for; both sides agree on that when they meet.
_COMPRESSION = "compression"


def leafnodes(draft: Draft, value: object, place: Place) -> None:
    """Read the section."""
    found = each(without(draft, section(value, "leafnodes", place), _NO_EFFECT), _LISTENER, "leafnodes")
    _uncompressed(draft, found, place)
    if "listen" in found:
        found |= _address(found.pop("listen"), place)
    if "tls" in found:
        found["tls"] = _tls(draft, found["tls"], place)
    dial_timeout_s = found.pop("dial_timeout_s", None)
    found |= _authorization(found.pop("authorization", None), place)
    given = found.pop("remotes", [])
    if not isinstance(given, list):
        fail(place, "'remotes' is a list: remotes [ {url: ...} ]")
    found["remotes"] = tuple(_remote(draft, each_one, place, dial_timeout_s) for each_one in given)
    draft.settings["leafnodes"] = Leafnodes(**found)


def _address(listen: str, place: Place) -> dict[str, Any]:
    host, _, port = listen.rpartition(":")
    return {"port": read(integer, port, "listen", place)} | ({"host": host.strip("[]")} if host else {})


def _tls(draft: Draft, value: object, place: Place) -> LeafTls:
    return LeafTls(**each(without(draft, section(value, "tls", place), _TLS_NO_EFFECT), _TLS, "tls"))


def _uncompressed(draft: Draft, found: dict[str, Any], place: Place) -> None:
    asked = found.pop(_COMPRESSION, "off")
    if isinstance(asked, Section):
        asked = asked.get("mode", "off")
    if str(asked).lower() not in ("off", "false", "not supported"):
        draft.warnings.append(f"{place}: leafnode connections are not compressed")


def _authorization(value: object, place: Place) -> dict[str, Any]:
    if value is None:
        return {}
    found = each(section(value, "authorization", place), _AUTHORIZATION, "authorization")
    users = found.get("users", [])
    if not isinstance(users, list):
        fail(place, "'users' is a list: users [ {user: a, password: b} ]")
    found["users"] = tuple(User(**each(section(user, "users", place), _USER, "users")) for user in users)
    return found


def _remote(draft: Draft, value: object, place: Place, dial_timeout_s: float | None) -> LeafRemote:
    found = each(without(draft, section(value, "remotes", place), _REMOTE_NO_EFFECT), _REMOTE, "remotes")
    _uncompressed(draft, found, place)
    if "urls" not in found:
        fail(place, "a leafnode remote needs a url")
    if "tls" in found:
        found["tls"] = _tls(draft, found["tls"], place)
    if dial_timeout_s is not None:
        found.setdefault("dial_timeout_s", dial_timeout_s)
    return LeafRemote(**found)
