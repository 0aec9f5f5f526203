"""The trace settings of an account: where messages with a sampled `traceparent` header are traced to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """The destination, "" for none, and the share of such messages in percent."""

    dest: str = ""
    sampling: int = 100


NO_TRACE = TraceOptions()
