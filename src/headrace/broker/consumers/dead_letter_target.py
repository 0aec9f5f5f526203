"""Finds the stream that stores the dead letters of a consumer, and says why it cannot.

Dead letters must not return to the consumer: `_find_loop` follows a dead letter through the dead letters, mirrors,
sources and republishing of other streams of the account. Knows no messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace._native import PublishFastPath
from headrace.broker.routing.apply_transform import make_first_matching, make_transform
from headrace.broker.streams.republish import SERVER_PREFIXES
from headrace.jetstream_api.errors import invalid_config
from headrace.protocol import subjects

if TYPE_CHECKING:
    from headrace.broker.consumers.consumer_context import ConsumerJetStream, ConsumerStream
    from headrace.broker.routing.router import SubjectRouter
    from headrace.jetstream_api.configs import ConsumerConfig, StreamSource

#: Maximum number of streams and subjects that one dead letter is followed through.
_PLACES_MAX = 1_000


class _Place(NamedTuple):
    """A stream that stores a dead letter, the subject there, and how it gets there."""

    stream: Any
    subject: bytes
    way: str


def find_capturing(router: SubjectRouter, subject: bytes) -> Any:
    """Return the stream that stores messages on a subject; None if there is none."""
    if not subjects.is_well_formed(subject):
        return None
    for subscriber in router.get_route(subject).internal_subscribers:
        if isinstance(subscriber, PublishFastPath):
            handler: Any = subscriber.handler
            if not handler.stream.closed:
                return handler.stream
    return None


def check_target(jetstream: ConsumerJetStream, stream: ConsumerStream, config: ConsumerConfig) -> None:
    """Reject a configuration whose dead letters no stream captures, or not in one frame with the ack."""
    if config.dead_letter is not None and (problem := find_target(jetstream, stream, config)[1]):
        raise invalid_config(problem)


def find_target(
    jetstream: ConsumerJetStream, stream: ConsumerStream, config: ConsumerConfig
) -> tuple[Any, str]:
    """Return the stream that stores the dead letters of a consumer, and why it cannot, "" if it can."""
    assert config.dead_letter is not None
    subject = config.dead_letter.subject
    target = find_capturing(jetstream.router, subject.encode())
    problem = _find_problem(target, stream, config, subject) or _find_loop(jetstream, target, stream, config)
    return target, problem


def _find_problem(target: Any, stream: ConsumerStream, config: ConsumerConfig, subject: str) -> str:
    """Return why a stream cannot take the dead letters of a consumer; "" if it can."""
    if target is None:
        return f"no stream of this account captures the dead letters on {subject!r}: create it first"
    if target is stream:
        return f"dead letters on {subject!r} would come back to the same stream"
    if target.config.allow_msg_counter:
        return f"stream {target.name!r} has counters, which a dead letter would not increment"
    is_persistent = stream.config.storage != "memory" and not config.mem_storage
    if is_persistent and target.config.storage == "memory":
        return f"stream {target.name!r} is in memory and would lose dead letters in a crash"
    return ""


def _find_loop(
    jetstream: ConsumerJetStream, target: Any, stream: ConsumerStream, config: ConsumerConfig
) -> str:
    """Return how dead letters of a consumer would return to it through other streams; "" if they would not."""
    assert config.dead_letter is not None
    subject = config.dead_letter.subject
    copies = _collect_copies(jetstream.streams)
    queue = [_Place(target, target.transform_subject(subject.encode()), "")]
    seen = {(target.name, queue[0].subject)}
    while queue:
        for following in _iter_following(jetstream.router, queue.pop(), copies):
            if following.stream is stream and _selects(config, following.subject):
                return f"dead letters on {subject!r} would come back to the same stream: {following.way}"
            if (key := (following.stream.name, following.subject)) not in seen:
                seen.add(key)
                queue.append(following)
        if len(seen) > _PLACES_MAX:
            return f"dead letters on {subject!r} would be copied more than {_PLACES_MAX:,} times"
    return ""


def _collect_copies(streams: Mapping[str, Any]) -> dict[str, list[tuple[Any, StreamSource]]]:
    """Return which streams of the account copy from which, by the names of those that they copy from."""
    copies: dict[str, list[tuple[Any, StreamSource]]] = {}
    for stream in streams.values():
        for entry in (*stream.config.sources, stream.config.mirror):
            if entry is not None and entry.external is None and not stream.closed:
                copies.setdefault(entry.name, []).append((stream, entry))
    return copies


def _iter_following(
    router: SubjectRouter, place: _Place, copies: dict[str, list[tuple[Any, StreamSource]]]
) -> Iterator[_Place]:
    """Yield the places that a message may come to from this one."""
    stream, subject, _ = place
    for name, config in stream.consumer_configs():
        wanted = config.dead_letter
        if wanted is not None and _selects(config, subject):
            way = f"consumer {name!r} of stream {stream.name!r} sends its own there"
            yield from _iter_captured(router, wanted.subject.encode(), way)
    if (rule := stream.config.republish) is not None:
        republished = make_transform(rule.src, rule.dest)(subject)
        if republished is not None and not republished.startswith(SERVER_PREFIXES):
            yield from _iter_captured(router, republished, f"stream {stream.name!r} republishes them")
    for copier, entry in copies.get(stream.name, ()):
        copied = _map_to_copy(entry, subject)
        if copied is not None:
            way = f"stream {copier.name!r} copies stream {stream.name!r}"
            yield _Place(copier, copier.transform_subject(copied), way)


def _iter_captured(router: SubjectRouter, subject: bytes, way: str) -> Iterator[_Place]:
    stream = find_capturing(router, subject)
    if stream is not None:
        yield _Place(stream, stream.transform_subject(subject), way)


def _map_to_copy(entry: StreamSource, subject: bytes) -> bytes | None:
    """Return the subject on which a mirror or source copies a message; None if it does not."""
    if (transform := make_first_matching(entry.subject_transforms)) is not None:
        return transform(subject)
    pattern = entry.filter_subject.encode()
    return subject if not pattern or subjects.matches(pattern, subject) else None


def _selects(config: ConsumerConfig, subject: bytes) -> bool:
    """Return whether a consumer gets the messages of a subject."""
    filters = config.get_filters()
    return not filters or any(subjects.matches(each.encode(), subject) for each in filters)
