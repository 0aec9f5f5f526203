"""The duplicate window: message ids seen lately, so that a repeated publish is answered with the first one's sequence.

Every id is noted in the same frame as its message, so the window survives a crash exactly as the messages do, and
also when the messages themselves are gone (acknowledged, purged or rolled up). The ids themselves are kept by the kernel.
"""

from headrace.kernel import Window
from headrace.store import Facts


class DuplicateWindow(Window):
    """Ids of one stream, kept for `window_ns` after they were stored."""

    __slots__ = ("_facts", "_key")

    def __init__(self, facts: Facts | None, key: bytes, window_ns: int) -> None:
        """`facts` is None for streams in memory, whose ids need not survive."""
        super().__init__(window_ns)
        self._facts = facts
        self._key = key
        if facts is not None:
            for block in (facts.get(key) or b"", *facts.notes(key)):
                self.load(block)

    def save(self) -> None:
        """Put what is new into the frame under construction; called once a tick."""
        if self._facts is not None and (fresh := self.take()):
            self._facts.note(self._key, fresh)
