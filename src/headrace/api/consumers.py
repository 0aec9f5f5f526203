"""The rules of consumer configurations: names, creation against update, what may change.

The way of a request is `named` (what the request's subject says), `adopted` (what an existing consumer
keeps, what a sourcing request turns into), then `settle`, which fills defaults, applies every rule and
returns the configuration to keep, or raises the reference's error. The rules of single fields are in
`consumer_fields`. Nothing here touches a consumer; a configuration that was given is never changed.
"""

from collections.abc import Callable, Mapping

from headrace.api import metadata, names
from headrace.api.configs import ConsumerConfig, StreamConfig, copy
from headrace.api.consumer_fields import check_fields, fill_defaults
from headrace.api.errors import error
from headrace.api.limits import NO_LIMITS, Limits
from headrace.api.requests import ConsumerRequest
from headrace.api.times import SECOND, nanos, text
from headrace.errors import RequestError

Others = Mapping[str, ConsumerConfig]

INACTIVE_THRESHOLD = 5 * SECOND

# The three forms of the subject of a create request.
EPHEMERAL, NAMED, DURABLE = "ephemeral", "named", "durable"


def named(
    request: ConsumerRequest, *, stream: str, form: str, name: str = "", filter_subject: str = ""
) -> ConsumerConfig:
    """What the subject of a request and its body say together.

    `stream`, `name` and `filter_subject` are the subject's tokens; `form` is EPHEMERAL for
    `CREATE.<stream>`, NAMED for `CREATE.<stream>.<name>[.<filter>]`, DURABLE for
    `DURABLE.CREATE.<stream>.<name>`.
    """
    config = copy(request.config)
    if stream != request.stream_name:
        raise error(10056)
    if names.has_path_separator(config.name if form == EPHEMERAL else name):
        raise error(10127)
    if form == DURABLE and not config.durable_name:
        raise error(10018)
    if form != EPHEMERAL:
        if config.durable_name and name != config.durable_name:
            raise error(10017)
        config.name = name
    elif config.durable_name:
        raise error(10020)
    if filter_subject and config.filter_subjects:
        raise error(10137)
    if filter_subject and config.filter_subject != filter_subject:
        raise error(10131)
    if config.num_replicas > 1:
        raise error(10074)
    return config


def adopted(config: ConsumerConfig, stream: StreamConfig, others: Others, random_name: str) -> ConsumerConfig:
    """What a request turns into by what exists.

    A sourcing consumer on a stream that removes acknowledged messages becomes durable, on another it gets a
    name of its own ending in `random_name`. An existing consumer keeps its pause, a durable sourcing one
    also its start.
    """
    made = copy(config)
    if made.direct and made.sourcing and made.name:
        if stream.retention == "limits":
            made.name = f"{made.name}-{random_name}"
        else:
            made.direct, made.durable_name, made.ack_policy = False, made.name, "flow_control"
            made.ack_wait = made.max_deliver = made.inactive_threshold = 0
    old = others.get(made.name)
    if old is not None:
        made.pause_until = old.pause_until
        if made.sourcing and made.durable_name:
            made.deliver_policy = old.deliver_policy
            made.opt_start_seq, made.opt_start_time = old.opt_start_seq, old.opt_start_time
    return made


def settle(
    config: ConsumerConfig,
    stream: StreamConfig,
    others: Others,
    *,
    action: str = "",
    strict: bool = False,
    limits: Limits = NO_LIMITS,
    has_interest: Callable[[str], bool] = lambda subject: False,
) -> ConsumerConfig:
    """The configuration of a new consumer, or of an existing one after the request.

    `others` are the stream's consumers by name, the existing one included; `has_interest` tells whether
    anybody is subscribed to a deliver subject. A consumer without a name is new, and gets its name from the
    caller.
    """
    made = check(config, stream, strict=strict, limits=limits)
    name = made.durable_name or made.name
    old = others.get(name) if name else None
    if old is not None:
        if action == "create":
            if not same(made, old):
                raise error(10148)
            made = copy(old)
        if stream.retention == "workqueue" and not _unique(name, made, others):
            raise error(10100)
        _check_changes(old, made, has_interest)
        if made.pause_until is not None:
            # From the second request on the reference shows a pause in UTC.
            made.pause_until = text(nanos(made.pause_until))
    elif action == "update":
        raise error(10149)
    else:
        _check_room(stream, others, limits)
        _check_workqueue(name, made, stream, others)
        if len(name.encode()) > names.NAME_MAX:
            raise error(10102, max=names.NAME_MAX)
    if not made.durable_name and made.inactive_threshold <= 0 and not (old and old.durable_name):
        made.inactive_threshold = INACTIVE_THRESHOLD
    return made


def check(
    config: ConsumerConfig, stream: StreamConfig, *, strict: bool = False, limits: Limits = NO_LIMITS
) -> ConsumerConfig:
    """Fill defaults and apply every rule that does not depend on other consumers."""
    made = copy(config)
    made.metadata = metadata.stored(config.metadata, metadata.consumer_level(config))
    fill_defaults(made, stream, strict, limits)
    check_fields(made, stream, limits)
    return made


def same(one: ConsumerConfig, other: ConsumerConfig) -> bool:
    """Whether two configurations are the same, whatever the server noted in their metadata.

    As in the reference, an ephemeral whose threshold was filled in differs from a request that leaves it out.
    """
    return _comparable(one) == _comparable(other)


def _comparable(config: ConsumerConfig) -> ConsumerConfig:
    bare = copy(config)
    bare.metadata = metadata.comparable(config.metadata)
    return bare


def limited(others: Others) -> int:
    """How many consumers count against the limit: not those that other streams source with."""
    return sum(not (other.direct or other.sourcing) for other in others.values())


def _check_room(stream: StreamConfig, others: Others, limits: Limits) -> None:
    most = stream.max_consumers
    if most <= 0 or 0 < limits.max_consumers < most:
        most = limits.max_consumers
    if 0 < most <= limited(others):
        raise error(10026)


def _check_workqueue(name: str, config: ConsumerConfig, stream: StreamConfig, others: Others) -> None:
    if stream.retention != "workqueue" or config.direct or config.sourcing:
        return
    if config.ack_policy not in ("explicit", "flow_control"):
        raise error(10098)
    if config.deliver_policy != "all":
        raise error(10101)
    if limited(others):
        if not config.filters():
            raise error(10099)
        if not _unique(name, config, others):
            raise error(10100)


def _unique(name: str, config: ConsumerConfig, others: Others) -> bool:
    """Whether no other consumer of a work queue may get a message that this one may get."""
    for other_name, other in others.items():
        if other_name == name or other.direct or other.sourcing:
            continue
        for ours in config.filters():
            theirs = other.filters()
            if not theirs or any(names.collide(ours, each) for each in theirs):
                return False
    return True


def _check_changes(old: ConsumerConfig, new: ConsumerConfig, has_interest: Callable[[str], bool]) -> None:
    """Refuse what an update may not change, in the reference's order."""
    fixed = (
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
    for changed, what in fixed:
        if changed:
            raise _refused(f"{what} can not be updated")
    if old.deliver_subject != new.deliver_subject:
        if not old.deliver_subject:
            raise _refused("can not update pull consumer to push based")
        if not new.deliver_subject:
            raise _refused("can not update push consumer to pull based")
        if has_interest(old.deliver_subject):
            raise error(10013)
    if old.max_waiting != new.max_waiting:
        raise _refused("max waiting can not be updated")


def _start_time(config: ConsumerConfig) -> int | None:
    return None if config.opt_start_time is None else nanos(config.opt_start_time)


def _refused(text: str) -> RequestError:
    return error(10012, err=text)
