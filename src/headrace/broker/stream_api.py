"""The handlers of the stream side of the API: account info, streams, stored messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.api import advisories, errors, responses, streams
from headrace.api.decode import decode, decode_message_get, decode_optional, decode_stream, is_empty
from headrace.api.requests import (
    MessageDeleteRequest,
    PurgeRequest,
    StreamInfoRequest,
    StreamListRequest,
    StreamNamesRequest,
)
from headrace.broker import direct
from headrace.broker.door import Endpoint, Request
from headrace.broker.info import stream_info
from headrace.store import SEQ_MAX

if TYPE_CHECKING:
    from headrace.broker.jetstream import JetStream


def account_info(jetstream: JetStream, request: Request) -> bytes:
    memory, reserved_memory = jetstream.usage("memory")
    storage, reserved_storage = jetstream.usage("file")
    account = responses.Account(
        memory=memory,
        storage=storage,
        reserved_memory=reserved_memory,
        reserved_storage=reserved_storage,
        streams=len(jetstream.streams),
        consumers=sum(len(stream.consumers) for stream in jetstream.streams.values()),
    )
    return responses.account_info(
        account,
        jetstream.limits,
        domain=jetstream.domain,
        api_total=jetstream.api_total,
        api_errors=jetstream.api_errors,
    )


# Streams


def create(jetstream: JetStream, request: Request) -> bytes:
    config, pedantic = decode_stream(request.body, strict=jetstream.strict)
    existing = jetstream.configs()
    name = request.names[0]
    usage = jetstream.usage_beside(name)
    made = streams.create(config, name, existing, strict=pedantic, limits=jetstream.limits, usage=usage)
    stream = jetstream.streams.get(made.name)
    if stream is None:
        stream = jetstream.create_stream(made)
        jetstream.advisories.send(advisories.stream_action, stream.name, "create")
    return responses.stream_created(stream_info(stream))


def update(jetstream: JetStream, request: Request) -> bytes:
    config, pedantic = decode_stream(request.body, strict=jetstream.strict)
    name = request.names[0]
    stream = jetstream.streams.get(name)
    consumers = stream.consumer_configs() if stream else ()
    made = streams.update(
        config,
        name,
        jetstream.configs(),
        strict=pedantic,
        limits=jetstream.limits,
        usage=jetstream.usage_beside(name),
        consumers=consumers,
    )
    stream = jetstream.lookup(name)
    jetstream.update_stream(stream, made)
    jetstream.advisories.send(advisories.stream_action, name, "modify")
    return responses.stream_updated(stream_info(stream))


def delete(jetstream: JetStream, request: Request) -> bytes:
    _must_be_empty(request)
    stream = jetstream.lookup(request.names[0])
    jetstream.delete_stream(stream)
    jetstream.advisories.send(advisories.stream_action, stream.name, "delete")
    return responses.success("stream_delete_response")


def info(jetstream: JetStream, request: Request) -> bytes:
    wanted = decode_optional(StreamInfoRequest, request.body, strict=jetstream.strict)
    stream = jetstream.lookup(request.names[0])
    counts = []
    if wanted.subjects_filter:
        stream.retention.enforce()
        counts = list(stream.log.subjects(stream.log.filter((wanted.subjects_filter.encode(),))))
    start, end = responses.paged(len(counts), wanted.offset, responses.SUBJECTS_LIMIT)
    found = {subject.decode("utf-8", "replace"): count for subject, count in counts[start:end]}
    shown = stream_info(stream, leader=jetstream.server_name, subjects=found, deleted=wanted.deleted_details)
    if not counts:
        return responses.stream_informed(shown)
    asked = max(wanted.offset, 0)
    return responses.stream_informed(shown, total=len(counts), offset=asked, limit=responses.SUBJECTS_LIMIT)


def names(jetstream: JetStream, request: Request) -> bytes:
    wanted = decode_optional(StreamNamesRequest, request.body, strict=jetstream.strict)
    found = [stream.name for stream in jetstream.sorted_streams(wanted.subject)]
    start, end = responses.paged(len(found), wanted.offset, responses.NAMES_LIMIT)
    return responses.stream_names(len(found), start, found[start:end])


def listing(jetstream: JetStream, request: Request) -> bytes:
    wanted = decode_optional(StreamListRequest, request.body, strict=jetstream.strict)
    found = jetstream.sorted_streams(wanted.subject)
    start, end = responses.paged(len(found), wanted.offset, responses.LIST_LIMIT)
    infos = [stream_info(stream, listed=True) for stream in found[start:end]]
    return responses.stream_list(len(found), start, infos)


def purge(jetstream: JetStream, request: Request) -> bytes:
    wanted = decode_optional(PurgeRequest, request.body, strict=jetstream.strict)
    if (wanted.seq and wanted.keep) or wanted.seq > SEQ_MAX:
        raise errors.error(10003)
    stream = jetstream.lookup(request.names[0])
    if stream.config.sealed:
        raise errors.error(10109)
    if stream.config.deny_purge:
        raise errors.error(10110, err="stream purge not permitted")
    purged = stream.retention.purge(wanted.filter.encode(), wanted.seq, wanted.keep)
    stream.changed()
    return responses.purged(purged)


# Stored messages


def get_message(jetstream: JetStream, request: Request) -> bytes:
    wanted = decode_message_get(request.body, strict=jetstream.strict)
    stream = jetstream.lookup(request.names[0])
    stream.retention.enforce()
    seq = direct.find(stream, wanted)
    message = stream.log.get(seq) if seq else None
    if message is None:
        raise errors.error(10037)
    time_ns, subject, header, payload, _ = message
    return responses.stored_message(subject, seq, b"" if wanted.no_hdr else header, payload, time_ns)


def delete_message(jetstream: JetStream, request: Request) -> bytes:
    if is_empty(request.body):
        raise errors.error(10003)
    wanted = decode(MessageDeleteRequest, request.body, strict=jetstream.strict)
    stream = jetstream.lookup(request.names[0])
    if stream.config.sealed:
        raise errors.error(10109)
    if stream.config.deny_delete:
        raise errors.error(10057, err="message delete not permitted")
    stream.retention.delete(wanted.seq)
    stream.changed()
    return responses.success("stream_msg_delete_response")


# What only a cluster can do


def clustered_only(jetstream: JetStream, request: Request) -> bytes:
    raise errors.error(10010)


def _must_be_empty(request: Request) -> None:
    if not is_empty(request.body):
        raise errors.error(10038)


ENDPOINTS: dict[tuple[str, ...], Endpoint] = {
    ("INFO",): Endpoint("account_info_response", account_info),
    ("STREAM", "CREATE"): Endpoint("stream_create_response", create, 1),
    ("STREAM", "UPDATE"): Endpoint("stream_update_response", update, 1),
    ("STREAM", "DELETE"): Endpoint("stream_delete_response", delete, 1),
    ("STREAM", "INFO"): Endpoint("stream_info_response", info, 1),
    ("STREAM", "NAMES"): Endpoint("stream_names_response", names),
    ("STREAM", "LIST"): Endpoint("stream_list_response", listing),
    ("STREAM", "PURGE"): Endpoint("stream_purge_response", purge, 1),
    ("STREAM", "MSG", "GET"): Endpoint("stream_msg_get_response", get_message, 1, audit="errors"),
    ("STREAM", "MSG", "DELETE"): Endpoint("stream_msg_delete_response", delete_message, 1),
    ("STREAM", "LEADER", "STEPDOWN"): Endpoint(
        "stream_leader_stepdown_response", clustered_only, 1, levelled=False
    ),
    ("STREAM", "PEER", "REMOVE"): Endpoint("stream_remove_peer_response", clustered_only, 1, levelled=False),
    ("CONSUMER", "LEADER", "STEPDOWN"): Endpoint(
        "consumer_leader_stepdown_response", clustered_only, 2, levelled=False
    ),
}
