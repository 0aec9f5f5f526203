"""Types that jobs share: options, progress and the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

OptionMap = Mapping[str, Any]
#: Called with one line for every step.
Progress = Callable[[str], None]


def no_progress(_: str) -> None:
    """Ignore progress."""


@dataclass(frozen=True)
class Summary:
    """What a job did."""

    rows: int
    batches: int = 1
    last_seq: int = 0
