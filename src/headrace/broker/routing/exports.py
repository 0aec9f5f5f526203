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
#: How long an answer is expected when the export does not say.
RESPONSE_TIMEOUT_NS = 120_000_000_000


class AccountImportError(HeadraceError):
    """An import that cannot be had."""


@dataclass(frozen=True, slots=True)
class Export:
    """What an account lets others have: a stream of messages, or a service to ask."""

    kind: ExportKind
    subject: bytes
    #: None is public; the names of those who may otherwise.
    accounts: frozenset[str] | None = None
    #: Which token of the subject has to be the importing account's name; 0 is none.
    account_token: int = 0
    #: Importing takes a token that the account signed.
    token_required: bool = False
    #: Tokens for these accounts, issued before these times (seconds), count no more.
    revoked: tuple[tuple[str, int], ...] = ()
    response: ResponseType = "singleton"
    response_timeout_ns: int = RESPONSE_TIMEOUT_NS


@dataclass(frozen=True, slots=True)
class Import:
    """What an account takes from another: `subject` there is `local` here."""

    kind: ExportKind
    account: str
    subject: bytes
    local: bytes
    #: A service's account learns who asked.
    share: bool = False
    #: What the exporting account's token says; only it knows whether that is good.
    token_accepted: bool = False


def find_export(exports: Iterable[Export], wanted: Import, importer: str) -> Export | None:
    """The export that lets an account have what it wants; None when there is none."""
    fitting = [
        export
        for export in exports
        if export.kind == wanted.kind and subjects.is_subset(wanted.subject, export.subject)
    ]
    # The one with exactly this subject decides, if there is one.
    fitting.sort(key=lambda export: export.subject != wanted.subject)
    return fitting[0] if fitting and _is_allowed(fitting[0], wanted, importer) else None


def check_import(exports: Iterable[Export], wanted: Import, importer: str) -> Export:
    """The export that an import can be had from; ExchangeError when there is none, or subjects cannot be mapped."""
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
    """The tokens of a pattern with `$1`, `$2`, ... in place of its `*`."""
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
    """A template such as `a.$2.$1` as the pattern that it fills."""
    return b".".join(
        subjects.STAR if _wildcard_number(token) else token for token in subjects.tokens(template)
    )


def map_to_importer(subject: bytes, local: bytes) -> Callable[[bytes], bytes]:
    """From the exporter's subject to the importer's."""
    if subjects.is_literal(subject):
        return lambda _: local
    return _compile_mapping(subject, b".".join(_number_wildcards(local)))


def map_to_exporter(local: bytes, subject: bytes) -> Callable[[bytes], bytes]:
    """From the importer's subject to the exporter's."""
    if subjects.is_literal(subject):
        return lambda _: subject
    numbers = [_wildcard_number(token) for token in _number_wildcards(local) if _wildcard_number(token)]
    made = []
    for token in _number_wildcards(subject):
        number = _wildcard_number(token)
        if number and number not in numbers:
            raise AccountImportError(f"{local.decode()!r} leaves open a part of {subject.decode()!r}")
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
    """Refuse imports that lead back to where they came from."""
    for importer, imports in imports_by_account.items():
        for wanted in imports:
            _check_cycle(imports_by_account, wanted, wanted.subject, (importer,))


def drop_cycles(
    imports_by_account: dict[str, tuple[Import, ...]],
) -> tuple[dict[str, tuple[Import, ...]], list[AccountImportError]]:
    """These imports, except for those that would lead back to where those before them came from; why those are left out."""
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
