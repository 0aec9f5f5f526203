"""Subject transforms: `orders.*.>` to `o.$1.>`, with nats-server's mapping functions, compiled once.

`compile_transform` returns a function from a subject that the source matches to the new subject; the caller checks
whether it matches. `check_transform` raises nats-server's error. `{{random(n)}}` is the only function that is not a
pure function of its arguments.
"""

import random
import re
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

Tokens = list[bytes]
TokenFunction = Callable[[Tokens], bytes]
Transform = Callable[[bytes], bytes]

_BAD = "invalid mapping destination"
_FUNCTION = r"\{{\{{\s*{name}\s*\((.*)\)\s*\}}\}}"
_COMMA = re.compile(r",\s*")
_BLANK = re.compile("[\t\n\f\r ]")
_INT32_MIN, _INT32_MAX = -(2**31), 2**31 - 1
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_INT64_DIGITS_MAX = 4000  # more cannot be converted by `int`, and leading zeros are allowed


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(_FUNCTION.format(name=name))


# In the order in which nats-server tries them.
_FUNCTIONS = {
    "wildcard": _pattern("[wW]ildcard"),
    "partition": _pattern("[pP]artition"),
    "splitfromleft": _pattern("[sS]plit[fF]rom[lL]eft"),
    "splitfromright": _pattern("[sS]plit[fF]rom[rR]ight"),
    "slicefromleft": _pattern("[sS]lice[fF]rom[lL]eft"),
    "slicefromright": _pattern("[sS]lice[fF]rom[rR]ight"),
    "right": _pattern("[rR]ight"),
    "left": _pattern("[lL]eft"),
    "split": _pattern("[sS]plit"),
    "random": _pattern("[rR]andom"),
}


class BadTransform(ValueError):
    """The destination, or the pair, is invalid; the message is nats-server's."""


class TransformCall(NamedTuple):
    """One token of a destination: a function of source tokens, or (name "") a literal."""

    name: str
    wildcards: list[int]
    number: int
    text: str


def check_transform(source: str, dest: str) -> None:
    """Raise BadTransform for an invalid destination, or a pair that cannot be compiled. An empty destination is valid."""
    if not dest:
        return
    seen_tail = False
    for token in dest.split("."):
        if not token or seen_tail:
            raise _make_error(token, "invalid transform")
        if _is_function(token):
            if not any(pattern.search(token) for pattern in _FUNCTIONS.values()):
                raise _make_error(token, "unknown function")
            continue
        if token == ">":
            seen_tail = True
        elif _BLANK.search(token):
            raise BadTransform(f"{_BAD}: invalid transform")
    compile_transform(source, dest)


@lru_cache(
    maxsize=8192
)  # a configuration is validated, off the event loop if it has many transforms, and then used
def compile_transform(source: str, dest: str) -> Transform:
    """Return the function from a subject matched by `source` to the new one; raises BadTransform.

    An empty source means `>`, an empty destination leaves the subject unchanged.
    """
    if not dest:
        return _identity
    source = source or ">"
    star_count, has_tail = _count_wildcards(source)
    dest_star_count, dest_has_tail = _count_wildcards(dest)
    if star_count is None or dest_star_count is None or dest_star_count or has_tail != dest_has_tail:
        raise BadTransform("invalid subject")
    if source == ">" and dest == ">":
        return _identity
    calls = [_parse_token(token) for token in dest.split(".")]
    positions = _find_wildcards(source) if star_count or has_tail else None
    parts = [
        _make_part(token, call, positions)
        for token, call in zip(dest.split("."), calls, strict=True)
        if token != ">"
    ]
    return _join_parts(parts, len(source.split(".")) - 1 if has_tail else None)


def _identity(subject: bytes) -> bytes:
    return subject


def _join_parts(parts: list[TokenFunction], tail: int | None) -> Transform:
    if tail is None:
        return lambda subject: b".".join([part(tokens) for tokens in [subject.split(b".")] for part in parts])

    def transform(subject: bytes) -> bytes:
        tokens = subject.split(b".")
        return b".".join([part(tokens) for part in parts] + tokens[tail:])

    return transform


def _make_error(token: str, reason: str) -> BadTransform:
    return BadTransform(f"{_BAD}: {reason} in {token}" if token else f"{_BAD}: {reason}")


def _is_function(token: str) -> bool:
    return len(token) > 4 and token.startswith("{{") and token.endswith("}}")


def _count_wildcards(subject: str) -> tuple[int | None, bool]:
    """Return how many `*` a subject has (None if it is not a subject), and whether it ends in `>`."""
    tokens = subject.split(".")
    if "" in tokens or ">" in tokens[:-1]:
        return None, False
    return tokens.count("*"), tokens[-1] == ">"


def _find_wildcards(source: str) -> list[int]:
    return [position for position, token in enumerate(source.split(".")) if token == "*"]


def _make_part(token: str, call: TransformCall, positions: list[int] | None) -> TokenFunction:
    if not call.name:
        literal = token.encode()
        return lambda tokens: literal
    if call.name == "random":
        return _make_random_part(call.number)
    if positions is None:
        if call.name != "partition":
            raise _make_error(token, "wildcard index out of range")
        return _make_partition_part(call.number, [])
    for wildcard in call.wildcards:
        if wildcard > len(positions):
            raise _make_error(f"{token}: [{wildcard}]", "wildcard index out of range")
    # nats-server takes an index below one for the first token.
    chosen = [positions[wildcard - 1] if wildcard > 0 else 0 for wildcard in call.wildcards]
    if call.name == "partition":
        return _make_partition_part(call.number, chosen)
    return _make_text_part(call, chosen[0])


def _make_random_part(ceiling: int) -> TokenFunction:
    if not ceiling:
        return lambda tokens: b"0"
    return lambda tokens: b"%d" % (random.getrandbits(31) % abs(ceiling))


def _make_partition_part(buckets: int, positions: list[int]) -> TokenFunction:
    if not buckets:
        return lambda tokens: b"0"
    count = buckets & 0xFFFFFFFF
    if not positions:
        return lambda tokens: b"%d" % (_fnv32a(b".".join(tokens)) % count)
    return lambda tokens: b"%d" % (_fnv32a(b"".join([tokens[position] for position in positions])) % count)


def _fnv32a(data: bytes) -> int:
    total = 0x811C9DC5
    for byte in data:
        total = ((total ^ byte) * 0x01000193) & 0xFFFFFFFF
    return total


def _make_text_part(call: TransformCall, position: int) -> TokenFunction:
    if call.name == "wildcard":
        return lambda tokens: tokens[position]
    if call.name == "split":
        separator = call.text.encode()
        return lambda tokens: _split(tokens[position], separator)
    splitter = _SPLITTERS[call.name]
    size = call.number
    return lambda tokens: (
        splitter(tokens[position], size) if 0 < size < len(tokens[position]) else tokens[position]
    )


def _split(token: bytes, separator: bytes) -> bytes:
    if not separator:
        return b".".join(
            char.encode("utf-8", "surrogateescape") for char in token.decode("utf-8", "surrogateescape")
        )
    return b".".join(part for part in token.split(separator) if part)


def _slice_from_left(token: bytes, size: int) -> bytes:
    return b".".join(token[start : start + size] for start in range(0, len(token), size))


def _slice_from_right(token: bytes, size: int) -> bytes:
    first = len(token) % size
    parts = [token[start : start + size] for start in range(first, len(token), size)]
    return b".".join([token[:first], *parts] if first else parts)


_SPLITTERS: dict[str, Callable[[bytes, int], bytes]] = {
    "splitfromleft": lambda token, size: token[:size] + b"." + token[size:],
    "splitfromright": lambda token, size: token[:-size] + b"." + token[-size:],
    "slicefromleft": _slice_from_left,
    "slicefromright": _slice_from_right,
    "left": lambda token, size: token[:size],
    "right": lambda token, size: token[-size:],
}


def _parse_token(token: str) -> TransformCall:
    if len(token) > 1 and token[0] == "$":
        index = _parse_integer(token[1:])
        return TransformCall("", [], 0, "") if index is None else TransformCall("wildcard", [index], 0, "")
    if not _is_function(token):
        return TransformCall("", [], 0, "")
    for name, pattern in _FUNCTIONS.items():
        found = pattern.search(token)
        if found:
            return _parse_arguments(token, name, _COMMA.split(found.group(1)))
    raise _make_error(token, "unknown function")


def _parse_arguments(token: str, name: str, arguments: list[str]) -> TransformCall:
    if name == "partition":
        return _parse_partition(token, arguments)
    expected_count = 1 if name in ("wildcard", "random") else 2
    if len(arguments) < expected_count or (name == "wildcard" and arguments == [""]):
        raise _make_error(token, "not enough arguments passed to the function")
    if len(arguments) > expected_count:
        reason = "not enough" if name == "random" else "too many"
        raise _make_error(token, f"{reason} arguments passed to the function")
    first = _parse_number(token, arguments[0])
    if name == "random":
        if first > _INT32_MAX:
            raise _make_argument_error(token)
        return TransformCall(name, [], _to_int32(first), "")
    if name == "wildcard":
        return TransformCall(name, [first], 0, "")
    if name == "split":
        if " " in arguments[1] or "." in arguments[1]:
            raise _make_argument_error(token)
        return TransformCall(name, [first], 0, arguments[1])
    size = _parse_number(token, arguments[1])
    if not _INT32_MIN <= size <= _INT32_MAX:
        raise _make_argument_error(token)
    return TransformCall(name, [first], size, "")


def _parse_partition(token: str, arguments: list[str]) -> TransformCall:
    buckets = _parse_number(token, arguments[0])
    if buckets > _INT32_MAX:
        raise _make_argument_error(token)
    wildcards = [_parse_number(token, text) for text in arguments[1:]]
    return TransformCall("partition", wildcards, _to_int32(buckets), "")


def _to_int32(value: int) -> int:
    """Keep the lowest 32 bits, as nats-server does: -4294967296 becomes 0."""
    return (value - _INT32_MIN) % 2**32 + _INT32_MIN


def _parse_number(token: str, text: str) -> int:
    value = _parse_integer(text.strip(" "))
    if value is None:
        raise _make_argument_error(token)
    return value


def _make_argument_error(token: str) -> BadTransform:
    return _make_error(token, "function argument is invalid or in the wrong format")


def _parse_integer(text: str) -> int | None:
    """Parse a number of 64 bits; None if it is not one."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdigit()) or len(digits) > _INT64_DIGITS_MAX:
        return None
    value = int(text)
    return value if _INT64_MIN <= value <= _INT64_MAX else None
