"""Names of streams and consumers, subjects given as text, and the short hash that nats-server uses for names."""

import hashlib
import re

from headrace.protocol import subjects

NAME_MAX = 255
DESCRIPTION_MAX = 4096

_NOT_IN_NAMES = re.compile(r"[ \t\r\n\f.*>\\/]")
_PATH = re.compile(r"[\\/]")
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def is_valid_name(name: str) -> bool:
    """Return whether a stream or consumer may have that name (its length aside)."""
    return bool(name) and _NOT_IN_NAMES.search(name) is None


def has_path_separator(name: str) -> bool:
    return _PATH.search(name) is not None


def is_valid_subject(subject: str) -> bool:
    """Return whether it is a subject or a pattern."""
    return "\f" not in subject and subjects.is_valid(subject.encode())


def is_literal(subject: str) -> bool:
    """Return whether it has no wildcards."""
    return subjects.is_literal(subject.encode())


def overlaps(one: str, other: str) -> bool:
    """Return whether some subject matches both patterns."""
    return subjects.overlaps(one.encode(), other.encode())


def is_subset(inner: str, outer: str) -> bool:
    """Return whether every subject of one pattern matches the other."""
    return subjects.is_subset(inner.encode(), outer.encode())


def short_hash(text: str) -> str:
    """Return eight letters and digits from SHA-256, as in `JS_SRC_...` and stream identities."""
    return "".join(_DIGITS[byte % 62] for byte in hashlib.sha256(text.encode()).digest()[:8])
