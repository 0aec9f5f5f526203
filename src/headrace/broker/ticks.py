"""The tick: what was admitted becomes a frame, and what speaks of it leaves when the frame is durable.

Invariant: nothing that depends on a change in frame N is sent before frame N is durable. Whatever leaves - an ack, an
answer, a republished copy, an advisory - waits in one list per frame and is published in the order it was decided.
It knows neither streams' rules nor sockets.
"""

from collections.abc import Callable
from typing import Protocol

from headrace.kernel import Outbox
from headrace.store import Log, Store

#: Something to publish: subject, reply, header block, payload.
Parcel = tuple[bytes, bytes, bytes, bytes]


class Publisher(Protocol):
    """The part of the hub that the tick needs."""

    def publish(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> int: ...
    def publish_many(self, parcels: list[Parcel]) -> None: ...


class Settles(Protocol):
    """A stream, as the tick sees it."""

    def settle(self) -> None:
        """Bring limits up to date before the frame is closed."""

    def committed(self) -> None:
        """The frame with this stream's newest changes is durable."""


class Ticker:
    """Owns the rhythm: admit while the last frame is being written, seal the next one as soon as it is durable."""

    __slots__ = (
        "_armed",
        "_hub",
        "_rested",
        "_sealed",
        "_store",
        "_touched",
        "_touched_sealed",
        "_wake",
        "outbox",
    )

    def __init__(
        self,
        store: Store,
        hub: Publisher,
        wake: Callable[[Callable[[], None]], object],
        rested: Callable[[], None] = lambda: None,
    ) -> None:
        """`wake(fn)` asks the shell to call fn at the end of this turn of its loop; `rested` is called after a commit."""
        self._store = store
        self._hub = hub
        self._wake = wake
        self._rested = rested
        self._armed = False
        self.outbox = Outbox()
        self._sealed: list[Parcel] = []
        self._touched: list[Settles] = []
        self._touched_sealed: list[Settles] = []
        store.on_commit = self._committed

    @property
    def frame(self) -> int:
        """The frame under construction."""
        return self._store.frame

    def touch(self, stream: Settles) -> None:
        """The stream has its first change in the frame under construction."""
        self._touched.append(stream)
        self.arm()

    def arm(self) -> None:
        """Something is in the frame under construction: see that it gets sealed."""
        if not self._armed and not self._store.in_flight:
            self._armed = True
            self._wake(self.tick)

    def hold(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """Publish once the frame under construction is durable."""
        self.outbox.held.append((subject, reply, header, payload))

    def send(self, log: Log, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """Publish what speaks of `log` as soon as all its changes so far are durable."""
        changed = log.changed_frame
        if changed <= self._store.committed:
            self._hub.publish(subject, reply, header, payload)
        elif changed == self._store.frame:
            self.outbox.held.append((subject, reply, header, payload))
        else:
            self._sealed.append((subject, reply, header, payload))

    def send_settled(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """Publish once everything admitted so far is durable."""
        store = self._store
        if store.dirty:
            self.outbox.held.append((subject, reply, header, payload))
        elif store.in_flight:
            self._sealed.append((subject, reply, header, payload))
        else:
            self._hub.publish(subject, reply, header, payload)

    def tick(self) -> None:
        """Close the frame under construction, unless one is still being written (its end calls this again)."""
        self._armed = False
        store = self._store
        if store.in_flight:
            return
        for stream in self._touched:
            stream.settle()
        if store.dirty:
            self._sealed, self.outbox.held = self.outbox.held, []
            self._touched_sealed, self._touched = self._touched, []
            store.seal()
        else:
            held, self.outbox.held = self.outbox.held, []
            touched, self._touched = self._touched, []
            self._release(held)
            for stream in touched:
                stream.committed()

    def _committed(self, frame: int) -> None:
        parcels, self._sealed = self._sealed, []
        touched, self._touched_sealed = self._touched_sealed, []
        self._release(parcels)
        for stream in touched:
            stream.committed()
        if self._store.dirty or self._touched or self.outbox.held:
            self.tick()
        self._rested()

    def _release(self, parcels: list[Parcel]) -> None:
        self._hub.publish_many(parcels)
        parcels.clear()
