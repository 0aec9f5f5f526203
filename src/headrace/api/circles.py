"""Streams that would copy the same messages from one another for ever.

`goes_round` follows what could lie in a stream along all that copies from it, as patterns of subjects. The
reference asks only whether the subjects that a stream listens to meet a filter; but messages also come from
other sources, or lie there from before. Streams of other accounts and servers are not followed.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from headrace.api.configs import StreamConfig, StreamSource

#: Rounds through the same stream, each with other subjects, after which it counts as endless.
ROUNDS_MAX = 16
#: Places looked at in one round.
PLACES_MAX = 1_000


class _Way(NamedTuple):
    """Messages on `filter` of some stream come to stream `to`, on `dest` ("": on their own subject)."""

    to: str
    filter: str
    dest: str


Ways = dict[str, list[_Way]]


def goes_round(config: StreamConfig, existing: Mapping[str, StreamConfig]) -> bool:
    """Whether a message could come back to this stream again and again."""
    if not config.sources and config.mirror is None:
        return False
    ways: Ways = {}
    for each in [config, *(each for each in existing.values() if each.name != config.name)]:
        for source in [*each.sources, each.mirror]:
            if source is not None and source.external is None:
                ways.setdefault(source.name, []).extend(_ways(each.name, source))
    return _endless(config.name, ">", ways, (">",), set())


def _ways(to: str, source: StreamSource) -> list[_Way]:
    if not source.subject_transforms:
        return [_Way(to, source.filter_subject or ">", "")]
    return [_Way(to, each.src or ">", _pattern(each.dest)) for each in source.subject_transforms]


def _endless(name: str, pattern: str, ways: Ways, path: tuple[str, ...], ending: set[str]) -> bool:
    for back in _returns(name, pattern, ways):
        if back in path or len(path) > ROUNDS_MAX:
            return True
        if back not in ending and _endless(name, back, ways, (*path, back), ending):
            return True
    ending.add(pattern)
    return False


def _returns(name: str, pattern: str, ways: Ways) -> Iterator[str]:
    """What comes back of the messages of a stream with these subjects, after one round."""
    seen = {(name, pattern)}
    waiting = [(name, pattern)]
    while waiting and len(seen) < PLACES_MAX:
        at, subjects = waiting.pop()
        for way in ways.get(at, ()):
            taken = meet(subjects, way.filter)
            if taken is None:
                continue
            arrived = (way.to, way.dest or taken)
            if way.to == name:
                yield arrived[1]
            elif arrived not in seen:
                seen.add(arrived)
                waiting.append(arrived)


def meet(one: str, other: str) -> str | None:
    """The pattern of all subjects that match both patterns; None if there are none."""
    ours, theirs = one.split("."), other.split(".")
    found: list[str] = []
    for place, (left, right) in enumerate(zip(ours, theirs, strict=False)):
        if left == ">":
            return ".".join(found + theirs[place:])
        if right == ">":
            return ".".join(found + ours[place:])
        if "*" not in (left, right) and left != right:
            return None
        found.append(right if left == "*" else left)
    return ".".join(found) if len(ours) == len(theirs) else None


def _pattern(dest: str) -> str:
    """What a destination can come to; behind the first function nothing is known."""
    known: list[str] = []
    for token in dest.split("."):
        if "{{" in token:
            return ".".join([*known, ">"])
        known.append("*" if token.startswith("$") else token)
    return ".".join(known)
