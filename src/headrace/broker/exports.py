"""What accounts let each other have: exports, imports, and how subjects are mapped between them.

Owns the rules: who may import what, which mappings make sense, and that no import leads back to where it came from.
Everything here is a pure function of what was configured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from headrace.api.transforms import BadMapping, compile_transform
from headrace.errors import HeadraceError
from headrace.protocol import subjects

Kind = Literal["stream", "service"]
Response = Literal["singleton", "stream", "chunked"]
#: How long an answer is expected when the export does not say.
PATIENCE_NS = 120_000_000_000


class ExchangeError(HeadraceError):
    """An import that cannot be had."""


@dataclass(frozen=True, slots=True)
class Export:
    """What an account lets others have: a stream of messages, or a service to ask."""

    kind: Kind
    subject: bytes
    #: None is public; the names of those who may otherwise.
    accounts: frozenset[str] | None = None
    #: Which token of the subject has to be the importing account's name; 0 is none.
    account_token: int = 0
    #: Importing takes a token that the account signed.
    token_required: bool = False
    #: Tokens for these accounts, issued before these times (seconds), count no more.
    revoked: tuple[tuple[str, int], ...] = ()
    response: Response = "singleton"
    patience_ns: int = PATIENCE_NS


@dataclass(frozen=True, slots=True)
class Import:
    """What an account takes from another: `subject` there is `local` here."""

    kind: Kind
    account: str
    subject: bytes
    local: bytes
    #: A service's account learns who asked.
    share: bool = False
    #: What the exporting account's token says; only it knows whether that is good.
    granted: bool = False


def find_export(exports: Iterable[Export], wanted: Import, importer: str) -> Export | None:
    """The export that lets an account have what it wants; None when there is none."""
    fitting = [
        export
        for export in exports
        if export.kind == wanted.kind and subjects.subset(wanted.subject, export.subject)
    ]
    # The one with exactly this subject decides, if there is one.
    fitting.sort(key=lambda export: export.subject != wanted.subject)
    return fitting[0] if fitting and _allowed(fitting[0], wanted, importer) else None


def check_import(exports: Iterable[Export], wanted: Import, importer: str) -> Export:
    """The export that an import can be had from; ExchangeError when there is none, or subjects cannot be mapped."""
    export = find_export(exports, wanted, importer)
    if export is None:
        raise ExchangeError(
            f"account {importer!r} may not import {wanted.kind} {wanted.subject.decode()!r} "
            f"of account {wanted.account!r}"
        )
    if wanted.kind == "stream":
        outward(wanted.subject, wanted.local)
    else:
        inward(wanted.local, wanted.subject)
    return export


def _allowed(export: Export, wanted: Import, importer: str) -> bool:
    if export.account_token:
        tokens = subjects.tokens(wanted.subject)
        return export.account_token <= len(tokens) and tokens[export.account_token - 1].decode() == importer
    if export.token_required:
        return wanted.granted
    return export.accounts is None or importer in export.accounts


# Mapping


def _numbered(pattern: bytes) -> list[bytes]:
    """The tokens of a pattern with `$1`, `$2`, ... in place of its `*`."""
    count, made = 0, []
    for token in subjects.tokens(pattern):
        if token == subjects.STAR:
            count += 1
            token = b"$%d" % count
        made.append(token)
    return made


def _place(token: bytes) -> int:
    return int(token[1:]) if token[:1] == b"$" and token[1:].isdigit() else 0


def starred(template: bytes) -> bytes:
    """A template such as `a.$2.$1` as the pattern that it fills."""
    return b".".join(subjects.STAR if _place(token) else token for token in subjects.tokens(template))


def outward(subject: bytes, local: bytes) -> Callable[[bytes], bytes]:
    """From the exporter's subject to the importer's."""
    if subjects.literal(subject):
        return lambda _: local
    return _compiled(subject, b".".join(_numbered(local)))


def inward(local: bytes, subject: bytes) -> Callable[[bytes], bytes]:
    """From the importer's subject to the exporter's."""
    if subjects.literal(subject):
        return lambda _: subject
    places = [_place(token) for token in _numbered(local) if _place(token)]
    made = []
    for token in _numbered(subject):
        place = _place(token)
        if place and place not in places:
            raise ExchangeError(f"{local.decode()!r} leaves open a part of {subject.decode()!r}")
        made.append(b"$%d" % (places.index(place) + 1) if place else token)
    return _compiled(starred(local), b".".join(made))


def _compiled(source: bytes, target: bytes) -> Callable[[bytes], bytes]:
    used = {_place(token) for token in subjects.tokens(target)} - {0}
    if used != set(range(1, subjects.tokens(source).count(subjects.STAR) + 1)):
        raise ExchangeError(f"{target.decode()!r} does not use every wildcard of {source.decode()!r}")
    try:
        return compile_transform(source.decode(), target.decode())
    except BadMapping as error:
        raise ExchangeError(f"cannot map {source.decode()!r} to {target.decode()!r}: {error}") from None


# Cycles


def check_cycles(plans: dict[str, tuple[Import, ...]]) -> None:
    """Refuse imports that lead back to where they came from."""
    for importer, imports in plans.items():
        for wanted in imports:
            _follow(plans, wanted, wanted.subject, (importer,))


def without_cycles(
    plans: dict[str, tuple[Import, ...]],
) -> tuple[dict[str, tuple[Import, ...]], list[ExchangeError]]:
    """These imports, except for those that would lead back to where those before them came from; why those are left out."""
    kept: dict[str, tuple[Import, ...]] = dict.fromkeys(plans, ())
    refused: list[ExchangeError] = []
    for importer, imports in plans.items():
        for wanted in imports:
            longer = kept | {importer: (*kept[importer], wanted)}
            try:
                _follow(longer, wanted, wanted.subject, (importer,))
            except ExchangeError as error:
                refused.append(error)
            else:
                kept = longer
    return kept, refused


def _follow(
    plans: dict[str, tuple[Import, ...]], start: Import, subject: bytes, seen: tuple[str, ...]
) -> None:
    here = start.account
    if here in seen:
        raise ExchangeError(f"the import of {start.kind} {start.subject.decode()!r} forms a cycle")
    for deeper in plans.get(here, ()):
        if deeper.kind == start.kind and subjects.collides(subject, starred(deeper.local)):
            _follow(plans, deeper, deeper.subject, (*seen, here))
