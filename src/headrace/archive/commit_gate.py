"""The gate of `ack: remote`: a frame that is synced is committed when the archive has confirmed it.

Owns the frame of a store that waits. Invariants: a frame passes only if it is archived, in the order of frames; after the
store has failed, none passes. Everything that waits for a commit - acknowledgements, deliveries, replies, checkpoints,
the reuse of files - so waits for the archive, too. Runs on the thread of the store. Must not know how frames are archived.
See ADR 92.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from headrace.storage import Store
from headrace.storage.io.latency import LatencyHistogram


class StoreGate:
    """The gate of one store; `on_waiting` is called when a frame begins to wait, `latency` has how long frames waited.

    `synced_frame` is the newest frame of the journal that is synced; `confirmed_frame` is the newest archived one.
    """

    #: Every frame waits for the archive.
    holds_all = True

    def __init__(
        self,
        store: Store,
        on_waiting: Callable[[], None],
        latency: LatencyHistogram,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._store = store
        self._on_waiting = on_waiting
        self._latency = latency
        self._now_ns = now_ns
        self._release: Callable[[], None] | None = None
        self._waiting_since_ns = 0
        self.synced_frame = get_durable_frame(store)
        self.confirmed_frame = 0

    def close(self) -> None:
        """Let frames wait from now on, also one that is being written."""
        self._store.frame_submission.gate = self

    def open(self) -> None:
        """Let all frames pass without waiting: nothing is served any more."""
        self._store.frame_submission.gate = None
        self._let_pass()

    @property
    def is_waiting(self) -> bool:
        """Whether a frame waits for the archive."""
        return self._release is not None

    def on_synced(self, release: Callable[[], None]) -> None:
        self.synced_frame = self._store.journal.last_frame
        self._release, self._waiting_since_ns = release, self._now_ns()
        if self.synced_frame <= self.confirmed_frame:
            self._let_pass()  # it has nothing that is on disk
        else:
            self._on_waiting()

    def confirm(self, frame: int) -> None:
        """Let the frame that waits pass if it is archived: all frames up to `frame` are."""
        self.confirmed_frame = max(frame, self.confirmed_frame)
        if self._release is not None and self.synced_frame <= self.confirmed_frame:
            self._latency.record(self._now_ns() - self._waiting_since_ns)
            self._let_pass()

    def _let_pass(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            release()


def get_durable_frame(store: Store) -> int:
    """Return the newest durable frame; the journal numbers frames on its own, and the last one may be in flight."""
    return store.journal.last_frame - (1 if store.in_flight else 0)
