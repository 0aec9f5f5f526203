"""Filters that are pushed down reduce what is read, and nothing else."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyspark.sql.datasource as spark
import pytest

from headrace.reader import options as o
from headrace.spark.pushdown import apply_filters

pytestmark = pytest.mark.skipif(
    not hasattr(spark, "EqualTo"), reason="PySpark 4.0 has no filter pushdown for Python data sources"
)

OPTIONS = o.parse_read_options({"stream": "S"})


def test_filters_narrow_what_is_read_and_nothing_else() -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    cases: list[tuple[list[Any], dict[str, Any]]] = [
        (
            [spark.GreaterThan(("seq",), 5), spark.LessThanOrEqual(("seq",), 9)],
            {"starting": "6", "ending": "10"},
        ),
        ([spark.EqualTo(("subject",), "a.b")], {"subject": "a.b"}),
        ([spark.EqualTo(("subject",), "a.*")], {}),
        ([spark.StringStartsWith(("subject",), "a.b.")], {"subject": "a.b.>"}),
        ([spark.StringStartsWith(("subject",), "a.b")], {}),
        ([spark.GreaterThanOrEqual(("time",), noon)], {"starting": "2026-01-01T12:00:00Z"}),
        ([spark.LessThan(("time",), noon)], {}),
        ([spark.EqualTo(("headers", "seq"), 5)], {}),
    ]
    for filters, expected in cases:
        assert apply_filters(OPTIONS, filters) == o.parse_read_options({"stream": "S", **expected}), filters
    newest = o.parse_read_options({"stream": "S", "starting": "last-per-subject"})
    assert apply_filters(newest, [spark.LessThan(("seq",), 9)]) == newest, (
        "what is last must not depend on a filter"
    )
