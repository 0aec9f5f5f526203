"""The stores of a running server, as the archiver's thread sees them.

Owns the calls between that thread and the server's event loop. Invariant: the server's loop only reads positions, moves
the limit of what may be reused, and pins; files are read on the thread. Must not know object stores.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from headrace.archive.commit_gate import StoreGate, get_durable_frame
from headrace.archive.journal_tail import StorePosition
from headrace.archive.sequence_reserve import RESERVE_MIN, SequenceLimit, find_highest
from headrace.backup.pinned_stores import SourceStore, open_pinned_stores
from headrace.errors import ArchiveError, StoreError, StorePoisoned
from headrace.storage import FileDisk, Store
from headrace.storage.io.latency import LatencyHistogram

Result = TypeVar("Result")

#: How long a checkpoint may take.
CHECKPOINT_TIMEOUT_S = 60.0


class PinMaker(Protocol):
    """Pins all stores of the server; runs on its event loop."""

    async def create(self, lease_s: float) -> dict[str, Any]: ...
    def release(self, name: str) -> None: ...


class LoopSource:
    """The server's stores, for the archiver's thread. `on_stores` is called on it with the folders of new ones."""

    def __init__(
        self,
        stores: Callable[[], Sequence[tuple[str, Store]]],
        on_stores: Callable[[dict[int, Path]], None],
    ) -> None:
        self._list_stores = stores
        self._on_stores = on_stores
        self.pins: PinMaker | None = None
        self._loop = asyncio.get_running_loop()
        self._folders: dict[int, Path] = {}
        self._attached: dict[int, Store] = {}
        self._accounts: dict[int, str] = {}
        self._pin = ""
        self._positions: dict[int, StorePosition] = {}
        self._confirmed_frames: dict[int, int] = {}  # frames that the stores know of
        self._recorded: set[int] = set()
        #: After the takeover: stores that were opened since; False while a checkpoint is written.
        self._confirmed_opens: dict[int, bool] | None = None
        self._gates: dict[int, StoreGate] = {}
        self._limits: dict[int, SequenceLimit] | None = None  # with `ack: local`
        self._wake: Callable[[], None] | None = None
        self.confirm_latency = LatencyHistogram()

    def _call(self, function: Callable[[], Result]) -> asyncio.Future[Result]:
        """Run a function on the server's loop, and return its result for the loop of this thread."""
        future: Future[Result] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return  # the archiver no longer waits for it
            try:
                future.set_result(function())
            except Exception as error:
                future.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        return asyncio.wrap_future(future)

    async def read_positions(self) -> list[StorePosition]:
        # With gates, every synced frame brings new positions to this thread.
        positions = self.positions if self._gates else await self._call(self.get_positions)
        if new := {each.store_id for each in positions} - self._recorded:
            self._on_stores({store_id: self._folders[store_id] for store_id in new})
            self._recorded |= new
        return positions

    def get_positions(self) -> list[StorePosition]:
        """Return where the stores are, also those closed since; hold back what a new one writes from now on."""
        for account, store in self._list_stores():
            if store.store_id not in self._attached and self._may_attach(store):
                assert isinstance(store.disk, FileDisk)
                self._folders[store.store_id] = store.disk.root.absolute()
                self._attached[store.store_id] = store
                self._accounts[store.store_id] = account
                store.journal.set_archived(get_durable_frame(store))
                if self._limits is not None:  # it is in no base yet
                    self._limits[store.store_id] = SequenceLimit(store, find_highest(store) + RESERVE_MIN)
        self._positions = {store_id: self._get_position(store) for store_id, store in self._attached.items()}
        return self.positions

    @property
    def positions(self) -> list[StorePosition]:
        """Where the stores were when one was last looked at; from any thread."""
        return list(self._positions.values())

    def _get_position(self, store: Store) -> StorePosition:
        files = store.journal.list_unarchived()
        limit = self._limits.get(store.store_id) if self._limits is not None else None
        highest = limit.highest if limit is not None else None
        account = self._accounts[store.store_id]
        return StorePosition(store.store_id, account, self._get_frame(store), files, highest)

    def _get_frame(self, store: Store) -> int:
        """Return the frame up to which the archiver may read; with a gate this includes the frame that waits for it."""
        gate = self._gates.get(store.store_id)
        return gate.synced_frame if gate is not None else get_durable_frame(store)

    def get_folders(self) -> dict[int, Path]:
        """Return the folders of the stores."""
        return dict(self._folders)

    @property
    def is_empty(self) -> bool:
        """Whether no store has a stream."""
        return not any(store.logs for store in self._attached.values())

    def get_frames_before_open(self) -> dict[int, int]:
        """Return the last frame that each store had before it was opened, by this start or one that was refused.

        The numbers of new frames begin higher, so they do not tell whether the newest archived frame was there.
        """
        return {store_id: store.report().frame_before_open for store_id, store in self._attached.items()}

    async def confirm_opens(self) -> None:
        """Record in the stores that the archive was taken over with what they have: from now on their frames count.

        Until then nothing may be archived: after a crash the archive would be ahead of what the stores say.
        """
        work = asyncio.run_coroutine_threadsafe(self._confirm_opens(), self._loop)
        await asyncio.wrap_future(work)

    async def _confirm_opens(self) -> None:
        self._confirmed_opens = {}
        done: list[asyncio.Future[None]] = [self._loop.create_future() for _ in self._attached]
        for store, future in zip(self._attached.values(), done, strict=True):
            store.checkpointer.confirm_open(partial(_set_done, future))
        try:
            await asyncio.wait_for(asyncio.gather(*done), CHECKPOINT_TIMEOUT_S)
        except TimeoutError:
            raise ArchiveError(
                f"no checkpoint within {CHECKPOINT_TIMEOUT_S:.0f} s: is the disk slow?"
            ) from None
        except OSError as error:
            raise ArchiveError(f"no checkpoint could be written: {error}") from error

    def _may_attach(self, store: Store) -> bool:
        """Return whether groups may have the frames of a store: one that is opened later has to be confirmed, too."""
        confirmed, store_id = self._confirmed_opens, store.store_id
        if confirmed is None:
            return True
        if store_id not in confirmed and not store.full:
            confirmed[store_id] = False
            with contextlib.suppress(StoreError):  # it has failed, and writes nothing more
                store.checkpointer.confirm_open(partial(self._on_confirmed, confirmed, store_id))
        return confirmed.get(store_id, False)

    def _on_confirmed(self, confirmed: dict[int, bool], store_id: int, error: OSError | None) -> None:
        if error is None:
            confirmed[store_id] = True
        else:
            del confirmed[store_id]  # there is no space: it is tried again

    def read(self, store_id: int, path: str, offset: int, length: int) -> bytes:
        descriptor = os.open(os.path.join(self._folders[store_id], path), os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(descriptor, length, offset)
        finally:
            os.close(descriptor)

    async def set_archived(self, frames: dict[int, int]) -> None:
        # There is nothing to wait for: what this thread asks of the loop later, such as a pin, comes after it.
        changed = dict(frames.items() - self._confirmed_frames.items())
        self._confirmed_frames |= changed
        with contextlib.suppress(RuntimeError):  # the server's loop has ended
            self._loop.call_soon_threadsafe(self._set_all_archived, changed)

    def _set_all_archived(self, frames: dict[int, int]) -> None:
        for store_id, frame in frames.items():
            self._set_archived(store_id, frame)

    def _set_archived(self, store_id: int, frame: int) -> None:
        store = self._attached[store_id]
        if store.poisoned is not None:
            return
        if store.journal.archived_frame != frame:
            store.journal.set_archived(frame)
        gate = self._gates.get(store_id)
        if gate is not None:
            gate.confirm(frame)

    # Gates

    def find_highest_sequences(self) -> dict[int, int]:
        """Return the highest sequence in each store."""
        return {store_id: find_highest(store) for store_id, store in self._attached.items()}

    async def limit_sequences(self, reserved: dict[int, int]) -> None:
        """With `ack: local`: from now on streams show no sequence above what groups have reserved."""

        def limit() -> None:
            self._limits = {
                store_id: SequenceLimit(store, reserved.get(store_id, find_highest(store) + RESERVE_MIN))
                for store_id, store in self._attached.items()
            }

        await self._call(limit)

    async def set_reserved(self, sequences: dict[int, int]) -> None:
        await self._call(lambda: self._raise_limits(sequences))

    def _raise_limits(self, sequences: dict[int, int]) -> None:
        for store_id, limit in (self._limits or {}).items():
            if store_id in sequences:
                limit.raise_to(sequences[store_id])

    @property
    def is_waiting(self) -> bool:
        """Whether a frame waits for a reserve."""
        return any(limit.is_waiting for limit in (self._limits or {}).values())

    def close_limits(self) -> None:
        """Let no frame wait for a reserve, on the server's loop: the stores are about to be closed."""
        for limit in (self._limits or {}).values():
            limit.close()

    async def close_gates(self, wake: Callable[[], None]) -> None:
        """From now on, frames of all stores are committed when they are archived; `wake` is called when one waits."""

        def close() -> None:
            self._wake = wake
            for store_id, store in self._attached.items():
                on_waiting = partial(self._on_waiting, store)
                gate = self._gates[store_id] = StoreGate(store, on_waiting, self.confirm_latency)
                gate.close()
            self.get_positions()

        self._confirmed_frames.clear()  # the gates know of none
        await self._call(close)

    def _on_waiting(self, store: Store) -> None:
        """Update the position of one store: a server may have thousands."""
        self._positions[store.store_id] = self._get_position(store)
        if self._wake is not None:
            self._wake()

    def open_gates(self) -> None:
        """Let frames pass without waiting, on the server's loop; nothing may be served any more."""
        gates, self._gates = self._gates, {}
        for gate in gates.values():
            gate.open()

    @property
    def is_drained(self) -> bool:
        """Whether everything that the stores accepted is archived, or never will be; on the server's loop."""
        return not any(
            store.poisoned is None and (store.dirty or store.in_flight) for store in self._attached.values()
        )

    async def pin(self) -> list[SourceStore]:
        assert self.pins is not None
        work = self.pins.create(float(365 * 86400))
        data = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
        self._pin = data["pin"]
        return open_pinned_stores(data, "")

    async def unpin(self) -> None:
        pin, self._pin = self._pin, ""
        pins = self.pins
        if pin and pins is not None:
            await self._call(lambda: pins.release(pin))

    def stop_service(self, reason: str) -> None:
        """Acknowledge nothing more; on the server's loop."""
        for _, store in self._list_stores():
            store.fail(StorePoisoned(reason))


def _set_done(future: asyncio.Future[None], error: OSError | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(None)
