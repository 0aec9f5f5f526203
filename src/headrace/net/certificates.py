"""Who a client's certificate speaks of: the names in it, in the order in which they are tried as users.

Owns the comparison of distinguished names: two are the same when they have the same parts, each as often, in
whatever order they are written. The certificate itself was verified by TLS before it comes here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

_SHORT = {
    "commonname": "cn",
    "organizationname": "o",
    "organizationalunitname": "ou",
    "countryname": "c",
    "localityname": "l",
    "stateorprovincename": "st",
    "streetaddress": "street",
    "domaincomponent": "dc",
    "userid": "uid",
    "surname": "sn",
    "emailaddress": "email",
    "e": "email",
}
_PAIR = re.compile(r"\s*([A-Za-z][A-Za-z0-9-]*|\d+(?:\.\d+)*)\s*=\s*")
_VALUE = re.compile(r"(?:\\[0-9A-Fa-f]{2}|\\.|[^\\,+;\"<>])*")
_ESCAPED = re.compile(rb"\\([0-9A-Fa-f]{2})|\\(.)")

#: The parts of a distinguished name: a part is a set of attributes, as a rule of one.
Name = Counter[frozenset[tuple[str, str]]]


def alternative_names(certificate: Mapping[str, Any]) -> list[str]:
    """E-mail addresses, host names, URIs: in this order each is tried as the name of a user."""
    pairs = certificate.get("subjectAltName", ())
    return [value for kind in ("email", "DNS", "URI") for key, value in pairs if key == kind]


def distinguished_name(certificate: Mapping[str, Any]) -> Name:
    """Whom the certificate was issued to."""
    return Counter(
        frozenset((_type(key), value.strip()) for key, value in part)
        for part in certificate.get("subject", ())
    )


def parse_name(text: str) -> Name | None:
    """A distinguished name as it is written, `CN=a,OU=b,O=c`; None when it is none."""
    parts: Name = Counter()
    part: set[tuple[str, str]] = set()
    at = 0
    while True:
        key = _PAIR.match(text, at)
        if key is None:
            return None
        value = _VALUE.match(text, key.end())
        assert value is not None
        part.add((_type(key[1]), _unescape(value[0]).strip()))
        at = value.end()
        sign = text[at : at + 1]
        if sign not in ("", ",", ";", "+"):
            return None
        if sign != "+":
            parts[frozenset(part)] += 1
            part = set()
        if not sign:
            return parts
        at += 1


def _type(name: str) -> str:
    lower = name.lower()
    return _SHORT.get(lower, lower)


def _unescape(text: str) -> str:
    def plain(match: re.Match[bytes]) -> bytes:
        return bytes.fromhex(match[1].decode()) if match[1] else match[2]

    return _ESCAPED.sub(plain, text.encode()).decode("utf-8", "replace")
