"""The rules of the single fields of a consumer: defaults first, then what is refused, in the reference's
order.
"""

import re

from headrace.api import metadata, names
from headrace.api.configs import ConsumerConfig, StreamConfig
from headrace.api.errors import error, invalid_config, pedantic
from headrace.api.gojson import quote
from headrace.api.limits import Limits
from headrace.api.times import SECOND, duration_text

ACK_WAIT = 30 * SECOND
MAX_WAITING = 512
MAX_ACK_PENDING = 1000
PRIORITY_TIMEOUT = 120 * SECOND
FLOW_HEARTBEAT = SECOND
HEARTBEAT_MIN = SECOND // 10
EXPIRES_MIN = SECOND // 1000

_GROUP = re.compile(r"[a-zA-Z0-9/_=-]{1,16}")
_INTEGER = re.compile(r"[+-]?[0-9]+")

# The words that refusals use for the policies which take neither a start sequence nor a start time.
_WITHOUT_START = {"all": "all", "last": "last", "last_per_subject": "last per subject", "new": "new"}


def fill_defaults(config: ConsumerConfig, stream: StreamConfig, strict: bool, limits: Limits) -> None:
    """Set what was left out; with `strict` every correction of what was sent is refused."""
    _fill_bounds(config, strict)
    if not config.deliver_subject and config.max_waiting == 0:
        config.max_waiting = MAX_WAITING
    if config.ack_wait == 0 and config.ack_policy in ("explicit", "all"):
        config.ack_wait = ACK_WAIT
    if config.backoff:
        if strict and config.ack_wait != config.backoff[0]:
            raise pedantic("first backoff value has to equal batch AckWait")
        config.ack_wait = config.backoff[0]
    _fill_from_stream(config, stream, strict)
    if config.max_ack_pending == 0 and config.ack_policy != "none":
        caps = [MAX_ACK_PENDING, limits.server_ack_pending, limits.max_ack_pending]
        config.max_ack_pending = min(cap for cap in caps if cap > 0)
    if not config.deliver_subject and config.max_batch == 0 and limits.server_request_batch > 0:
        if strict:
            raise pedantic("max_request_batch must be set if it's JetStream limits are set")
        config.max_batch = limits.server_request_batch
    if config.priority_policy == "pinned_client" and config.priority_timeout == 0:
        config.priority_timeout = PRIORITY_TIMEOUT
    if config.ack_policy == "flow_control" and not strict:
        config.flow_control, config.idle_heartbeat = True, FLOW_HEARTBEAT


def _fill_bounds(config: ConsumerConfig, strict: bool) -> None:
    if config.max_deliver < -1 and strict:
        raise pedantic("max_deliver must be set to -1")
    if config.max_deliver == 0 or config.max_deliver < -1:
        config.max_deliver = -1
    _raise_to(config, "max_waiting", 0, strict)
    _raise_to(config, "max_ack_pending", -1, strict)
    for field in ("max_batch", "max_expires", "max_bytes", "idle_heartbeat", "inactive_threshold"):
        _raise_to(config, field, 0, strict)
    _raise_to(config, "priority_timeout", 0, strict)


def _raise_to(config: ConsumerConfig, field: str, least: int, strict: bool) -> None:
    if getattr(config, field) >= least:
        return
    if strict:
        raise pedantic(f"{field} must not be negative" if least == 0 else f"{field} must be set to {least}")
    setattr(config, field, least)


def _fill_from_stream(config: ConsumerConfig, stream: StreamConfig, strict: bool) -> None:
    for field in ("max_ack_pending", "inactive_threshold"):
        offered = getattr(stream.consumer_limits, field)
        if getattr(config, field) == 0:
            if strict and offered > 0:
                raise pedantic(f"{field} must be set if it's configured in stream limits")
            setattr(config, field, offered)


def check_fields(config: ConsumerConfig, stream: StreamConfig, limits: Limits) -> None:
    """Refuse what a consumer of that stream may not be."""
    _check_names(config, stream)
    if any(wait < 0 for wait in config.backoff):
        raise error(10184)
    if config.ack_wait < 0:
        raise error(10183)
    _check_flow_acks(config)
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
    if metadata.size(config.metadata) > metadata.BYTES_MAX:
        raise error(10135, limit=f"{metadata.BYTES_MAX // 1024}KB")
    _check_groups(config)


def _check_names(config: ConsumerConfig, stream: StreamConfig) -> None:
    if config.name and not names.valid_name(config.name):
        raise invalid_config("consumer name can not contain '.', '*', '>', '\\', '/'")
    if config.durable_name and not names.valid_name(config.durable_name):
        raise invalid_config("consumer durable name can not contain '.', '*', '>', '\\', '/'")
    if config.num_replicas > stream.num_replicas:
        raise error(10126)
    if config.num_replicas < 0:
        raise error(10133)
    if stream.retention != "limits" and config.num_replicas not in (0, stream.num_replicas):
        raise error(10134)


def _check_flow_acks(config: ConsumerConfig) -> None:
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
    if not names.literal(subject):
        raise error(10079)
    if not names.valid_subject(subject):
        raise error(10112)
    if any(names.subset(subject, taken) for taken in stream.subjects):
        raise error(10081)
    if config.max_waiting != 0:
        raise error(10080)
    if config.max_ack_pending > 0 and config.ack_policy == "none":
        raise error(10082)
    if 0 < config.idle_heartbeat < HEARTBEAT_MIN:
        raise error(10083)


def _check_pull(config: ConsumerConfig, stream: StreamConfig, limits: Limits) -> None:
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


def _check_limits(config: ConsumerConfig, stream: StreamConfig, limits: Limits) -> None:
    own = stream.consumer_limits
    for cap in (limits.server_ack_pending, limits.max_ack_pending, own.max_ack_pending):
        if 0 < cap < config.max_ack_pending:
            raise error(10121, limit=cap)
    if 0 < own.inactive_threshold < config.inactive_threshold:
        raise error(10153, limit=duration_text(own.inactive_threshold))


def _check_filters(config: ConsumerConfig) -> None:
    if config.filter_subject and config.filter_subjects:
        raise error(10136)
    if "" in config.filter_subjects:
        raise error(10139)
    filters = config.filters()
    for position, subject in enumerate(filters):
        if not names.valid_subject(subject):
            raise invalid_config("invalid subject")
        others = filters[:position] + filters[position + 1 :]
        if any(names.subset(subject, other) for other in others):
            raise error(10138)


def _check_start(config: ConsumerConfig) -> None:
    """The deliver policy against the start options."""
    policy = config.deliver_policy
    seq, time = config.opt_start_seq > 0, config.opt_start_time is not None
    problem = ""
    if policy in _WITHOUT_START:
        words = _WITHOUT_START[policy]
        if seq:
            problem = "start sequence is also set"
        elif time:
            problem = "start time is also set"
        elif policy == "last_per_subject" and not config.filters():
            problem = "filter subject is not set"
    elif policy == "by_start_sequence":
        words = "by start sequence"
        problem = "start sequence is not set" if not seq else "start time is also set" if time else ""
    else:
        words = "by start time"
        # The doubled word is the reference's.
        problem = "start time is not set" if not time else "start start sequence is also set" if seq else ""
    if problem:
        raise error(10094, err=f"consumer delivery policy is deliver {words}, but optional {problem}")


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
    if not _GROUP.fullmatch(group):
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
