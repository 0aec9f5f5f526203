"""Virtual time. Owns the current time of a simulation; it moves only when it is advanced, so no test ever sleeps.

Invariant: time goes backwards only when the clock is set. Must not know the wall clock.
"""

SECOND_NS = 1_000_000_000

#: 2026-01-01T00:00:00Z: a fixed start, so that two runs of a seed are byte-identical.
EPOCH_NS = 1_767_225_600 * SECOND_NS


class SimClock:
    """A `Clock` that the simulation moves."""

    def __init__(self, start_ns: int = EPOCH_NS) -> None:
        self._now_ns = start_ns

    def now_ns(self) -> int:
        return self._now_ns

    def advance(self, delta_ns: int) -> int:
        """Move time forward by `delta_ns`; return the new time."""
        if delta_ns < 0:
            raise ValueError(f"the clock cannot go back by {-delta_ns} ns")
        self._now_ns += delta_ns
        return self._now_ns

    def set_by(self, delta_ns: int) -> None:
        """Set the clock forward or back."""
        self._now_ns += delta_ns
