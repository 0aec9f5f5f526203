"""The answers of the API: plain values in, JSON in the reference's key order out.

Every answer begins with its type. A refusal carries the error and the zero values of what the answer would
have held. Times come in nanoseconds, 0 for "never"; what is None, empty or not the case is left out where
the reference leaves it out. Configurations come in as `shown(...)`, which may be kept as long as the
configuration does not change.
"""

from binascii import b2a_base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from headrace.api import metadata
from headrace.api.configs import (
    Config,
    ConsumerConfig,
    External,
    StreamConfig,
    SubjectTransform,
    copy,
    dump,
)
from headrace.api.encode import dumps, plain
from headrace.api.errors import plain_error
from headrace.api.limits import Limits
from headrace.api.times import ZERO, text
from headrace.errors import RequestError

TYPE = "io.nats.jetstream.api.v1."
NAMES_LIMIT = 1024
LIST_LIMIT = 256
SUBJECTS_LIMIT = 100_000

Plain = dict[str, Any]

_PAGE: Plain = {"total": 0, "offset": 0, "limit": 0}
# What a refusal shows besides the error.
_ZEROS: dict[str, Plain] = {
    "stream_info_response": _PAGE,
    "stream_names_response": _PAGE | {"streams": None},
    "stream_list_response": _PAGE | {"streams": []},
    "consumer_names_response": _PAGE | {"consumers": []},
    "consumer_list_response": _PAGE | {"consumers": []},
    "stream_purge_response": {"purged": 0},
    "stream_restore_response": {"deliver_subject": ""},
    "consumer_pause_response": {"paused": False, "pause_until": ZERO},
    "consumer_reset_response": {"reset_seq": 0},
}


def failure(kind: str, refusal: RequestError) -> bytes:
    """The answer of a kind (`stream_create_response`) that refuses."""
    body = {"type": TYPE + kind, "error": plain_error(refusal)}
    return dumps(body | _ZEROS.get(kind, {}))


def answer(kind: str, body: Plain) -> bytes:
    """The answer of a kind with that content."""
    return dumps({"type": TYPE + kind} | body)


def success(kind: str) -> bytes:
    """The answer to a deletion."""
    return answer(kind, {"success": True})


def shown(config: Config, version: str = "") -> msgspec.Raw:
    """A configuration as answers show it; with `version`, also what server shows it (not in lists)."""
    if version and isinstance(config, StreamConfig | ConsumerConfig):
        config = copy(config)
        config.metadata = metadata.shown(config.metadata, version)
    return msgspec.Raw(dump(config))


def time_text(time_ns: int) -> str:
    return text(time_ns) if time_ns else ZERO


class State(NamedTuple):
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


def stream_state(
    state: State, subjects: Mapping[str, int] | None = None, deleted: Sequence[int] | None = None
) -> Plain:
    """`subjects` (counts by subject) and `deleted` are shown when asked for and not empty."""
    body: Plain = {
        "messages": state.messages,
        "bytes": state.bytes,
        "first_seq": state.first_seq,
        "first_ts": time_text(state.first_time_ns),
        "last_seq": state.last_seq,
        "last_ts": time_text(state.last_time_ns),
    }
    if state.num_subjects:
        body["num_subjects"] = state.num_subjects
    if subjects:
        body["subjects"] = dict(sorted(subjects.items()))
    if state.num_deleted:
        body["num_deleted"] = state.num_deleted
    if deleted:
        body["deleted"] = deleted
    body["consumer_count"] = state.consumers
    return body


class Origin(NamedTuple):
    """How a mirror or source fares."""

    name: str
    external: External | None = None
    lag: int = 0
    seq: int = 0  # newest origin sequence seen; sources only
    active_ns: int = -1  # since something last came in; -1: never
    error: RequestError | None = None
    filter_subject: str = ""
    subject_transforms: Sequence[SubjectTransform] = ()


def origin_info(origin: Origin) -> Plain:
    body: Plain = {"name": origin.name}
    if origin.external is not None:
        body["external"] = plain(origin.external)
    body["lag"] = origin.lag
    if origin.seq:
        body["seq"] = origin.seq
    body["active"] = origin.active_ns
    if origin.error is not None:
        body["error"] = plain_error(origin.error)
    if origin.filter_subject:
        body["filter_subject"] = origin.filter_subject
    if origin.subject_transforms:
        body["subject_transforms"] = [plain(each) for each in origin.subject_transforms]
    return body


def stream_info(
    config: msgspec.Raw,
    created_ns: int,
    state: Plain,
    now_ns: int,
    *,
    domain: str = "",
    leader: str = "",
    mirror: Origin | None = None,
    sources: Iterable[Origin] = (),
    alternates: Sequence[Plain] = (),
) -> Plain:
    """`state` is a `stream_state`; `leader` is shown by STREAM.INFO only."""
    body: Plain = {"config": config, "created": text(created_ns), "state": state}
    if domain:
        body["domain"] = domain
    if leader:
        body["cluster"] = {"leader": leader}
    if mirror is not None:
        body["mirror"] = origin_info(mirror)
    if listed := [origin_info(source) for source in sources]:
        body["sources"] = listed
    if alternates:
        body["alternates"] = list(alternates)
    body["ts"] = text(now_ns)
    return body


def stream_created(info: Plain) -> bytes:
    return answer("stream_create_response", info | {"did_create": True})


def stream_updated(info: Plain) -> bytes:
    return answer("stream_update_response", info)


def stream_informed(info: Plain, *, total: int = 0, offset: int = 0, limit: int = 0) -> bytes:
    """`total`, `offset` and `limit` are those of the listed subjects, 0 when none were listed."""
    return answer("stream_info_response", {"total": total, "offset": offset, "limit": limit} | info)


def paged(total: int, offset: int, limit: int) -> tuple[int, int]:
    """From where to where (exclusive) a page goes; the first is also the offset to show."""
    start = min(max(offset, 0), total)
    return start, min(start + limit, total)


def stream_names(total: int, offset: int, names: list[str]) -> bytes:
    page = {"total": total, "offset": offset, "limit": NAMES_LIMIT, "streams": names or None}
    return answer("stream_names_response", page)


def stream_list(total: int, offset: int, infos: list[Plain]) -> bytes:
    page = {"total": total, "offset": offset, "limit": LIST_LIMIT, "streams": infos}
    return answer("stream_list_response", page)


def consumer_names(total: int, offset: int, names: list[str]) -> bytes:
    page = {"total": total, "offset": offset, "limit": NAMES_LIMIT, "consumers": names}
    return answer("consumer_names_response", page)


def consumer_list(total: int, offset: int, infos: list[Plain]) -> bytes:
    page = {"total": total, "offset": offset, "limit": LIST_LIMIT, "consumers": infos}
    return answer("consumer_list_response", page)


def purged(count: int) -> bytes:
    return answer("stream_purge_response", {"success": True, "purged": count})


def stored_message(subject: bytes, seq: int, header: bytes, payload: bytes, time_ns: int) -> bytes:
    """The answer to STREAM.MSG.GET; pass no header to leave it out."""
    parts = [
        b'{"type":"io.nats.jetstream.api.v1.stream_msg_get_response","message":{"subject":',
        dumps(subject.decode("utf-8", "replace")),
        b',"seq":%d' % seq,
    ]
    if header:
        parts += b',"hdrs":"', b2a_base64(header, newline=False), b'"'
    if payload:
        parts += b',"data":"', b2a_base64(payload, newline=False), b'"'
    parts += b',"time":"', text(time_ns).encode(), b'"}}'
    return b"".join(parts)


class Position(NamedTuple):
    """Where a consumer stands: delivered, or acknowledged."""

    consumer_seq: int = 0
    stream_seq: int = 0
    last_active_ns: int = 0


class GroupState(NamedTuple):
    group: str
    pinned_client_id: str = ""
    pinned_ns: int = 0


class ConsumerState(NamedTuple):
    """The state of a consumer."""

    delivered: Position = Position()
    ack_floor: Position = Position()
    num_ack_pending: int = 0
    num_redelivered: int = 0
    num_waiting: int = 0
    num_pending: int = 0
    push_bound: bool = False
    pause_remaining_ns: int = 0  # above 0: paused
    groups: Sequence[GroupState] = ()


def consumer_info(
    stream: str, name: str, created_ns: int, config: msgspec.Raw, state: ConsumerState, now_ns: int
) -> Plain:
    body: Plain = {
        "stream_name": stream,
        "name": name,
        "created": text(created_ns),
        "config": config,
        "delivered": _position(state.delivered),
        "ack_floor": _position(state.ack_floor),
        "num_ack_pending": state.num_ack_pending,
        "num_redelivered": state.num_redelivered,
        "num_waiting": state.num_waiting,
        "num_pending": state.num_pending,
    }
    if state.push_bound:
        body["push_bound"] = True
    if state.pause_remaining_ns > 0:
        body["paused"] = True
        body["pause_remaining"] = state.pause_remaining_ns
    body["ts"] = text(now_ns)
    if state.groups:
        body["priority_groups"] = [_group(group) for group in state.groups]
    return body


def _position(position: Position) -> Plain:
    body: Plain = {"consumer_seq": position.consumer_seq, "stream_seq": position.stream_seq}
    if position.last_active_ns:
        body["last_active"] = text(position.last_active_ns)
    return body


def _group(state: GroupState) -> Plain:
    body: Plain = {"group": state.group}
    if state.pinned_client_id:
        body["pinned_client_id"] = state.pinned_client_id
    body["pinned_ts"] = time_text(state.pinned_ns)
    return body


def consumer_created(info: Plain) -> bytes:
    return answer("consumer_create_response", info)


def consumer_informed(info: Plain) -> bytes:
    return answer("consumer_info_response", info)


def consumer_reset(info: Plain, seq: int) -> bytes:
    return answer("consumer_reset_response", info | {"reset_seq": seq})


def consumer_paused(until: str, remaining_ns: int) -> bytes:
    """`until` as in the request; nothing remaining means that the consumer runs."""
    body: Plain = {"paused": remaining_ns > 0, "pause_until": until}
    if remaining_ns > 0:
        body["pause_remaining"] = remaining_ns
    return answer("consumer_pause_response", body)


def consumer_unpinned() -> bytes:
    return answer("consumer_unpin_response", {})


def snapshot_started(config: msgspec.Raw, state: Plain) -> bytes:
    return answer("stream_snapshot_response", {"config": config, "state": state})


def restore_started(deliver_subject: str) -> bytes:
    return answer("stream_restore_response", {"deliver_subject": deliver_subject})


class Account(NamedTuple):
    """What an account uses."""

    memory: int = 0
    storage: int = 0
    reserved_memory: int = 0
    reserved_storage: int = 0
    streams: int = 0
    consumers: int = 0


def account_info(
    account: Account, limits: Limits, *, domain: str = "", api_total: int = 0, api_errors: int = 0
) -> bytes:
    body: Plain = account._asdict()
    body["limits"] = {
        name: getattr(limits, name) for name in limits.__struct_fields__ if not name.startswith("server_")
    }
    if domain:
        body["domain"] = domain
    body["api"] = {"level": metadata.API_LEVEL, "total": api_total, "errors": api_errors}
    return answer("account_info_response", body)
