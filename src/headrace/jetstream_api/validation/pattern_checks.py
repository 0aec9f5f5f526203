"""Checks among many subject patterns, in time that grows with their number and not with its square.

One request may name at most `PATTERNS_MAX` of them, and combinations of wildcards that need too many steps are rejected:
both keep a request from holding up other clients. nats-server compares every pair and has no limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from headrace.jetstream_api.errors import invalid_config
from headrace.protocol.pattern_set import PatternSet, TooManyVisits
from headrace.protocol.subjects import overlaps

PATTERNS_MAX = 10_000
_VISITS_MAX = 200_000
#: Steps that each pattern may take in addition: most take one for each token.
_VISITS_PER_PATTERN = 32


def check_count(patterns: Sequence[object], what: str) -> None:
    """Reject a request with more patterns than any reasonable one has."""
    if len(patterns) > PATTERNS_MAX:
        raise invalid_config(f"too many {what}: {len(patterns)}, at most {PATTERNS_MAX}")


def iter_overlaps(patterns: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each pattern in order, with the first later one that overlaps it, or "" if there is none."""
    encoded = [pattern.encode() for pattern in patterns]
    later = PatternSet(encoded, visits_max=_VISITS_MAX)
    for position, pattern in enumerate(encoded):
        later.discard(pattern)
        with _reject_too_many_visits():
            has_overlap = later.overlaps(pattern)
        following = encoded[position + 1 :] if has_overlap else []
        yield patterns[position], next((each for each in following if overlaps(each, pattern)), b"").decode()


def iter_covered(patterns: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Yield each pattern in order, and whether another one matches everything that it matches."""
    encoded = [pattern.encode() for pattern in patterns]
    others = PatternSet(encoded, visits_max=_VISITS_MAX)
    for position, pattern in enumerate(encoded):
        others.discard(pattern)
        with _reject_too_many_visits():
            is_covered = others.covers(pattern)
        others.add(pattern)
        yield patterns[position], is_covered


def any_overlap(ours: Sequence[str], theirs: Iterable[str]) -> bool:
    """Return whether one of our patterns overlaps one of theirs."""
    compared = list(theirs)
    visits_max = _VISITS_MAX + _VISITS_PER_PATTERN * len(compared)
    known = PatternSet((pattern.encode() for pattern in ours), visits_max=visits_max)
    with _reject_too_many_visits():
        return any(known.overlaps(pattern.encode()) for pattern in compared)


@contextmanager
def _reject_too_many_visits() -> Iterator[None]:
    try:
        yield
    except TooManyVisits:
        raise invalid_config("too many combinations of wildcards in subjects") from None
