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
        list[str] | None, _option("--filter", metavar="SUBJECT", help="Only these subjects; repeatable.")
    ],
    "start": Annotated[
        _Text,
        _option(
            "--start",
            metavar="WHERE",
            help="all, new, last, subject (last of each), a sequence, 1h (ago), a time.",
        ),
    ],
    "ack": Annotated[
        Literal["explicit", "all", "none"] | None,
        _option("--ack", metavar="explicit|all|none", help="How messages are acknowledged."),
    ],
    "ack_wait": Annotated[
        _Text, _option("--wait", metavar="DURATION", help="How long for an acknowledgement.")
    ],
    "deliver": Annotated[_Text, _option("--deliver", metavar="SUBJECT", help="Push to this subject.")],
    "group": Annotated[_Text, _option("--group", help="Push to one of this queue group.")],
    "flow_control": Annotated[
        _Switch, _option("--flow-control/--no-flow-control", help="Pace what is pushed.")
    ],
    "heartbeat": Annotated[
        _Text, _option("--heartbeat", metavar="DURATION", help="Say so when nothing is to push.")
    ],
    "max_deliver": Annotated[_Count, _option("--max-deliver", help="Deliveries of a message at most.")],
    "backoff": Annotated[
        _Text, _option("--backoff", metavar="DURATIONS", help="Waits between deliveries: 1s,10s,1m.")
    ],
    "max_pending": Annotated[_Count, _option("--max-pending", help="Unacknowledged messages at most.")],
    "max_waiting": Annotated[_Count, _option("--max-waiting", help="Waiting pulls at most.")],
    "max_batch": Annotated[_Count, _option("--max-batch", help="Messages of a pull at most.")],
    "max_expires": Annotated[
        _Text, _option("--max-expires", metavar="DURATION", help="How long a pull waits at most.")
    ],
    "max_pull_bytes": Annotated[
        _Text, _option("--max-bytes", metavar="SIZE", help="Size of a pull at most.")
    ],
    "replay": Annotated[
        Literal["instant", "original"] | None,
        _option("--replay", metavar="instant|original", help="At once, or as it was published."),
    ],
    "headers_only": Annotated[_Switch, _option("--headers-only/--no-headers-only", help="Without payloads.")],
    "inactive": Annotated[
        _Text, _option("--inactive", metavar="DURATION", help="Remove it when unused so long.")
    ],
    "rate_limit": Annotated[
        _Count, _option("--rate-limit", metavar="BITS", help="Push so many bits a second.")
    ],
    "sample": Annotated[
        _Text, _option("--sample", metavar="PERCENT", help="Advise of so many acknowledgements.")
    ],
    "priority_policy": Annotated[
        Literal["overflow", "pinned_client", "prioritized"] | None,
        _option(
            "--priority-policy",
            metavar="overflow|pinned_client|prioritized",
            help="How pulls of a group are chosen.",
        ),
    ],
    "priority_group": Annotated[_Text, _option("--priority-group", help="The group of pulls.")],
    "pinned_ttl": Annotated[
        _Text, _option("--pinned-ttl", metavar="DURATION", help="How long a client stays pinned.")
    ],
    "replicas": Annotated[_Count, _option("--replicas", help="Copies in a cluster.")],
    "memory": Annotated[_Switch, _option("--memory/--no-memory", help="Keep its state in memory.")],
    "description": Annotated[_Text, _option("--description", help="What it is for.")],
    "metadata": Annotated[
        list[str] | None, _option("--metadata", metavar="NAME=VALUE", help="A note for programs; repeatable.")
    ],
}


def apply_options(config: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with the given options applied."""
    result = dict(config)
    for name, value in given.items():
        _SETTERS[name](result, value)
    return result


def parse_start(text: str) -> dict[str, Any]:
    """Parse where a consumer begins: a keyword, a sequence, a duration ago, or a time."""
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
        raise CliError(f"{text!r} says no time: write for example {example}", USAGE_ERROR) from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)


def _make_setter(key: str, convert: Callable[[Any], Any] = lambda value: value) -> Setter:
    def setter(config: dict[str, Any], value: Any) -> None:
        config[key] = convert(value)

    return setter


def _set_filters(config: dict[str, Any], subjects: list[str]) -> None:
    config.pop("filter_subject", None)
    config.pop("filter_subjects", None)
    config.update({"filter_subject": subjects[0]} if len(subjects) == 1 else {"filter_subjects": subjects})


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
