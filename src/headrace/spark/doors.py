"""Where the driver learns of a stream and takes pins: a server on the wire, or a store without one.

Owns the choice between the two. Invariant: both tell the same facts of the same stream, so that a query may change from
one to the other between two runs.
"""

from __future__ import annotations

import time
from typing import Protocol

from headrace.errors import StoreError
from headrace.spark import direct, served, streams
from headrace.spark.options import Options
from headrace.spark.streams import Facts, StreamError
from headrace.store.holding import hold, store_folder
from headrace.store.snapshots import Selection, Shape, open_pin

_HOLD_EVERY_S = 1.0


class Door(Protocol):
    """What planning needs to know."""

    def facts(self) -> Facts: ...
    def seq_at(self, time_ns: int) -> int | None: ...
    def pin(self) -> str:
        """Hold everything up to now; "" when reading goes over the wire."""

    def unpin(self, pin: str) -> None: ...
    def token(self, pin: str) -> str:
        """What tasks show to be served the files of a pin; "" where they open them."""

    def holds(self, pin: str) -> bool:
        """Whether a pin of an earlier run can still be read."""


def door_of(options: Options) -> Door:
    """The door that the options lead to."""
    if options.path and not options.servers_given:
        return StoreDoor(options)
    if options.served:
        return ServedDoor(options)
    return PinningDoor(options) if options.path else WireDoor(options)


class WireDoor:
    """A server; rows come over the wire too."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def facts(self) -> Facts:
        facts = streams.stream_facts(self.options)
        if not facts.config.get("allow_direct") and not self.options.path:
            raise StreamError(
                f"stream {facts.name!r} allows no direct get; set allow_direct in its configuration, "
                "or read its files with option `path`"
            )
        return facts

    def seq_at(self, time_ns: int) -> int | None:
        return streams.seq_at(self.options, time_ns)

    def pin(self) -> str:
        return ""

    def unpin(self, pin: str) -> None:
        """There is none."""

    def token(self, pin: str) -> str:
        return ""

    def holds(self, pin: str) -> bool:
        return False


class PinningDoor(WireDoor):
    """A Headrace broker whose files can be reached; it grants pins."""

    def pin(self) -> str:
        store_folder(self.options.path)
        return streams.pin_stream(self.options)

    def unpin(self, pin: str) -> None:
        streams.unpin_stream(self.options, pin)

    def holds(self, pin: str) -> bool:
        return _can_open(self.options, pin)


class ServedDoor(WireDoor):
    """A Headrace broker that serves the files of pins itself; it grants pins and a token for each."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._tokens: dict[str, str] = {}

    def pin(self) -> str:
        pin, token = streams.granted_pin(self.options)
        # Tasks would find out too, but many times over.
        served.opened(direct.grant_of(self.options, pin, token))
        self._tokens[pin] = token
        return pin

    def unpin(self, pin: str) -> None:
        self._tokens.pop(pin, None)
        streams.unpin_stream(self.options, pin)

    def token(self, pin: str) -> str:
        if pin and pin not in self._tokens:
            _, self._tokens[pin] = streams.granted_pin(self.options, pin)
        return self._tokens.get(pin, "")

    def holds(self, pin: str) -> bool:
        try:
            _, self._tokens[pin] = streams.granted_pin(self.options, pin)
        except StreamError:
            self._tokens.pop(pin, None)
            return False
        return True


class StoreDoor:
    """A store that no broker has open. It changes only when one runs, so it is looked at once a second at most."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._facts: Facts | None = None
        self._held_s = 0.0

    def facts(self) -> Facts:
        if self._facts is None or time.monotonic() - self._held_s > _HOLD_EVERY_S:
            self._facts = self._hold()
            self._held_s = time.monotonic()
        return self._facts

    def _hold(self) -> Facts:
        options = self.options
        try:
            held = hold(options.path, options.stream, options.lease_s)
        except StoreError as error:
            raise StoreError(f"{error}; with a running broker give option `servers` too") from error
        return Facts(
            options.stream,
            str(held.created_ns),
            held.first_seq,
            held.last_seq + 1,
            held.messages,
            held.bytes,
            dict(held.config),
            held.pin,
        )

    def seq_at(self, time_ns: int) -> int | None:
        folder = str(store_folder(self.options.path))
        snapshot = open_pin(folder, self.options.stream, self.pin())
        try:
            for batch in snapshot.batches(Selection(first_ns=time_ns), Shape(("seq",))):
                if batch.num_rows:
                    return int(batch.column(0)[0].as_py())
        finally:
            snapshot.close()
        return None

    def pin(self) -> str:
        return self.facts().pin

    def unpin(self, pin: str) -> None:
        """Leases end by themselves; the next to hold the store removes what is over."""

    def token(self, pin: str) -> str:
        return ""

    def holds(self, pin: str) -> bool:
        return _can_open(self.options, pin)


def _can_open(options: Options, pin: str) -> bool:
    try:
        open_pin(str(store_folder(options.path)), options.stream, pin).close()
    except StoreError:
        return False
    return True
