"""Options of a consumer's configuration: how each is written on the command line, and which field it sets."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

import typer

from headrace.cli.exit_codes import USAGE_ERROR, CliError
from headrace.cli.stream_options import parse_pairs
from headrace.durations import parse_duration_ns, parse_size

Setter = Callable[[dict[str, Any], Any], None]
_DELIVER_POLICIES = {"all": "all", "new": "new", "last": "last", "subject": "last_per_subject"}
_SECOND_NS = 1_000_000_000


def _option(*flags: str, help: str, metavar: str | None = None) -> Any:
    return typer.Option(*flags, help=help, metavar=metavar, show_default=False)


_Text = str | None
_Count = int | None
_Switch = bool | None

OPTIONS: dict[str, Any] = {
    "filters": Annotated[
        list[str] | None, _option("--filter", metavar="SUBJECT", help="Filter subject; repeatable.")
    ],
    "start": Annotated[
        _Text,
        _option(
            "--start",
            metavar="START",
            help="Deliver policy: all, new, last, subject (last per subject), a sequence, 1h (ago), or a time.",
        ),
    ],
    "ack": Annotated[
        Literal["explicit", "all", "none"] | None,
        _option("--ack", metavar="explicit|all|none", help="Ack policy."),
    ],
    "ack_wait": Annotated[
        _Text,
        _option(
            "--wait", metavar="DURATION", help="Ack wait: redeliver a message not acknowledged in this time."
        ),
    ],
    "deliver": Annotated[
        _Text, _option("--deliver", metavar="SUBJECT", help="Deliver subject; makes a push consumer.")
    ],
    "group": Annotated[
        _Text, _option("--group", metavar="NAME", help="Deliver group: queue group of the push consumer.")
    ],
    "flow_control": Annotated[
        _Switch, _option("--flow-control/--no-flow-control", help="Flow control of a push consumer.")
    ],
    "heartbeat": Annotated[
        _Text, _option("--heartbeat", metavar="DURATION", help="Idle heartbeat of a push consumer.")
    ],
    "max_deliver": Annotated[
        _Count, _option("--max-deliver", metavar="N", help="Maximum deliveries of a message.")
    ],
    "backoff": Annotated[
        _Text,
        _option("--backoff", metavar="DURATIONS", help="Ack waits of successive deliveries, e.g. 1s,10s,1m."),
    ],
    "max_pending": Annotated[
        _Count, _option("--max-pending", metavar="N", help="Maximum ack pending: unacknowledged messages.")
    ],
    "max_pending_per_subject": Annotated[
        _Count,
        _option(
            "--max-pending-per-subject",
            metavar="N",
            help="Order per key: maximum unacknowledged messages of one subject; 1: strict order, 0: no order.",
        ),
    ],
    "key_tokens": Annotated[
        _Text,
        _option(
            "--key-tokens",
            metavar="POSITIONS",
            help="Tokens of the subject that are the key, e.g. 2 or 1,3; default: the whole subject.",
        ),
    ],
    "dead_letter": Annotated[
        _Text,
        _option(
            "--dead-letter",
            metavar="SUBJECT",
            help="Publish messages that are given up to this subject; 'none' ends that.",
        ),
    ],
    "dead_letter_on": Annotated[
        Literal["max_deliver", "term"] | None,
        _option(
            "--dead-letter-on",
            metavar="max_deliver|term",
            help="Only for this reason; default: both.",
        ),
    ],
    "max_waiting": Annotated[
        _Count, _option("--max-waiting", metavar="N", help="Maximum waiting pull requests.")
    ],
    "max_batch": Annotated[
        _Count, _option("--max-batch", metavar="N", help="Maximum messages of a pull request.")
    ],
    "max_expires": Annotated[
        _Text, _option("--max-expires", metavar="DURATION", help="Maximum expiry of a pull request.")
    ],
    "max_pull_bytes": Annotated[
        _Text, _option("--max-bytes", metavar="SIZE", help="Maximum size of a pull request.")
    ],
    "replay": Annotated[
        Literal["instant", "original"] | None,
        _option(
            "--replay", metavar="instant|original", help="Replay policy: at once, or at the original pace."
        ),
    ],
    "headers_only": Annotated[
        _Switch, _option("--headers-only/--no-headers-only", help="Deliver headers without payloads.")
    ],
    "inactive": Annotated[
        _Text,
        _option(
            "--inactive",
            metavar="DURATION",
            help="Inactive threshold: remove it after this time without use.",
        ),
    ],
    "rate_limit": Annotated[
        _Count,
        _option("--rate-limit", metavar="BITS", help="Rate limit of a push consumer, in bits per second."),
    ],
    "sample": Annotated[
        _Text,
        _option(
            "--sample", metavar="PERCENT", help="Percentage of acknowledgements to sample as advisories."
        ),
    ],
    "priority_policy": Annotated[
        Literal["overflow", "pinned_client", "prioritized"] | None,
        _option(
            "--priority-policy",
            metavar="POLICY",
            help="Priority policy: overflow, pinned_client or prioritized.",
        ),
    ],
    "priority_group": Annotated[
        _Text, _option("--priority-group", metavar="NAME", help="Priority group of pull requests.")
    ],
    "pinned_ttl": Annotated[_Text, _option("--pinned-ttl", metavar="DURATION", help="Pinned client TTL.")],
    "replicas": Annotated[_Count, _option("--replicas", metavar="N", help="Replicas in a cluster.")],
    "memory": Annotated[
        _Switch, _option("--memory/--no-memory", help="Keep the consumer's state in memory.")
    ],
    "description": Annotated[_Text, _option("--description", metavar="TEXT", help="Description.")],
    "metadata": Annotated[
        list[str] | None, _option("--metadata", metavar="NAME=VALUE", help="Metadata; repeatable.")
    ],
}


def apply_options(config: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with the given options applied."""
    result = dict(config)
    for name, value in given.items():
        _SETTERS[name](result, value)
    return result


def parse_start(text: str) -> dict[str, Any]:
    """Parse a deliver policy: a keyword, a sequence, a duration ago, or a time."""
    if text in _DELIVER_POLICIES:
        return {"deliver_policy": _DELIVER_POLICIES[text]}
    if text.isdigit():
        return {"deliver_policy": "by_start_sequence", "opt_start_seq": int(text)}
    return {"deliver_policy": "by_start_time", "opt_start_time": f"{parse_time(text):%Y-%m-%dT%H:%M:%S.%fZ}"}


def parse_time(text: str, *, future: bool = False) -> datetime:
    """Parse a time: ISO 8601, or a duration from now, backward or forward."""
    try:
        if re.match(r"\d+(\.\d+)?[a-zµ]", text):
            offset = timedelta(microseconds=parse_duration_ns(text) / 1000)
            return datetime.now(UTC) + (offset if future else -offset)
        found = datetime.fromisoformat(text)
    except ValueError:
        example = "1h or 2030-01-31T12:00:00Z"
        raise CliError(f"{text!r} is not a time: use for example {example}", USAGE_ERROR) from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)


def _make_setter(key: str, convert: Callable[[Any], Any] = lambda value: value) -> Setter:
    def setter(config: dict[str, Any], value: Any) -> None:
        config[key] = convert(value)

    return setter


def _set_filters(config: dict[str, Any], subjects: list[str]) -> None:
    config.pop("filter_subject", None)
    config.pop("filter_subjects", None)
    config.update({"filter_subject": subjects[0]} if len(subjects) == 1 else {"filter_subjects": subjects})


def _set_dead_letter(config: dict[str, Any], subject: str) -> None:
    config.pop("dead_letter", None)
    if subject != "none":
        config["dead_letter"] = {"subject": subject}


def _set_dead_letter_reason(config: dict[str, Any], reason: str) -> None:
    if not config.get("dead_letter"):
        raise CliError("--dead-letter-on needs a subject: add --dead-letter SUBJECT", USAGE_ERROR)
    config["dead_letter"] = {**config["dead_letter"], "on": [reason]}


_SETTERS: dict[str, Setter] = {
    "filters": _set_filters,
    "start": lambda config, text: config.update(parse_start(text)),
    "ack": _make_setter("ack_policy"),
    "ack_wait": _make_setter("ack_wait", parse_duration_ns),
    "deliver": _make_setter("deliver_subject"),
    "group": _make_setter("deliver_group"),
    "heartbeat": _make_setter("idle_heartbeat", parse_duration_ns),
    "backoff": _make_setter(
        "backoff", lambda text: [parse_duration_ns(part.strip()) for part in text.split(",")]
    ),
    "max_pending": _make_setter("max_ack_pending"),
    "max_pending_per_subject": _make_setter("max_ack_pending_per_subject"),
    "dead_letter": _set_dead_letter,
    "dead_letter_on": _set_dead_letter_reason,
    "max_expires": _make_setter("max_expires", parse_duration_ns),
    "max_pull_bytes": _make_setter("max_bytes", parse_size),
    "replay": _make_setter("replay_policy"),
    "inactive": _make_setter("inactive_threshold", parse_duration_ns),
    "rate_limit": _make_setter("rate_limit_bps"),
    "sample": _make_setter("sample_freq"),
    "priority_group": _make_setter("priority_groups", lambda name: [name]),
    "pinned_ttl": _make_setter("priority_timeout", parse_duration_ns),
    "replicas": _make_setter("num_replicas"),
    "memory": _make_setter("mem_storage"),
    "metadata": _make_setter("metadata", parse_pairs),
}
for _name in OPTIONS:
    _SETTERS.setdefault(_name, _make_setter(_name))
