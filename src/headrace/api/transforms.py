"""Subject transforms: `orders.*.>` to `o.$1.>`, with the reference's mapping functions, compiled once.

`compile_transform` gives a function from a subject that the source matches to the new subject; whether it
matches is the caller's to ask. `check_mapping` gives the reference's refusal. The only thing here that is
not a pure function of its arguments is `{{random(n)}}`.
"""

import random
import re
from collections.abc import Callable
from typing import NamedTuple

Tokens = list[bytes]
Part = Callable[[Tokens], bytes]
Transform = Callable[[bytes], bytes]

_BAD = "invalid mapping destination"
_FUNCTION = r"\{{\{{\s*{name}\s*\((.*)\)\s*\}}\}}"
_COMMA = re.compile(r",\s*")
_BLANK = re.compile("[\t\n\f\r ]")
_INT32_MAX = 2**31 - 1


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(_FUNCTION.format(name=name))


# In the order in which the reference tries them.
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


class BadMapping(ValueError):
    """The destination, or the pair, is not valid; the message is the reference's."""


class Call(NamedTuple):
    """One token of a destination: a function of source tokens, or (name "") a literal."""

    name: str
    wildcards: list[int]
    number: int
    text: str


def check_mapping(source: str, dest: str) -> None:
    """Refuse a destination, or a pair that cannot be compiled; raises BadMapping. An empty destination
    passes.
    """
    if not dest:
        return
    ended = False
    for token in dest.split("."):
        if not token or ended:
            raise _refusal(token, "invalid transform")
        if _mustache(token):
            if not any(pattern.search(token) for pattern in _FUNCTIONS.values()):
                raise _refusal(token, "unknown function")
            continue
        if token == ">":
            ended = True
        elif _BLANK.search(token):
            raise BadMapping(f"{_BAD}: invalid transform")
    compile_transform(source, dest)


def compile_transform(source: str, dest: str) -> Transform:
    """The function from a subject matched by `source` to the new one; raises BadMapping. Empty: `>`,
    unchanged.
    """
    if not dest:
        return _unchanged
    source = source or ">"
    stars, rest = _shape(source)
    dest_stars, dest_rest = _shape(dest)
    if stars is None or dest_stars is None or dest_stars or rest != dest_rest:
        raise BadMapping("invalid subject")
    if source == ">" and dest == ">":
        return _unchanged
    calls = [_parse(token) for token in dest.split(".")]
    positions = _positions(source) if stars or rest else None
    parts = [
        _part(token, call, positions)
        for token, call in zip(dest.split("."), calls, strict=True)
        if token != ">"
    ]
    return _joined(parts, len(source.split(".")) - 1 if rest else None)


def _unchanged(subject: bytes) -> bytes:
    return subject


def _joined(parts: list[Part], tail: int | None) -> Transform:
    if tail is None:
        return lambda subject: b".".join([part(tokens) for tokens in [subject.split(b".")] for part in parts])

    def transform(subject: bytes) -> bytes:
        tokens = subject.split(b".")
        return b".".join([part(tokens) for part in parts] + tokens[tail:])

    return transform


def _refusal(token: str, reason: str) -> BadMapping:
    return BadMapping(f"{_BAD}: {reason} in {token}" if token else f"{_BAD}: {reason}")


def _mustache(token: str) -> bool:
    return len(token) > 4 and token.startswith("{{") and token.endswith("}}")


def _shape(subject: str) -> tuple[int | None, bool]:
    """How many `*` a subject has (None: not a subject), and whether it ends in `>`."""
    tokens = subject.split(".")
    if "" in tokens or ">" in tokens[:-1]:
        return None, False
    return tokens.count("*"), tokens[-1] == ">"


def _positions(source: str) -> list[int]:
    return [position for position, token in enumerate(source.split(".")) if token == "*"]


def _part(token: str, call: Call, positions: list[int] | None) -> Part:
    if not call.name:
        literal = token.encode()
        return lambda tokens: literal
    if call.name == "random":
        return _random_part(call.number)
    if positions is None:
        if call.name != "partition":
            raise _refusal(token, "wildcard index out of range")
        return _partition_part(call.number, [])
    for wildcard in call.wildcards:
        if wildcard > len(positions):
            raise _refusal(f"{token}: [{wildcard}]", "wildcard index out of range")
    # The reference takes an index below one for the first token.
    chosen = [positions[wildcard - 1] if wildcard > 0 else 0 for wildcard in call.wildcards]
    if call.name == "partition":
        return _partition_part(call.number, chosen)
    return _text_part(call, chosen[0])


def _random_part(ceiling: int) -> Part:
    if not ceiling:
        return lambda tokens: b"0"
    return lambda tokens: b"%d" % (random.getrandbits(31) % abs(ceiling))


def _partition_part(buckets: int, positions: list[int]) -> Part:
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


def _text_part(call: Call, position: int) -> Part:
    if call.name == "wildcard":
        return lambda tokens: tokens[position]
    if call.name == "split":
        mark = call.text.encode()
        return lambda tokens: _split(tokens[position], mark)
    cut = _CUTS[call.name]
    size = call.number
    return lambda tokens: (
        cut(tokens[position], size) if 0 < size < len(tokens[position]) else tokens[position]
    )


def _split(token: bytes, mark: bytes) -> bytes:
    if not mark:
        return b".".join(char.encode() for char in token.decode("utf-8", "surrogateescape"))
    return b".".join(part for part in token.split(mark) if part)


def _slice_from_left(token: bytes, size: int) -> bytes:
    return b".".join(token[start : start + size] for start in range(0, len(token), size))


def _slice_from_right(token: bytes, size: int) -> bytes:
    first = len(token) % size
    parts = [token[start : start + size] for start in range(first, len(token), size)]
    return b".".join([token[:first], *parts] if first else parts)


_CUTS: dict[str, Callable[[bytes, int], bytes]] = {
    "splitfromleft": lambda token, size: token[:size] + b"." + token[size:],
    "splitfromright": lambda token, size: token[:-size] + b"." + token[-size:],
    "slicefromleft": _slice_from_left,
    "slicefromright": _slice_from_right,
    "left": lambda token, size: token[:size],
    "right": lambda token, size: token[-size:],
}


def _parse(token: str) -> Call:
    if len(token) > 1 and token[0] == "$":
        index = _integer(token[1:])
        return Call("", [], 0, "") if index is None else Call("wildcard", [index], 0, "")
    if not _mustache(token):
        return Call("", [], 0, "")
    for name, pattern in _FUNCTIONS.items():
        found = pattern.search(token)
        if found:
            return _arguments(token, name, _COMMA.split(found.group(1)))
    raise _refusal(token, "unknown function")


def _arguments(token: str, name: str, given: list[str]) -> Call:
    if name == "partition":
        return _partition_call(token, given)
    wanted = 1 if name in ("wildcard", "random") else 2
    if len(given) < wanted or (name == "wildcard" and given == [""]):
        raise _refusal(token, "not enough arguments passed to the function")
    if len(given) > wanted:
        reason = "not enough" if name == "random" else "too many"
        raise _refusal(token, f"{reason} arguments passed to the function")
    first = _number(token, given[0])
    if name == "random":
        if first > _INT32_MAX:
            raise _invalid(token)
        return Call(name, [], first, "")
    if name == "wildcard":
        return Call(name, [first], 0, "")
    if name == "split":
        if " " in given[1] or "." in given[1]:
            raise _invalid(token)
        return Call(name, [first], 0, given[1])
    size = _number(token, given[1])
    if not -_INT32_MAX <= size <= _INT32_MAX:
        raise _invalid(token)
    return Call(name, [first], size, "")


def _partition_call(token: str, given: list[str]) -> Call:
    buckets = _number(token, given[0])
    if buckets > _INT32_MAX:
        raise _invalid(token)
    return Call("partition", [_number(token, text) for text in given[1:]], buckets, "")


def _number(token: str, text: str) -> int:
    value = _integer(text.strip(" "))
    if value is None:
        raise _invalid(token)
    return value


def _invalid(token: str) -> BadMapping:
    return _refusal(token, "function argument is invalid or in the wrong format")


def _integer(text: str) -> int | None:
    digits = text[1:] if text[:1] in ("+", "-") else text
    return int(text) if digits.isascii() and digits.isdigit() else None
