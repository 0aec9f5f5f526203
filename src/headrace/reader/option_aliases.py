"""Accepts the options of Spark's Kafka source, so that a query moves by changing its format and its servers.

Owns the aliases and the positions per stream in the form of `startingOffsets`. Invariant: an option and its alias are
never given together. A topic is a stream, its only partition is 0, and an offset is a sequence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

#: Own options by alias, in lower case.
ALIASES = {
    "subscribe": "stream",
    "subscribepattern": "streampattern",
    "startingoffsets": "starting",
    "endingoffsets": "ending",
    "maxoffsetspertrigger": "maxmessagespertrigger",
    "minoffsetspertrigger": "minmessagespertrigger",
}
#: How aliases, and the options that they stand for, are spelled.
SPELLING = {
    name.lower(): name
    for name in (
        "subscribePattern",
        "streamPattern",
        "startingOffsets",
        "endingOffsets",
        "maxOffsetsPerTrigger",
        "minOffsetsPerTrigger",
        "maxMessagesPerTrigger",
        "minMessagesPerTrigger",
    )
}
#: Offsets of the Kafka source that are no positions.
_KAFKA_KEYWORDS = {-2: "earliest", -1: "latest"}


def replace_aliases(options: Mapping[str, str]) -> dict[str, str]:
    """Return options under their own names; raise ValueError if two of them mean the same."""
    replaced = dict(options)
    for alias, name in ALIASES.items():
        if alias not in replaced:
            continue
        shown = (SPELLING.get(alias, alias), SPELLING.get(name, name))
        if name in replaced:
            raise ValueError(f"options `{shown[0]}` and `{shown[1]}` mean the same: set only one of them")
        value = replaced.pop(alias)
        if name in ("starting", "ending"):
            _check_kafka_position(shown[0], value)
        replaced[name] = value
    return replaced


def _check_kafka_position(alias: str, value: str) -> None:
    if value.strip().lower() not in ("earliest", "latest") and not is_per_stream(value):
        raise ValueError(
            f'option `{alias}`: {value!r} is neither earliest, latest nor JSON such as {{"ORDERS":{{"0":17}}}}; '
            "other positions need option `starting` or `ending`"
        )


def is_per_stream(value: str) -> bool:
    """Return whether a position is given for each stream, as JSON."""
    return value.lstrip().startswith("{")


def parse_per_stream(text: str) -> dict[str, str]:
    """Return the position of each stream as text; raise ValueError.

    Both `{"ORDERS": {"0": 17}}` and `{"ORDERS": 17}` are accepted.
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not JSON: {error}") from error
    return {str(stream): _to_position(stream, position) for stream, position in value.items()}


def _to_position(stream: str, position: Any) -> str:
    if isinstance(position, dict):
        if list(position) != ["0"]:
            raise ValueError(
                f"stream {stream!r} has the partition 0 only, not {', '.join(position) or 'none'}"
            )
        position = position["0"]
    if isinstance(position, bool) or not isinstance(position, int | str):
        raise ValueError(f"the position of stream {stream!r} is {position!r}, not a number or a text")
    return str(_KAFKA_KEYWORDS.get(position, position) if isinstance(position, int) else position)
