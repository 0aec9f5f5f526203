"""Handlers of the stream requests of the JetStream API: account info, streams, stored messages."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.broker.handlers import direct_get
from headrace.broker.handlers.api_dispatch import (
    INFOS_PER_STEP,
    MANY_PATTERNS,
    ApiEndpoint,
    ApiRequest,
    ApiSteps,
)
from headrace.broker.handlers.subject_pages import (
    DELETED_MAX,
    LARGE_BYTES,
    SubjectPage,
    iter_deleted,
    iter_page,
)
from headrace.broker.streams.stream_info import make_stream_info
from headrace.jetstream_api import advisories, responses
from headrace.jetstream_api.configs import StreamConfig
from headrace.jetstream_api.decode import decode, decode_message_get, decode_optional, decode_stream, is_empty
from headrace.jetstream_api.errors import ApiError
from headrace.jetstream_api.requests import (
    MessageDeleteRequest,
    PurgeRequest,
    StreamInfoRequest,
    StreamListRequest,
    StreamNamesRequest,
)
from headrace.jetstream_api.validation import streams
from headrace.protocol import subjects
from headrace.protocol.pattern_set import TooManyVisits
from headrace.storage import SEQ_MAX

if TYPE_CHECKING:
    from headrace.broker.handlers.api_context import ApiContext

_MANY_STREAMS = 500
_COMPARISONS_PER_STEP = 500


def account_info(jetstream: ApiContext, request: ApiRequest) -> bytes:
    memory, reserved_memory = jetstream.quota.usage("memory")
    storage, reserved_storage = jetstream.quota.usage("file")
    account = responses.AccountUsage(
        memory=memory,
        storage=storage,
        reserved_memory=reserved_memory,
        reserved_storage=reserved_storage,
        streams=len(jetstream.streams),
        consumers=jetstream.totals.consumers,
    )
    return responses.encode_account_info(
        account,
        jetstream.quota.limits,
        domain=jetstream.domain,
        api_total=jetstream.api_total,
        api_errors=jetstream.api_errors,
    )


# Streams


def create(jetstream: ApiContext, request: ApiRequest) -> ApiSteps:
    config, pedantic = decode_stream(request.body, strict=jetstream.reject_unknown_fields)
    name = request.names[0]
    validate = partial(streams.validate_create, config, name, strict=pedantic, limits=jetstream.quota.limits)
    new_config = yield from iter_validate(jetstream, name, validate, is_expensive_config(jetstream, config))
    stream = jetstream.streams.get(new_config.name)
    if stream is None:
        stream = yield from jetstream.registry.iter_create_stream(new_config)
        jetstream.advisories.publish(advisories.make_stream_action, stream.name, "create")
    return responses.encode_stream_created(make_stream_info(stream))


def update(jetstream: ApiContext, request: ApiRequest) -> ApiSteps:
    config, pedantic = decode_stream(request.body, strict=jetstream.reject_unknown_fields)
    name = request.names[0]
    stream = jetstream.streams.get(name)
    consumers = stream.consumer_configs() if stream else ()
    validate = partial(
        streams.validate_update,
        config,
        name,
        strict=pedantic,
        limits=jetstream.quota.limits,
        consumers=consumers,
    )
    is_expensive = is_expensive_config(
        jetstream, config, len(stream.config.subjects) if stream is not None else 0
    )
    new_config = yield from iter_validate(jetstream, name, validate, is_expensive)
    stream = jetstream.registry.get_stream(name)
    yield from jetstream.registry.iter_update_stream(stream, new_config)
    jetstream.advisories.publish(advisories.make_stream_action, name, "modify")
    return responses.encode_stream_updated(make_stream_info(stream))


def count_patterns(config: StreamConfig) -> int:
    """Return how many subjects and subject transforms a configuration has."""
    count = len(config.subjects)
    for upstream in (*config.sources, config.mirror):
        if upstream is not None:
            count += 1 + len(upstream.subject_transforms)
    return count


def is_expensive_config(jetstream: ApiContext, config: StreamConfig, replaced_subjects: int = 0) -> bool:
    """Return whether a configuration has many patterns, or has upstreams that many streams could form a cycle with."""
    if count_patterns(config) + replaced_subjects > MANY_PATTERNS:
        return True
    return (bool(config.sources) or config.mirror is not None) and len(jetstream.streams) > _MANY_STREAMS


def iter_validate(
    jetstream: ApiContext, name: str, validate: Callable[..., StreamConfig], is_expensive: bool
) -> Generator[Callable[[], Any] | None, Any, StreamConfig]:
    """Validate a configuration against those of all streams, off the event loop if that takes long."""
    configs, quota = jetstream.registry.configs, jetstream.quota
    if not is_expensive:
        with suppress(TooManyVisits):
            return validate(configs, usage=quota.usage_excluding(name))
    while True:
        existing = configs.copy()
        valid: StreamConfig = yield partial(validate, existing, usage=quota.usage_excluding(name))
        if configs == existing:  # otherwise a restore, or another change, has finished meanwhile
            return valid


def delete(jetstream: ApiContext, request: ApiRequest) -> ApiSteps:
    _must_be_empty(request)
    stream = jetstream.registry.get_stream(request.names[0])
    yield from jetstream.registry.iter_delete_stream(stream)
    jetstream.advisories.publish(advisories.make_stream_action, stream.name, "delete")
    return responses.encode_success("stream_delete_response")


def info(jetstream: ApiContext, request: ApiRequest) -> ApiSteps:
    wanted = decode_optional(StreamInfoRequest, request.body, strict=jetstream.reject_unknown_fields)
    stream = jetstream.registry.get_stream(request.names[0])
    page, deleted = SubjectPage(None, 0), None
    if wanted.subjects_filter:
        stream.retention.enforce()
        subject_filter = yield from stream.log.iter_filter((wanted.subjects_filter.encode(),))
        page = yield from iter_page(stream.log, subject_filter, wanted.offset, responses.SUBJECTS_LIMIT)
    if wanted.deleted_details:
        stream.retention.enforce()
        deleted = yield from iter_deleted(stream.log, DELETED_MAX)
    stream = jetstream.registry.get_stream(stream.name)  # it may have been deleted meanwhile
    info_response = make_stream_info(
        stream, leader=jetstream.server_name, subjects=page.counts, deleted=deleted
    )
    paging = {}
    if page.total:
        paging = {"total": page.total, "offset": max(wanted.offset, 0), "limit": responses.SUBJECTS_LIMIT}
    encode = partial(responses.encode_stream_info, info_response, **paging)
    is_large = any(
        part is not None and len(memoryview(part)) > LARGE_BYTES for part in (page.counts, deleted)
    )
    return (yield encode) if is_large else encode()


def list_names(jetstream: ApiContext, request: ApiRequest) -> ApiSteps:
    wanted = decode_optional(StreamNamesRequest, request.body, strict=jetstream.reject_unknown_fields)
    found = yield from _iter_names(jetstream, wanted.subject)
    start, end = responses.compute_page(len(found), wanted.offset, responses.NAMES_LIMIT)
    return responses.encode_stream_names(len(found), start, found[start:end])


def list_streams(jetstream: ApiContext, request: ApiRequest) -> ApiSteps:
    wanted = decode_optional(StreamListRequest, request.body, strict=jetstream.reject_unknown_fields)
    found = yield from _iter_names(jetstream, wanted.subject)
    start, end = responses.compute_page(len(found), wanted.offset, responses.LIST_LIMIT)
    infos = []
    for number, name in enumerate(found[start:end], 1):
        stream = jetstream.streams.get(name)
        if stream is not None and not stream.closed:
            infos.append(make_stream_info(stream, in_list=True))
        if number % INFOS_PER_STEP == 0:
            yield None
    return responses.encode_stream_list(len(found), start, infos)


def _iter_names(jetstream: ApiContext, subject: str) -> Generator[None, None, list[str]]:
    """Return the names of all streams in order, in slices; with a subject, of those that could have a message on it."""
    names = jetstream.registry.sorted_names
    if not subject:
        return names
    pattern, found, compared = subject.encode(), [], 0
    for name in names:
        stream = jetstream.streams.get(name)
        if stream is None:
            continue
        own_subjects = stream.get_subjects()
        if any(subjects.overlaps(pattern, own) for own in own_subjects):
            found.append(name)
        compared += 1 + len(own_subjects)
        if compared >= _COMPARISONS_PER_STEP:
            compared = 0
            yield None
    return found


def purge(jetstream: ApiContext, request: ApiRequest) -> ApiSteps:
    wanted = decode_optional(PurgeRequest, request.body, strict=jetstream.reject_unknown_fields)
    if (wanted.seq and wanted.keep) or wanted.seq > SEQ_MAX:
        raise ApiError.BAD_REQUEST()
    stream = jetstream.registry.get_stream(request.names[0])
    if stream.config.sealed:
        raise ApiError.STREAM_SEALED()
    if stream.config.deny_purge:
        raise ApiError.STREAM_PURGE_FAILED(err="stream purge not permitted")
    purged = yield from stream.retention.iter_purge(wanted.filter.encode(), wanted.seq, wanted.keep)
    stream.mark_dirty()
    return responses.encode_purged(purged)


# Stored messages


def get_message(jetstream: ApiContext, request: ApiRequest) -> bytes:
    wanted = decode_message_get(request.body, strict=jetstream.reject_unknown_fields)
    stream = jetstream.registry.get_stream(request.names[0])
    stream.retention.enforce()
    seq = direct_get.find_seq(stream, wanted)
    message = stream.log.get(seq) if seq else None
    if message is None:
        raise ApiError.NO_MESSAGE_FOUND()
    time_ns, subject, header, payload, _ = message
    return responses.encode_stored_message(subject, seq, b"" if wanted.no_hdr else header, payload, time_ns)


def delete_message(jetstream: ApiContext, request: ApiRequest) -> bytes:
    if is_empty(request.body):
        raise ApiError.BAD_REQUEST()
    wanted = decode(MessageDeleteRequest, request.body, strict=jetstream.reject_unknown_fields)
    stream = jetstream.registry.get_stream(request.names[0])
    if stream.config.sealed:
        raise ApiError.STREAM_SEALED()
    if stream.config.deny_delete:
        raise ApiError.STREAM_MSG_DELETE_FAILED(err="message delete not permitted")
    stream.retention.delete_message(wanted.seq)
    stream.mark_dirty()
    return responses.encode_success("stream_msg_delete_response")


# Requests that need a cluster


def clustered_only(jetstream: ApiContext, request: ApiRequest) -> bytes:
    raise ApiError.CLUSTER_REQUIRED()


def _must_be_empty(request: ApiRequest) -> None:
    if not is_empty(request.body):
        raise ApiError.NOT_EMPTY_REQUEST()


ENDPOINTS: dict[tuple[str, ...], ApiEndpoint] = {
    ("INFO",): ApiEndpoint("account_info_response", account_info, reads=True),
    ("STREAM", "CREATE"): ApiEndpoint("stream_create_response", create, 1),
    ("STREAM", "UPDATE"): ApiEndpoint("stream_update_response", update, 1),
    ("STREAM", "DELETE"): ApiEndpoint("stream_delete_response", delete, 1),
    ("STREAM", "INFO"): ApiEndpoint("stream_info_response", info, 1, reads=True),
    ("STREAM", "NAMES"): ApiEndpoint("stream_names_response", list_names, reads=True),
    ("STREAM", "LIST"): ApiEndpoint("stream_list_response", list_streams, reads=True),
    ("STREAM", "PURGE"): ApiEndpoint("stream_purge_response", purge, 1),
    ("STREAM", "MSG", "GET"): ApiEndpoint(
        "stream_msg_get_response", get_message, 1, audit="errors", reads=True
    ),
    ("STREAM", "MSG", "DELETE"): ApiEndpoint("stream_msg_delete_response", delete_message, 1),
    ("STREAM", "LEADER", "STEPDOWN"): ApiEndpoint(
        "stream_leader_stepdown_response", clustered_only, 1, checks_api_level=False
    ),
    ("STREAM", "PEER", "REMOVE"): ApiEndpoint(
        "stream_remove_peer_response", clustered_only, 1, checks_api_level=False
    ),
    ("CONSUMER", "LEADER", "STEPDOWN"): ApiEndpoint(
        "consumer_leader_stepdown_response", clustered_only, 2, checks_api_level=False
    ),
}
