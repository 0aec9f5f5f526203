"""Columns from tokens of the subject, and what happens if a table has another type for them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.reader.subject_columns import fit_columns, make_subject_columns

SUBJECTS = pa.array(["orders.7.new", "orders", "orders.acme", "orders.7"])


def test_a_token_that_a_subject_lacks_is_null() -> None:
    columns = make_subject_columns(SUBJECTS, {"customer": 2, "event": 3})
    assert columns["customer"].to_pylist() == ["7", None, "acme", "7"]
    assert columns["event"].to_pylist() == ["new", None, None, None]
    assert make_subject_columns(SUBJECTS, {}) == {}


def test_texts_that_are_no_value_of_the_type_are_null_and_say_why() -> None:
    columns = make_subject_columns(SUBJECTS, {"customer": 2, "event": 3})
    fitted, errors = fit_columns(columns, pa.schema([("customer", pa.int64()), ("event", pa.string())]))
    assert fitted["customer"].type == pa.int64()
    assert fitted["customer"].to_pylist() == [7, None, None, 7]
    assert fitted["event"] is columns["event"]
    assert [each.to_pylist() for each in errors] == [[None, None, 'customer: "acme" is not int64', None]]


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.uuid(), pa.struct([("a", pa.int64())])], ids=str)
def test_a_type_that_texts_never_have_is_null(kind: pa.DataType) -> None:
    fitted, errors = fit_columns({"a": pa.array(["x", None])}, pa.schema([("a", kind)]))
    assert fitted["a"].type == kind
    assert fitted["a"].null_count == 2
    assert errors[0].null_count == 1


def test_no_rows_have_no_errors() -> None:
    fitted, errors = fit_columns({"a": pa.array([], pa.string())}, pa.schema([("a", pa.int64())]))
    assert fitted["a"] == pa.array([], pa.int64())
    assert errors == [pa.array([], pa.string())]
