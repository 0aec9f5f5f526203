"""Types that jobs share: options, progress and the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

OptionMap = Mapping[str, Any]
#: Told of every step, in a line.
Progress = Callable[[str], None]


def no_progress(_: str) -> None:
    """Progress that nobody wants to hear of."""


@dataclass(frozen=True)
class Summary:
    """What a job did."""

    rows: int
    batches: int = 1
    last_seq: int = 0
