"""The options of a stream's configuration: how each is written on the command line, and what it sets.

Owns the table that `stream add` and `stream edit` share. Sends nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from headrace.cli.failures import MISUSED, Failure
from headrace.durations import duration_ns, size_bytes

Setter = Callable[[dict[str, Any], Any], None]


def _text(*names: str, help: str, metavar: str = "TEXT") -> Any:
    return Annotated[str | None, typer.Option(*names, help=help, metavar=metavar, show_default=False)]


def _texts(*names: str, help: str, metavar: str = "TEXT") -> Any:
    return Annotated[list[str] | None, typer.Option(*names, help=help, metavar=metavar, show_default=False)]


def _count(name: str, help: str) -> Any:
    return Annotated[int | None, typer.Option(name, help=help, metavar="N", show_default=False)]


def _switch(name: str, help: str) -> Any:
    return Annotated[bool | None, typer.Option(f"--{name}/--no-{name}", help=help, show_default=False)]


OPTIONS: dict[str, Any] = {
    "subjects": _texts(
        "--subjects", "--subject", metavar="SUBJECT", help="What it captures; repeat, or a,b,c."
    ),
    "description": _text("--description", help="What it is for."),
    "storage": Annotated[
        Literal["file", "memory"] | None,
        typer.Option("--storage", metavar="file|memory", help="Where it lives.", show_default=False),
    ],
    "retention": Annotated[
        Literal["limits", "interest", "work"] | None,
        typer.Option(
            "--retention",
            metavar="limits|interest|work",
            help="What keeps messages: limits, interest, or work to do.",
            show_default=False,
        ),
    ],
    "discard": Annotated[
        Literal["old", "new"] | None,
        typer.Option(
            "--discard",
            metavar="old|new",
            help="What goes when it is full: the oldest, or what comes.",
            show_default=False,
        ),
    ],
    "discard_per_subject": _switch("discard-per-subject", "Full subjects refuse new messages too."),
    "max_msgs": _count("--max-msgs", "Messages at most; -1 is no limit."),
    "max_msgs_per_subject": _count("--max-msgs-per-subject", "Messages of a subject at most."),
    "max_bytes": _text("--max-bytes", metavar="SIZE", help="Size at most: 10GB; -1 is no limit."),
    "max_age": _text("--max-age", metavar="DURATION", help="How long messages are kept: 24h; 0 is for ever."),
    "max_msg_size": _text("--max-msg-size", metavar="SIZE", help="Size of a message at most."),
    "max_consumers": _count("--max-consumers", "Consumers at most."),
    "dupe_window": _text("--dupe-window", metavar="DURATION", help="How long message ids are remembered."),
    "replicas": _count("--replicas", "Copies in a cluster."),
    "compression": Annotated[
        Literal["none", "s2"] | None,
        typer.Option("--compression", metavar="none|s2", help="Of what is on disk.", show_default=False),
    ],
    "allow_msg_ttl": _switch("allow-msg-ttl", "Messages may have their own lifetime."),
    "marker_ttl": _text(
        "--marker-ttl", metavar="DURATION", help="How long markers of what expired are kept; 0 leaves none."
    ),
    "allow_atomic": _switch("allow-atomic", "Atomic batches are taken."),
    "allow_counter": _switch("allow-counter", "Messages add to counters."),
    "allow_schedules": _switch("allow-schedules", "Messages may be published later."),
    "allow_direct": _switch("allow-direct", "Messages can be read without the stream's leader."),
    "mirror_direct": _switch("mirror-direct", "Direct reads of the origin are served too."),
    "allow_rollup": _switch("allow-rollup", "A message may replace those before it."),
    "deny_delete": _switch("deny-delete", "Single messages cannot be deleted."),
    "deny_purge": _switch("deny-purge", "It cannot be purged."),
    "ack": _switch("ack", "Publishing is acknowledged."),
    "first_seq": _count("--first-seq", "The sequence of its first message."),
    "mirror": _text("--mirror", metavar="STREAM", help="It is a copy of this stream."),
    "sources": _texts("--source", metavar="STREAM", help="It collects this stream; repeatable."),
    "through": _text(
        "--through",
        metavar="CONSUMER:SUBJECT",
        help="The durable consumer that the mirror or only source reads through (consumer add --for-sourcing).",
    ),
    "republish": _text(
        "--republish", metavar="FROM:TO", help="Publish again what was stored: 'orders.>:stored.>'."
    ),
    "transform": _text("--transform", metavar="FROM:TO", help="Store under another subject."),
    "metadata": _texts("--metadata", metavar="NAME=VALUE", help="A note for programs; repeatable."),
    "tags": _texts("--tag", metavar="TAG", help="Servers that may keep it; repeatable."),
    "cluster": _text("--cluster", help="The cluster that keeps it."),
}


def apply(config: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with the options that were given."""
    result = dict(config)
    for name, value in given.items():
        if name != "through":
            _SETTERS[name](result, value)
    if through := given.get("through"):
        _through(result, through)
    return result


def read_config(path: Path | None) -> dict[str, Any]:
    """A configuration from a JSON file: one as it is sent, or what `stream info --json` prints."""
    if path is None:
        return {}
    found = json.loads(path.read_text())
    if not isinstance(found, dict):
        raise Failure(f"{path} holds no configuration: a JSON object was expected", MISUSED)
    config: dict[str, Any] = found.get("config", found)
    return config


def size_or_unlimited(text: str) -> int:
    return -1 if text in ("-1", "unlimited") else size_bytes(text)


def pairs(texts: Sequence[str]) -> dict[str, str]:
    """Notes from `name=value` texts."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise Failure(f"{text!r} is no pair: write name=value", MISUSED)
        found[name.strip()] = value.strip()
    return found


def _set(key: str, convert: Callable[[Any], Any] = lambda value: value) -> Setter:
    def setter(config: dict[str, Any], value: Any) -> None:
        config[key] = convert(value)

    return setter


def _split(texts: Sequence[str]) -> list[str]:
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]


def two(text: str, what: str) -> tuple[str, str]:
    """The two halves of `a:b`."""
    first, colon, second = text.partition(":")
    if not (colon and first and second):
        raise Failure(f"{text!r} is no {what}: write it as FIRST:SECOND", MISUSED)
    return first, second


def _mapping(text: str) -> dict[str, str]:
    source, target = two(text, "mapping of subjects")
    return {"src": source, "dest": target}


def _marker_ttl(config: dict[str, Any], value: str) -> None:
    nanoseconds = duration_ns(value) if value != "0" else 0
    config["subject_delete_marker_ttl"] = nanoseconds
    if nanoseconds:
        # Servers refuse markers that would outlive their own lifetime, and rollups write them.
        config["allow_msg_ttl"] = True
        config["allow_rollup_hdrs"] = True


def _placement(part: str) -> Setter:
    def setter(config: dict[str, Any], value: Any) -> None:
        config["placement"] = {**(config.get("placement") or {}), part: value}

    return setter


def _through(config: dict[str, Any], text: str) -> None:
    name, subject = two(text, "consumer")
    origins = [config["mirror"]] if config.get("mirror") else config.get("sources") or []
    if len(origins) != 1:
        raise Failure("--through needs --mirror or exactly one --source", MISUSED)
    origins[0]["consumer"] = {"name": name, "deliver_subject": subject}


def _age(text: str) -> int:
    return 0 if text == "0" else duration_ns(text)


_SETTERS: dict[str, Setter] = {
    "subjects": _set("subjects", _split),
    "retention": _set("retention", lambda value: {"work": "workqueue"}.get(value, value)),
    "discard_per_subject": _set("discard_new_per_subject"),
    "max_bytes": _set("max_bytes", size_or_unlimited),
    "max_age": _set("max_age", _age),
    "max_msg_size": _set("max_msg_size", size_or_unlimited),
    "dupe_window": _set("duplicate_window", duration_ns),
    "replicas": _set("num_replicas"),
    "marker_ttl": _marker_ttl,
    "allow_counter": _set("allow_msg_counter"),
    "allow_schedules": _set("allow_msg_schedules"),
    "allow_rollup": _set("allow_rollup_hdrs"),
    "ack": _set("no_ack", lambda value: not value),
    "mirror": _set("mirror", lambda name: {"name": name}),
    "sources": _set("sources", lambda names: [{"name": name} for name in _split(names)]),
    "republish": _set("republish", _mapping),
    "transform": _set("subject_transform", _mapping),
    "metadata": _set("metadata", pairs),
    "tags": _placement("tags"),
    "cluster": _placement("cluster"),
}
for _name in OPTIONS:
    _SETTERS.setdefault(_name, _set(_name))
