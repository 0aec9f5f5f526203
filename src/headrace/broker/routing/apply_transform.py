"""Compiles subject transforms to functions that return None for subjects outside their source pattern."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.jetstream_api.configs import SubjectTransform
from headrace.jetstream_api.subject_transform import compile_transform
from headrace.protocol import subjects
from headrace.protocol.pattern_index import NOT_FOUND, PatternIndex

Transform = Callable[[bytes], bytes | None]


def make_transform(source: str, dest: str) -> Transform:
    """Compile a subject transform; it returns None for subjects that do not match `source`."""
    pattern = (source or ">").encode()
    transform = compile_transform(source, dest)
    return lambda subject: transform(subject) if subjects.matches(pattern, subject) else None


def make_first_matching(transforms: Sequence[SubjectTransform]) -> Transform | None:
    """Compile transforms of which the first that matches a subject applies; None if there are none."""
    if not transforms:
        return None
    index = PatternIndex((each.src or ">").encode() for each in transforms)
    compiled = [compile_transform(each.src, each.dest) for each in transforms]

    def transform(subject: bytes) -> bytes | None:
        position = index.find_first(subject)
        return None if position == NOT_FOUND else compiled[position](subject)

    return transform
