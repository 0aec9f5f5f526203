"""Paces the requests of an idle query.

Owns the time of the next request: after a tenth of the time in which nothing arrived, within limits. A message that
arrives after a pause of a second is noticed after 100 ms at most, and a query that is idle for long sends few requests.
"""

from __future__ import annotations

import time

_MIN_S = 0.02
#: Maximum pause for one request; a query of several streams sends as many requests at a time.
_MAX_S = 0.2
#: Maximum pause, however many requests follow.
_MAX_TOTAL_S = 2.0
_SHARE = 0.1


class IdlePause:
    """When to look for data again."""

    def __init__(self) -> None:
        self._idle_since_s = time.monotonic()
        self._due_s = 0.0

    def on_data(self) -> None:
        """Look again at once."""
        self._idle_since_s = time.monotonic()
        self._due_s = 0.0

    def on_nothing(self, requests: int = 1) -> None:
        """Wait before the next look, which takes this many requests."""
        now_s = time.monotonic()
        idle_s = now_s - self._idle_since_s
        pause_s = min(max(idle_s * _SHARE, _MIN_S), _MAX_S) * requests
        self._due_s = now_s + min(pause_s, _MAX_TOTAL_S)

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is time to look again; return False after the timeout."""
        remaining_s = self._due_s - time.monotonic()
        if remaining_s > 0:
            time.sleep(min(remaining_s, timeout_s))
        return remaining_s <= timeout_s
