"""Which sequences a promotion must not use again: with `ack: local` a server acknowledges before the archive has a message.

Owns the reserved sequence of each store, which groups announce, and the gate that keeps to it. Invariants: no stream of a
store shows a sequence above the one that the newest group announced; it never falls. So a promotion that goes on above
it uses none twice, whatever was lost. Must not know how groups are written.
See ADR 96.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from headrace.archive.journal_tail import StorePosition
from headrace.errors import StorePoisoned
from headrace.storage import Store
from headrace.storage.log.log import SEQ_MAX

#: At least so many sequences are reserved; more if a day needs more at the present rate.
RESERVE_MIN = 1 << 24
_DAY_NS = 86400 * 1_000_000_000
#: The rate of a server that runs for less time is not known yet.
_RATE_NS = 3600 * 1_000_000_000


class SequenceReserve:
    """What a writer announces, on the archiver's thread: `announced` is in groups, `confirmed` in one that was created."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._begun_ns = now_ns()
        self._first: dict[int, int] = {}
        self.announced: dict[int, int] = {}
        self.confirmed: dict[int, int] = {}

    def begin(self, found: Mapping[str, int], highest: Mapping[int, int]) -> None:
        """Continue what an earlier epoch has announced; `highest` has the highest sequence of each store now."""
        self.announced = {int(store, 16): reserved for store, reserved in found.items()}
        self._raise(highest)

    def update(self, positions: Sequence[StorePosition]) -> bool:
        """Reserve more where half is used up; return whether a group has to announce it."""
        self._raise({each.store_id: each.highest for each in positions if each.highest is not None})
        return self.announced != self.confirmed

    def _raise(self, highest: Mapping[int, int]) -> None:
        elapsed_ns = max(self._now_ns() - self._begun_ns, _RATE_NS)
        for store, sequence in highest.items():
            growth = sequence - self._first.setdefault(store, sequence)
            size = max(RESERVE_MIN, growth * _DAY_NS // elapsed_ns)
            reserved = self.announced.get(store, 0)
            if reserved < sequence + size // 2:
                self.announced[store] = max(reserved, min(sequence + size, SEQ_MAX))

    def confirm(self) -> bool:
        """Note that a group with this header was created; return whether that has raised a limit."""
        is_raised = self.announced != self.confirmed
        self.confirmed = dict(self.announced)
        return is_raised

    @property
    def header(self) -> dict[str, int]:
        """What the next group announces."""
        return {f"{store:016x}": reserved for store, reserved in self.announced.items()}


def find_highest(store: Store) -> int:
    """Return the highest sequence that a stream on disk has; 0 if there is none."""
    return max((log.last_seq for log in store.iter_file_logs()), default=0)


class SequenceLimit:
    """The gate of one store with `ack: local`: a frame with a sequence above `limit` waits until that is raised.

    The newest group reserves a day's messages, so frames wait only if the archive was out of reach for that long.
    """

    #: A frame passes without the archive.
    holds_all = False

    def __init__(self, store: Store, limit: int) -> None:
        self._store = store
        self.highest = find_highest(store)
        self.limit = limit
        self._release: Callable[[], None] | None = None
        self._is_closing = False
        store.frame_submission.gate = self

    @property
    def is_waiting(self) -> bool:
        """Whether a frame waits for the archive."""
        return self._release is not None

    def on_synced(self, release: Callable[[], None]) -> None:
        self.highest = max(self.highest, self._store.frame_builder.find_highest_sequence())
        if self.highest <= self.limit:
            release()
            return
        self._release = release
        if self._is_closing:
            self._fail()

    def raise_to(self, limit: int) -> None:
        """Note what a group has announced, and let the frame that waits for it pass."""
        self.limit = max(limit, self.limit)
        if self._release is not None and self.highest <= self.limit:
            release, self._release = self._release, None
            release()

    def close(self) -> None:
        """Let nothing wait from now on: the store is about to be closed. What would have to wait is never acknowledged."""
        self._is_closing = True
        if self._release is not None:
            self._fail()

    def _fail(self) -> None:
        release, self._release = self._release, None
        self._store.fail(
            StorePoisoned("the archive could not reserve more sequences before the server stopped")
        )
        if release is not None:
            release()
