"""The snapshot leases of an account, in memory: their streams, sizes and deadlines.

Owns the timers of leases and the limit on their number. Invariant: every pin on disk is listed here from the start of the
account on, so that no request has to read the manifests of other pins. Must not know requests or tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.errors import StoreError
from headrace.storage.snapshot import leases
from headrace.storage.snapshot import manifest as manifests
from headrace.storage.snapshot.manifest import Manifest

if TYPE_CHECKING:
    from headrace.broker.timers import TimerHandle, Timers
    from headrace.storage import Store

#: Maximum number of pins in an account: each keeps files that the store would otherwise remove.
LEASES_MAX = 1000


@dataclass(frozen=True, slots=True)
class SnapshotLease:
    """One lease: the name of the pin, its stream, and what a response says about it."""

    pin: str
    stream: str
    last_seq: int
    messages: int
    expires_ns: int


class LeaseRegistry:
    """The leases of one account."""

    def __init__(self, store: Store, timers: Timers) -> None:
        self._store = store
        self._timers = timers
        self._leases: dict[str, tuple[SnapshotLease, TimerHandle]] = {}
        #: Pins of the whole store, for backups, and their tokens.
        self.store_tokens: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def load(self, now_ns: int) -> None:
        """List the pins on disk; remove those that have expired."""
        leases.sweep_expired(self._store, now_ns)
        disk = self._store.disk
        for name in disk.list(leases.FOLDER):
            try:
                self.add(manifests.load(disk, name))
            except StoreError:
                continue  # a newer version made it: it stays until that version removes it

    def add(self, manifest: Manifest) -> SnapshotLease:
        """Add the lease of a new pin; it is released when it expires."""
        lease = SnapshotLease(
            manifest.pin, manifest.stream, manifest.committed_seq, manifest.messages, manifest.expires_ns
        )
        timer = self._timers.at_wall_time(lease.expires_ns, lambda: self.release(lease.pin))
        self._leases[lease.pin] = lease, timer
        return lease

    def find(self, name: str, now_ns: int) -> SnapshotLease | None:
        """Return a lease; None if it expired, was released, or never existed."""
        lease, _ = self._leases.get(name, (None, None))
        return lease if lease is not None and lease.expires_ns > now_ns else None

    def release(self, name: str) -> None:
        """Release a pin; its files are removed in the background."""
        found = self._leases.pop(name, None)
        if found is not None:
            found[1].cancel()
            leases.submit_release(self._store, name)

    def release_expired(self, now_ns: int) -> None:
        """Release the leases that ended while the clock jumped."""
        for lease in [each for each, _ in self._leases.values() if each.expires_ns <= now_ns]:
            self.release(lease.pin)
