"""Parses the values of options.

Owns conversions of single values. Invariant: a value that is not valid raises ValueError with a text that names it. Must
not know which option a value belongs to.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from headrace.durations import parse_duration_ns, parse_size

NS = 1_000_000_000


def parse_bool(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def parse_positive_int(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(f"{text!r} is not a positive number")
    return number


def parse_claims_mode(text: str) -> str:
    if text not in ("ref", "inline"):
        raise ValueError(
            f"{text!r} is neither ref (the reference in column `claim`) nor inline (the payload in column `data`)"
        )
    return text


def parse_claim_errors(text: str) -> str:
    if text not in ("fail", "column"):
        raise ValueError(f"{text!r} is neither fail nor column (errors are in column `claim_error`)")
    return text


def parse_word(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        found = [word for word in words if word.lower() == text.strip().lower()]
        if not found:
            raise ValueError(f"{text!r} is not {' or '.join(words)}")
        return found[0]

    return parse


def parse_pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is not a regular expression: {error}") from error
    return text


def parse_reader_name(text: str) -> str:
    if not re.fullmatch(r"[\w-]+", text):
        raise ValueError(f"{text!r} is not a valid name: use letters, digits, - and _")
    return text


def parse_seconds(text: str) -> float:
    return parse_duration_ns(text) / NS


def parse_lease_s(text: str) -> float:
    seconds = parse_seconds(text)
    if seconds < 1:
        raise ValueError(f"{text!r} is too short: a lease lasts at least one second")
    return seconds


def parse_limit_bytes(text: str) -> int:
    size = parse_size(text)
    if not size:
        raise ValueError(f"{text!r} is not a valid limit; omit the option for no limit")
    return size


def parse_text(text: str) -> str:
    return text


def parse_file(text: str) -> str:
    if not Path(text).exists():
        raise ValueError(f"there is no file {text!r} on this machine")
    return text


def parse_credentials(text: str) -> str:
    """Return the path of a credentials file, or its text. The value may be a secret, so no error contains it."""
    if "-BEGIN " in text:
        return text
    try:
        is_file = Path(text).is_file()
    except OSError:  # too long for a name
        is_file = False
    if not is_file:
        raise ValueError("it is neither a file on this machine nor the text of one, with -----BEGIN lines")
    return text
