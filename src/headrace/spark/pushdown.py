"""Converts filters of a query to bounds and subjects, so that less of the stream is read.

Owns that conversion. Invariant: no row that is left out matches the filters; Spark applies all filters again to the
rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any

from headrace.reader.options import EARLIEST, LAST_PER_SUBJECT, LATEST, NS, Bound, ReadOptions
from headrace.spark.pyspark_compat import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

#: Characters that a literal subject cannot contain.
_WILDCARD = re.compile(r"[*>\s]")
_LOWER_BOUNDS = (EqualTo, GreaterThan, GreaterThanOrEqual)
_COMPARISONS = (EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)


def apply_filters(options: ReadOptions, filters: Iterable[Filter]) -> ReadOptions:
    """Return options that read no more than the filters can match."""
    for each in filters:
        column = getattr(each, "attribute", None)
        # Which message is the last of a subject must not depend on a filter.
        if column == ("seq",) and isinstance(each, _COMPARISONS) and options.starting != LAST_PER_SUBJECT:
            options = _apply_seq(options, each)
        elif (
            column == ("time",)
            and isinstance(each, _LOWER_BOUNDS)
            and (options.starting or EARLIEST) == EARLIEST
        ):
            options = _apply_time(options, each.value)
        elif column == ("subject",) and not options.subject:
            options = replace(options, subject=_to_subject_pattern(each))
    return options


def _apply_time(options: ReadOptions, moment: Any) -> ReadOptions:
    """Start with the first message of that time; everything before it is older. (After an end some may be older too.)"""
    if not isinstance(moment, datetime) or moment.tzinfo is None or moment.timestamp() <= 0:
        return options
    return replace(options, starting=Bound(time_ns=int(moment.timestamp()) * NS))


def _to_subject_pattern(each: Any) -> str:
    """Return the subjects that a filter can match; "" for all."""
    value = str(getattr(each, "value", ""))
    if isinstance(each, EqualTo) and not _WILDCARD.search(value):
        return value
    if isinstance(each, StringStartsWith) and value.endswith(".") and not _WILDCARD.search(value):
        return f"{value}>"
    return ""


def _apply_seq(options: ReadOptions, each: Any) -> ReadOptions:
    value = each.value
    low = {GreaterThan: value + 1, GreaterThanOrEqual: value, EqualTo: value}.get(type(each))
    high = {LessThan: value, LessThanOrEqual: value + 1, EqualTo: value + 1}.get(type(each))
    if low is not None and (options.starting or EARLIEST) == EARLIEST:
        options = replace(options, starting=Bound(seq=max(low, 1)))
    elif low is not None and options.starting is not None and options.starting.seq:
        options = replace(options, starting=Bound(seq=max(low, options.starting.seq)))
    if high is not None and options.ending == LATEST:
        options = replace(options, ending=Bound(seq=max(high, 1)))
    elif high is not None and options.ending.seq:
        options = replace(options, ending=Bound(seq=min(high, options.ending.seq)))
    return options
