"""Validation of single consumer fields: applies defaults, then rejects invalid values, in nats-server's order."""

import re

from headrace._native.reserved_subjects import is_server_subject
from headrace.jetstream_api import metadata, names
from headrace.jetstream_api.account_limits import JetStreamLimits
from headrace.jetstream_api.configs import ConsumerConfig, StreamConfig
from headrace.jetstream_api.errors import ApiError, invalid_config, pedantic_error
from headrace.jetstream_api.go_json_decoder import quote
from headrace.jetstream_api.times import SECOND_NS, format_duration
from headrace.jetstream_api.validation import pattern_checks

DEFAULT_ACK_WAIT = 30 * SECOND_NS
DEFAULT_MAX_WAITING = 512
DEFAULT_MAX_ACK_PENDING = 1000
DEFAULT_PRIORITY_TIMEOUT = 120 * SECOND_NS
FLOW_HEARTBEAT = SECOND_NS
HEARTBEAT_MIN = SECOND_NS // 10
EXPIRES_MIN = SECOND_NS // 1000

_GROUP_NAME = re.compile(r"[a-zA-Z0-9/_=-]{1,16}")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_SAMPLING_DIGITS_MAX = 4000  # leading zeros are allowed

# Names in error texts of the policies that take neither a start sequence nor a start time.
_WITHOUT_START = {"all": "all", "last": "last", "last_per_subject": "last per subject", "new": "new"}


def apply_defaults(
    config: ConsumerConfig, stream: StreamConfig, strict: bool, limits: JetStreamLimits
) -> None:
    """Set missing fields; with `strict`, reject every correction of what was sent."""
    _apply_bounds(config, strict)
    if not config.deliver_subject and config.max_waiting == 0:
        config.max_waiting = DEFAULT_MAX_WAITING
    if config.ack_wait == 0 and config.ack_policy in ("explicit", "all"):
        config.ack_wait = DEFAULT_ACK_WAIT
    if config.backoff:
        if strict and config.ack_wait != config.backoff[0]:
            raise pedantic_error("first backoff value has to equal batch AckWait")
        config.ack_wait = config.backoff[0]
    _apply_stream_defaults(config, stream, strict)
    if config.max_ack_pending == 0 and config.ack_policy != "none":
        caps = [DEFAULT_MAX_ACK_PENDING, limits.server_ack_pending, limits.max_ack_pending]
        config.max_ack_pending = min(cap for cap in caps if cap > 0)
    if not config.deliver_subject and config.max_batch == 0 and limits.server_request_batch > 0:
        if strict:
            raise pedantic_error("max_request_batch must be set if it's JetStream limits are set")
        config.max_batch = limits.server_request_batch
    if config.priority_policy == "pinned_client" and config.priority_timeout == 0:
        config.priority_timeout = DEFAULT_PRIORITY_TIMEOUT
    if config.ack_policy == "flow_control" and not strict:
        config.flow_control, config.idle_heartbeat = True, FLOW_HEARTBEAT


def _apply_bounds(config: ConsumerConfig, strict: bool) -> None:
    if config.max_deliver < -1 and strict:
        raise pedantic_error("max_deliver must be set to -1")
    if config.max_deliver == 0 or config.max_deliver < -1:
        config.max_deliver = -1
    _apply_minimum(config, "max_waiting", 0, strict)
    _apply_minimum(config, "max_ack_pending", -1, strict)
    for field in ("max_batch", "max_expires", "max_bytes", "idle_heartbeat", "inactive_threshold"):
        _apply_minimum(config, field, 0, strict)
    _apply_minimum(config, "priority_timeout", 0, strict)


def _apply_minimum(config: ConsumerConfig, field: str, minimum: int, strict: bool) -> None:
    if getattr(config, field) >= minimum:
        return
    if strict:
        raise pedantic_error(
            f"{field} must not be negative" if minimum == 0 else f"{field} must be set to {minimum}"
        )
    setattr(config, field, minimum)


def _apply_stream_defaults(config: ConsumerConfig, stream: StreamConfig, strict: bool) -> None:
    is_durable_sourcing = config.ack_policy == "flow_control" and config.durable_name
    for field in ("max_ack_pending", "inactive_threshold"):
        stream_default = getattr(stream.consumer_limits, field)
        if field == "inactive_threshold" and is_durable_sourcing:
            continue  # an interest stream would lose messages if it ended while the copy is away
        if getattr(config, field) == 0:
            if strict and stream_default > 0:
                raise pedantic_error(f"{field} must be set if it's configured in stream limits")
            setattr(config, field, stream_default)


def check_fields(config: ConsumerConfig, stream: StreamConfig, limits: JetStreamLimits) -> None:
    """Reject what a consumer of that stream may not have."""
    _check_names(config, stream)
    if any(wait < 0 for wait in config.backoff):
        raise ApiError.CONSUMER_BACK_OFF_NEGATIVE()
    if config.ack_wait < 0:
        raise ApiError.CONSUMER_ACK_WAIT_NEGATIVE()
    _check_flow_control_acks(config)
    if config.backoff and config.max_deliver != -1 and len(config.backoff) > config.max_deliver:
        raise ApiError.CONSUMER_MAX_DELIVER_BACKOFF()
    if len(config.description.encode()) > names.DESCRIPTION_MAX:
        raise ApiError.CONSUMER_DESCRIPTION_TOO_LONG(max=names.DESCRIPTION_MAX)
    if config.deliver_subject:
        _check_push(config, stream)
    else:
        _check_pull(config, stream, limits)
    _check_limits(config, stream, limits)
    if config.direct and not config.deliver_subject:
        raise ApiError.CONSUMER_DIRECT_REQUIRES_PUSH()
    if config.direct and config.durable_name:
        raise ApiError.CONSUMER_DIRECT_REQUIRES_EPHEMERAL()
    _check_filters(config)
    _check_start(config)
    _check_sampling(config)
    if config.flow_control and config.idle_heartbeat == 0:
        raise ApiError.CONSUMER_WITH_FLOW_CONTROL_NEEDS_HEARTBEATS()
    if config.durable_name and config.name and config.name != config.durable_name:
        raise ApiError.CONSUMER_CREATE_DURABLE_AND_NAME_MISMATCH()
    if metadata.compute_size(config.metadata) > metadata.BYTES_MAX:
        raise ApiError.CONSUMER_METADATA_LENGTH(limit=f"{metadata.BYTES_MAX // 1024}KB")
    _check_groups(config)


def _check_names(config: ConsumerConfig, stream: StreamConfig) -> None:
    if config.name and not names.is_valid_name(config.name):
        raise invalid_config("consumer name can not contain '.', '*', '>', '\\', '/'")
    if config.durable_name and not names.is_valid_name(config.durable_name):
        raise invalid_config("consumer durable name can not contain '.', '*', '>', '\\', '/'")
    if config.num_replicas > stream.num_replicas:
        raise ApiError.CONSUMER_REPLICAS_EXCEEDS_STREAM()
    if config.num_replicas < 0:
        raise ApiError.REPLICAS_COUNT_CANNOT_BE_NEGATIVE()
    if stream.retention != "limits" and config.num_replicas not in (0, stream.num_replicas):
        raise ApiError.CONSUMER_REPLICAS_SHOULD_MATCH_STREAM()


def _check_flow_control_acks(config: ConsumerConfig) -> None:
    if config.ack_policy != "flow_control":
        return
    if not config.deliver_subject:
        raise ApiError.CONSUMER_ACK_FC_REQUIRES_PUSH()
    if not config.flow_control:
        raise ApiError.CONSUMER_ACK_FC_REQUIRES_FC()
    if config.idle_heartbeat != FLOW_HEARTBEAT:
        raise invalid_config("flow control ack policy heartbeat needs to be 1s")
    if config.max_ack_pending <= 0:
        raise ApiError.CONSUMER_ACK_FC_REQUIRES_MAX_ACK_PENDING()
    if config.ack_wait or config.backoff:
        raise ApiError.CONSUMER_ACK_FC_REQUIRES_NO_ACK_WAIT()
    if config.max_deliver > 0:
        raise ApiError.CONSUMER_ACK_FC_REQUIRES_NO_MAX_DELIVER()


def _check_push(config: ConsumerConfig, stream: StreamConfig) -> None:
    subject = config.deliver_subject
    if not names.is_literal(subject):
        raise ApiError.CONSUMER_DELIVER_TO_WILDCARDS()
    if not names.is_valid_subject(subject) or is_server_subject(subject.encode()):
        raise ApiError.CONSUMER_INVALID_DELIVER_SUBJECT()
    if any(names.is_subset(subject, stream_subject) for stream_subject in stream.subjects):
        raise ApiError.CONSUMER_DELIVER_CYCLE()
    if config.max_waiting != 0:
        raise ApiError.CONSUMER_PUSH_MAX_WAITING()
    if config.max_ack_pending > 0 and config.ack_policy == "none":
        raise ApiError.CONSUMER_MAX_PENDING_ACK_POLICY_REQUIRED()
    if 0 < config.idle_heartbeat < HEARTBEAT_MIN:
        raise ApiError.CONSUMER_SMALL_HEARTBEAT()


def _check_pull(config: ConsumerConfig, stream: StreamConfig, limits: JetStreamLimits) -> None:
    if config.ack_policy == "none" and stream.retention == "workqueue":
        raise ApiError.CONSUMER_PULL_REQUIRES_ACK()
    if config.rate_limit_bps > 0:
        raise ApiError.CONSUMER_PULL_WITH_RATE_LIMIT()
    if config.idle_heartbeat > 0:
        raise ApiError.CONSUMER_HB_REQUIRES_PUSH()
    if config.flow_control:
        raise ApiError.CONSUMER_FC_REQUIRES_PUSH()
    if 0 < config.max_expires < EXPIRES_MIN:
        raise ApiError.CONSUMER_MAX_REQUEST_EXPIRES_TOO_SMALL()
    if 0 < limits.server_request_batch < config.max_batch:
        raise ApiError.CONSUMER_MAX_REQUEST_BATCH_EXCEEDED(limit=limits.server_request_batch)


def _check_limits(config: ConsumerConfig, stream: StreamConfig, limits: JetStreamLimits) -> None:
    stream_limits = stream.consumer_limits
    for cap in (limits.server_ack_pending, limits.max_ack_pending, stream_limits.max_ack_pending):
        if 0 < cap < config.max_ack_pending:
            raise ApiError.CONSUMER_MAX_PENDING_ACK_EXCESS(limit=cap)
    if 0 < stream_limits.inactive_threshold < config.inactive_threshold:
        raise ApiError.CONSUMER_INACTIVE_THRESHOLD_EXCESS(
            limit=format_duration(stream_limits.inactive_threshold)
        )


def _check_filters(config: ConsumerConfig) -> None:
    if config.filter_subject and config.filter_subjects:
        raise ApiError.CONSUMER_DUPLICATE_FILTER_SUBJECTS()
    if "" in config.filter_subjects:
        raise ApiError.CONSUMER_EMPTY_FILTER()
    filters = config.get_filters()
    pattern_checks.check_count(filters, "filter subjects")
    for subject, is_covered in pattern_checks.iter_covered(filters):
        if not names.is_valid_subject(subject):
            raise invalid_config("invalid subject")
        if is_covered:
            raise ApiError.CONSUMER_OVERLAPPING_SUBJECT_FILTERS()


def _check_start(config: ConsumerConfig) -> None:
    """Check the deliver policy against the start options."""
    policy = config.deliver_policy
    seq, time = config.opt_start_seq > 0, config.opt_start_time is not None
    problem = ""
    if policy in _WITHOUT_START:
        policy_name = _WITHOUT_START[policy]
        if seq:
            problem = "start sequence is also set"
        elif time:
            problem = "start time is also set"
        elif policy == "last_per_subject" and not config.get_filters():
            problem = "filter subject is not set"
    elif policy == "by_start_sequence":
        policy_name = "by start sequence"
        problem = "start sequence is not set" if not seq else "start time is also set" if time else ""
    else:
        policy_name = "by start time"
        # The doubled word is nats-server's.
        problem = "start time is not set" if not time else "start start sequence is also set" if seq else ""
    if problem:
        raise ApiError.CONSUMER_INVALID_POLICY(
            err=f"consumer delivery policy is deliver {policy_name}, but optional {problem}"
        )


def _check_sampling(config: ConsumerConfig) -> None:
    if not config.sample_freq:
        return
    text = config.sample_freq.removesuffix("%")
    if not _INTEGER.fullmatch(text):
        raise ApiError.CONSUMER_INVALID_SAMPLING(err=f"strconv.Atoi: parsing {quote(text)}: invalid syntax")
    if len(text) > _SAMPLING_DIGITS_MAX or not -(2**63) <= int(text) < 2**63:
        raise ApiError.CONSUMER_INVALID_SAMPLING(
            err=f"strconv.Atoi: parsing {quote(text)}: value out of range"
        )
    if int(text) < 0:
        raise ApiError.CONSUMER_INVALID_SAMPLING(err="<nil>")


def check_group(group: str) -> None:
    """Reject an invalid name of a priority group."""
    if not group:
        raise ApiError.CONSUMER_EMPTY_GROUP_NAME()
    if not _GROUP_NAME.fullmatch(group):
        raise ApiError.CONSUMER_INVALID_GROUP_NAME()


def _check_groups(config: ConsumerConfig) -> None:
    if config.priority_policy == "none":
        if config.priority_groups:
            raise ApiError.CONSUMER_PRIORITY_GROUP_WITH_POLICY_NONE()
        if config.priority_timeout > 0:
            raise ApiError.CONSUMER_PINNED_TTL_WITHOUT_PRIORITY_POLICY_NONE()
        return
    if config.deliver_subject:
        raise ApiError.CONSUMER_PUSH_WITH_PRIORITY_GROUP()
    if not config.priority_groups:
        raise ApiError.CONSUMER_PRIORITY_POLICY_WITHOUT_GROUP()
    for group in config.priority_groups:
        check_group(group)
