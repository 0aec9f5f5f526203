"""Subjects: validity, wildcards, and the relations between patterns."""

import itertools

import pytest

from headrace.protocol import subjects


@pytest.mark.parametrize(
    "subject", [b"a", b"a.b", b"*", b">", b"a.*.c", b"a.>", b"a*", b"a>", b">a.b", "é.ü".encode()]
)
def test_valid_subjects_are_accepted(subject: bytes) -> None:
    assert subjects.is_valid(subject)


@pytest.mark.parametrize(
    "subject", [b"", b".", b"a.", b".a", b"a..b", b">.a", b"a.>.b", b"a b", b"a\t", b"a\r\n"]
)
def test_invalid_subjects_are_refused(subject: bytes) -> None:
    assert not subjects.is_valid(subject)


def test_wildcards_are_whole_tokens() -> None:
    assert subjects.is_literal(b"a*.b>")
    assert subjects.is_literal(b"a")
    assert not subjects.is_literal(b"a.*")
    assert not subjects.is_literal(b"a.>")


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        (b"a", b"a", True),
        (b"a", b"b", False),
        (b"a.*", b"a.b", True),
        (b"a.*", b"a", False),
        (b"a.*", b"a.b.c", False),
        (b"a.>", b"a", False),
        (b"a.>", b"a.b.c", True),
        (b">", b"a", True),
        (b"*.b", b"a.b", True),
        (b"a.*", b"a.*", True),
        (b"a.>", b"a.>", True),
        (b"a.b", b"a.*", False),
        (b"a*", b"ab", False),
        (b"a..b", b"a..b", False),
        (b">", b"a..b", False),
        (b"a.*", b"a.", False),
    ],
)
def test_wildcards_match_their_subjects(pattern: bytes, subject: bytes, expected: bool) -> None:
    assert subjects.matches(pattern, subject) is expected


def patterns() -> list[bytes]:
    """Return every pattern of up to three tokens over a small alphabet."""
    found = []
    for length in (1, 2, 3):
        for combination in itertools.product([b"a", b"b", b"*", b">"], repeat=length):
            pattern = b".".join(combination)
            if subjects.is_valid(pattern):
                found.append(pattern)
    return found


def test_relations_agree_with_enumeration() -> None:
    words = [b".".join(c) for n in (1, 2, 3, 4) for c in itertools.product([b"a", b"b", b"c"], repeat=n)]
    caught = {p: {w for w in words if subjects.matches(p, w)} for p in patterns()}
    for one, two in itertools.product(caught, repeat=2):
        assert subjects.overlaps(one, two) == bool(caught[one] & caught[two]), (one, two)
        assert subjects.is_subset(one, two) == (caught[one] <= caught[two]), (one, two)
