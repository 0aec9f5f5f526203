"""The handlers of the consumer side of the API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.api import advisories as events
from headrace.api import configs, consumers, errors, metadata, responses, times
from headrace.api.configs import ConsumerConfig
from headrace.api.decode import decode, decode_lenient, decode_optional, decode_unpin, is_empty
from headrace.api.names import short_hash
from headrace.api.requests import ConsumerRequest, ConsumersRequest, PauseRequest, ResetRequest
from headrace.broker.advisories import nuid
from headrace.broker.consumer_info import consumer_info
from headrace.broker.door import Endpoint, Request
from headrace.broker.pulls import Pulls
from headrace.broker.reset import reset
from headrace.protocol import headers

if TYPE_CHECKING:
    from headrace.broker.consumer import Consumer
    from headrace.broker.jetstream import JetStream
    from headrace.broker.stream import Stream

IDENTITY = b"Nats-Stream-Identity"


def _lookup(jetstream: JetStream, request: Request) -> Consumer:
    stream = jetstream.lookup(request.names[0])
    consumer = stream.readers.find(request.names[1])
    if consumer is None:
        raise errors.error(10014)
    return consumer


def identity(stream: Stream) -> str:
    """What tells a stream from a later one of the same name."""
    return short_hash(times.text(stream.created_ns))


# Create and update


def create(jetstream: JetStream, request: Request) -> bytes:
    """CREATE.<stream>[.<name>[.<filter>]]"""
    stream, name, pattern = (*request.names, "", "")[:3]
    form = consumers.NAMED if name else consumers.EPHEMERAL
    return _create(jetstream, request, stream=stream, form=form, name=name, filter_subject=pattern)


def create_durable(jetstream: JetStream, request: Request) -> bytes:
    """DURABLE.CREATE.<stream>.<name>"""
    stream, name = request.names
    return _create(jetstream, request, stream=stream, form=consumers.DURABLE, name=name)


def _create(jetstream: JetStream, request: Request, **subject: str) -> bytes:
    wanted = decode(ConsumerRequest, request.body, strict=jetstream.strict)
    named = consumers.named(wanted, **subject)
    stream = jetstream.lookup(wanted.stream_name)
    others = {each.name: each.config for each in stream.readers}
    config = consumers.adopted(named, stream.config, others, nuid()[:8])
    if config.direct or config.sourcing:
        _check_identity(stream, request)
    config = consumers.settle(
        config,
        stream.config,
        others,
        action=wanted.action,
        strict=wanted.pedantic,
        limits=jetstream.limits,
        has_interest=lambda subject: jetstream.hub.interest(subject.encode()),
    )
    consumer = _apply(stream, config)
    return responses.consumer_created(consumer_info(consumer))


def _apply(stream: Stream, config: ConsumerConfig) -> Consumer:
    name = config.durable_name or config.name
    consumer = stream.readers.find(name) if name else None
    if consumer is None:
        consumer = stream.readers.create(name or _fresh_name(stream), config)
        consumer.advise(events.consumer_action, "create")
        if consumer.pause_remaining():
            consumer.advise(events.consumer_paused, True, config.pause_until)
    elif not consumers.same(config, consumer.config):
        consumer.configure(config)
        if config.sourcing:
            reset(consumer, None)
    elif config.sourcing:
        reset(consumer, None)
    return consumer


def _fresh_name(stream: Stream) -> str:
    while stream.readers.find(name := nuid()[:8]) is not None:
        pass
    return name


def _check_identity(stream: Stream, request: Request) -> None:
    """Sourcing requests learn, and may insist on, which stream of that name they talk to."""
    ours = identity(stream)
    request.answer_header = headers.build([(IDENTITY, ours.encode())])
    theirs = headers.get(request.header, IDENTITY) if request.header else None
    if theirs and theirs.decode("utf-8", "replace") != ours:
        raise errors.error(10225, identity=ours)


# Look


def info(jetstream: JetStream, request: Request) -> bytes:
    if not is_empty(request.body):
        raise errors.error(10038)
    return responses.consumer_informed(consumer_info(_lookup(jetstream, request)))


def names(jetstream: JetStream, request: Request) -> bytes:
    stream, offset = _listed(jetstream, request)
    found = sorted(stream.consumers)
    start, end = responses.paged(len(found), offset, responses.NAMES_LIMIT)
    return responses.consumer_names(len(found), start, found[start:end])


def listing(jetstream: JetStream, request: Request) -> bytes:
    stream, offset = _listed(jetstream, request)
    found = sorted(stream.consumers)
    start, end = responses.paged(len(found), offset, responses.LIST_LIMIT)
    infos = [consumer_info(stream.consumers[name], listed=True) for name in found[start:end]]
    return responses.consumer_list(len(found), start, infos)


def _listed(jetstream: JetStream, request: Request) -> tuple[Stream, int]:
    wanted = decode_optional(ConsumersRequest, request.body, strict=jetstream.strict)
    return jetstream.lookup(request.names[0]), wanted.offset


# Change


def delete(jetstream: JetStream, request: Request) -> bytes:
    if not is_empty(request.body):
        raise errors.error(10038)
    consumer = _lookup(jetstream, request)
    consumer.stream.readers.delete(consumer)
    return responses.success("consumer_delete_response")


def pause(jetstream: JetStream, request: Request) -> bytes:
    until = times.ZERO
    if request.body:
        until = decode(PauseRequest, request.body, strict=jetstream.strict).pause_until
    consumer = _lookup(jetstream, request)
    config = configs.copy(consumer.config)
    config.pause_until = None if until == times.ZERO else until
    config.metadata = metadata.stored(config.metadata, metadata.consumer_level(config))
    before = consumer.config.pause_until
    consumer.configure(config)
    remaining = consumer.pause_remaining()
    if before != config.pause_until:
        consumer.advise(events.consumer_paused, remaining > 0, until)
    return responses.consumer_paused(until, remaining)


def unpin(jetstream: JetStream, request: Request) -> bytes:
    group = decode_unpin(request.body)
    consumer = _lookup(jetstream, request)
    if group not in consumer.config.priority_groups or not isinstance(consumer.outlet, Pulls):
        raise errors.error(10160)
    consumer.outlet.pin.free("admin")
    consumer.wake()
    return responses.consumer_unpinned()


def reset_consumer(jetstream: JetStream, request: Request) -> bytes:
    consumer = _lookup(jetstream, request)
    if request.header and headers.get(request.header, IDENTITY) is not None:
        request.answer_header = headers.build([(IDENTITY, identity(consumer.stream).encode())])
    seq = decode_lenient(ResetRequest, request.body).seq if request.body else None
    target = reset(consumer, seq)
    return responses.consumer_reset(consumer_info(consumer), target)


ENDPOINTS: dict[tuple[str, ...], Endpoint] = {
    ("CONSUMER", "CREATE"): Endpoint("consumer_create_response", create, 1, 2),
    ("CONSUMER", "DURABLE", "CREATE"): Endpoint("consumer_create_response", create_durable, 2),
    ("CONSUMER", "NAMES"): Endpoint("consumer_names_response", names, 1),
    ("CONSUMER", "LIST"): Endpoint("consumer_list_response", listing, 1),
    ("CONSUMER", "INFO"): Endpoint("consumer_info_response", info, 2),
    ("CONSUMER", "DELETE"): Endpoint("consumer_delete_response", delete, 2),
    ("CONSUMER", "PAUSE"): Endpoint("consumer_pause_response", pause, 2),
    ("CONSUMER", "UNPIN"): Endpoint("consumer_unpin_response", unpin, 2),
    ("CONSUMER", "RESET"): Endpoint(
        "consumer_reset_response", reset_consumer, 2, audit="never", private=True
    ),
}
