"""Filters that are pushed down reduce what is read, and nothing else."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from headrace.reader import options as o
from headrace.spark.pushdown import apply_filters

OPTIONS = o.parse_read_options({"stream": "S"})


def test_filters_narrow_what_is_read_and_nothing_else() -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    cases: list[tuple[list[Any], dict[str, Any]]] = [
        ([GreaterThan(("seq",), 5), LessThanOrEqual(("seq",), 9)], {"starting": "6", "ending": "10"}),
        ([EqualTo(("subject",), "a.b")], {"subject": "a.b"}),
        ([EqualTo(("subject",), "a.*")], {}),
        ([StringStartsWith(("subject",), "a.b.")], {"subject": "a.b.>"}),
        ([StringStartsWith(("subject",), "a.b")], {}),
        ([GreaterThanOrEqual(("time",), noon)], {"starting": "2026-01-01T12:00:00Z"}),
        ([LessThan(("time",), noon)], {}),
        ([EqualTo(("headers", "seq"), 5)], {}),
    ]
    for filters, expected in cases:
        assert apply_filters(OPTIONS, filters) == o.parse_read_options({"stream": "S", **expected}), filters
    newest = o.parse_read_options({"stream": "S", "starting": "last-per-subject"})
    assert apply_filters(newest, [LessThan(("seq",), 9)]) == newest, (
        "what is last must not depend on a filter"
    )
