"""The tick: what was admitted becomes a frame, and what speaks of it leaves when the frame is durable.

Invariant: nothing that depends on a change in frame N is sent before frame N is durable. Whatever leaves - an ack, an
answer, a republished copy, an advisory - waits in one list per frame and is published in the order it was decided.
It knows neither streams' rules nor sockets.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from headrace.kernel import Outbox
from headrace.probes import probe
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


class Each:
    """Runs one thing after another; what fails does not keep the rest from happening, and is raised at the end."""

    __slots__ = ("_failure",)

    def __init__(self) -> None:
        self._failure: Exception | None = None

    def __call__(self, act: Callable[[], object]) -> None:
        try:
            act()
        except Exception as failure:
            self._failure = self._failure or failure

    def __enter__(self) -> Each:
        return self

    def __exit__(self, *_: object) -> None:
        if self._failure is not None:
            raise self._failure


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

    def refuse(self, reply: bytes, answer: bytes) -> None:
        """Tell somebody no, in turn with other answers; at once when nothing can become durable, for now or any more."""
        if self._store.poisoned is not None:
            probe("a refusal of a poisoned store")
            self._hub.publish(reply, b"", b"", answer)
        elif self._store.waits:
            self._hub.publish(reply, b"", b"", answer)
        else:
            self.outbox.held.append((reply, b"", b"", answer))
            self.arm()

    def send(self, log: Log, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """Publish what speaks of `log` as soon as all its changes so far are durable."""
        changed = log.changed_frame
        if changed <= self._store.committed:
            self._hub.publish(subject, reply, header, payload)
        elif changed == self._store.frame:
            self.outbox.held.append((subject, reply, header, payload))
        else:
            self._sealed.append((subject, reply, header, payload))

    def send_many(self, log: Log, parcels: list[Parcel]) -> None:
        """`send` for each."""
        changed = log.changed_frame
        if changed <= self._store.committed:
            self._hub.publish_many(parcels)
        elif changed == self._store.frame:
            self.outbox.held += parcels
        else:
            self._sealed += parcels

    def send_settled(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """Publish once everything admitted so far is durable."""
        store = self._store
        if store.poisoned is not None:
            self._hub.publish(subject, reply, header, payload)
        elif store.dirty:
            self.outbox.held.append((subject, reply, header, payload))
        elif store.in_flight:
            self._sealed.append((subject, reply, header, payload))
        else:
            self._hub.publish(subject, reply, header, payload)

    def tick(self) -> None:
        """Close the frame under construction, unless one is still being written (its end calls this again)."""
        self._armed = False
        store = self._store
        if store.poisoned is not None:
            self._give_up()
            return
        if store.in_flight:
            return
        with Each() as each:
            for stream in self._touched:
                each(stream.settle)
            if store.dirty:
                self._sealed, self.outbox.held = self.outbox.held, []
                self._touched_sealed, self._touched = self._touched, []
                each(store.seal)
            else:
                held, self.outbox.held = self.outbox.held, []
                touched, self._touched = self._touched, []
                self._tell(each, held, touched)

    def _committed(self, frame: int) -> None:
        parcels, self._sealed = self._sealed, []
        touched, self._touched_sealed = self._touched_sealed, []
        with Each() as each:
            self._tell(each, parcels, touched)
            if self._store.dirty or self._touched or self.outbox.held:
                each(self.tick)
            each(self._rested)

    def _tell(self, each: Each, parcels: list[Parcel], streams: list[Settles]) -> None:
        each(partial(self._hub.publish_many, parcels))
        for stream in streams:
            each(stream.committed)

    def _give_up(self) -> None:
        """A sync failed: what waits for the disk must never leave."""
        probe("what waits for the disk never leaves")
        self.outbox.held.clear()
        self._sealed.clear()
        self._touched.clear()
