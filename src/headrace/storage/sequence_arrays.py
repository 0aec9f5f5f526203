"""Types of the sequence arrays that logs return, and binary search in sorted columns."""

from __future__ import annotations

from array import array
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Seqs = npt.NDArray[np.uint64]

NO_SEQS: Seqs = np.empty(0, dtype=np.uint64)


def to_seqs(sequences: array[int]) -> Seqs:
    """Return the numbers of an array of type `Q` without copying them."""
    return np.frombuffer(sequences, dtype=np.uint64)


def sort_unique(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the distinct values, ascending. `np.unique` would import all of `numpy.ma` first, which takes 20 ms."""
    ordered = np.sort(values)
    return ordered[np.concatenate(([True], ordered[1:] != ordered[:-1]))] if len(ordered) > 1 else ordered


def search_sorted(column: npt.NDArray[Any], value: int, side: Literal["left", "right"] = "left") -> int:
    """Return where a value belongs in an ascending column of unsigned integers.

    `np.searchsorted` with a Python integer would first copy the whole column as int64.
    """
    if value < 0:
        return 0
    if value > np.iinfo(column.dtype).max:
        return len(column)
    return int(column.searchsorted(column.dtype.type(value), side))
