"""The configurations of a stream during a move, and the record of the move in its metadata.

    old server: open -> closed -> moved          new server: copying -> ready -> open

Owns the metadata key `headrace.move`. Invariant: a step and its record are one update of one stream, so a move that was
interrupted anywhere can be continued from what the two servers have. Must not know connections.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from headrace.client.fast_ingest import closed_subject

MOVE_KEY = "headrace.move"
#: States of the stream of the old server, besides having no record.
CLOSED, MOVED = "closed", "moved"
#: States of the stream of the new server.
COPYING, READY, OPEN = "copying", "ready", "open"

Config = dict[str, Any]
Move = dict[str, Any]
#: Fields that are fixed when a stream is created.
_FIXED_FIELDS = (
    *("storage", "compression", "description", "max_consumers", "persist_mode"),
    *("allow_msg_ttl", "allow_msg_counter", "allow_direct", "consumer_limits"),
)
#: Fields that would act on messages of the move itself; they are set when the stream opens.
_FIELDS_WHEN_OPEN = (
    *("max_msgs", "max_bytes", "max_msg_size", "discard", "discard_new_per_subject"),
    *("republish", "subject_transform", "deny_delete", "deny_purge"),
)
#: Fields that only make sense together with the subjects, or act on messages that are published.
_FIELDS_OF_SUBJECTS = ("subjects", "subject_transform", "republish")


def get_move(config: Mapping[str, Any]) -> Move | None:
    """Return the record of a move, None if the stream has none."""
    text = (config.get("metadata") or {}).get(MOVE_KEY)
    if not text:
        return None
    found: Move = json.loads(text)
    return found


def set_move(config: Mapping[str, Any], move: Move | None) -> Config:
    """Return the configuration with this record, without the entries that the server adds itself."""
    metadata = {
        key: value
        for key, value in (config.get("metadata") or {}).items()
        if key != MOVE_KEY and not key.startswith("_nats.")
    }
    if move is not None:
        metadata[MOVE_KEY] = json.dumps(move, separators=(",", ":"))
    return {**config, "metadata": metadata}


def opening_subject(stream: str) -> str:
    """Return the only subject of a stream of the new server before it opens."""
    return f"$HEADRACE.opening.{stream}"


def make_closed(config: Mapping[str, Any], move: Move) -> Config:
    """Return the configuration that accepts no publishes, with what it replaces in its record."""
    replaced = {key: config[key] for key in _FIELDS_OF_SUBJECTS if config.get(key)}
    closed = {key: value for key, value in config.items() if key not in _FIELDS_OF_SUBJECTS}
    closed["subjects"] = [closed_subject(config["name"])]
    return set_move(closed, {**move, "state": CLOSED, "replaced": replaced})


def make_reopened(config: Mapping[str, Any]) -> Config:
    """Return the configuration as it was before the stream was closed."""
    move = get_move(config)
    assert move is not None, "only closed streams are opened again"
    return set_move({**config, **move["replaced"]}, None)


def get_original(config: Mapping[str, Any]) -> Config:
    """Return the configuration of a stream as it was before a move closed it."""
    move = get_move(config)
    return set_move({**config, **((move or {}).get("replaced") or {})}, None)


def make_mirror(original: Config, move: Move, replicas: int, domain: str) -> Config:
    """Return the configuration of the copy while it follows the stream of the old server; it has no limits."""
    fixed = {key: original[key] for key in _FIXED_FIELDS if key in original}
    mirror = {"name": original["name"], "external": {"api": f"$JS.{domain}.API", "deliver": ""}}
    base = {"name": original["name"], **fixed, "num_replicas": replicas, "mirror": mirror}
    return set_move({**base, "metadata": original.get("metadata")}, {**move, "state": COPYING})


def make_restoring(original: Config, move: Move, replicas: int) -> Config:
    """Return the configuration of a stream that is being restored: it may be incomplete."""
    return set_move(make_ready(original, move, replicas), {**move, "state": COPYING})


def make_ready(original: Config, move: Move, replicas: int) -> Config:
    """Return the configuration of a complete copy that nobody can publish to yet."""
    ready = {
        key: value for key, value in make_final(original, replicas).items() if key not in _FIELDS_WHEN_OPEN
    }
    ready["subjects"] = [opening_subject(original["name"])]
    return set_move(ready, {**move, "state": READY})


def make_open(original: Config, move: Move, replicas: int) -> Config:
    """Return the configuration of the moved stream: that of the original, with the receipt of the move."""
    return set_move(make_final(original, replicas), {**move, "state": OPEN})


def make_final(original: Config, replicas: int) -> Config:
    """Return the configuration for the new server, without what belongs to the old one."""
    final = {
        key: value
        for key, value in original.items()
        if key not in ("placement", "subject_delete_markers", "mirror", "first_seq")
    }
    return {**final, "num_replicas": replicas}
