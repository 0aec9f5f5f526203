"""Decodes request bodies to typed values: fast if they are valid, with nats-server's error texts if not.

The fast path is msgspec, which accepts only bodies that need no interpretation: known keys in the right case, values of
the right type and range, times in canonical form. A body that it rejects is parsed again by `go_json_decoder` and
decoded by the readers below, which ignore the case of keys, take null for "not set", correct what nats-server corrects,
and otherwise raise nats-server's errors. Both paths give the same value where both accept.
"""

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from headrace.errors import RequestError
from headrace.jetstream_api import go_json_decoder, times
from headrace.jetstream_api.configs import ApiStruct, StreamConfig
from headrace.jetstream_api.errors import ApiError
from headrace.jetstream_api.field_types import INT64_MAX, INT64_MIN, UINT64_MAX, Choice
from headrace.jetstream_api.go_json_decoder import JsonNode, Malformed, Truncated
from headrace.jetstream_api.requests import (
    BareNextRequest,
    MessageGetRequest,
    NextRequest,
    StreamRequest,
    UnpinRequest,
)
from headrace.jetstream_api.validation.consumer_fields import check_group

Kind = TypeVar("Kind", bound=ApiStruct)

# A reader converts a node to a value; `path` is its position, for error texts.
Path = tuple[str | int, ...]
FieldReader = Callable[[JsonNode, Path, bool], Any]

_decode_next_fast = msgspec.json.Decoder(NextRequest).decode
_DECODE_ERRORS = (msgspec.MsgspecError, ValueError, RecursionError)
_UNSET = object()  # null for a field that cannot be null: the value stays as it was

_RANGES = {
    "int": (INT64_MIN, INT64_MAX),
    "int64": (INT64_MIN, INT64_MAX),
    "int32": (-(2**31), 2**31 - 1),
    "uint64": (0, UINT64_MAX),
    "time.Duration": (INT64_MIN, INT64_MAX),
}


def decode(kind: type[Kind], body: bytes, *, strict: bool = True) -> Kind:
    """Decode the body of an endpoint that rejects unknown keys if `strict`; raises 10025.

    An empty body gives the zero value.
    """
    try:
        return _decode_fast(kind, body)
    except _DECODE_ERRORS:
        pass
    try:
        return _build(kind, go_json_decoder.parse_all(body), strict=strict)
    except Truncated:
        raise ApiError.INVALID_JSON(err="unexpected EOF") from None
    except Malformed as failure:
        where = "" if failure.offset is None else f" at offset {failure.offset}"
        raise ApiError.INVALID_JSON(err=failure.text + where) from None


def decode_lenient(kind: type[Kind], body: bytes) -> Kind:
    """Decode the body of an endpoint that ignores unknown keys (RESET, UNPIN, DIRECT.GET); raises 10025."""
    try:
        return _decode_lenient(kind, body)
    except Malformed as failure:
        raise ApiError.INVALID_JSON(err=failure.text) from None


def decode_optional(kind: type[Kind], body: bytes, *, strict: bool = True) -> Kind:
    """Like `decode`, for endpoints that ignore a body that is neither an object nor an array."""
    return decode(kind, body, strict=strict) if looks_like_json(body) else kind()


def decode_stream(body: bytes, *, strict: bool = True) -> tuple[StreamConfig, bool]:
    """Decode the body of STREAM.CREATE and STREAM.UPDATE: the configuration, and whether it is pedantic."""
    request = decode(StreamRequest, body, strict=strict)
    return request.to_config(), request.pedantic


def decode_next(body: bytes) -> NextRequest:
    """Decode the body of MSG.NEXT; raises a RequestError whose description follows `400 Bad Request - `.

    Empty means a batch of one, digits a batch, other text a batch of one.
    """
    try:
        request = _decode_next_fast(body)
    except _DECODE_ERRORS:
        request = _decode_next_slow(body)
    if request.idle_heartbeat > 0 and request.idle_heartbeat * 2 > request.expires:
        raise RequestError(400, ApiError.BAD_REQUEST, "heartbeat value too large")
    return request


def decode_message_get(body: bytes, *, strict: bool = False) -> MessageGetRequest:
    """Decode the body of STREAM.MSG.GET, which must choose exactly one way to find a message (10003)."""
    if is_empty(body):
        raise ApiError.BAD_REQUEST()
    request = decode(MessageGetRequest, body, strict=strict)
    lookup_count = bool(request.seq) + bool(request.last_by_subj) + (request.start_time is not None)
    is_batch = request.batch or request.max_bytes
    # A `next_by_subj` may be combined with a sequence or a start time, not with `last_by_subj`.
    is_contradictory = request.last_by_subj and request.next_by_subj
    if is_batch or is_contradictory or lookup_count > 1 or not (lookup_count or request.next_by_subj):
        raise ApiError.BAD_REQUEST()
    return request


def decode_unpin(body: bytes) -> str:
    """Return the group that a CONSUMER.UNPIN names."""
    group = decode_lenient(UnpinRequest, body).group
    if not group:
        raise ApiError.INVALID_JSON(err="consumer group not specified")
    check_group(group)
    return group


def load_config(kind: type[Kind], data: bytes) -> Kind:
    """Decode a configuration encoded by `configs.encode_config`."""
    try:
        return _decode_fast(kind, data)
    except _DECODE_ERRORS:
        return _build(kind, [go_json_decoder.parse_one(data)], strict=True)


def is_empty(body: bytes) -> bool:
    """Return whether a body is empty: no bytes, or an object without members."""
    if not body or body == b"{}":
        return True
    try:
        node = go_json_decoder.parse_one(body)
    except Malformed:
        return False
    return node.kind == "object" and not node.value


def looks_like_json(body: bytes) -> bool:
    """Return whether a body begins like an object or an array."""
    return body.lstrip(b" \t\r\n")[:1] in (b"{", b"[") and bool(body)


def _decode_next_slow(body: bytes) -> NextRequest:
    text = body.strip()
    if text[:1] != b"{":
        return BareNextRequest(batch=_parse_batch(text))
    try:
        return _decode_lenient(NextRequest, text)
    except Malformed as failure:
        raise RequestError(400, ApiError.INVALID_JSON, failure.text) from None


def _parse_batch(text: bytes) -> int:
    digits = text[1:] if text[:1] in (b"+", b"-") else text
    if not digits.isdigit() or len(digits) > 19 or not INT64_MIN <= int(text) <= INT64_MAX:
        return 1
    return int(text)


def _decode_lenient(kind: type[Kind], body: bytes) -> Kind:
    try:
        return _decode_fast(kind, body)
    except _DECODE_ERRORS:
        return _build(kind, [go_json_decoder.parse_one(body)], strict=False)


def _decode_fast(kind: type[Kind], body: bytes) -> Kind:
    value: Kind = _get_decoder(kind).decode(body)
    return value


@cache
def _get_decoder(kind: type[Any]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def _build(kind: type[Kind], nodes: Iterable[JsonNode], *, strict: bool) -> Kind:
    """Build the value that all nodes together describe; later ones override earlier ones."""
    values: dict[str, Any] = {}
    for node in nodes:
        if node.kind == "null":
            continue
        if node.kind != "object":
            raise Malformed(f"json: cannot unmarshal {node.kind} into Go value of type {kind.GO}")
        _read_members(kind, node, (kind.GO.removeprefix("server."),), strict, values)
    return kind(**values)


def _read_members(
    kind: type[ApiStruct], node: JsonNode, path: Path, strict: bool, values: dict[str, Any]
) -> None:
    readers = _get_readers(kind)
    for key, member in node.value:
        found = readers.get(key.casefold())
        if found is None:
            if strict:
                raise Malformed(f"json: unknown field {go_json_decoder.quote(key)}")
            continue
        name, label, read = found
        value = read(member, (*path, label), strict)
        if value is not _UNSET:
            values[name] = value


@cache
def _get_readers(kind: type[ApiStruct]) -> dict[str, tuple[str, str, FieldReader]]:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return {
        field.encode_name: (field.name, field.encode_name, _make_reader(field.type)) for field in info.fields
    }


def _make_reader(info: inspect.Type) -> FieldReader:
    """Return the reader for a field of that type."""
    extra: dict[str, Any] = {}
    optional = False
    while isinstance(info, inspect.Metadata | inspect.UnionType):
        if isinstance(info, inspect.Metadata):
            extra |= info.extra or {}
            info = info.type
        else:
            optional = True
            info = next(each for each in info.types if not isinstance(each, inspect.NoneType))
    read = _make_typed_reader(info, extra)
    if "choice" in extra:
        return read
    empty = _make_empty(info, optional)

    def read_or_null(node: JsonNode, path: Path, strict: bool) -> Any:
        return empty() if node.kind == "null" else read(node, path, strict)

    return read_or_null


def _make_empty(info: inspect.Type, optional: bool) -> Callable[[], Any]:
    if optional:
        return lambda: None
    if isinstance(info, inspect.ListType):
        return list
    if isinstance(info, inspect.DictType):
        return dict
    return lambda: _UNSET


def _make_typed_reader(info: inspect.Type, extra: dict[str, Any]) -> FieldReader:
    if "choice" in extra:
        return _choice_reader(extra["choice"])
    if isinstance(info, inspect.IntType):
        return _int_reader(extra["go"])
    if isinstance(info, inspect.BoolType):
        return _plain_reader("bool", "bool")
    if isinstance(info, inspect.StrType):
        return _read_time if extra.get("go") == "time.Time" else _plain_reader("string", "string")
    if isinstance(info, inspect.ListType):
        return _list_reader(_make_reader(info.item_type), extra.get("go", "[]string"))
    if isinstance(info, inspect.DictType):
        return _dict_reader(_make_reader(info.value_type), extra.get("go", "map[string]string"))
    assert isinstance(info, inspect.StructType)
    return _struct_reader(info.cls)


def _make_mismatch_error(node: JsonNode, path: Path, go_type: str, *, value: str = "") -> Malformed:
    path_text = ".".join(str(part) for part in path)
    field = "" if isinstance(path[-1], int) else "Go struct field "
    return Malformed(f"json: cannot unmarshal {node.kind}{value} into {field}{path_text} of type {go_type}")


def _plain_reader(kind: str, go: str) -> FieldReader:
    def read(node: JsonNode, path: Path, strict: bool) -> Any:
        if node.kind != kind:
            raise _make_mismatch_error(node, path, go)
        return node.value

    return read


def _int_reader(go: str) -> FieldReader:
    low, high = _RANGES[go]

    def read(node: JsonNode, path: Path, strict: bool) -> int:
        if node.kind != "number":
            raise _make_mismatch_error(node, path, go)
        digits = node.raw.removeprefix("-")
        well_formed = digits.isdigit() and len(digits) < 25 and not (low == 0 and node.raw[0] == "-")
        if not well_formed or not low <= int(node.raw) <= high:
            raise _make_mismatch_error(node, path, go, value=" " + node.raw)
        return int(node.raw)

    return read


def _read_time(node: JsonNode, path: Path, strict: bool) -> str:
    if node.kind != "string":
        raise _make_mismatch_error(node, path, "time.Time")
    try:
        return times.to_canonical(node.value)
    except times.BadTime as failure:
        raise Malformed(str(failure)) from None


def _choice_reader(choice: Choice) -> FieldReader:
    def read(node: JsonNode, path: Path, strict: bool) -> str:
        if choice.text_first and node.kind not in ("string", "null"):
            raise Malformed(f"json: cannot unmarshal {node.kind} into Go value of type string")
        found = choice.accepts.get(node.raw.lower() if choice.fold else node.raw)
        if found is None:
            raise Malformed(choice.refusal.format(raw=node.raw, quoted=go_json_decoder.quote(node.raw)))
        return found

    return read


def _list_reader(item: FieldReader, go: str) -> FieldReader:
    def read(node: JsonNode, path: Path, strict: bool) -> list[Any]:
        if node.kind != "array":
            raise _make_mismatch_error(node, path, go)
        values = (item(each, (*path, index), strict) for index, each in enumerate(node.value))
        return ["" if value is _UNSET else value for value in values]

    return read


def _dict_reader(item: FieldReader, go: str) -> FieldReader:
    def read(node: JsonNode, path: Path, strict: bool) -> dict[str, Any]:
        if node.kind != "object":
            raise _make_mismatch_error(node, path, go)
        pairs = ((key, item(each, (*path, key), strict)) for key, each in node.value)
        return {key: "" if value is _UNSET else value for key, value in pairs}

    return read


def _struct_reader(kind: type[Any]) -> FieldReader:
    def read(node: JsonNode, path: Path, strict: bool) -> Any:
        if node.kind != "object":
            raise _make_mismatch_error(node, path, kind.GO)
        values: dict[str, Any] = {}
        _read_members(kind, node, path, strict, values)
        return kind(**values)

    return read
