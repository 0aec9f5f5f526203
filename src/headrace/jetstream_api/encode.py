"""Encodes JSON as nats-server writes it: keys in the order of the types, `<`, `>` and `&` escaped, map keys sorted.

Owns the rule which fields of a typed value appear. A type lists in `ALWAYS` the fields that appear even when zero;
every other field appears only when it is not zero. Must not know requests or streams.
"""

from functools import cache
from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode


def dumps(value: Any) -> bytes:
    """Encode plain values (dicts, lists, text, numbers) with nats-server's escapes."""
    text = _encode(value)
    if b"<" in text or b">" in text or b"&" in text:
        text = text.replace(b"<", b"\\u003c").replace(b">", b"\\u003e").replace(b"&", b"\\u0026")
    if b"\xe2\x80" in text:
        text = text.replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")
    return text


def to_plain(value: msgspec.Struct) -> dict[str, Any]:
    """Return a typed value as a dict in field order, without zero fields that are not in `ALWAYS`.

    A field that is None never appears; one that may be None or a bool appears once it was set.
    """
    out: dict[str, Any] = {}
    for name, key, always, optional in _get_fields(type(value)):
        item = getattr(value, name)
        if item is None or (not always and not item and not (optional and item is False)):
            continue
        out[key] = _to_plain_value(item)
    return out


def _to_plain_value(item: Any) -> Any:
    if isinstance(item, msgspec.Struct):
        return to_plain(item)
    if isinstance(item, list):
        return [_to_plain_value(each) for each in item]
    if isinstance(item, dict):
        return dict(sorted(item.items()))
    return item


@cache
def _get_fields(kind: type[msgspec.Struct]) -> list[tuple[str, str, bool, bool]]:
    always: frozenset[str] = getattr(kind, "ALWAYS", frozenset())
    return [
        (field.name, field.encode_name, field.name in always, field.default is None)
        for field in msgspec.structs.fields(kind)
    ]
