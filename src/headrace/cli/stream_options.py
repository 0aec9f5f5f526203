"""Options of a stream's configuration: how each is written on the command line, and which field it sets.

Owns the table that `stream add` and `stream edit` share. Sends nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from headrace.cli.exit_codes import USAGE_ERROR, CliError
from headrace.durations import parse_duration_ns, parse_size

Setter = Callable[[dict[str, Any], Any], None]


def _text_option(*names: str, help: str, metavar: str = "TEXT") -> Any:
    return Annotated[str | None, typer.Option(*names, help=help, metavar=metavar, show_default=False)]


def _texts_option(*names: str, help: str, metavar: str = "TEXT") -> Any:
    return Annotated[list[str] | None, typer.Option(*names, help=help, metavar=metavar, show_default=False)]


def _count_option(name: str, help: str) -> Any:
    return Annotated[int | None, typer.Option(name, help=help, metavar="N", show_default=False)]


def _switch_option(name: str, help: str) -> Any:
    return Annotated[bool | None, typer.Option(f"--{name}/--no-{name}", help=help, show_default=False)]


OPTIONS: dict[str, Any] = {
    "subjects": _texts_option(
        "--subjects", "--subject", metavar="SUBJECT", help="Subjects to capture, comma-separated; repeatable."
    ),
    "description": _text_option("--description", help="Description."),
    "storage": Annotated[
        Literal["file", "memory"] | None,
        typer.Option("--storage", metavar="file|memory", help="Storage type.", show_default=False),
    ],
    "retention": Annotated[
        Literal["limits", "interest", "work"] | None,
        typer.Option(
            "--retention",
            metavar="limits|interest|work",
            help="Retention policy: keep messages until limits are reached, while consumers need them, "
            "or until acknowledged (work queue).",
            show_default=False,
        ),
    ],
    "discard": Annotated[
        Literal["old", "new"] | None,
        typer.Option(
            "--discard",
            metavar="old|new",
            help="When a limit is reached: remove old messages, or reject new ones.",
            show_default=False,
        ),
    ],
    "discard_per_subject": _switch_option(
        "discard-per-subject", "With --discard new: also reject new messages at --max-msgs-per-subject."
    ),
    "max_msgs": _count_option("--max-msgs", "Maximum messages; -1: unlimited."),
    "max_msgs_per_subject": _count_option(
        "--max-msgs-per-subject", "Maximum messages per subject; -1: unlimited."
    ),
    "max_bytes": _text_option("--max-bytes", metavar="SIZE", help="Maximum size, e.g. 10GB; -1: unlimited."),
    "max_age": _text_option(
        "--max-age", metavar="DURATION", help="Maximum age of messages, e.g. 24h; 0: unlimited."
    ),
    "max_msg_size": _text_option(
        "--max-msg-size", metavar="SIZE", help="Maximum message size; -1: unlimited."
    ),
    "max_consumers": _count_option("--max-consumers", "Maximum consumers; -1: unlimited."),
    "dupe_window": _text_option(
        "--dupe-window", metavar="DURATION", help="Duplicate window: time to remember message IDs."
    ),
    "replicas": _count_option("--replicas", "Replicas in a cluster."),
    "compression": Annotated[
        Literal["none", "s2"] | None,
        typer.Option("--compression", metavar="none|s2", help="Compression on disk.", show_default=False),
    ],
    "allow_msg_ttl": _switch_option("allow-msg-ttl", "Allow a TTL per message."),
    "marker_ttl": _text_option(
        "--marker-ttl", metavar="DURATION", help="TTL of delete markers for expired subjects; 0: no markers."
    ),
    "allow_atomic": _switch_option("allow-atomic", "Allow atomic batches."),
    "allow_counter": _switch_option("allow-counter", "Make it a counter stream (Nats-Incr)."),
    "allow_schedules": _switch_option("allow-schedules", "Allow message schedules."),
    "allow_direct": _switch_option("allow-direct", "Allow direct gets, which any replica can serve."),
    "mirror_direct": _switch_option("mirror-direct", "Serve direct gets on behalf of the mirrored stream."),
    "allow_rollup": _switch_option("allow-rollup", "Allow rollup headers, which replace earlier messages."),
    "deny_delete": _switch_option("deny-delete", "Deny deleting messages."),
    "deny_purge": _switch_option("deny-purge", "Deny purging the stream."),
    "ack": _switch_option("ack", "Acknowledge published messages."),
    "first_seq": _count_option("--first-seq", "Sequence of the first message."),
    "mirror": _text_option("--mirror", metavar="STREAM", help="Mirror this stream."),
    "sources": _texts_option(
        "--source", metavar="STREAM", help="Source messages from this stream; repeatable."
    ),
    "through": _text_option(
        "--through",
        metavar="CONSUMER:SUBJECT",
        help="Read the mirror or only source through this durable consumer (see consumer add --for-sourcing).",
    ),
    "republish": _text_option(
        "--republish", metavar="FROM:TO", help="Republish stored messages, e.g. 'orders.>:stored.>'."
    ),
    "transform": _text_option(
        "--transform", metavar="FROM:TO", help="Subject transform: store messages under another subject."
    ),
    "metadata": _texts_option("--metadata", metavar="NAME=VALUE", help="Metadata; repeatable."),
    "tags": _texts_option("--tag", metavar="TAG", help="Placement tag; repeatable."),
    "cluster": _text_option("--cluster", metavar="NAME", help="Placement cluster."),
}


def apply_options(config: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with the given options applied."""
    result = dict(config)
    for name, value in given.items():
        if name != "through":
            _SETTERS[name](result, value)
    if through := given.get("through"):
        _set_source_consumer(result, through)
    return result


def read_config(path: Path | None) -> dict[str, Any]:
    """Read a configuration from a JSON file: as in a request, or as printed by `stream info --json`."""
    if path is None:
        return {}
    found = json.loads(path.read_text())
    if not isinstance(found, dict):
        raise CliError(f"{path} does not contain a configuration: expected a JSON object", USAGE_ERROR)
    config: dict[str, Any] = found.get("config", found)
    return config


def parse_size_or_unlimited(text: str) -> int:
    return -1 if text in ("-1", "unlimited") else parse_size(text)


def parse_pairs(texts: Sequence[str]) -> dict[str, str]:
    """Parse metadata from `name=value` texts."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise CliError(f"invalid metadata {text!r}: use name=value", USAGE_ERROR)
        found[name.strip()] = value.strip()
    return found


def _make_setter(key: str, convert: Callable[[Any], Any] = lambda value: value) -> Setter:
    def setter(config: dict[str, Any], value: Any) -> None:
        config[key] = convert(value)

    return setter


def _split_commas(texts: Sequence[str]) -> list[str]:
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]


def split_pair(text: str, form: str) -> tuple[str, str]:
    """Return the two halves of `a:b`; `form` is the expected format, for the error message."""
    first, colon, second = text.partition(":")
    if not (colon and first and second):
        raise CliError(f"invalid value {text!r}: use {form}", USAGE_ERROR)
    return first, second


def _parse_mapping(text: str) -> dict[str, str]:
    source, target = split_pair(text, "FROM:TO")
    return {"src": source, "dest": target}


def _set_marker_ttl(config: dict[str, Any], value: str) -> None:
    nanoseconds = parse_duration_ns(value) if value != "0" else 0
    config["subject_delete_marker_ttl"] = nanoseconds
    if nanoseconds:
        # The server rejects marker TTLs unless the stream allows message TTLs and rollups: markers use both.
        config["allow_msg_ttl"] = True
        config["allow_rollup_hdrs"] = True


def _make_placement_setter(part: str) -> Setter:
    def setter(config: dict[str, Any], value: Any) -> None:
        config["placement"] = {**(config.get("placement") or {}), part: value}

    return setter


def _set_source_consumer(config: dict[str, Any], text: str) -> None:
    name, subject = split_pair(text, "CONSUMER:SUBJECT")
    upstreams = [config["mirror"]] if config.get("mirror") else config.get("sources") or []
    if len(upstreams) != 1:
        raise CliError("--through requires --mirror or exactly one --source", USAGE_ERROR)
    upstreams[0]["consumer"] = {"name": name, "deliver_subject": subject}


def _parse_age(text: str) -> int:
    return 0 if text == "0" else parse_duration_ns(text)


_SETTERS: dict[str, Setter] = {
    "subjects": _make_setter("subjects", _split_commas),
    "retention": _make_setter("retention", lambda value: {"work": "workqueue"}.get(value, value)),
    "discard_per_subject": _make_setter("discard_new_per_subject"),
    "max_bytes": _make_setter("max_bytes", parse_size_or_unlimited),
    "max_age": _make_setter("max_age", _parse_age),
    "max_msg_size": _make_setter("max_msg_size", parse_size_or_unlimited),
    "dupe_window": _make_setter("duplicate_window", parse_duration_ns),
    "replicas": _make_setter("num_replicas"),
    "marker_ttl": _set_marker_ttl,
    "allow_counter": _make_setter("allow_msg_counter"),
    "allow_schedules": _make_setter("allow_msg_schedules"),
    "allow_rollup": _make_setter("allow_rollup_hdrs"),
    "ack": _make_setter("no_ack", lambda value: not value),
    "mirror": _make_setter("mirror", lambda name: {"name": name}),
    "sources": _make_setter("sources", lambda names: [{"name": name} for name in _split_commas(names)]),
    "republish": _make_setter("republish", _parse_mapping),
    "transform": _make_setter("subject_transform", _parse_mapping),
    "metadata": _make_setter("metadata", parse_pairs),
    "tags": _make_placement_setter("tags"),
    "cluster": _make_placement_setter("cluster"),
}
for _name in OPTIONS:
    _SETTERS.setdefault(_name, _make_setter(_name))
