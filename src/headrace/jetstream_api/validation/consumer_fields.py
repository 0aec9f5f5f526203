"""The rules of the single fields of a consumer: defaults first, then what is refused, in the reference's
order.
"""

import re

from headrace.jetstream_api import metadata, names
from headrace.jetstream_api.account_limits import JetStreamLimits
from headrace.jetstream_api.configs import ConsumerConfig, StreamConfig
from headrace.jetstream_api.errors import error, invalid_config, pedantic_error
from headrace.jetstream_api.go_json_decoder import quote
from headrace.jetstream_api.times import SECOND_NS, format_duration

DEFAULT_ACK_WAIT = 30 * SECOND_NS
DEFAULT_MAX_WAITING = 512
DEFAULT_MAX_ACK_PENDING = 1000
DEFAULT_PRIORITY_TIMEOUT = 120 * SECOND_NS
FLOW_HEARTBEAT = SECOND_NS
HEARTBEAT_MIN = SECOND_NS // 10
EXPIRES_MIN = SECOND_NS // 1000

_GROUP_NAME = re.compile(r"[a-zA-Z0-9/_=-]{1,16}")
_INTEGER = re.compile(r"[+-]?[0-9]+")

# The words that refusals use for the policies which take neither a start sequence nor a start time.
_WITHOUT_START = {"all": "all", "last": "last", "last_per_subject": "last per subject", "new": "new"}


def apply_defaults(
    config: ConsumerConfig, stream: StreamConfig, strict: bool, limits: JetStreamLimits
) -> None:
    """Set what was left out; with `strict` every correction of what was sent is refused."""
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
    for field in ("max_ack_pending", "inactive_threshold"):
        stream_default = getattr(stream.consumer_limits, field)
        if getattr(config, field) == 0:
            if strict and stream_default > 0:
                raise pedantic_error(f"{field} must be set if it's configured in stream limits")
            setattr(config, field, stream_default)


def check_fields(config: ConsumerConfig, stream: StreamConfig, limits: JetStreamLimits) -> None:
    """Refuse what a consumer of that stream may not be."""
    _check_names(config, stream)
    if any(wait < 0 for wait in config.backoff):
        raise error(10184)
    if config.ack_wait < 0:
        raise error(10183)
    _check_flow_control_acks(config)
    if config.backoff and config.max_deliver != -1 and len(config.backoff) > config.max_deliver:
        raise error(10116)
    if len(config.description.encode()) > names.DESCRIPTION_MAX:
        raise error(10107, max=names.DESCRIPTION_MAX)
    if config.deliver_subject:
        _check_push(config, stream)
    else:
        _check_pull(config, stream, limits)
    _check_limits(config, stream, limits)
    if config.direct and not config.deliver_subject:
        raise error(10090)
    if config.direct and config.durable_name:
        raise error(10091)
    _check_filters(config)
    _check_start(config)
    _check_sampling(config)
    if config.flow_control and config.idle_heartbeat == 0:
        raise error(10108)
    if config.durable_name and config.name and config.name != config.durable_name:
        raise error(10132)
    if metadata.compute_size(config.metadata) > metadata.BYTES_MAX:
        raise error(10135, limit=f"{metadata.BYTES_MAX // 1024}KB")
    _check_groups(config)


def _check_names(config: ConsumerConfig, stream: StreamConfig) -> None:
    if config.name and not names.is_valid_name(config.name):
        raise invalid_config("consumer name can not contain '.', '*', '>', '\\', '/'")
    if config.durable_name and not names.is_valid_name(config.durable_name):
        raise invalid_config("consumer durable name can not contain '.', '*', '>', '\\', '/'")
    if config.num_replicas > stream.num_replicas:
        raise error(10126)
    if config.num_replicas < 0:
        raise error(10133)
    if stream.retention != "limits" and config.num_replicas not in (0, stream.num_replicas):
        raise error(10134)


def _check_flow_control_acks(config: ConsumerConfig) -> None:
    if config.ack_policy != "flow_control":
        return
    if not config.deliver_subject:
        raise error(10218)
    if not config.flow_control:
        raise error(10219)
    if config.idle_heartbeat != FLOW_HEARTBEAT:
        raise invalid_config("flow control ack policy heartbeat needs to be 1s")
    if config.max_ack_pending <= 0:
        raise error(10220)
    if config.ack_wait or config.backoff:
        raise error(10221)
    if config.max_deliver > 0:
        raise error(10222)


def _check_push(config: ConsumerConfig, stream: StreamConfig) -> None:
    subject = config.deliver_subject
    if not names.is_literal(subject):
        raise error(10079)
    if not names.is_valid_subject(subject):
        raise error(10112)
    if any(names.is_subset(subject, stream_subject) for stream_subject in stream.subjects):
        raise error(10081)
    if config.max_waiting != 0:
        raise error(10080)
    if config.max_ack_pending > 0 and config.ack_policy == "none":
        raise error(10082)
    if 0 < config.idle_heartbeat < HEARTBEAT_MIN:
        raise error(10083)


def _check_pull(config: ConsumerConfig, stream: StreamConfig, limits: JetStreamLimits) -> None:
    if config.ack_policy == "none" and stream.retention == "workqueue":
        raise error(10084)
    if config.rate_limit_bps > 0:
        raise error(10086)
    if config.idle_heartbeat > 0:
        raise error(10088)
    if config.flow_control:
        raise error(10089)
    if 0 < config.max_expires < EXPIRES_MIN:
        raise error(10115)
    if 0 < limits.server_request_batch < config.max_batch:
        raise error(10125, limit=limits.server_request_batch)


def _check_limits(config: ConsumerConfig, stream: StreamConfig, limits: JetStreamLimits) -> None:
    stream_limits = stream.consumer_limits
    for cap in (limits.server_ack_pending, limits.max_ack_pending, stream_limits.max_ack_pending):
        if 0 < cap < config.max_ack_pending:
            raise error(10121, limit=cap)
    if 0 < stream_limits.inactive_threshold < config.inactive_threshold:
        raise error(10153, limit=format_duration(stream_limits.inactive_threshold))


def _check_filters(config: ConsumerConfig) -> None:
    if config.filter_subject and config.filter_subjects:
        raise error(10136)
    if "" in config.filter_subjects:
        raise error(10139)
    filters = config.get_filters()
    for position, subject in enumerate(filters):
        if not names.is_valid_subject(subject):
            raise invalid_config("invalid subject")
        others = filters[:position] + filters[position + 1 :]
        if any(names.is_subset(subject, other) for other in others):
            raise error(10138)


def _check_start(config: ConsumerConfig) -> None:
    """The deliver policy against the start options."""
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
        # The doubled word is the reference's.
        problem = "start time is not set" if not time else "start start sequence is also set" if seq else ""
    if problem:
        raise error(10094, err=f"consumer delivery policy is deliver {policy_name}, but optional {problem}")


def _check_sampling(config: ConsumerConfig) -> None:
    if not config.sample_freq:
        return
    text = config.sample_freq.removesuffix("%")
    if not _INTEGER.fullmatch(text):
        raise error(10095, err=f"strconv.Atoi: parsing {quote(text)}: invalid syntax")
    if not -(2**63) <= int(text) < 2**63:
        raise error(10095, err=f"strconv.Atoi: parsing {quote(text)}: value out of range")
    if int(text) < 0:
        raise error(10095, err="<nil>")


def check_group(group: str) -> None:
    """Refuse a bad name of a priority group."""
    if not group:
        raise error(10161)
    if not _GROUP_NAME.fullmatch(group):
        raise error(10162)


def _check_groups(config: ConsumerConfig) -> None:
    if config.priority_policy == "none":
        if config.priority_groups:
            raise error(10196)
        if config.priority_timeout > 0:
            raise error(10197)
        return
    if config.deliver_subject:
        raise error(10178)
    if not config.priority_groups:
        raise error(10159)
    for group in config.priority_groups:
        check_group(group)
