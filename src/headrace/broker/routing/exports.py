"""Exports and imports between accounts, and how subjects are mapped between them.

Owns the rules: which account may import what, which mappings are valid, and that imports form no cycle. Everything here
is a pure function of the configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from headrace.errors import HeadraceError
from headrace.jetstream_api.subject_transform import BadTransform, compile_transform
from headrace.protocol import subjects

ExportKind = Literal["stream", "service"]
ResponseType = Literal["singleton", "stream", "chunked"]
#: How long a reply is expected if the export does not say.
RESPONSE_TIMEOUT_NS = 120_000_000_000


class AccountImportError(HeadraceError):
    """An import that is not possible or not allowed."""


@dataclass(frozen=True, slots=True)
class Export:
    """An offer to other accounts: a stream of messages, or a service."""

    kind: ExportKind
    subject: bytes
    #: The accounts that may import it; None if it is public.
    accounts: frozenset[str] | None = None
    #: The token of the subject that must be the importing account's name, from 1; 0 if none.
    account_token: int = 0
    #: An import needs an activation token signed by the account.
    token_required: bool = False
    #: Activation tokens for these accounts, issued before these times (seconds), are revoked.
    revoked: tuple[tuple[str, int], ...] = ()
    response: ResponseType = "singleton"
    response_timeout_ns: int = RESPONSE_TIMEOUT_NS
    #: Traces of requests continue in the account of the service.
    allow_trace: bool = False


@dataclass(frozen=True, slots=True)
class Import:
    """An import from another account: `subject` there is `local` here."""

    kind: ExportKind
    account: str
    subject: bytes
    local: bytes
    #: The service receives information about the requester.
    share: bool = False
    #: Whether the activation token is valid; only the exporting account can decide that.
    token_accepted: bool = False
    #: Traces of messages of a stream continue in the importing account.
    allow_trace: bool = False


def find_export(exports: Iterable[Export], wanted: Import, importer: str) -> Export | None:
    """Return the export that allows an import; None if there is none."""
    fitting = [
        export
        for export in exports
        if export.kind == wanted.kind and subjects.is_subset(wanted.subject, export.subject)
    ]
    # An export with exactly this subject takes precedence.
    fitting.sort(key=lambda export: export.subject != wanted.subject)
    return fitting[0] if fitting and _is_allowed(fitting[0], wanted, importer) else None


def check_import(exports: Iterable[Export], wanted: Import, importer: str) -> Export:
    """Return the export of an import; raise AccountImportError if there is none or the subjects cannot be mapped."""
    export = find_export(exports, wanted, importer)
    if export is None:
        raise AccountImportError(
            f"account {importer!r} may not import {wanted.kind} {wanted.subject.decode()!r} "
            f"of account {wanted.account!r}"
        )
    if wanted.kind == "stream":
        map_to_importer(wanted.subject, wanted.local)
    else:
        map_to_exporter(wanted.local, wanted.subject)
    return export


def _is_allowed(export: Export, wanted: Import, importer: str) -> bool:
    if export.account_token:
        tokens = subjects.tokens(wanted.subject)
        return export.account_token <= len(tokens) and tokens[export.account_token - 1].decode() == importer
    if export.token_required:
        return wanted.token_accepted
    return export.accounts is None or importer in export.accounts


# Mapping


def _number_wildcards(pattern: bytes) -> list[bytes]:
    """Return the tokens of a pattern with `$1`, `$2`, ... in place of each `*`."""
    count, made = 0, []
    for token in subjects.tokens(pattern):
        if token == subjects.STAR:
            count += 1
            token = b"$%d" % count
        made.append(token)
    return made


def _wildcard_number(token: bytes) -> int:
    return int(token[1:]) if token[:1] == b"$" and token[1:].isdigit() else 0


def wildcard_form(template: bytes) -> bytes:
    """Return the pattern of a template: `a.*.*` for `a.$2.$1`."""
    return b".".join(
        subjects.STAR if _wildcard_number(token) else token for token in subjects.tokens(template)
    )


def map_to_importer(subject: bytes, local: bytes) -> Callable[[bytes], bytes]:
    """Compile the mapping from the exporter's subject to the importer's."""
    if subjects.is_literal(subject):
        return lambda _: local
    return _compile_mapping(subject, b".".join(_number_wildcards(local)))


def map_to_exporter(local: bytes, subject: bytes) -> Callable[[bytes], bytes]:
    """Compile the mapping from the importer's subject to the exporter's."""
    if subjects.is_literal(subject):
        return lambda _: subject
    numbers = [_wildcard_number(token) for token in _number_wildcards(local) if _wildcard_number(token)]
    made = []
    for token in _number_wildcards(subject):
        number = _wildcard_number(token)
        if number and number not in numbers:
            raise AccountImportError(
                f"{local.decode()!r} does not use every wildcard of {subject.decode()!r}"
            )
        made.append(b"$%d" % (numbers.index(number) + 1) if number else token)
    return _compile_mapping(wildcard_form(local), b".".join(made))


def _compile_mapping(source: bytes, target: bytes) -> Callable[[bytes], bytes]:
    used = {_wildcard_number(token) for token in subjects.tokens(target)} - {0}
    if used != set(range(1, subjects.tokens(source).count(subjects.STAR) + 1)):
        raise AccountImportError(f"{target.decode()!r} does not use every wildcard of {source.decode()!r}")
    try:
        return compile_transform(source.decode(), target.decode())
    except BadTransform as error:
        raise AccountImportError(f"cannot map {source.decode()!r} to {target.decode()!r}: {error}") from None


# Cycles


def check_cycles(imports_by_account: dict[str, tuple[Import, ...]]) -> None:
    """Raise AccountImportError if imports form a cycle."""
    for importer, imports in imports_by_account.items():
        for wanted in imports:
            _check_cycle(imports_by_account, wanted, wanted.subject, (importer,))


def drop_cycles(
    imports_by_account: dict[str, tuple[Import, ...]],
) -> tuple[dict[str, tuple[Import, ...]], list[AccountImportError]]:
    """Return the imports that do not form a cycle, and the reason each dropped import was rejected."""
    accepted: dict[str, tuple[Import, ...]] = dict.fromkeys(imports_by_account, ())
    rejected: list[AccountImportError] = []
    for importer, imports in imports_by_account.items():
        for wanted in imports:
            candidate = accepted | {importer: (*accepted[importer], wanted)}
            try:
                _check_cycle(candidate, wanted, wanted.subject, (importer,))
            except AccountImportError as error:
                rejected.append(error)
            else:
                accepted = candidate
    return accepted, rejected


def _check_cycle(
    imports_by_account: dict[str, tuple[Import, ...]], start: Import, subject: bytes, seen: tuple[str, ...]
) -> None:
    exporter = start.account
    if exporter in seen:
        raise AccountImportError(f"the import of {start.kind} {start.subject.decode()!r} forms a cycle")
    for next_import in imports_by_account.get(exporter, ()):
        if next_import.kind == start.kind and subjects.overlaps(subject, wildcard_form(next_import.local)):
            _check_cycle(imports_by_account, next_import, next_import.subject, (*seen, exporter))
