"""The duplicate window: recent message ids, so that a repeated publish is answered with the sequence of the first one.

Every id is stored in the same frame as its message, so the window survives a crash exactly as the messages do, and also
when the messages themselves are gone (acknowledged, purged or rolled up). The compiled core stores the ids.
"""

from headrace._native import DedupWindow
from headrace.storage import MetadataStore


class StreamDedupWindow(DedupWindow):
    """The ids of one stream, for `window_ns` after they were stored."""

    __slots__ = ("_key", "_metadata")

    def __init__(self, metadata: MetadataStore | None, key: bytes, window_ns: int) -> None:
        """`metadata` is None for streams in memory, whose ids need not survive."""
        super().__init__(window_ns)
        self._metadata = metadata
        self._key = key
        if metadata is not None:
            for block in (metadata.get(key) or b"", *metadata.get_operands(key)):
                self.restore(block)

    def save(self) -> None:
        """Put new ids into the open frame; called once per commit."""
        if self._metadata is not None and (unsaved := self.drain_unsaved()):
            self._metadata.merge(self._key, unsaved)
