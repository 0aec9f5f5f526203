"""JSON decoder compatible with Go's encoding/json: raises nats-server's errors and keeps each value's own text.

It is slow and reads only bodies that the fast path rejected. Any bytes either give nodes or raise `Malformed`. Must not
know the types that the JSON is decoded to.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

DEPTH_MAX = 100

_BLANK = re.compile(rb"[ \t\r\n]*")
_PLAIN_TEXT = re.compile(rb'[^"\\\x00-\x1f]*')
_HEX = re.compile(rb"[0-9a-fA-F]{4}")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_LITERALS = {b"t": (b"true", True), b"f": (b"false", False), b"n": (b"null", None)}
_GO_ESCAPES = {"\a": r"\a", "\b": r"\b", "\f": r"\f", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\v": r"\v"}


class Malformed(ValueError):
    """The body cannot be parsed. `offset` counts bytes up to and including the one at fault; None if there is none."""

    def __init__(self, text: str, offset: int | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.offset = offset


class Truncated(Malformed):
    """The body ends inside a value."""

    def __init__(self) -> None:
        super().__init__("unexpected end of JSON input")


class JsonNode(NamedTuple):
    """One value: its kind, its content, and its text as sent."""

    kind: str  # object, array, string, number, bool, null
    value: Any  # object: list of (key, Node); array: list of Node; number: its text
    raw: str


def quote(text: str, mark: str = '"') -> str:
    """Quote a text as Go does, or with `'` a single character."""
    out = []
    for char in text:
        if char in (mark, "\\"):
            out.append("\\" + char)
        elif char in _GO_ESCAPES:
            out.append(_GO_ESCAPES[char])
        elif char.isprintable():
            out.append(char)
        elif ord(char) < 0x80:
            out.append(f"\\x{ord(char):02x}")
        elif ord(char) < 0x10000:
            out.append(f"\\u{ord(char):04x}")
        else:
            out.append(f"\\U{ord(char):08x}")
    return mark + "".join(out) + mark


def parse_all(data: bytes) -> Iterator[JsonNode]:
    """Yield every value of the body, as nats-server's strict endpoints do: several in a row are allowed.

    Lazy, so that an error in one value is found before an error after it.
    """
    position = _skip_blanks(data, 0)
    while position < len(data):
        node, position = _parse_value(data, position, 0)
        yield node
        position = _skip_blanks(data, position)


def parse_one(data: bytes) -> JsonNode:
    """Return the one value of the body."""
    node, position = _parse_value(data, _skip_blanks(data, 0), 0)
    position = _skip_blanks(data, position)
    if position < len(data):
        raise _make_syntax_error(data, position, "after top-level value")
    return node


def _skip_blanks(data: bytes, position: int) -> int:
    found = _BLANK.match(data, position)
    assert found is not None
    return found.end()


def _make_syntax_error(data: bytes, position: int, where: str) -> Malformed:
    if position >= len(data):
        return Truncated()
    for length in (1, 2, 3, 4):
        try:
            char = data[position : position + length].decode()
        except UnicodeDecodeError:
            continue
        return Malformed(f"invalid character {quote(char, chr(39))} {where}", position + len(char.encode()))
    return Malformed(f"invalid character '\\x{data[position]:02x}' {where}", position + 1)


def _parse_value(data: bytes, position: int, depth: int) -> tuple[JsonNode, int]:
    if depth > DEPTH_MAX:
        raise Malformed("exceeded max depth", position)
    first = data[position : position + 1]
    if first == b"{":
        return _parse_object(data, position, depth)
    if first == b"[":
        return _parse_array(data, position, depth)
    if first == b'"':
        text, end = _parse_string(data, position)
        return JsonNode("string", text, _raw(data, position, end)), end
    if first in _LITERALS:
        return _parse_literal(data, position)
    if first == b"-" or first.isdigit():
        end = _parse_number(data, position)
        raw = _raw(data, position, end)
        return JsonNode("number", raw, raw), end
    raise _make_syntax_error(data, position, "looking for beginning of value")


def _raw(data: bytes, start: int, end: int) -> str:
    return data[start:end].decode("utf-8", "replace")


def _parse_object(data: bytes, start: int, depth: int) -> tuple[JsonNode, int]:
    members: list[tuple[str, JsonNode]] = []
    position = _skip_blanks(data, start + 1)
    if data[position : position + 1] == b"}":
        return JsonNode("object", members, _raw(data, start, position + 1)), position + 1
    while True:
        if data[position : position + 1] != b'"':
            raise _make_syntax_error(data, position, "looking for beginning of object key string")
        key, position = _parse_string(data, position)
        position = _skip_blanks(data, position)
        if data[position : position + 1] != b":":
            raise _make_syntax_error(data, position, "after object key")
        node, position = _parse_value(data, _skip_blanks(data, position + 1), depth + 1)
        members.append((key, node))
        position = _skip_blanks(data, position)
        mark = data[position : position + 1]
        if mark == b"}":
            return JsonNode("object", members, _raw(data, start, position + 1)), position + 1
        if mark != b",":
            raise _make_syntax_error(data, position, "after object key:value pair")
        position = _skip_blanks(data, position + 1)


def _parse_array(data: bytes, start: int, depth: int) -> tuple[JsonNode, int]:
    items: list[JsonNode] = []
    position = _skip_blanks(data, start + 1)
    if data[position : position + 1] == b"]":
        return JsonNode("array", items, _raw(data, start, position + 1)), position + 1
    while True:
        node, position = _parse_value(data, position, depth + 1)
        items.append(node)
        position = _skip_blanks(data, position)
        mark = data[position : position + 1]
        if mark == b"]":
            return JsonNode("array", items, _raw(data, start, position + 1)), position + 1
        if mark != b",":
            raise _make_syntax_error(data, position, "after array element")
        position = _skip_blanks(data, position + 1)


def _parse_string(data: bytes, start: int) -> tuple[str, int]:
    position = start + 1
    while True:
        found = _PLAIN_TEXT.match(data, position)
        assert found is not None
        position = found.end()
        mark = data[position : position + 1]
        if mark == b'"':
            break
        if mark != b"\\":
            raise _make_syntax_error(data, position, "in string")
        position = _parse_escape(data, position)
    text = json.loads(data[start : position + 1].decode("utf-8", "replace"))
    return _LONE_SURROGATE.sub("\ufffd", text), position + 1


def _parse_escape(data: bytes, position: int) -> int:
    """Return the end of an escape sequence."""
    kind = data[position + 1 : position + 2]
    if not kind:
        raise Truncated()
    if kind == b"u":
        end = position + 6
        if end > len(data):
            raise Truncated()
        if _HEX.fullmatch(data, position + 2, end):
            return end
    else:
        end = position + 2
        if kind in b'"\\/bfnrt':
            return end
    raise Malformed(f"invalid escape sequence `{_raw(data, position, end)}` in string", end)


def _parse_literal(data: bytes, start: int) -> tuple[JsonNode, int]:
    word, value = _LITERALS[data[start : start + 1]]
    for offset in range(1, len(word)):
        if data[start + offset : start + offset + 1] != word[offset : offset + 1]:
            expected = f"in literal {word.decode()} (expecting '{chr(word[offset])}')"
            raise _make_syntax_error(data, start + offset, expected)
    kind = "null" if value is None else "bool"
    return JsonNode(kind, value, word.decode()), start + len(word)


def _parse_number(data: bytes, start: int) -> int:
    """Return the end of a number."""
    position = start + (data[start] == 0x2D)
    if data[position : position + 1] == b"0":
        position += 1
    else:
        position = _parse_digits(data, position)
    if data[position : position + 1] == b".":
        position = _parse_digits(data, position + 1)
    if data[position : position + 1] in (b"e", b"E"):
        position += 1
        if data[position : position + 1] in (b"+", b"-"):
            position += 1
        position = _parse_digits(data, position)
    return position


def _parse_digits(data: bytes, position: int) -> int:
    start = position
    while data[position : position + 1].isdigit():
        position += 1
    if position == start:
        raise _make_syntax_error(data, position, "in numeric literal")
    return position
