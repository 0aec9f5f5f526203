"""Codecs: Python values as payloads of messages and values of keys, in JSON or MessagePack.

::

    from headrace.client import codecs

    class Order(msgspec.Struct):
        fruit: str
        count: int

    orders = codecs.json(Order)
    await js.publish("orders.new", Order("pear", 3), codec=orders)

A codec is any object with `content_type`, `encode` and `decode`; these use msgspec, whose types, and dataclasses, attrs and
standard types, are checked when a payload is decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from headrace.client.message_errors import DecodeFailed, describe
from headrace.client.outgoing_message import normalize_headers

__all__ = ["Codec", "json", "msgpack"]

CONTENT_TYPE = "Content-Type"


class Codec(Protocol):
    """Converts values to payloads and back; `content_type` is the value of the header `Content-Type`."""

    @property
    def content_type(self) -> str: ...

    def encode(self, value: Any, /) -> bytes: ...

    def decode(self, data: bytes, /) -> Any:
        """Return the value; raise an exception, such as ValueError, for a payload that has none."""


class EncodedPayload(bytes):
    """A payload that a codec has encoded: it is published again as it is."""


class _MsgspecCodec:
    def __init__(self, content_type: str, encoder: Any, decoder: Any, value_type: Any) -> None:
        self.content_type = content_type
        self.encode: Callable[[Any], bytes] = encoder.encode
        self.decode: Callable[[bytes], Any] = decoder.decode
        self._value_type = value_type

    def __repr__(self) -> str:
        return f"<codec {self.content_type} of {getattr(self._value_type, '__name__', self._value_type)}>"


def json(value_type: Any = Any, *, strict: bool = True) -> Codec:
    """Return a codec for JSON: `codecs.json(Order)`, `codecs.json(dict[str, int])`, `codecs.json()` for any value.

    With `strict=False`, text that looks like a number is accepted for a number, as in msgspec.
    """
    decoder = msgspec.json.Decoder(value_type, strict=strict)
    return _MsgspecCodec("application/json", msgspec.json.Encoder(), decoder, value_type)


def msgpack(value_type: Any = Any, *, strict: bool = True) -> Codec:
    """Return a codec for MessagePack, which is smaller than JSON and keeps bytes as they are."""
    decoder = msgspec.msgpack.Decoder(value_type, strict=strict)
    return _MsgspecCodec("application/msgpack", msgspec.msgpack.Encoder(), decoder, value_type)


def check_codec(codec: Codec | None) -> Codec | None:
    """Return the codec; raise TypeError for something else, such as `codecs.json` without the brackets."""
    if codec is None or (
        not isinstance(codec, type) and hasattr(codec, "decode") and hasattr(codec, "content_type")
    ):
        return codec
    name = getattr(codec, "__name__", codec)
    raise TypeError(f"codec={name} is not a codec: use for example codecs.json() or codecs.json(Order)")


def encode_value(value: Any, codec: Codec | None) -> bytes:
    """Return a value as payload; without a codec it must be bytes."""
    if check_codec(codec) is not None:
        payload = codec.encode(value)  # type: ignore[union-attr]
        if not isinstance(payload, bytes | bytearray | memoryview):
            raise TypeError(f"{codec!r} encodes to {type(payload).__name__}, not bytes")
        return bytes(payload)
    if not isinstance(value, bytes | bytearray | memoryview):
        kind = type(value).__name__
        hint = "text.encode()" if isinstance(value, str) else "a codec, for example codec=codecs.json()"
        raise TypeError(f"a payload is bytes, not {kind}: use {hint}")
    return bytes(value)


def encode_payload(
    value: Any, headers: Mapping[str, Any] | None, codec: Codec | None
) -> tuple[bytes, Mapping[str, Any] | None]:
    """Return payload and headers of a message with this value."""
    if isinstance(value, EncodedPayload):
        return bytes(value), headers
    payload = encode_value(value, codec)
    if codec is not None:
        headers = normalize_headers(headers)
        if not any(name.lower() == CONTENT_TYPE.lower() for name in headers):
            headers = {CONTENT_TYPE: codec.content_type, **headers}
    return payload, headers


def decode_value(data: bytes, codec: Codec, source: str) -> Any:
    """Return the value of a payload; raise `DecodeFailed`, which names its `source`."""
    try:
        return codec.decode(data)
    except Exception as error:  # a recursion that is too deep, or any error of a user's codec
        raise DecodeFailed(source, describe(error), data) from error
