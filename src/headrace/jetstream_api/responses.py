"""Encodes API responses: plain values in, JSON in nats-server's key order out.

Every response begins with its type. An error response has the error and the zero values of the fields it would
otherwise have. Times are nanoseconds, 0 for "never"; None, empty and false values are omitted where nats-server omits
them. Configurations are passed as `configs.to_public(...)`, which can be cached as long as the configuration does not
change.
"""

from binascii import b2a_base64
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from headrace.errors import RequestError
from headrace.jetstream_api import metadata
from headrace.jetstream_api.account_limits import TIER, JetStreamLimits
from headrace.jetstream_api.configs import (
    ApiStruct,
    ConsumerConfig,
    External,
    StreamConfig,
    SubjectTransform,
    copy_config,
    encode_config,
)
from headrace.jetstream_api.encode import dumps, to_plain
from headrace.jetstream_api.errors import error_to_plain
from headrace.jetstream_api.times import ZERO_TIME, format_time

TYPE_PREFIX = "io.nats.jetstream.api.v1."
NAMES_LIMIT = 1024
LIST_LIMIT = 256
SUBJECTS_LIMIT = 100_000

JsonObject = dict[str, Any]

_EMPTY_PAGE: JsonObject = {"total": 0, "offset": 0, "limit": 0}
# What an error response has besides the error.
_EMPTY_RESULTS: dict[str, JsonObject] = {
    "stream_info_response": _EMPTY_PAGE,
    "stream_names_response": _EMPTY_PAGE | {"streams": None},
    "stream_list_response": _EMPTY_PAGE | {"streams": []},
    "consumer_names_response": _EMPTY_PAGE | {"consumers": []},
    "consumer_list_response": _EMPTY_PAGE | {"consumers": []},
    "stream_purge_response": {"purged": 0},
    "stream_restore_response": {"deliver_subject": ""},
    "consumer_pause_response": {"paused": False, "pause_until": ZERO_TIME},
    "consumer_reset_response": {"reset_seq": 0},
}


def encode_error_response(kind: str, api_error: RequestError) -> bytes:
    """Encode an error response of a kind (`stream_create_response`)."""
    body = {"type": TYPE_PREFIX + kind, "error": error_to_plain(api_error)}
    return dumps(body | _EMPTY_RESULTS.get(kind, {}))


def encode_response(kind: str, body: JsonObject) -> bytes:
    """Encode a response of a kind with that content."""
    return dumps({"type": TYPE_PREFIX + kind} | body)


def encode_success(kind: str) -> bytes:
    """Encode the response to a deletion."""
    return encode_response(kind, {"success": True})


def encode_public_config(config: ApiStruct, version: str = "") -> msgspec.Raw:
    """Encode a configuration for responses; with `version`, also the server that responds (not in lists)."""
    if version and isinstance(config, StreamConfig | ConsumerConfig):
        config = copy_config(config)
        config.metadata = metadata.to_public(config.metadata, version)
    return msgspec.Raw(encode_config(config))


def format_time_or_zero(time_ns: int) -> str:
    return format_time(time_ns) if time_ns else ZERO_TIME


class StreamInfoState(NamedTuple):
    """The state of a stream."""

    messages: int = 0
    bytes: int = 0
    first_seq: int = 0
    first_time_ns: int = 0
    last_seq: int = 0
    last_time_ns: int = 0
    num_subjects: int = 0
    num_deleted: int = 0
    consumers: int = 0


def make_stream_state_body(
    state: StreamInfoState, subjects: msgspec.Raw | None = None, deleted: msgspec.Raw | None = None
) -> JsonObject:
    """Make the state; `subjects` (counts by subject) and `deleted` (sequences), both encoded, appear if there are any."""
    body: JsonObject = {
        "messages": state.messages,
        "bytes": state.bytes,
        "first_seq": state.first_seq,
        "first_ts": format_time_or_zero(state.first_time_ns),
        "last_seq": state.last_seq,
        "last_ts": format_time_or_zero(state.last_time_ns),
    }
    if state.num_subjects:
        body["num_subjects"] = state.num_subjects
    if subjects is not None:
        body["subjects"] = subjects
    if state.num_deleted:
        body["num_deleted"] = state.num_deleted
    if deleted is not None:
        body["deleted"] = deleted
    body["consumer_count"] = state.consumers
    return body


class SourceStatus(NamedTuple):
    """Status of a mirror or source."""

    name: str
    external: External | None = None
    lag: int = 0
    seq: int = 0  # newest upstream sequence seen; sources only
    active_ns: int = -1  # time since the last message; -1: never
    error: RequestError | None = None
    filter_subject: str = ""
    subject_transforms: Sequence[SubjectTransform] = ()


def make_source_body(source_status: SourceStatus) -> JsonObject:
    body: JsonObject = {"name": source_status.name}
    if source_status.external is not None:
        body["external"] = to_plain(source_status.external)
    body["lag"] = source_status.lag
    if source_status.seq:
        body["seq"] = source_status.seq
    body["active"] = source_status.active_ns
    if source_status.error is not None:
        body["error"] = error_to_plain(source_status.error)
    if source_status.filter_subject:
        body["filter_subject"] = source_status.filter_subject
    if source_status.subject_transforms:
        body["subject_transforms"] = [to_plain(each) for each in source_status.subject_transforms]
    return body


def make_stream_info_body(
    config: msgspec.Raw,
    created_ns: int,
    state: JsonObject,
    now_ns: int,
    *,
    domain: str = "",
    leader: str = "",
    mirror: SourceStatus | None = None,
    sources: Iterable[SourceStatus] = (),
) -> JsonObject:
    """Make a stream's info; `state` is from `make_stream_state_body`; only STREAM.INFO shows `leader`."""
    body: JsonObject = {"config": config, "created": format_time(created_ns), "state": state}
    if domain:
        body["domain"] = domain
    if leader:
        body["cluster"] = {"leader": leader}
    if mirror is not None:
        body["mirror"] = make_source_body(mirror)
    if source_bodies := [make_source_body(source) for source in sources]:
        body["sources"] = source_bodies
    body["ts"] = format_time(now_ns)
    return body


def encode_stream_created(info: JsonObject) -> bytes:
    return encode_response("stream_create_response", info | {"did_create": True})


def encode_stream_updated(info: JsonObject) -> bytes:
    return encode_response("stream_update_response", info)


def encode_stream_info(info: JsonObject, *, total: int = 0, offset: int = 0, limit: int = 0) -> bytes:
    """Encode a stream's info; `total`, `offset` and `limit` are those of the listed subjects, 0 if none were listed."""
    return encode_response("stream_info_response", {"total": total, "offset": offset, "limit": limit} | info)


def compute_page(total: int, offset: int, limit: int) -> tuple[int, int]:
    """Return where a page starts and ends (exclusive); the start is also the offset to return."""
    start = min(max(offset, 0), total)
    return start, min(start + limit, total)


def encode_stream_names(total: int, offset: int, names: list[str]) -> bytes:
    page = {"total": total, "offset": offset, "limit": NAMES_LIMIT, "streams": names or None}
    return encode_response("stream_names_response", page)


def encode_stream_list(total: int, offset: int, infos: list[JsonObject]) -> bytes:
    page = {"total": total, "offset": offset, "limit": LIST_LIMIT, "streams": infos}
    return encode_response("stream_list_response", page)


def encode_consumer_names(total: int, offset: int, names: list[str]) -> bytes:
    page = {"total": total, "offset": offset, "limit": NAMES_LIMIT, "consumers": names}
    return encode_response("consumer_names_response", page)


def encode_consumer_list(total: int, offset: int, infos: list[JsonObject]) -> bytes:
    page = {"total": total, "offset": offset, "limit": LIST_LIMIT, "consumers": infos}
    return encode_response("consumer_list_response", page)


def encode_purged(count: int) -> bytes:
    return encode_response("stream_purge_response", {"success": True, "purged": count})


def encode_stored_message(subject: bytes, seq: int, header: bytes, payload: bytes, time_ns: int) -> bytes:
    """Encode the response to STREAM.MSG.GET; an empty header is omitted."""
    parts = [
        b'{"type":"io.nats.jetstream.api.v1.stream_msg_get_response","message":{"subject":',
        dumps(subject.decode("utf-8", "replace")),
        b',"seq":%d' % seq,
    ]
    if header:
        parts += b',"hdrs":"', b2a_base64(header, newline=False), b'"'
    if payload:
        parts += b',"data":"', b2a_base64(payload, newline=False), b'"'
    parts += b',"time":"', format_time(time_ns).encode(), b'"}}'
    return b"".join(parts)


class SequenceInfo(NamedTuple):
    """A consumer's position: delivered, or acknowledged."""

    consumer_seq: int = 0
    stream_seq: int = 0
    last_active_ns: int = 0


class PriorityGroupState(NamedTuple):
    group: str
    pinned_client_id: str = ""
    pinned_ns: int = 0


class ConsumerInfoState(NamedTuple):
    """The state of a consumer."""

    delivered: SequenceInfo = SequenceInfo()
    ack_floor: SequenceInfo = SequenceInfo()
    num_ack_pending: int = 0
    num_redelivered: int = 0
    num_waiting: int = 0
    num_pending: int = 0
    push_bound: bool = False
    pause_remaining_ns: int = 0  # above 0: paused
    groups: Sequence[PriorityGroupState] = ()
    num_blocked_subjects: int | None = None  # None: the consumer keeps no order per key


def make_consumer_info_body(
    stream: str, name: str, created_ns: int, config: msgspec.Raw, state: ConsumerInfoState, now_ns: int
) -> JsonObject:
    body: JsonObject = {
        "stream_name": stream,
        "name": name,
        "created": format_time(created_ns),
        "config": config,
        "delivered": _make_sequence_body(state.delivered),
        "ack_floor": _make_sequence_body(state.ack_floor),
        "num_ack_pending": state.num_ack_pending,
        "num_redelivered": state.num_redelivered,
        "num_waiting": state.num_waiting,
        "num_pending": state.num_pending,
    }
    if state.num_blocked_subjects is not None:
        body["num_blocked_subjects"] = state.num_blocked_subjects
    if state.push_bound:
        body["push_bound"] = True
    if state.pause_remaining_ns > 0:
        body["paused"] = True
        body["pause_remaining"] = state.pause_remaining_ns
    body["ts"] = format_time(now_ns)
    if state.groups:
        body["priority_groups"] = [_make_group_body(group) for group in state.groups]
    return body


def _make_sequence_body(position: SequenceInfo) -> JsonObject:
    body: JsonObject = {"consumer_seq": position.consumer_seq, "stream_seq": position.stream_seq}
    if position.last_active_ns:
        body["last_active"] = format_time(position.last_active_ns)
    return body


def _make_group_body(state: PriorityGroupState) -> JsonObject:
    body: JsonObject = {"group": state.group}
    if state.pinned_client_id:
        body["pinned_client_id"] = state.pinned_client_id
    body["pinned_ts"] = format_time_or_zero(state.pinned_ns)
    return body


def encode_consumer_created(info: JsonObject) -> bytes:
    return encode_response("consumer_create_response", info)


def encode_consumer_info(info: JsonObject) -> bytes:
    return encode_response("consumer_info_response", info)


def encode_consumer_reset(info: JsonObject, seq: int) -> bytes:
    return encode_response("consumer_reset_response", info | {"reset_seq": seq})


def encode_consumer_paused(until: str, remaining_ns: int) -> bytes:
    """Encode the response to a pause; `until` as in the request; nothing remaining means that the consumer runs."""
    body: JsonObject = {"paused": remaining_ns > 0, "pause_until": until}
    if remaining_ns > 0:
        body["pause_remaining"] = remaining_ns
    return encode_response("consumer_pause_response", body)


def encode_consumer_unpinned() -> bytes:
    return encode_response("consumer_unpin_response", {})


def encode_snapshot_started(config: msgspec.Raw, state: JsonObject) -> bytes:
    return encode_response("stream_snapshot_response", {"config": config, "state": state})


def encode_restore_started(deliver_subject: str) -> bytes:
    return encode_response("stream_restore_response", {"deliver_subject": deliver_subject})


class AccountUsage(NamedTuple):
    """What an account uses."""

    memory: int = 0
    storage: int = 0
    reserved_memory: int = 0
    reserved_storage: int = 0
    streams: int = 0
    consumers: int = 0


#: What an account with tiers shows instead of limits for all streams.
_TIERED = JetStreamLimits(
    max_memory=0,
    max_storage=0,
    max_streams=0,
    max_consumers=0,
    max_ack_pending=0,
    memory_max_stream_bytes=0,
    storage_max_stream_bytes=0,
)


def _encode_limits(limits: JetStreamLimits) -> JsonObject:
    names = [name for name in limits.__struct_fields__ if not name.startswith("server_") and name != "tiers"]
    return {name: getattr(limits, name) for name in names}


def encode_account_info(
    account: AccountUsage,
    limits: JetStreamLimits,
    *,
    domain: str = "",
    api_total: int = 0,
    api_errors: int = 0,
) -> bytes:
    body: JsonObject = account._asdict()
    body["limits"] = _encode_limits(_TIERED if limits.tiers else limits)
    if domain:
        body["domain"] = domain
    body["api"] = {"level": metadata.API_LEVEL, "total": api_total, "errors": api_errors}
    if limits.tiers:
        # All streams have one replica, so they use the same tier.
        body["tiers"] = {
            name: (account if name == TIER else AccountUsage())._asdict() | {"limits": _encode_limits(tier)}
            for name, tier in sorted(limits.tiers.items())
        }
    return encode_response("account_info_response", body)
