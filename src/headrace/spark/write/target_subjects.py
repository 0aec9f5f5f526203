"""The subjects of the target: which ones it takes, and under which subject it stores a row.

Owns matching them against the stream's configuration, for many rows at once. Invariant: a subject that is not recognised
here is not refused, only sent with care; the server decides. Must not know how rows are published. See ADR 59.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache

import pyarrow.compute as pc

from headrace.jetstream_api.subject_transform import compile_transform
from headrace.spark.write.encode_rows import MessageColumns
from headrace.spark.write.write_target import WriteTarget


def has_foreign_subject(columns: MessageColumns, target: WriteTarget) -> bool:
    """Return whether a row has a subject that another stream may have, which would store the row."""
    subjects = target.subjects
    if len(subjects) == 1 and subjects[0].endswith(".>") and "*" not in subjects[0]:
        is_own = pc.starts_with(columns.subjects, subjects[0][:-1].encode())  # the usual case, and faster
    else:
        is_own = pc.match_substring_regex(columns.subjects, _make_pattern(subjects))
    return not pc.all(is_own).as_py()


def make_stored_subject(target: WriteTarget) -> Callable[[bytes], bytes]:
    """Return the function from a row's subject to the one under which the target stores it."""
    if not target.subject_transform:
        return lambda subject: subject
    source, dest = target.subject_transform
    transform = compile_transform(source, dest)
    matches = re.compile(_make_pattern((source or ">",)).encode()).search
    return lambda subject: transform(subject) if matches(subject) else subject


@lru_cache(maxsize=8)
def _make_pattern(subjects: Sequence[str]) -> str:
    """Return a regular expression for all subjects that one of these matches; for no subject if there are none."""
    return "|".join(f"^{_translate(each)}$" for each in subjects) or r"^\b$"


def _translate(subject: str) -> str:
    wildcards = {"*": "[^.]+", ">": ".+"}
    return r"\.".join(wildcards.get(token) or re.escape(token) for token in subject.split("."))
