"""Validation of mirrors and sources: what a stream may copy from, and how an entry is named.

Checks run in nats-server's order and raise its errors. The existing streams are passed as a mapping from name to
configuration; nothing here changes them.
"""

from collections.abc import Mapping

from headrace._native.reserved_subjects import is_server_subject
from headrace.errors import RequestError
from headrace.jetstream_api import names
from headrace.jetstream_api.configs import External, StreamConfig, StreamSource
from headrace.jetstream_api.errors import ApiError, invalid_config, pedantic_error
from headrace.jetstream_api.subject_transform import BadTransform, check_transform
from headrace.jetstream_api.validation import pattern_checks
from headrace.jetstream_api.validation.source_cycles import has_cycle

StreamsByName = Mapping[str, StreamConfig]

_API_PREFIX = "$JS.API"


def make_index_name(source: StreamSource) -> str:
    """Return the name under which a source's position is stored: upstream, filters and destinations.

    Copies carry it in a header, separated by blanks: blanks that a destination may have within braces are left out.
    """
    if source.subject_transforms:
        filters = "\f".join("".join(each.src.split()) or ">" for each in source.subject_transforms)
        destinations = "\f".join("".join(each.dest.split()) or ">" for each in source.subject_transforms)
    else:
        filters, destinations = source.filter_subject or ">", ">"
    return f"{make_upstream_name(source)} {filters} {destinations}"


def make_upstream_name(source: StreamSource) -> str:
    """Return the upstream's part of the index name.

    A server-managed consumer is not part of it: a source can change to one and back without losing its position.
    """
    name = source.name
    if source.external is not None:
        name += ":" + names.short_hash(source.external.api)
    if source.consumer is not None and not source.consumer.server_managed:
        name += ":C=" + names.short_hash(source.consumer.name)
    return name


def check_sourcing(config: StreamConfig, existing: StreamsByName, *, strict: bool) -> bool:
    """Reject an invalid mirror or sources; return what `mirror_direct` must be."""
    externals: list[External] = []
    upstream_subjects: list[str] = []
    mirror_direct = config.mirror_direct
    if config.mirror is not None:
        mirror_direct = _check_mirror(config, config.mirror, existing, strict)
        _collect_upstreams(config.mirror, existing, externals, upstream_subjects)
    _check_sources(config, existing)
    for source in config.sources:
        if source is not None:
            _collect_upstreams(source, existing, externals, upstream_subjects)
    _check_managed(config, existing)
    _check_externals(externals, upstream_subjects)
    _check_cycles(config, existing)
    if has_cycle(config, existing):
        raise _make_cycle_error()
    return mirror_direct


def _collect_upstreams(
    source: StreamSource, existing: StreamsByName, externals: list[External], upstream_subjects: list[str]
) -> None:
    if source.external is not None:
        externals.append(source.external)
    elif source.name in existing:
        upstream_subjects.extend(existing[source.name].subjects)


def _check_mirror(config: StreamConfig, mirror: StreamSource, existing: StreamsByName, strict: bool) -> bool:
    excluded = (
        (config.first_seq, ApiError.MIRROR_WITH_FIRST_SEQ),
        (config.subjects, ApiError.MIRROR_WITH_SUBJECTS),
        (config.sources, ApiError.MIRROR_WITH_SOURCES),
        (config.allow_msg_counter, ApiError.MIRROR_WITH_COUNTERS),
        (config.allow_atomic, ApiError.MIRROR_WITH_ATOMIC_PUBLISH),
        (config.allow_batched, ApiError.MIRROR_WITH_BATCH_PUBLISH),
        (config.allow_msg_schedules, ApiError.MIRROR_WITH_MSG_SCHEDULES),
    )
    for present, api_error in excluded:
        if present:
            raise api_error()
    _check_consumer(mirror, ApiError.MIRROR_DURABLE_CONSUMER_CFG_INVALID)
    if mirror.filter_subject and mirror.subject_transforms:
        raise ApiError.MIRROR_MULTIPLE_FILTERS_NOT_ALLOWED()
    if config.subject_delete_marker_ttl > 0:
        raise invalid_config("subject delete markers forbidden on mirrors")
    pattern_checks.check_count(mirror.subject_transforms, "subject transforms")
    overlaps = pattern_checks.iter_overlaps([each.src for each in mirror.subject_transforms])
    for each, (_, overlap) in zip(mirror.subject_transforms, overlaps, strict=True):
        _check_transform(
            each.src,
            each.dest,
            ApiError.MIRROR_INVALID_SUBJECT_FILTER,
            ApiError.MIRROR_INVALID_TRANSFORM_DESTINATION,
        )
        if overlap:
            raise ApiError.MIRROR_OVERLAPPING_SUBJECT_FILTERS()
    return _check_mirror_upstream(config, mirror, existing, strict)


def _check_mirror_upstream(
    config: StreamConfig, mirror: StreamSource, existing: StreamsByName, strict: bool
) -> bool:
    if mirror.external is not None:
        return config.mirror_direct
    if not names.is_valid_name(mirror.name):
        raise ApiError.MIRROR_INVALID_STREAM_NAME()
    upstream = existing.get(mirror.name)
    if upstream is None:
        return config.mirror_direct
    if 0 < config.max_msg_size < upstream.max_msg_size:
        raise ApiError.MIRROR_MAX_MESSAGE_SIZE_TOO_BIG()
    if strict and config.mirror_direct != upstream.allow_direct:
        raise pedantic_error("origin stream has direct get set, mirror has it disabled")
    return upstream.allow_direct


def _check_transform(src: str, dest: str, source_error: ApiError, dest_error: ApiError) -> None:
    if src and not names.is_valid_subject(src):
        raise source_error(err=f"invalid subject {src}")
    try:
        check_transform(src, dest)
    except BadTransform as failure:
        raise dest_error(err=failure) from None


def _check_consumer(source: StreamSource, api_error: ApiError) -> None:
    consumer = source.consumer
    if consumer is None:
        return
    deliver = consumer.deliver_subject
    is_valid = names.is_valid_name(consumer.name)
    if consumer.server_managed:
        is_valid = is_valid and (
            not deliver or (names.is_valid_subject(deliver) and names.is_literal(deliver))
        )
    else:
        is_valid = is_valid and names.is_valid_subject(deliver) and names.is_literal(deliver)
        is_valid = is_valid and not (source.opt_start_seq or source.opt_start_time or source.filter_subject)
    if not is_valid:
        raise api_error()


def _check_sources(config: StreamConfig, existing: StreamsByName) -> None:
    if config.sources and config.allow_msg_schedules:
        raise ApiError.SOURCE_WITH_MSG_SCHEDULES()
    seen: set[str] = set()
    consumers: set[tuple[str, str | None, str]] = set()
    for source in config.sources:
        if source is None or not names.is_valid_name(source.name):
            raise ApiError.SOURCE_INVALID_STREAM_NAME()
        if make_index_name(source) in seen:
            raise ApiError.SOURCE_DUPLICATE_DETECTED()
        seen.add(make_index_name(source))
        _check_source(source)
        if source.consumer is not None:
            if _reader(source) in consumers:
                raise ApiError.SOURCE_DURABLE_CONSUMER_DUPLICATE_DETECTED()
            consumers.add(_reader(source))
        upstream = existing.get(source.name) if source.external is None else None
        if upstream is not None and 0 < config.max_msg_size < upstream.max_msg_size:
            raise ApiError.SOURCE_MAX_MESSAGE_SIZE_TOO_BIG()


def _reader(source: StreamSource) -> tuple[str, str | None, str]:
    """Return what identifies the consumer of an entry: its upstream, that upstream's location, and its name."""
    api = None if source.external is None else source.external.api
    return source.name, api, source.consumer.name if source.consumer is not None else ""


def _readers(config: StreamConfig) -> dict[tuple[str, str | None, str], bool]:
    """Return the durable consumers that a stream reads with, and whether the server manages them."""
    entries = [config.mirror, *config.sources]
    return {
        _reader(entry): entry.consumer.server_managed
        for entry in entries
        if entry is not None and entry.consumer is not None
    }


def _check_managed(config: StreamConfig, existing: StreamsByName) -> None:
    """Reject a consumer that another stream reads with, if the server manages it for either: they would take messages
    from each other. What a stream already has is not rejected again.
    """
    own = _readers(config)
    had = _readers(existing[config.name]) if config.name in existing else {}
    new = {reader: is_managed for reader, is_managed in own.items() if reader not in had}
    for name, other in existing.items() if new else ():
        if name == config.name:
            continue
        for reader, is_managed in _readers(other).items():
            if reader in new and (is_managed or new[reader]):
                failure = ApiError.SOURCE_DURABLE_CONSUMER_DUPLICATE_DETECTED()
                text = f"{failure.description}: stream {name!r} reads {reader[0]!r} with {reader[2]!r}"
                raise RequestError(failure.code, failure.err_code, text)


def _check_source(source: StreamSource) -> None:
    if source.filter_subject and source.subject_transforms:
        raise ApiError.SOURCE_MULTIPLE_FILTERS_NOT_ALLOWED()
    pattern_checks.check_count(source.subject_transforms, "subject transforms")
    for each in source.subject_transforms:
        _check_transform(
            each.src,
            each.dest,
            ApiError.SOURCE_INVALID_SUBJECT_FILTER,
            ApiError.SOURCE_INVALID_TRANSFORM_DESTINATION,
        )
    filters = [each.src for each in source.subject_transforms if each.src]
    if any(is_covered for _, is_covered in pattern_checks.iter_covered(filters)):
        raise ApiError.SOURCE_OVERLAPPING_SUBJECT_FILTERS()
    _check_consumer(source, ApiError.SOURCE_DURABLE_CONSUMER_CFG_INVALID)


def _check_externals(externals: list[External], upstream_subjects: list[str]) -> None:
    for prefix in (each.deliver for each in externals if each.deliver):
        is_plain = names.is_valid_subject(prefix) and names.is_literal(prefix)
        if not is_plain or is_server_subject(f"{prefix}.x".encode()):
            raise ApiError.STREAM_INVALID_EXTERNAL_DELIVERY_SUBJ(prefix=prefix)
        for subject in upstream_subjects:
            if names.overlaps(subject, f"{prefix}.{subject}"):
                raise ApiError.STREAM_EXTERNAL_DEL_PREFIX_OVERLAPS(prefix=prefix, subject=subject)
    for prefix in (each.api for each in externals if each.api):
        if not (names.is_valid_subject(prefix) and names.is_literal(prefix)):
            text = f'stream external api prefix "{prefix}" must be a valid subject without wildcards'
            raise invalid_config(text)
        if prefix.split(".")[0] == "$SYS":
            raise invalid_config(f'stream external api prefix "{prefix}" belongs to the server')
        if names.overlaps(prefix, _API_PREFIX):
            raise ApiError.STREAM_EXTERNAL_API_OVERLAP(prefix=prefix, subject=_API_PREFIX)


def _check_cycles(config: StreamConfig, existing: StreamsByName) -> None:
    """Walk the streams that this one copies from, directly or through others; external ones are not followed."""
    waiting = [config]
    visited: set[str] = set()
    while waiting:
        current = waiting.pop(0)
        visited.add(current.name)
        for source in current.sources:
            if source is None or source.external is not None:
                continue
            if source.name in visited:
                if _feeds_itself(current.subjects, source.filter_subject):
                    raise _make_cycle_error()
            elif source.name in existing:
                waiting.append(existing[source.name])
        mirror = current.mirror
        if mirror is not None and mirror.external is None:
            if mirror.name in visited:
                raise _make_cycle_error()
            if mirror.name in existing:
                waiting.append(existing[mirror.name])


def _feeds_itself(subjects: list[str], filter_subject: str) -> bool:
    return not filter_subject or any(names.overlaps(subject, filter_subject) for subject in subjects)


def _make_cycle_error() -> RequestError:
    return invalid_config("detected cycle")


def check_filters(config: StreamConfig) -> None:
    """Reject a filter that is not a subject. nats-server checks these last, on create only."""
    mirror = config.mirror
    if mirror is not None and not mirror.subject_transforms and _is_bad_filter(mirror.filter_subject):
        raise ApiError.STREAM_CREATE(
            err=f"subject filter '{mirror.filter_subject}' for the mirror invalid subject"
        )
    for source in config.sources:
        if source is not None and not source.subject_transforms and _is_bad_filter(source.filter_subject):
            raise ApiError.STREAM_CREATE(
                err=f"subject filter '{source.filter_subject}' for the source: invalid subject"
            )


def _is_bad_filter(subject: str) -> bool:
    return bool(subject) and not names.is_valid_subject(subject)
