"""The keys of `accounts`: who is in them, what they may keep, what they show each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from headrace.api.limits import NO_LIMITS, Limits
from headrace.broker.accounts import GLOBAL, AccountLimits
from headrace.broker.exports import (
    PATIENCE_NS,
    ExchangeError,
    Export,
    Import,
    check_cycles,
    find_export,
    inward,
    outward,
)
from headrace.broker.redirects import Destination, Redirect, RedirectError
from headrace.durations import duration_ns
from headrace.net.conf import Place
from headrace.net.options import AccountOptions
from headrace.net.settings_users import add_users
from headrace.net.values import (
    Draft,
    Keys,
    Row,
    anything,
    enabling,
    entries,
    fail,
    inside,
    integer,
    read,
    section,
    switch,
    text,
    texts,
)
from headrace.protocol import subjects

_ACCOUNT = Keys(
    "accounts",
    {
        "users": anything,
        "nkey": text,
        "jetstream": anything,
        "exports": anything,
        "imports": anything,
        "limits": anything,
        "mappings maps": anything,
        "default_permissions": anything,
    },
)
_STREAMS = Keys(
    "jetstream",
    {
        "max_memory max_mem mem memory": integer,
        "max_store max_file max_disk store disk": ("max_storage", integer),
        "max_streams streams": integer,
        "max_consumers consumers": integer,
        "max_bytes_required max_stream_bytes max_bytes": switch,
        "memory_max_stream_bytes mem_max_stream_bytes": integer,
        "disk_max_stream_bytes store_max_stream_bytes": ("storage_max_stream_bytes", integer),
        "max_ack_pending": integer,
        "cluster_traffic": anything,
    },
)
_LIMITS = Keys(
    "limits",
    {
        "max_connections max_conn": ("connections", integer),
        "max_leafnodes max_leafs": ("leafs", integer),
        "max_subscriptions max_subs": ("subscriptions", integer),
        "max_payload max_pay": ("payload", integer),
    },
)


class _Found(NamedTuple):
    account: AccountOptions
    place: Place


def accounts(draft: Draft, value: object, place: Place) -> None:
    """`accounts { A { ... } }`, or a list of names."""
    found: list[_Found] = []
    if isinstance(value, list):
        found = [_Found(AccountOptions(_name(each_name, place)), place) for each_name in value]
    else:
        written = section(value, "accounts", place)
        for name, inner in written.items():
            if name not in written.referred:
                found.append(_account(draft, _name(name, place), inner, written.places[name]))
    _check_exchange(found)
    draft.settings["accounts"] = tuple(entry.account for entry in found)


def _name(value: object, place: Place) -> str:
    name: str = read(text, value, "accounts", place)
    if name == GLOBAL:
        fail(place, f"{GLOBAL!r} is the account of those who are in no other; it is not configured")
    return name


def _account(draft: Draft, name: str, value: object, place: Place) -> _Found:
    found = _ACCOUNT.read(draft, value, place, f"accounts.{name}")
    if "users" in found:
        here = section(value, "accounts", place).places.get("users", place)
        add_users(draft, found["users"], found.get("default_permissions"), name, here)
    account = AccountOptions(
        name,
        streams=_streams(draft, found.get("jetstream", False), place),
        limits=AccountLimits(**_LIMITS.read(draft, found["limits"], place)) if "limits" in found else None,
        exports=tuple(_export(draft, entry, place) for entry in _list(found, "exports", place)),
        imports=tuple(_import(draft, entry, place) for entry in _list(found, "imports", place)),
        redirects=_redirects(draft, found["mappings"], place) if "mappings" in found else (),
    )
    return _Found(account, place)


def mappings(draft: Draft, value: object, place: Place) -> None:
    """`mappings { "from.*": "to.$1" }` of the global account."""
    draft.settings["redirects"] = _redirects(draft, value, place)


_DESTINATION: Mapping[str, Row] = {
    "dest destination": ("subject", text),
    "weight": lambda value: int(text(value).removesuffix("%")),
    "cluster": text,
}


def _redirects(draft: Draft, value: object, place: Place) -> tuple[Redirect, ...]:
    written = section(value, "mappings", place)
    return tuple(_redirect(draft, source, inner, written.places[source]) for source, inner in written.items())


def _redirect(draft: Draft, source: str, target: object, place: Place) -> Redirect:
    """A subject and where it leads: one destination, or a list of them with weights."""
    keys = Keys(source, _DESTINATION)
    found = [
        {"subject": entry} if isinstance(entry, str) else keys.read(draft, entry, place)
        for entry in (target if isinstance(target, list) else [target])
    ]
    # Those for a cluster never count: this is one server.
    plain = [entry for entry in found if not entry.pop("cluster", "")]
    if any("subject" not in entry for entry in found):
        fail(place, "a mapping needs a destination")
    redirect = Redirect(source, tuple(Destination(**entry) for entry in plain))
    try:
        redirect.check()
    except RedirectError as error:
        fail(place, str(error))
    return redirect


def _list(found: dict[str, Any], key: str, place: Place) -> list[object]:
    return entries(found.get(key, []), key, "stream: a", place)


def _streams(draft: Draft, value: object, place: Place) -> Limits | None:
    """`enabled`, `disabled`, or limits."""
    value = enabling(value)
    if isinstance(value, bool):
        return NO_LIMITS if value else None
    found = _STREAMS.read(draft, value, place)
    found.pop("cluster_traffic", None)
    return Limits(**found)


# Exports and imports

#: Traces and latencies are not measured here; what passes is the same without.
_UNMEASURED = "allow_trace latency"
_EXPORT = Keys(
    "exports",
    {
        "stream": text,
        "service": text,
        "accounts": texts,
        "account_token_position": ("account_token", integer),
        "response response_type": text,
        "threshold response_threshold response_max_time response_time": (
            "patience_ns",
            lambda value: duration_ns(text(value)),
        ),
    },
    idle=_UNMEASURED,
)
_RESPONSE_TYPES = {
    "single": "singleton",
    "singleton": "singleton",
    "stream": "stream",
    "chunk": "chunked",
    "chunked": "chunked",
}
_IMPORT = Keys(
    "imports",
    {"stream": anything, "service": anything, "prefix": text, "to": text, "share": switch},
    idle=_UNMEASURED,
)


def _one_kind(found: dict[str, Any], what: str, place: Place) -> str:
    kinds = [kind for kind in ("stream", "service") if kind in found]
    if len(kinds) != 1:
        fail(place, f"an {what} is either a stream or a service")
    return kinds[0]


def _subject(value: str, place: Place) -> bytes:
    if not subjects.valid(value.encode()):
        fail(place, f"{value!r} is no subject")
    return value.encode()


def _export(draft: Draft, value: object, place: Place) -> Export:
    found = _EXPORT.read(draft, value, place)
    here = inside(value, place)
    kind = _one_kind(found, "export", here)
    response = found.get("response", "singleton").lower()
    if response not in _RESPONSE_TYPES:
        fail(here, f"unknown response type {response!r}; there are singleton, stream and chunked")
    if kind == "stream" and ("response" in found or "patience_ns" in found):
        fail(here, "only services have a response")
    names = found.get("accounts")
    return Export(
        kind,  # type: ignore[arg-type]
        _subject(found[kind], here),
        accounts=frozenset(names) if names else None,
        account_token=found.get("account_token", 0),
        response=_RESPONSE_TYPES[response],  # type: ignore[arg-type]
        patience_ns=found.get("patience_ns", PATIENCE_NS),
    )


def _import(draft: Draft, value: object, place: Place) -> Import:
    found = _IMPORT.read(draft, value, place)
    here = inside(value, place)
    kind = _one_kind(found, "import", here)
    origin = Keys(kind, {"account": text, "subject": text}).read(draft, found[kind], here)
    if "account" not in origin or "subject" not in origin:
        fail(here, "an import names an account and a subject")
    if "prefix" in found and ("to" in found or kind == "service"):
        fail(here, "a prefix is for streams, and not together with 'to'")
    subject = _subject(origin["subject"], here)
    local = found.get("to", f"{found['prefix'].rstrip('.')}.{origin['subject']}" if "prefix" in found else "")
    made = Import(
        kind,  # type: ignore[arg-type]
        origin["account"],
        subject,
        _subject(local, here) if local else subject,
        share=found.get("share", False),
    )
    try:
        (outward(subject, made.local) if kind == "stream" else inward(made.local, subject))
    except ExchangeError as error:
        fail(here, str(error))
    return made


def _check_exchange(found: list[_Found]) -> None:
    """Whether every import is there to be had, and none leads back to itself."""
    exports = {entry.account.name: entry.account.exports for entry in found}
    for account, place in found:
        for export in account.exports:
            unknown = sorted((export.accounts or frozenset()) - set(exports))
            if unknown:
                fail(place, f"{unknown[0]!r} is no account")
        seen: set[tuple[str, str, bytes]] = set()
        for wanted in account.imports:
            if wanted.account not in exports:
                fail(place, f"{wanted.account!r} is no account")
            if find_export(exports[wanted.account], wanted, account.name) is None:
                fail(
                    place,
                    f"{account.name!r} may not import {wanted.subject.decode()!r} of {wanted.account!r}",
                )
            key = (wanted.kind, wanted.account, wanted.local if wanted.kind == "service" else wanted.subject)
            if key in seen:
                fail(place, f"{key[2].decode()!r} is imported twice")
            seen.add(key)
    try:
        check_cycles({entry.account.name: entry.account.imports for entry in found})
    except ExchangeError as error:
        fail(found[0].place, str(error))
