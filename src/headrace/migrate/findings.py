"""What a check finds: an object, how severe it is, what the new server does and what to change."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import IntEnum


class Severity(IntEnum):
    """How severe a finding is; the highest one decides the exit code."""

    NOTE = 0
    CHANGE = 1
    REFUSED = 2


@dataclass(frozen=True)
class MoveFinding:
    """One difference: `kind` is server, stream, consumer, bucket, objects, claims or spark."""

    severity: Severity
    kind: str
    name: str
    text: str
    remedy: str = ""

    def to_json(self) -> dict[str, str]:
        return {**asdict(self), "severity": self.severity.name.lower()}


def get_highest(findings: Iterable[MoveFinding]) -> Severity:
    """Return the highest severity; NOTE if there are none."""
    return max((each.severity for each in findings), default=Severity.NOTE)
