"""Handlers of the consumer requests of the JetStream API."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.broker.consumers.consumer_info import make_consumer_info
from headrace.broker.consumers.dead_letter_target import check_target
from headrace.broker.consumers.deliver_policy import iter_initial_state
from headrace.broker.consumers.reset import reset
from headrace.broker.handlers.api_dispatch import (
    INFOS_PER_STEP,
    MANY_PATTERNS,
    ApiEndpoint,
    ApiRequest,
    ApiSteps,
)
from headrace.jetstream_api import advisories as events
from headrace.jetstream_api import configs, metadata, responses, times
from headrace.jetstream_api.configs import ConsumerConfig
from headrace.jetstream_api.decode import decode, decode_lenient, decode_optional, decode_unpin, is_empty
from headrace.jetstream_api.errors import ApiError
from headrace.jetstream_api.names import short_hash
from headrace.jetstream_api.requests import ConsumerRequest, ConsumersRequest, PauseRequest, ResetRequest
from headrace.jetstream_api.validation import consumers
from headrace.protocol import headers
from headrace.protocol.nuid import nuid
from headrace.storage import Filter

if TYPE_CHECKING:
    from headrace.broker.consumers.consumer import Consumer
    from headrace.broker.handlers.api_context import ApiContext
    from headrace.broker.stream import Stream

IDENTITY = b"Nats-Stream-Identity"


def _get_consumer(jetstream: ApiContext, request: ApiRequest) -> Consumer:
    stream = jetstream.registry.get_stream(request.names[0])
    consumer = stream.consumer_set.find(request.names[1])
    if consumer is None:
        raise ApiError.CONSUMER_NOT_FOUND()
    return consumer


def stream_identity(created_ns: int) -> str:
    """Return an identity that distinguishes a stream from a later one with the same name."""
    return short_hash(times.format_time(created_ns))


# Create and update


def create(jetstream: ApiContext, request: ApiRequest) -> ApiSteps:
    """Handle CREATE.<stream>[.<name>[.<filter>]]."""
    stream, name, pattern = (*request.names, "", "")[:3]
    form = consumers.NAMED if name else consumers.EPHEMERAL
    return _create(jetstream, request, stream=stream, form=form, name=name, filter_subject=pattern)


def create_durable(jetstream: ApiContext, request: ApiRequest) -> ApiSteps:
    """Handle DURABLE.CREATE.<stream>.<name>."""
    stream, name = request.names
    return _create(jetstream, request, stream=stream, form=consumers.DURABLE, name=name)


def _create(jetstream: ApiContext, request: ApiRequest, **subject: str) -> ApiSteps:
    wanted = decode(ConsumerRequest, request.body, strict=jetstream.reject_unknown_fields)
    named_config = consumers.resolve_name(wanted, **subject)
    stream = jetstream.registry.get_stream(wanted.stream_name)
    others = {each.name: each.config for each in stream.consumer_set}
    config = consumers.merge_existing(named_config, stream.config, others, nuid()[:8])
    if config.direct or config.sourcing:
        _check_identity(stream, request)
    is_bound = _has_subscriber(jetstream, others.get(config.durable_name or config.name))
    validate = partial(
        consumers.validate,
        config,
        stream.config,
        others,
        action=wanted.action,
        strict=wanted.pedantic,
        limits=jetstream.quota.limits,
        has_interest=lambda _deliver_subject: is_bound,
    )
    # The filters of a work queue's consumers must not overlap: they are compared with all of them.
    compared = len(others) if stream.config.retention == "workqueue" else 0
    is_expensive = len(config.filter_subjects) + compared > MANY_PATTERNS
    config = (yield validate) if is_expensive else validate()
    patterns = tuple(pattern.encode() for pattern in config.get_filters())
    # Held until the consumer uses it: making it takes long if there are many patterns or subjects.
    subject_filter = yield from stream.log.iter_filter(patterns)
    stream = jetstream.registry.get_stream(stream.name)
    existing = others.get(config.durable_name or config.name)
    if existing is None or existing.dead_letter != config.dead_letter:
        check_target(jetstream, stream, config)
    consumer = yield from _create_or_update(stream, config, subject_filter)
    return responses.encode_consumer_created(make_consumer_info(consumer))


def _has_subscriber(jetstream: ApiContext, existing: ConsumerConfig | None) -> bool:
    """Return whether anybody listens on the deliver subject of an existing consumer."""
    if existing is None or not existing.deliver_subject:
        return False
    return jetstream.router.has_interest(existing.deliver_subject.encode())


def _create_or_update(
    stream: Stream, config: ConsumerConfig, subject_filter: Filter
) -> Generator[Callable[[], Any] | None, Any, Consumer]:
    name = config.durable_name or config.name
    consumer = stream.consumer_set.find(name) if name else None
    if consumer is None:
        initial_state = yield from iter_initial_state(config, stream.config, stream.log, subject_filter)
        consumer = stream.consumer_set.create(name or _new_name(stream), config, initial_state)
        consumer.send_advisory(events.make_consumer_action, "create")
        if consumer.pause_remaining_ns():
            consumer.send_advisory(events.make_consumer_paused, True, config.pause_until)
    elif not consumers.is_same(config, consumer.config):
        consumer.configure(config)
        if config.sourcing:
            reset(consumer, None)
    elif config.sourcing:
        reset(consumer, None)
    return consumer


def _new_name(stream: Stream) -> str:
    while stream.consumer_set.find(name := nuid()[:8]) is not None:
        pass
    return name


def _check_identity(stream: Stream, request: ApiRequest) -> None:
    """Return the stream's identity to sourcing requests, and raise if they expect another one."""
    ours = stream_identity(stream.created_ns)
    request.response_header = headers.build([(IDENTITY, ours.encode())])
    theirs = headers.get(request.header, IDENTITY) if request.header else None
    if theirs and theirs.decode("utf-8", "replace") != ours:
        raise ApiError.CONSUMER_STREAM_IDENTITY_MISMATCH(identity=ours)


# Info and lists


def info(jetstream: ApiContext, request: ApiRequest) -> bytes:
    if not is_empty(request.body):
        raise ApiError.NOT_EMPTY_REQUEST()
    return responses.encode_consumer_info(make_consumer_info(_get_consumer(jetstream, request)))


def list_names(jetstream: ApiContext, request: ApiRequest) -> bytes:
    stream, offset = _parse_list_request(jetstream, request)
    found = sorted(stream.consumers)
    start, end = responses.compute_page(len(found), offset, responses.NAMES_LIMIT)
    return responses.encode_consumer_names(len(found), start, found[start:end])


def list_consumers(jetstream: ApiContext, request: ApiRequest) -> ApiSteps:
    stream, offset = _parse_list_request(jetstream, request)
    found = sorted(stream.consumers)
    start, end = responses.compute_page(len(found), offset, responses.LIST_LIMIT)
    infos = []
    for number, name in enumerate(found[start:end], 1):
        if name in stream.consumers:
            infos.append(make_consumer_info(stream.consumers[name], in_list=True))
        if number % INFOS_PER_STEP == 0:
            yield None
    return responses.encode_consumer_list(len(found), start, infos)


def _parse_list_request(jetstream: ApiContext, request: ApiRequest) -> tuple[Stream, int]:
    wanted = decode_optional(ConsumersRequest, request.body, strict=jetstream.reject_unknown_fields)
    return jetstream.registry.get_stream(request.names[0]), wanted.offset


# Changes


def delete(jetstream: ApiContext, request: ApiRequest) -> bytes:
    if not is_empty(request.body):
        raise ApiError.NOT_EMPTY_REQUEST()
    consumer = _get_consumer(jetstream, request)
    stream = jetstream.registry.get_stream(request.names[0])
    stream.consumer_set.delete(consumer)
    return responses.encode_success("consumer_delete_response")


def pause(jetstream: ApiContext, request: ApiRequest) -> bytes:
    until = times.ZERO_TIME
    if request.body:
        until = decode(PauseRequest, request.body, strict=jetstream.reject_unknown_fields).pause_until
    consumer = _get_consumer(jetstream, request)
    config = configs.copy_config(consumer.config)
    config.pause_until = None if until == times.ZERO_TIME else until
    config.metadata = metadata.to_stored(config.metadata, metadata.required_consumer_level(config))
    before = consumer.config.pause_until
    consumer.configure(config)
    remaining = consumer.pause_remaining_ns()
    if before != config.pause_until:
        consumer.send_advisory(events.make_consumer_paused, remaining > 0, until)
    return responses.encode_consumer_paused(until, remaining)


def unpin(jetstream: ApiContext, request: ApiRequest) -> bytes:
    group = decode_unpin(request.body)
    consumer = _get_consumer(jetstream, request)
    pinned_client = consumer.delivery_mode.pinned_client
    if group not in consumer.config.priority_groups or pinned_client is None:
        raise ApiError.CONSUMER_INVALID_PRIORITY_GROUP()
    pinned_client.unpin("admin")
    consumer.schedule_delivery()
    return responses.encode_consumer_unpinned()


def reset_consumer(jetstream: ApiContext, request: ApiRequest) -> bytes:
    consumer = _get_consumer(jetstream, request)
    if request.header and headers.get(request.header, IDENTITY) is not None:
        request.response_header = headers.build(
            [(IDENTITY, stream_identity(consumer.stream.created_ns).encode())]
        )
    seq = decode_lenient(ResetRequest, request.body).seq if request.body else None
    target = reset(consumer, seq)
    return responses.encode_consumer_reset(make_consumer_info(consumer), target)


ENDPOINTS: dict[tuple[str, ...], ApiEndpoint] = {
    ("CONSUMER", "CREATE"): ApiEndpoint("consumer_create_response", create, 1, 2),
    ("CONSUMER", "DURABLE", "CREATE"): ApiEndpoint("consumer_create_response", create_durable, 2),
    ("CONSUMER", "NAMES"): ApiEndpoint("consumer_names_response", list_names, 1, reads=True),
    ("CONSUMER", "LIST"): ApiEndpoint("consumer_list_response", list_consumers, 1, reads=True),
    ("CONSUMER", "INFO"): ApiEndpoint("consumer_info_response", info, 2, reads=True),
    ("CONSUMER", "DELETE"): ApiEndpoint("consumer_delete_response", delete, 2),
    ("CONSUMER", "PAUSE"): ApiEndpoint("consumer_pause_response", pause, 2),
    ("CONSUMER", "UNPIN"): ApiEndpoint("consumer_unpin_response", unpin, 2),
    ("CONSUMER", "RESET"): ApiEndpoint(
        "consumer_reset_response", reset_consumer, 2, audit="never", private=True
    ),
}
