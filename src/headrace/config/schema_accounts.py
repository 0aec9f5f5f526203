"""The keys of `accounts`: users, limits, exports and imports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from headrace.broker.accounts import GLOBAL, AccountLimits
from headrace.broker.routing.exports import (
    RESPONSE_TIMEOUT_NS,
    AccountImportError,
    Export,
    Import,
    check_cycles,
    find_export,
    map_to_exporter,
    map_to_importer,
)
from headrace.broker.routing.subject_mapping import MappingDestination, MappingError, SubjectMapping
from headrace.config.config_parser import SourcePos
from headrace.config.options import AccountOptions
from headrace.config.readers import (
    ConfigDraft,
    KeyReader,
    SectionSchema,
    fail,
    get_section_pos,
    read_any,
    read_bool,
    read_enabled,
    read_int,
    read_list,
    read_section,
    read_string,
    read_strings,
    read_value,
)
from headrace.config.schema_users import add_users
from headrace.config.trace_options import NO_TRACE, TraceOptions
from headrace.durations import parse_duration_ns
from headrace.jetstream_api.account_limits import NO_LIMITS, JetStreamLimits
from headrace.protocol import subjects

_ACCOUNT = SectionSchema(
    "accounts",
    {
        "users": read_any,
        "nkey": read_string,
        "jetstream": read_any,
        "exports": read_any,
        "imports": read_any,
        "limits": read_any,
        "mappings maps": read_any,
        "trace_dest msg_trace": read_any,
        "default_permissions": read_any,
    },
)
_JETSTREAM_LIMITS = SectionSchema(
    "jetstream",
    {
        "max_memory max_mem mem memory": read_int,
        "max_store max_file max_disk store disk": ("max_storage", read_int),
        "max_streams streams": read_int,
        "max_consumers consumers": read_int,
        "max_bytes_required max_stream_bytes max_bytes": read_bool,
        "memory_max_stream_bytes mem_max_stream_bytes": read_int,
        "disk_max_stream_bytes store_max_stream_bytes": ("storage_max_stream_bytes", read_int),
        "max_ack_pending": read_int,
        "cluster_traffic": read_any,
    },
)
_LIMITS = SectionSchema(
    "limits",
    {
        "max_connections max_conn": ("connections", read_int),
        "max_leafnodes max_leafs": ("leafs", read_int),
        "max_subscriptions max_subs": ("subscriptions", read_int),
        "max_payload max_pay": ("payload", read_int),
    },
)


class _ParsedAccount(NamedTuple):
    account: AccountOptions
    pos: SourcePos


def read_accounts(draft: ConfigDraft, value: object, pos: SourcePos) -> None:
    """Read `accounts { A { ... } }`, or a list of names."""
    found: list[_ParsedAccount] = []
    if isinstance(value, list):
        found = [_ParsedAccount(AccountOptions(_read_name(each_name, pos)), pos) for each_name in value]
    else:
        section = read_section(value, "accounts", pos)
        for name, inner in section.items():
            if name not in section.referenced:
                found.append(_read_account(draft, _read_name(name, pos), inner, section.positions[name]))
    _check_imports(found)
    draft.settings["accounts"] = tuple(entry.account for entry in found)


def _read_name(value: object, pos: SourcePos) -> str:
    name: str = read_value(read_string, value, "accounts", pos)
    if name == GLOBAL:
        fail(pos, f"{GLOBAL!r} is the global account, which cannot be configured here")
    return name


def _read_account(draft: ConfigDraft, name: str, value: object, pos: SourcePos) -> _ParsedAccount:
    found = _ACCOUNT.read(draft, value, pos, f"accounts.{name}")
    if "users" in found:
        inner_pos = read_section(value, "accounts", pos).positions.get("users", pos)
        add_users(draft, found["users"], found.get("default_permissions"), name, inner_pos)
    account = AccountOptions(
        name,
        jetstream_limits=_read_jetstream_limits(draft, found.get("jetstream", False), pos),
        limits=AccountLimits(**_LIMITS.read(draft, found["limits"], pos)) if "limits" in found else None,
        exports=tuple(_read_export(draft, entry, pos) for entry in _read_list(found, "exports", pos)),
        imports=tuple(_read_import(draft, entry, pos) for entry in _read_list(found, "imports", pos)),
        subject_mappings=_parse_mappings(draft, found["mappings"], pos) if "mappings" in found else (),
        trace=_read_trace(draft, found["trace_dest"], pos) if "trace_dest" in found else NO_TRACE,
    )
    return _ParsedAccount(account, pos)


def _read_trace(draft: ConfigDraft, value: object, pos: SourcePos) -> TraceOptions:
    """Read `trace_dest: "subject"`, or a section with `dest` and `sampling`."""
    found = {"dest": value} if isinstance(value, str) else _TRACE.read(draft, value, pos)
    options = TraceOptions(**found)
    if not subjects.is_valid_publish(options.dest.encode()):
        fail(pos, f"trace destination {options.dest!r} is not a subject to publish to")
    if not 0 < options.sampling <= 100:
        fail(pos, f"the sampling of traces is {options.sampling} percent: use 1 to 100")
    return options


_TRACE = SectionSchema(
    "trace_dest",
    {"dest": read_string, "sampling": lambda value: int(read_string(value).removesuffix("%"))},
)


def read_mappings(draft: ConfigDraft, value: object, pos: SourcePos) -> None:
    """Read `mappings { "from.*": "to.$1" }` of the global account."""
    draft.settings["redirects"] = _parse_mappings(draft, value, pos)


_DESTINATION: Mapping[str, KeyReader] = {
    "dest destination": ("subject", read_string),
    "weight": lambda value: int(read_string(value).removesuffix("%")),
    "cluster": read_string,
}


def _parse_mappings(draft: ConfigDraft, value: object, pos: SourcePos) -> tuple[SubjectMapping, ...]:
    section = read_section(value, "mappings", pos)
    return tuple(
        _parse_mapping(draft, source, inner, section.positions[source]) for source, inner in section.items()
    )


def _parse_mapping(draft: ConfigDraft, source: str, target: object, pos: SourcePos) -> SubjectMapping:
    """Parse a mapping: one destination, or a list of them with weights."""
    keys = SectionSchema(source, _DESTINATION)
    found = [
        {"subject": entry} if isinstance(entry, str) else keys.read(draft, entry, pos)
        for entry in (target if isinstance(target, list) else [target])
    ]
    # Destinations for a cluster never apply, because Headrace is a single server.
    local_entries = [entry for entry in found if not entry.pop("cluster", "")]
    if any("subject" not in entry for entry in found):
        fail(pos, "the mapping has no destination")
    subject_mapping = SubjectMapping(source, tuple(MappingDestination(**entry) for entry in local_entries))
    try:
        subject_mapping.check()
    except MappingError as error:
        fail(pos, str(error))
    return subject_mapping


def _read_list(found: dict[str, Any], key: str, pos: SourcePos) -> list[object]:
    return read_list(found.get(key, []), key, "stream: a", pos)


def _read_jetstream_limits(draft: ConfigDraft, value: object, pos: SourcePos) -> JetStreamLimits | None:
    """Read `enabled`, `disabled`, or limits."""
    value = read_enabled(value)
    if isinstance(value, bool):
        return NO_LIMITS if value else None
    found = _JETSTREAM_LIMITS.read(draft, value, pos)
    found.pop("cluster_traffic", None)
    return JetStreamLimits(**found)


# Exports and imports

#: Service latencies are not supported; ignoring them does not affect messages.
_IGNORED_KEYS = "latency"
_EXPORT = SectionSchema(
    "exports",
    {
        "stream": read_string,
        "service": read_string,
        "accounts": read_strings,
        "account_token_position": ("account_token", read_int),
        "allow_trace": read_bool,
        "response response_type": read_string,
        "threshold response_threshold response_max_time response_time": (
            "response_timeout_ns",
            lambda value: parse_duration_ns(read_string(value)),
        ),
    },
    ignored=_IGNORED_KEYS,
)
_RESPONSE_TYPES = {
    "single": "singleton",
    "singleton": "singleton",
    "stream": "stream",
    "chunk": "chunked",
    "chunked": "chunked",
}
_IMPORT = SectionSchema(
    "imports",
    {
        "stream": read_any,
        "service": read_any,
        "prefix": read_string,
        "to": read_string,
        "share": read_bool,
        "allow_trace": read_bool,
    },
    ignored=_IGNORED_KEYS,
)


def _get_kind(found: dict[str, Any], what: str, pos: SourcePos) -> str:
    kinds = [kind for kind in ("stream", "service") if kind in found]
    if len(kinds) != 1:
        fail(pos, f"an {what} must be either a stream or a service")
    return kinds[0]


def _parse_subject(value: str, pos: SourcePos) -> bytes:
    if not subjects.is_valid(value.encode()):
        fail(pos, f"invalid subject {value!r}")
    return value.encode()


def _read_export(draft: ConfigDraft, value: object, pos: SourcePos) -> Export:
    found = _EXPORT.read(draft, value, pos)
    inner_pos = get_section_pos(value, pos)
    kind = _get_kind(found, "export", inner_pos)
    response = found.get("response", "singleton").lower()
    if response not in _RESPONSE_TYPES:
        fail(inner_pos, f"unknown response type {response!r}: use singleton, stream or chunked")
    if kind == "stream" and ("response" in found or "response_timeout_ns" in found):
        fail(inner_pos, "only services have a response")
    if kind == "stream" and "allow_trace" in found:
        fail(inner_pos, "allow_trace belongs to the import of a stream, or to the export of a service")
    names = found.get("accounts")
    return Export(
        kind,  # type: ignore[arg-type]
        _parse_subject(found[kind], inner_pos),
        accounts=frozenset(names) if names else None,
        account_token=found.get("account_token", 0),
        response=_RESPONSE_TYPES[response],  # type: ignore[arg-type]
        response_timeout_ns=found.get("response_timeout_ns", RESPONSE_TIMEOUT_NS),
        allow_trace=found.get("allow_trace", False),
    )


def _read_import(draft: ConfigDraft, value: object, pos: SourcePos) -> Import:
    found = _IMPORT.read(draft, value, pos)
    inner_pos = get_section_pos(value, pos)
    kind = _get_kind(found, "import", inner_pos)
    exported = SectionSchema(kind, {"account": read_string, "subject": read_string}).read(
        draft, found[kind], inner_pos
    )
    if "account" not in exported or "subject" not in exported:
        fail(inner_pos, "an import names an account and a subject")
    if "prefix" in found and ("to" in found or kind == "service"):
        fail(inner_pos, "a prefix is for streams, and not together with 'to'")
    if kind == "service" and "allow_trace" in found:
        fail(inner_pos, "allow_trace belongs to the export of a service, or to the import of a stream")
    subject = _parse_subject(exported["subject"], inner_pos)
    local = found.get(
        "to", f"{found['prefix'].rstrip('.')}.{exported['subject']}" if "prefix" in found else ""
    )
    account_import = Import(
        kind,  # type: ignore[arg-type]
        exported["account"],
        subject,
        _parse_subject(local, inner_pos) if local else subject,
        share=found.get("share", False),
        allow_trace=found.get("allow_trace", False),
    )
    try:
        (
            map_to_importer(subject, account_import.local)
            if kind == "stream"
            else map_to_exporter(account_import.local, subject)
        )
    except AccountImportError as error:
        fail(inner_pos, str(error))
    return account_import


def _check_imports(parsed_accounts: list[_ParsedAccount]) -> None:
    """Check that every import has an export, and that imports form no cycle."""
    exports = {entry.account.name: entry.account.exports for entry in parsed_accounts}
    for account, pos in parsed_accounts:
        for export in account.exports:
            unknown = sorted((export.accounts or frozenset()) - set(exports))
            if unknown:
                fail(pos, f"account {unknown[0]!r} is not configured")
        seen: set[tuple[str, str, bytes]] = set()
        for account_import in account.imports:
            if account_import.account not in exports:
                fail(pos, f"account {account_import.account!r} is not configured")
            if find_export(exports[account_import.account], account_import, account.name) is None:
                fail(
                    pos,
                    f"account {account.name!r} may not import {account_import.subject.decode()!r} "
                    f"from account {account_import.account!r}: it is not exported to it",
                )
            key = (
                account_import.kind,
                account_import.account,
                account_import.local if account_import.kind == "service" else account_import.subject,
            )
            if key in seen:
                fail(pos, f"{key[2].decode()!r} is imported twice")
            seen.add(key)
    try:
        check_cycles({entry.account.name: entry.account.imports for entry in parsed_accounts})
    except AccountImportError as error:
        fail(parsed_accounts[0].pos, str(error))
