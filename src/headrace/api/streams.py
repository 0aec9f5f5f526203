"""The rules of stream configurations: what is created, what an update may change.

`create` and `update` take what the client sent and what exists, and return the configuration to keep, or
raise the reference's error. The rules of single fields are in `stream_fields`, those of mirrors and sources
in `origins`. Nothing here touches a stream; a configuration that was given is never changed.
"""

from collections.abc import Iterable, Mapping

from headrace.api import metadata, names, origins
from headrace.api.configs import ConsumerConfig, StreamConfig, copy
from headrace.api.errors import error, invalid_config
from headrace.api.limits import NO_LIMITS, NO_USAGE, Limits, Usage, check_reservation, check_stream_bytes
from headrace.api.stream_fields import check_metadata, settle_copies, settle_fields, settle_subjects

Existing = Mapping[str, StreamConfig]


def create(
    config: StreamConfig,
    name: str,
    existing: Existing,
    *,
    strict: bool = False,
    limits: Limits = NO_LIMITS,
    usage: Usage = NO_USAGE,
) -> StreamConfig:
    """The configuration of a new stream called `name` (by the request's subject).

    When a stream with that name and an equal configuration exists, its very configuration is returned.
    """
    if config.name != name:
        raise error(10056)
    if names.has_path_separator(name):
        raise error(10128)
    if config.sealed:
        raise invalid_config("stream configuration for create can not be sealed")
    if config.mirror_direct and config.mirror is None:
        raise invalid_config("stream has no mirror but does have mirror direct")
    if 0 < limits.max_streams <= usage.streams:
        raise error(10027)
    check_reservation(config, limits, usage)
    fresh = copy(config)
    fresh.metadata = metadata.stored(config.metadata, metadata.stream_level(config))
    made = check(fresh, existing, strict=strict, limits=limits)
    if made.num_replicas > 1:
        raise error(10074)
    if name in existing:
        if same(made, existing[name]):
            return existing[name]
        raise error(10058)
    check_reservation(made, limits, usage)
    origins.check_filters(made)
    check_overlap(made, existing)
    return made


def update(
    config: StreamConfig,
    name: str,
    existing: Existing,
    *,
    strict: bool = False,
    limits: Limits = NO_LIMITS,
    usage: Usage = NO_USAGE,
    consumers: Iterable[tuple[str, ConsumerConfig]] = (),
) -> StreamConfig:
    """The configuration of the stream `name` after an update.

    `usage` counts the other streams only; `consumers` are the stream's own, by name.
    """
    made = check(config, existing, strict=strict, limits=limits)
    if made.name != name:
        raise error(10056)
    old = existing.get(name)
    if old is None:
        raise error(10059)
    made.metadata = metadata.stored(config.metadata, metadata.stream_level(made))
    check_metadata(made)
    if made.num_replicas > 1:
        raise error(10074)
    _check_changes(old, made)
    if made.sealed:
        made.max_age, made.discard = 0, "new"
        made.deny_delete = made.deny_purge = True
        made.allow_rollup_hdrs = False
    if made.subject_delete_markers is None and old.subject_delete_markers is not None:
        made.subject_delete_markers = made.subject_delete_marker_ttl > 0
    check_reservation(made, limits, usage)
    _check_consumer_limits(old, made, consumers)
    check_overlap(made, existing)
    return made


def same(one: StreamConfig, other: StreamConfig) -> bool:
    """Whether two configurations ask for the same, whatever the server noted in their metadata."""
    return _comparable(one) == _comparable(other)


def _comparable(config: StreamConfig) -> StreamConfig:
    bare = copy(config)
    bare.metadata = metadata.comparable(config.metadata)
    # Only says which way the client asked for markers; their TTL says whether there are any.
    bare.subject_delete_markers = None
    return bare


def check_overlap(config: StreamConfig, existing: Existing) -> None:
    """Refuse subjects that another stream takes."""
    if not config.subjects:
        return
    for name, other in existing.items():
        if name == config.name:
            continue
        if any(names.collide(ours, theirs) for ours in config.subjects for theirs in other.subjects):
            raise error(10065)


def check(
    config: StreamConfig, existing: Existing, *, strict: bool = False, limits: Limits = NO_LIMITS
) -> StreamConfig:
    """Fill defaults and apply every rule that does not depend on create or update."""
    made = copy(config)
    settle_fields(made, strict, limits)
    made.mirror_direct = origins.check_origins(made, existing, strict=strict)
    settle_subjects(made)
    check_stream_bytes(made, limits)
    settle_copies(made, strict)
    return made


def _check_changes(old: StreamConfig, new: StreamConfig) -> None:
    """Refuse what an update may not change, in the reference's order."""
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
    """A mirror may be removed (promotion), or change the consumer it reads from, and nothing else."""
    if new.mirror is None:
        return
    if old.mirror is None:
        raise error(10055)
    before, after = copy(old.mirror), copy(new.mirror)
    before.consumer = after.consumer = None
    if before != after:
        raise error(10055)


def _check_consumer_limits(
    old: StreamConfig, new: StreamConfig, consumers: Iterable[tuple[str, ConsumerConfig]]
) -> None:
    limits = new.consumer_limits
    threshold, pending = limits.inactive_threshold, limits.max_ack_pending
    if limits == old.consumer_limits:
        return
    against = [
        name
        for name, consumer in consumers
        if 0 < threshold < consumer.inactive_threshold or 0 < pending < consumer.max_ack_pending
    ]
    if against:
        raise error(10069, err=f"change to limits violates consumers: {', '.join(against)}")
