"""Reads the names in a client's certificate, in the order in which they are tried as user names.

Owns the comparison of distinguished names: two are equal if they have the same parts, each as often, in any order. TLS
has verified the certificate before it gets here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

_SHORT_NAMES = {
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
_ATTRIBUTE_TYPE = re.compile(r"\s*([A-Za-z][A-Za-z0-9-]*|\d+(?:\.\d+)*)\s*=\s*")
_VALUE = re.compile(r"(?:\\[0-9A-Fa-f]{2}|\\.|[^\\,+;\"<>])*")
_ESCAPED = re.compile(rb"\\([0-9A-Fa-f]{2})|\\(.)")

#: The parts of a distinguished name; each part is a set of attributes, usually of one.
DistinguishedName = Counter[frozenset[tuple[str, str]]]


def get_alternative_names(certificate: Mapping[str, Any]) -> list[str]:
    """Return e-mail addresses, host names and URIs: each is tried as a user name, in this order."""
    pairs = certificate.get("subjectAltName", ())
    return [value for kind in ("email", "DNS", "URI") for key, value in pairs if key == kind]


def get_distinguished_name(certificate: Mapping[str, Any]) -> DistinguishedName:
    """Return the subject of the certificate."""
    return Counter(
        frozenset((_normalize_type(key), value.strip()) for key, value in part)
        for part in certificate.get("subject", ())
    )


def parse_distinguished_name(text: str) -> DistinguishedName | None:
    """Parse a distinguished name such as `CN=a,OU=b,O=c`; None if it is not one."""
    parts: DistinguishedName = Counter()
    part: set[tuple[str, str]] = set()
    position = 0
    while True:
        key = _ATTRIBUTE_TYPE.match(text, position)
        if key is None:
            return None
        value = _VALUE.match(text, key.end())
        assert value is not None
        part.add((_normalize_type(key[1]), _unescape(value[0]).strip()))
        position = value.end()
        separator = text[position : position + 1]
        if separator not in ("", ",", ";", "+"):
            return None
        if separator != "+":
            parts[frozenset(part)] += 1
            part = set()
        if not separator:
            return parts
        position += 1


def _normalize_type(name: str) -> str:
    lower = name.lower()
    return _SHORT_NAMES.get(lower, lower)


def _unescape(text: str) -> str:
    def decode_escape(match: re.Match[bytes]) -> bytes:
        return bytes.fromhex(match[1].decode()) if match[1] else match[2]

    return _ESCAPED.sub(decode_escape, text.encode()).decode("utf-8", "replace")
