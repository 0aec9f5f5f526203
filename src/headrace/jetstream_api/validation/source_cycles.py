"""Detects streams that would copy the same messages from one another forever.

`has_cycle` follows the subjects that a stream may contain, as patterns, through all streams that copy from it.
nats-server only checks whether the subjects that a stream listens to overlap a filter; but messages also come from
other sources, or were stored earlier. Streams of other accounts and servers are not followed.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from headrace.jetstream_api.configs import StreamConfig, StreamSource

#: Rounds through the same stream, each with other subjects, after which it counts as endless.
ROUNDS_MAX = 16
#: Maximum number of streams and patterns visited in one round.
NODES_MAX = 1_000


class _CopyEdge(NamedTuple):
    """Messages on `filter` of some stream are copied to stream `to`, on `dest` ("": on their own subject)."""

    target: str
    filter_subject: str
    dest: str


CopyEdges = dict[str, list[_CopyEdge]]


def has_cycle(config: StreamConfig, existing: Mapping[str, StreamConfig]) -> bool:
    """Return whether a message could come back to this stream again and again."""
    if not config.sources and config.mirror is None:
        return False
    edges: CopyEdges = {}
    for each in [config, *(each for each in existing.values() if each.name != config.name)]:
        for source in [*each.sources, each.mirror]:
            if source is not None and source.external is None:
                edges.setdefault(source.name, []).extend(_edges(each.name, source))
    return _reaches_again(config.name, ">", edges, (">",), set())


def _edges(target: str, source: StreamSource) -> list[_CopyEdge]:
    if not source.subject_transforms:
        return [_CopyEdge(target, source.filter_subject or ">", "")]
    return [
        _CopyEdge(target, each.src or ">", _make_dest_pattern(each.dest))
        for each in source.subject_transforms
    ]


def _reaches_again(
    name: str, pattern: str, edges: CopyEdges, path: tuple[str, ...], finite: set[str]
) -> bool:
    for returned in _find_returning(name, pattern, edges):
        if returned in path or len(path) > ROUNDS_MAX:
            return True
        if returned not in finite and _reaches_again(name, returned, edges, (*path, returned), finite):
            return True
    finite.add(pattern)
    return False


def _find_returning(name: str, pattern: str, edges: CopyEdges) -> Iterator[str]:
    """Yield the subjects on which a stream's messages come back after one round."""
    seen = {(name, pattern)}
    waiting = [(name, pattern)]
    while waiting and len(seen) < NODES_MAX:
        at, subjects = waiting.pop()
        for edge in edges.get(at, ()):
            matched = intersect_patterns(subjects, edge.filter_subject)
            if matched is None:
                continue
            next_node = (edge.target, edge.dest or matched)
            if edge.target == name:
                yield next_node[1]
            elif next_node not in seen:
                seen.add(next_node)
                waiting.append(next_node)


def intersect_patterns(one: str, other: str) -> str | None:
    """Return the pattern of all subjects that match both patterns; None if there are none."""
    ours, theirs = one.split("."), other.split(".")
    found: list[str] = []
    for index, (left, right) in enumerate(zip(ours, theirs, strict=False)):
        if left == ">":
            return ".".join(found + theirs[index:])
        if right == ">":
            return ".".join(found + ours[index:])
        if "*" not in (left, right) and left != right:
            return None
        found.append(right if left == "*" else left)
    return ".".join(found) if len(ours) == len(theirs) else None


def _make_dest_pattern(dest: str) -> str:
    """Return a pattern that covers all results of a transform destination.

    Everything from the first function on is unknown.
    """
    known: list[str] = []
    for token in dest.split("."):
        if "{{" in token:
            return ".".join([*known, ">"])
        known.append("*" if token.startswith("$") else token)
    return ".".join(known)
