"""Validation of consumer configurations: names, creation or update, allowed changes.

A request passes through `resolve_name` (the name in the request's subject), `merge_existing` (what an existing consumer
keeps, and what a sourcing request becomes), then `validate`, which fills in defaults, applies every rule and returns
the configuration to store, or raises nats-server's error. The rules of single fields are in `consumer_fields`. Nothing
here touches a consumer; a configuration passed in is never changed.
"""

from collections.abc import Callable, Mapping

from headrace.errors import RequestError
from headrace.jetstream_api import metadata, names
from headrace.jetstream_api.account_limits import NO_LIMITS, JetStreamLimits
from headrace.jetstream_api.configs import ConsumerConfig, StreamConfig, copy_config
from headrace.jetstream_api.errors import ApiError
from headrace.jetstream_api.requests import ConsumerRequest
from headrace.jetstream_api.times import SECOND_NS, format_time, parse_time_ns
from headrace.jetstream_api.validation import pattern_checks
from headrace.jetstream_api.validation.consumer_fields import apply_defaults, check_fields
from headrace.jetstream_api.validation.dead_letter_fields import check_dead_letter
from headrace.jetstream_api.validation.key_order_fields import (
    apply_metadata,
    check_key_order,
    follow_metadata,
)

ConsumersByName = Mapping[str, ConsumerConfig]

DEFAULT_INACTIVE_THRESHOLD = 5 * SECOND_NS

# The three forms of the subject of a create request.
EPHEMERAL, NAMED, DURABLE = "ephemeral", "named", "durable"

#: Maximum number of consumers of a stream if neither its configuration nor its account has a limit.
CONSUMERS_MAX_DEFAULT = 100_000


def resolve_name(
    request: ConsumerRequest, *, stream: str, form: str, name: str = "", filter_subject: str = ""
) -> ConsumerConfig:
    """Combine the subject of a request with its body.

    `stream`, `name` and `filter_subject` are the subject's tokens; `form` is EPHEMERAL for `CREATE.<stream>`, NAMED for
    `CREATE.<stream>.<name>[.<filter>]`, DURABLE for `DURABLE.CREATE.<stream>.<name>`.
    """
    config = copy_config(request.config)
    if stream != request.stream_name:
        raise ApiError.STREAM_MISMATCH()
    if names.has_path_separator(config.name if form == EPHEMERAL else name):
        raise ApiError.CONSUMER_NAME_CONTAINS_PATH_SEPARATORS()
    if form == DURABLE and not config.durable_name:
        raise ApiError.CONSUMER_DURABLE_NAME_NOT_SET()
    if form != EPHEMERAL:
        if config.durable_name and name != config.durable_name:
            raise ApiError.CONSUMER_DURABLE_NAME_NOT_MATCH_SUBJECT()
        config.name = name
    elif config.durable_name:
        raise ApiError.CONSUMER_EPHEMERAL_WITH_DURABLE_NAME()
    if filter_subject and config.filter_subjects:
        raise ApiError.CONSUMER_MULTIPLE_FILTERS_NOT_ALLOWED()
    if filter_subject and config.filter_subject != filter_subject:
        raise ApiError.CONSUMER_CREATE_FILTER_SUBJECT_MISMATCH()
    if config.num_replicas > 1:
        raise ApiError.STREAM_REPLICAS_NOT_SUPPORTED()
    return config


def merge_existing(
    config: ConsumerConfig, stream: StreamConfig, others: ConsumersByName, random_name: str
) -> ConsumerConfig:
    """Adapt a request to what exists.

    A sourcing consumer on a stream that removes acknowledged messages becomes durable; on another stream it gets a name
    of its own ending in `random_name`. An existing consumer keeps its pause, a durable sourcing one also its start. For
    order per key, new metadata replaces the limit that the client read.
    """
    new_config = copy_config(config)
    if new_config.direct and new_config.sourcing and new_config.name:
        if stream.retention == "limits":
            new_config.name = f"{new_config.name}-{random_name}"
        else:
            new_config.direct, new_config.durable_name, new_config.ack_policy = (
                False,
                new_config.name,
                "flow_control",
            )
            new_config.ack_wait = new_config.max_deliver = new_config.inactive_threshold = 0
    old = others.get(new_config.name)
    if old is not None:
        new_config.pause_until = old.pause_until
        follow_metadata(new_config, old)
        if new_config.sourcing and new_config.durable_name:
            new_config.deliver_policy = old.deliver_policy
            new_config.opt_start_seq, new_config.opt_start_time = old.opt_start_seq, old.opt_start_time
    return new_config


def _has_no_interest(subject: str) -> bool:
    return False


def validate(
    config: ConsumerConfig,
    stream: StreamConfig,
    others: ConsumersByName,
    *,
    action: str = "",
    strict: bool = False,
    limits: JetStreamLimits = NO_LIMITS,
    has_interest: Callable[[str], bool] = _has_no_interest,
) -> ConsumerConfig:
    """Return the configuration of a new consumer, or of an existing one after the request.

    `others` are the stream's consumers by name, the existing one included; `has_interest` returns whether anybody is
    subscribed to a deliver subject. A consumer without a name is new, and the caller names it.
    """
    new_config = validate_fields(config, stream, strict=strict, limits=limits)
    name = new_config.durable_name or new_config.name
    old = others.get(name) if name else None
    if old is not None:
        if action == "create":
            if not is_same(new_config, old):
                raise ApiError.CONSUMER_ALREADY_EXISTS()
            new_config = copy_config(old)
        may_overlap = new_config.direct or new_config.sourcing
        if stream.retention == "workqueue" and not may_overlap and not _is_unique(name, new_config, others):
            raise ApiError.CONSUMER_WQ_CONSUMER_NOT_UNIQUE()
        _check_changes(old, new_config, has_interest)
        if new_config.pause_until is not None:
            # From the second request on nats-server returns a pause in UTC.
            new_config.pause_until = format_time(parse_time_ns(new_config.pause_until))
    elif action == "update":
        raise ApiError.CONSUMER_DOES_NOT_EXIST()
    else:
        _check_max_consumers(stream, others, limits)
        _check_workqueue(name, new_config, stream, others)
        if len(name.encode()) > names.NAME_MAX:
            raise ApiError.CONSUMER_NAME_TOO_LONG(max=names.NAME_MAX)
    if not new_config.durable_name and new_config.inactive_threshold <= 0 and not (old and old.durable_name):
        new_config.inactive_threshold = DEFAULT_INACTIVE_THRESHOLD
    return new_config


def validate_fields(
    config: ConsumerConfig, stream: StreamConfig, *, strict: bool = False, limits: JetStreamLimits = NO_LIMITS
) -> ConsumerConfig:
    """Fill in defaults and apply every rule that does not depend on other consumers."""
    new_config = copy_config(config)
    new_config.metadata = metadata.to_stored(config.metadata, metadata.required_consumer_level(config))
    apply_metadata(new_config)
    apply_defaults(new_config, stream, strict, limits)
    check_fields(new_config, stream, limits)
    check_key_order(new_config)
    check_dead_letter(new_config, stream)
    return new_config


def is_same(one: ConsumerConfig, other: ConsumerConfig) -> bool:
    """Return whether two configurations are the same, apart from the server's metadata.

    As in nats-server, an ephemeral whose threshold was filled in differs from a request that leaves it out.
    """
    return _for_comparison(one) == _for_comparison(other)


def _for_comparison(config: ConsumerConfig) -> ConsumerConfig:
    comparable = copy_config(config)
    comparable.metadata = metadata.for_comparison(config.metadata)
    return comparable


def count_limited(others: ConsumersByName) -> int:
    """Count the consumers that count against the limit: not those that other streams source with."""
    return sum(not (other.direct or other.sourcing) for other in others.values())


def _check_max_consumers(stream: StreamConfig, others: ConsumersByName, limits: JetStreamLimits) -> None:
    limit = stream.max_consumers
    if limit <= 0 or 0 < limits.max_consumers < limit:
        limit = limits.max_consumers
    if limit <= 0:
        limit = CONSUMERS_MAX_DEFAULT
    if limit <= len(others) and limit <= count_limited(others):
        raise ApiError.MAXIMUM_CONSUMERS_LIMIT()


def _check_workqueue(
    name: str, config: ConsumerConfig, stream: StreamConfig, others: ConsumersByName
) -> None:
    if stream.retention != "workqueue" or config.direct or config.sourcing:
        return
    if config.ack_policy not in ("explicit", "flow_control"):
        raise ApiError.CONSUMER_WQ_REQUIRES_EXPLICIT_ACK()
    if config.deliver_policy != "all":
        raise ApiError.CONSUMER_WQ_CONSUMER_NOT_DELIVER_ALL()
    if count_limited(others):
        if not config.get_filters():
            raise ApiError.CONSUMER_WQ_MULTIPLE_UNFILTERED()
        if not _is_unique(name, config, others):
            raise ApiError.CONSUMER_WQ_CONSUMER_NOT_UNIQUE()


def _is_unique(name: str, config: ConsumerConfig, others: ConsumersByName) -> bool:
    """Return whether no other consumer of a work queue can get the same messages."""
    filters: list[str] = []
    for other_name, other in others.items():
        if other_name == name or other.direct or other.sourcing:
            continue
        if not other.get_filters():
            return False
        filters += other.get_filters()
    return not pattern_checks.any_overlap(config.get_filters(), filters)


def _check_changes(old: ConsumerConfig, new: ConsumerConfig, has_interest: Callable[[str], bool]) -> None:
    """Reject what an update may not change, in nats-server's order."""
    fixed_fields = (
        (old.deliver_policy != new.deliver_policy, "deliver policy"),
        (old.mem_storage != new.mem_storage, "storage type"),
        (old.direct != new.direct, "direct"),
        (old.sourcing != new.sourcing, "sourcing"),
        (old.opt_start_seq != new.opt_start_seq, "start sequence"),
        (_start_time(old) != _start_time(new), "start time"),
        (old.ack_policy != new.ack_policy, "ack policy"),
        (old.replay_policy != new.replay_policy, "replay policy"),
        (old.idle_heartbeat != new.idle_heartbeat, "heart beats"),
        (old.flow_control != new.flow_control, "flow control"),
    )
    for changed, field_name in fixed_fields:
        if changed:
            raise _make_update_error(f"{field_name} can not be updated")
    if old.deliver_subject != new.deliver_subject:
        if not old.deliver_subject:
            raise _make_update_error("can not update pull consumer to push based")
        if not new.deliver_subject:
            raise _make_update_error("can not update push consumer to pull based")
        if has_interest(old.deliver_subject):
            raise ApiError.CONSUMER_NAME_EXIST()
    if old.max_waiting != new.max_waiting:
        raise _make_update_error("max waiting can not be updated")
    if old.key_tokens != new.key_tokens:
        raise _make_update_error("key tokens can not be updated")


def _start_time(config: ConsumerConfig) -> int | None:
    return None if config.opt_start_time is None else parse_time_ns(config.opt_start_time)


def _make_update_error(text: str) -> RequestError:
    return ApiError.CONSUMER_CREATE(err=text)
