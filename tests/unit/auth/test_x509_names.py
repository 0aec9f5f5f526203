"""Names in certificates."""

from __future__ import annotations

from collections import Counter

import pytest

from headrace.auth.x509_names import get_alternative_names, get_distinguished_name, parse_distinguished_name


def name(*parts: tuple[str, str]) -> Counter[frozenset[tuple[str, str]]]:
    return Counter(frozenset({part}) for part in parts)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CN=a", name(("cn", "a"))),
        ("cn = a , OU = b", name(("cn", "a"), ("ou", "b"))),
        ("CN=a,OU=b,OU=b", name(("cn", "a"), ("ou", "b"), ("ou", "b"))),
        (r"CN=a\, b,O=x", name(("cn", "a, b"), ("o", "x"))),
        (r"CN=\c3\a9", name(("cn", "é"))),
        ("CN=a+OU=b", Counter({frozenset({("cn", "a"), ("ou", "b")}): 1})),
        ("1.2.840=x", name(("1.2.840", "x"))),
        ("alice", None),
        ("alice@example.org", None),
        ("", None),
        ("CN=a,", None),
        ("=a", None),
        ('CN=a"b', None),
    ],
)
def test_distinguished_names_are_parsed(
    text: str, expected: Counter[frozenset[tuple[str, str]]] | None
) -> None:
    assert parse_distinguished_name(text) == expected


def test_the_name_in_a_certificate() -> None:
    certificate = {
        "subject": ((("countryName", "US"),), (("organizationName", "x"),), (("commonName", "a"),)),
        "subjectAltName": (("DNS", "h"), ("URI", "u:x"), ("email", "e@x"), ("IP Address", "1.2.3.4")),
    }
    assert get_distinguished_name(certificate) == parse_distinguished_name("CN=a,O=x,C=US")
    assert get_alternative_names(certificate) == ["e@x", "h", "u:x"]
    assert not get_distinguished_name({})
