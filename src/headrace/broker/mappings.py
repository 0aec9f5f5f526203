"""Subject transforms as the broker applies them: a subject that a mapping does not speak of is left alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.api.configs import SubjectTransform
from headrace.api.transforms import compile_transform
from headrace.protocol import subjects

Change = Callable[[bytes], bytes | None]


def mapping(source: str, dest: str) -> Change:
    """A subject transform; None for subjects it does not speak of."""
    pattern = (source or ">").encode()
    change = compile_transform(source, dest)
    return lambda subject: change(subject) if subjects.matches(pattern, subject) else None


def first_of(transforms: Sequence[SubjectTransform]) -> Change | None:
    """The first transform that speaks of a subject changes it; None when there are none at all."""
    if not transforms:
        return None
    changes = [mapping(each.src, each.dest) if each.dest else _kept(each.src) for each in transforms]

    def change(subject: bytes) -> bytes | None:
        for each in changes:
            made = each(subject)
            if made is not None:
                return made
        return None

    return change


def _kept(source: str) -> Change:
    pattern = (source or ">").encode()
    return lambda subject: subject if subjects.matches(pattern, subject) else None
