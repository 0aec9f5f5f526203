"""Columns from tokens of the subject: `subject_columns: {customer: 2}` is the second token. Must not know tables."""

from __future__ import annotations

import json
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


def fit_columns(
    columns: Mapping[str, pa.Array], schema: pa.Schema
) -> tuple[dict[str, pa.Array], list[pa.Array]]:
    """Return the columns with the types of a schema, and for those with another type why values do not fit it."""
    fitted, errors = dict(columns), []
    for name, column in columns.items():
        if name in schema.names and (wanted := schema.field(name)).type != column.type:
            fitted[name], wrong = _fit(column, wanted)
            errors.append(wrong)
    return fitted, errors


def _fit(column: pa.Array, field: pa.Field) -> tuple[pa.Array, pa.Array]:
    """Convert texts; return null and the reason for those that are no value of the type."""
    encoded = column.dictionary_encode()
    values, errors = [pa.nulls(0, field.type)], []
    for text in encoded.dictionary.to_pylist():
        error = None
        try:
            value = pa.array([text], column.type).cast(field.type)
        except pa.ArrowException:
            value = pa.nulls(1, field.type)
            error = f"{field.name}: {json.dumps(text)} is not {field.type}"
        values.append(value)
        errors.append(error)
    return pa.concat_arrays(values).take(encoded.indices), pa.array(errors, pa.string()).take(encoded.indices)
