"""Validation of stream configurations: what may be created, what an update may change.

`validate_create` and `validate_update` take what the client sent and what exists, and return the configuration to
store, or raise nats-server's error. The rules of single fields are in `stream_fields`, those of mirrors and sources in
`sourcing`. Nothing here touches a stream; a configuration passed in is never changed.
"""

from collections.abc import Iterable, Mapping
from itertools import chain

from headrace.jetstream_api import metadata, names
from headrace.jetstream_api.account_limits import (
    NO_LIMITS,
    NO_USAGE,
    JetStreamLimits,
    Usage,
    check_reservation,
    check_stream_bytes,
)
from headrace.jetstream_api.configs import ConsumerConfig, StreamConfig, copy_config
from headrace.jetstream_api.errors import ApiError, invalid_config
from headrace.jetstream_api.validation import pattern_checks, sourcing
from headrace.jetstream_api.validation.stream_configs import StreamConfigs
from headrace.jetstream_api.validation.stream_fields import (
    apply_field_defaults,
    apply_republish_defaults,
    apply_subject_defaults,
    check_metadata,
)

StreamsByName = Mapping[str, StreamConfig]


def validate_create(
    config: StreamConfig,
    name: str,
    existing: StreamsByName,
    *,
    strict: bool = False,
    limits: JetStreamLimits = NO_LIMITS,
    usage: Usage = NO_USAGE,
) -> StreamConfig:
    """Return the configuration of a new stream called `name` (from the request's subject).

    If a stream with that name and an equal configuration exists, its configuration object is returned.
    """
    if config.name != name:
        raise ApiError.STREAM_MISMATCH()
    if names.has_path_separator(name):
        raise ApiError.STREAM_NAME_CONTAINS_PATH_SEPARATORS()
    if config.sealed:
        raise invalid_config("stream configuration for create can not be sealed")
    if config.mirror_direct and config.mirror is None:
        raise invalid_config("stream has no mirror but does have mirror direct")
    if 0 < limits.max_streams <= usage.streams:
        raise ApiError.MAXIMUM_STREAMS_LIMIT()
    check_reservation(config, limits, usage)
    requested = copy_config(config)
    requested.metadata = metadata.to_stored(config.metadata, metadata.required_stream_level(config))
    new_config = validate_fields(requested, existing, strict=strict, limits=limits)
    if new_config.num_replicas > 1:
        raise ApiError.STREAM_REPLICAS_NOT_SUPPORTED()
    if name in existing:
        if is_same(new_config, existing[name]):
            return existing[name]
        raise ApiError.STREAM_NAME_EXIST()
    check_reservation(new_config, limits, usage)
    sourcing.check_filters(new_config)
    check_overlap(new_config, existing)
    return new_config


def validate_update(
    config: StreamConfig,
    name: str,
    existing: StreamsByName,
    *,
    strict: bool = False,
    limits: JetStreamLimits = NO_LIMITS,
    usage: Usage = NO_USAGE,
    consumers: Iterable[tuple[str, ConsumerConfig]] = (),
) -> StreamConfig:
    """Return the configuration of the stream `name` after an update.

    `usage` counts the other streams only; `consumers` are the stream's own, by name.
    """
    new_config = validate_fields(config, existing, strict=strict, limits=limits)
    if new_config.name != name:
        raise ApiError.STREAM_MISMATCH()
    old = existing.get(name)
    if old is None:
        raise ApiError.STREAM_NOT_FOUND()
    new_config.metadata = metadata.to_stored(config.metadata, metadata.required_stream_level(new_config))
    check_metadata(new_config)
    if new_config.num_replicas > 1:
        raise ApiError.STREAM_REPLICAS_NOT_SUPPORTED()
    _check_changes(old, new_config)
    if new_config.sealed:
        new_config.max_age, new_config.discard = 0, "new"
        new_config.deny_delete = new_config.deny_purge = True
        new_config.allow_rollup_hdrs = False
    if new_config.subject_delete_markers is None and old.subject_delete_markers is not None:
        new_config.subject_delete_markers = new_config.subject_delete_marker_ttl > 0
    check_reservation(new_config, limits, usage)
    _check_consumer_limits(old, new_config, consumers)
    check_overlap(new_config, existing)
    return new_config


def is_same(one: StreamConfig, other: StreamConfig) -> bool:
    """Return whether two configurations request the same, apart from the server's metadata."""
    return _for_comparison(one) == _for_comparison(other)


def _for_comparison(config: StreamConfig) -> StreamConfig:
    comparable = copy_config(config)
    comparable.metadata = metadata.for_comparison(config.metadata)
    # Only the way in which the client requested markers; their TTL determines whether there are any.
    comparable.subject_delete_markers = None
    return comparable


def check_overlap(config: StreamConfig, existing: StreamsByName) -> None:
    """Reject subjects that another stream has. Without an index, they are compared with those of every stream."""
    if not config.subjects:
        return
    if isinstance(existing, StreamConfigs):
        has_overlap = existing.has_overlap(config)
    else:
        others = (other.subjects for name, other in existing.items() if name != config.name)
        has_overlap = pattern_checks.any_overlap(config.subjects, chain.from_iterable(others))
    if has_overlap:
        raise ApiError.STREAM_SUBJECT_OVERLAP()


def validate_fields(
    config: StreamConfig,
    existing: StreamsByName,
    *,
    strict: bool = False,
    limits: JetStreamLimits = NO_LIMITS,
) -> StreamConfig:
    """Fill in defaults and apply every rule that does not depend on create or update."""
    new_config = copy_config(config)
    apply_field_defaults(new_config, strict, limits)
    new_config.mirror_direct = sourcing.check_sourcing(new_config, existing, strict=strict)
    apply_subject_defaults(new_config)
    check_stream_bytes(new_config, limits)
    apply_republish_defaults(new_config, strict)
    return new_config


def _check_changes(old: StreamConfig, new: StreamConfig) -> None:
    """Reject what an update may not change, in nats-server's order."""
    prefix = "stream configuration update can not"
    if new.storage != old.storage:
        raise invalid_config(f"{prefix} change storage type")
    if new.retention != old.retention and "workqueue" in (new.retention, old.retention):
        raise invalid_config(f"{prefix} change retention policy to/from workqueue")
    if old.sealed and not new.sealed:
        raise invalid_config(f"{prefix} unseal a sealed stream")
    if old.deny_delete and not new.deny_delete:
        raise invalid_config(f"{prefix} cancel deny message deletes")
    if old.deny_purge and not new.deny_purge:
        raise invalid_config(f"{prefix} cancel deny purge")
    _check_mirror_change(old, new)
    if old.allow_msg_ttl and not new.allow_msg_ttl:
        raise invalid_config("message TTL status can not be disabled")
    if new.allow_msg_counter != old.allow_msg_counter:
        raise invalid_config(f"{prefix} change message counter setting")
    if old.allow_msg_schedules and not new.allow_msg_schedules:
        raise invalid_config("message schedules can not be disabled")
    if new.persist_mode != old.persist_mode:
        raise invalid_config(f"{prefix} change persist mode")


def _check_mirror_change(old: StreamConfig, new: StreamConfig) -> None:
    """Allow a mirror only to be removed (promotion) or to change the consumer it reads from.

    A mirror with a user-managed consumer has no start and filter of its own: they move to the consumer, or back.
    """
    if new.mirror is None:
        return
    if old.mirror is None:
        raise ApiError.STREAM_MIRROR_NOT_UPDATABLE()
    before, after = copy_config(old.mirror), copy_config(new.mirror)
    if any(each.consumer is not None and not each.consumer.server_managed for each in (before, after)):
        for each in (before, after):
            each.opt_start_seq, each.opt_start_time, each.filter_subject = 0, None, ""
            each.subject_transforms = [transform for transform in each.subject_transforms if transform.dest]
    before.consumer = after.consumer = None
    if before != after:
        raise ApiError.STREAM_MIRROR_NOT_UPDATABLE()


def _check_consumer_limits(
    old: StreamConfig, new: StreamConfig, consumers: Iterable[tuple[str, ConsumerConfig]]
) -> None:
    limits = new.consumer_limits
    threshold, pending = limits.inactive_threshold, limits.max_ack_pending
    if limits == old.consumer_limits:
        return
    violating = [
        name
        for name, consumer in consumers
        if 0 < threshold < consumer.inactive_threshold or 0 < pending < consumer.max_ack_pending
    ]
    if violating:
        raise ApiError.STREAM_UPDATE(err=f"change to limits violates consumers: {', '.join(violating)}")
