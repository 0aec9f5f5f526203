"""Figures of an archive, for the monitor.

Owns when an operator should be warned. Must not know how an archive is written.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.storage.io.latency import LatencyHistogram


@dataclass(frozen=True, slots=True)
class ArchiveStats:
    """How far the archive is behind, and what it has; `error` is the newest one if the last request failed."""

    lag_groups: int
    lag_bytes: int
    lag_s: float
    epoch: int
    group: int
    floor: int
    bases: int
    bytes: int
    error: str
    max_lag_s: float
    base_age_s: float = 0.0  # since the start, if none was made since
    has_stopped: bool = False  # nothing is archived any more, and files wait for it until the disk is full
    is_remote: bool = False  # publishers wait for the archive
    is_waiting: bool = False  # with `ack: local`, they wait because the reserve of sequences is used up
    #: From the local sync of a frame to its confirmation by the archive, with `is_remote`.
    confirm_latency: LatencyHistogram = field(default_factory=LatencyHistogram)

    @property
    def warning(self) -> str:
        """What an operator should know; empty if there is nothing."""
        if self.has_stopped:
            return f"archiving has stopped: {self.error}; restart the server"
        if self.lag_s <= self.max_lag_s:
            return ""
        reason = f": {self.error}" if self.error else ""
        effect = ", and publishers wait for it" if self.is_remote or self.is_waiting else ""
        return f"the archive is {self.lag_s:.0f} s behind (max_lag {self.max_lag_s:g} s){effect}{reason}"
