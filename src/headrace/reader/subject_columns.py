"""Columns from tokens of the subject: `subject_columns: {customer: 2}` is the second token. Must not know tables."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa


def make_subject_columns(subjects: pa.Array, tokens: Mapping[str, int]) -> dict[str, pa.Array]:
    """Return a column for each token, which count from 1; null if a subject has fewer tokens."""
    if not tokens:
        return {}
    # A stream has few different subjects compared with its messages.
    encoded = subjects.dictionary_encode()
    split = [subject.split(".") for subject in encoded.dictionary.to_pylist()]
    columns = {}
    for name, position in tokens.items():
        values = [parts[position - 1] if len(parts) >= position else None for parts in split]
        columns[name] = pa.array(values, pa.string()).take(encoded.indices)
    return columns
