"""The flow-control window of a push consumer: how many bytes may be under way, and when to ask for a sign of life.

Sizes and thresholds are the reference's (sourcing.md 7.3): the window starts at 2 MiB and doubles with every answer up
to 32 MiB; a request goes out at half of it, delivery stops beyond it. Knows no messages.
"""

from __future__ import annotations

START_BYTES = 2 * 1024 * 1024
MOST_BYTES = 32 * 1024 * 1024


class Window:
    """What is under way. `asked` is the subject of the request that has no answer yet, b"" for none."""

    __slots__ = ("_counted", "asked", "size", "under_way")

    def __init__(self, size: int = START_BYTES) -> None:
        self.size = size
        self.under_way = 0
        self.asked = b""
        self._counted = 0

    @property
    def open(self) -> bool:
        return self.under_way <= self.size

    def room(self) -> int:
        """How many bytes may go out before something has to be decided."""
        limit = self.size if self.asked else self.size // 2
        return max(limit - self.under_way, 0)

    def sent(self, size: int) -> bool:
        """So much went out; whether it is time to ask."""
        self.under_way += size
        if self.asked and self.under_way - self._counted >= self.size:
            self._counted += size
        return not self.asked and self.under_way > self.size // 2

    def ask(self, subject: bytes) -> None:
        """A request goes out under this subject."""
        self.asked = subject
        self._counted = self.under_way

    def answered(self, subject: bytes) -> bool:
        """An answer came in; whether it is one to the newest request."""
        if not self.asked or subject != self.asked:
            return False
        self.size = min(2 * self.size, MOST_BYTES)
        self.under_way = max(self.under_way - self._counted, 0)
        self.asked = b""
        self._counted = 0
        return True
