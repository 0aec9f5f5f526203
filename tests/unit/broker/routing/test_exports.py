"""Exports and imports: permissions, mapping of subjects, and rejected cycles."""

from __future__ import annotations

import pytest

from headrace.broker.routing.exports import (
    AccountImportError,
    Export,
    Import,
    check_cycles,
    drop_cycles,
    find_export,
    map_to_exporter,
    map_to_importer,
    wildcard_form,
)


@pytest.mark.parametrize(
    ("subject", "local", "there", "here"),
    [
        (b"a", b"b", b"a", b"b"),
        (b"a.*", b"b.*", b"a.1", b"b.1"),
        (b"a.*.*", b"b.$2.$1", b"a.1.2", b"b.2.1"),
        (b"a.*.*", b"$2.x.$1", b"a.1.2", b"2.x.1"),
        (b"a.>", b"p.a.>", b"a.1.2", b"p.a.1.2"),
        (b"a.*.>", b"b.*.>", b"a.1.2.3", b"b.1.2.3"),
        (b"a.>", b"a.>", b"a.x", b"a.x"),
    ],
)
def test_mapping_both_ways(subject: bytes, local: bytes, there: bytes, here: bytes) -> None:
    assert map_to_importer(subject, local)(there) == here
    assert map_to_exporter(local, subject)(here) == there


@pytest.mark.parametrize(
    ("subject", "local"), [(b"a.*", b"b"), (b"a.*.*", b"b.$1.$1"), (b"a.>", b"b.*"), (b"a.*", b"b.$2")]
)
def test_what_cannot_be_mapped(subject: bytes, local: bytes) -> None:
    with pytest.raises(AccountImportError):
        map_to_importer(subject, local)
    with pytest.raises(AccountImportError):
        map_to_exporter(local, subject)


def test_templates_stand_for_patterns() -> None:
    assert wildcard_form(b"a.$2.b.$1.>") == b"a.*.b.*.>"


@pytest.mark.parametrize(
    ("export", "subject", "good"),
    [
        (Export("stream", b"a.>"), b"a.b", True),
        (Export("stream", b"a.>"), b"a.*", True),
        (Export("stream", b"a.*"), b"a.>", False),
        (Export("stream", b"a.b"), b"a.*", False),
        (Export("service", b"a.>"), b"a.b", False),
        (Export("stream", b"a.>", accounts=frozenset({"ME"})), b"a.b", True),
        (Export("stream", b"a.>", accounts=frozenset({"YOU"})), b"a.b", False),
        (Export("stream", b"a.*.>", account_token=2), b"a.ME.x", True),
        (Export("stream", b"a.*.>", account_token=2), b"a.YOU.x", False),
        (Export("stream", b"a.*.>", account_token=2), b"a.*.x", False),
        (Export("stream", b"a.>", token_required=True), b"a.b", False),
    ],
)
def test_who_may_import(export: Export, subject: bytes, good: bool) -> None:
    found = find_export([export], Import("stream", "THEM", subject, subject), "ME")
    assert (found is export) is good


def test_the_exact_export_decides() -> None:
    """A private subject inside a public pattern stays private."""
    exports = [Export("stream", b"a.>"), Export("stream", b"a.secret", accounts=frozenset({"YOU"}))]
    assert find_export(exports, Import("stream", "THEM", b"a.secret", b"a.secret"), "ME") is None
    assert find_export(exports, Import("stream", "THEM", b"a.open", b"a.open"), "ME") is exports[0]


def test_a_granted_token_opens_what_needs_one() -> None:
    export = Export("stream", b"a.>", token_required=True)
    assert (
        find_export([export], Import("stream", "THEM", b"a.b", b"a.b", token_accepted=True), "ME") is export
    )


def test_import_cycles_are_refused() -> None:
    def wants(account: str, subject: bytes = b"x") -> Import:
        return Import("service", account, subject, subject)

    check_cycles({"A": (wants("B"),), "B": (wants("C"),), "C": ()})
    check_cycles({"A": (wants("B", b"x"),), "B": (wants("A", b"y"),)})
    with pytest.raises(AccountImportError, match="cycle"):
        check_cycles({"A": (wants("B"),), "B": (wants("A"),)})
    with pytest.raises(AccountImportError, match="cycle"):
        check_cycles({"A": (wants("B"),), "B": (wants("C"),), "C": (wants("A"),)})


def test_what_would_close_a_ring_is_left_out() -> None:
    there, back = Import("stream", "B", b"x.>", b"x.>"), Import("stream", "A", b"x.>", b"x.>")
    other = Import("stream", "A", b"y", b"y")
    kept, refused = drop_cycles({"A": (there,), "B": (back, other)})
    assert kept == {"A": (there,), "B": (other,)}
    assert ["forms a cycle" in str(error) for error in refused] == [True]
