"""The mirrors and sources of one stream: which links run, and where they stand.

Owns the comparison of a configuration with what runs: entries that did not change go on undisturbed, new ones start where
their index name was before, changed consumers take the position with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace.api import responses
from headrace.api.configs import StreamConfig, StreamSource, copy
from headrace.api.names import short_hash
from headrace.api.origins import index_name
from headrace.broker.intake import MirrorIntake, SourceIntake
from headrace.broker.link import Link
from headrace.broker.origin import Origin
from headrace.broker.ownership import Owner
from headrace.broker.positions import Positions

if TYPE_CHECKING:
    from headrace.broker.stream import Stream

#: A mirror answers direct gets for its origin once it is as close as this.
CLOSE = 10


class Sourcing:
    """The links of one stream, by index name."""

    __slots__ = ("_links", "_messages", "_stream", "positions")

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._links: dict[str, Link] = {}
        self._messages = 0  # at the end of the last frame
        facts = None if stream.config.storage == "memory" else stream.jetstream.store.facts
        self.positions = Positions(facts, stream.log.ident)

    # Configuration

    def configure(self, config: StreamConfig) -> None:
        """Start what is new, retire what is gone, leave alone what stays."""
        wanted = {index_name(entry): entry for entry in _entries(config)}
        if not wanted and not self._links:
            return
        gone = {
            index: link
            for index, link in self._links.items()
            if index not in wanted or link.intake.origin.entry.consumer != wanted[index].consumer
        }
        for index in gone:
            del self._links[index]
        for index, entry in wanted.items():
            if index not in self._links:
                self._add(index, entry, config, gone)
        for link in gone.values():
            link.retire()

    def _add(self, index: str, entry: StreamSource, config: StreamConfig, gone: dict[str, Link]) -> None:
        stream = self._stream
        mirror = config.mirror is not None
        alone = sum(other.name == entry.name for other in _entries(config)) == 1
        old = self._predecessor(entry, gone)
        if old is not None and not mirror:
            self._carry(index, old)
        jetstream = stream.jetstream
        server = short_hash(str(jetstream.store.ident))
        owner = Owner(jetstream.account, jetstream.domain, stream.name, server)
        origin = Origin(entry, owner, mirror=mirror, alone=alone)
        intake = MirrorIntake(stream, origin) if mirror else SourceIntake(stream, origin, self.positions)
        link = self._links[index] = Link(jetstream, intake)
        if old is not None:
            link.succeed(old)
        link.start()

    def _predecessor(self, entry: StreamSource, gone: dict[str, Link]) -> Link | None:
        """A link that goes and differs from the entry only in its consumer."""
        for index, link in gone.items():
            if _without_consumer(link.intake.origin.entry) == _without_consumer(entry):
                return gone.pop(index)
        return None

    def _carry(self, index: str, old: Link) -> None:
        """Go on where the predecessor was, so that no message comes twice."""
        intake, known = old.intake, self.positions.get(index)
        if intake.seq > known.seq or intake.identity != known.identity:
            self.positions.set(index, intake.seq, intake.identity)
            self._stream.changed()

    # Life

    def stop(self) -> None:
        """The server is closing."""
        for link in self._links.values():
            link.stop()

    def close(self) -> None:
        """The stream is being deleted."""
        for link in self._links.values():
            link.retire()
        self._links.clear()

    # The tick

    def settle(self) -> None:
        """Before the frame closes: positions go with their copies; whoever waited for room may have it now."""
        self.positions.save()
        messages, self._messages = self._messages, self._stream.log.messages
        if messages > self._messages:
            for link in self._links.values():
                link.relieved()

    # Looking

    def mirror(self, now_ns: int) -> responses.Origin | None:
        """How the mirror fares, for the stream's info."""
        shown = [link.shown(now_ns) for link in self._links.values() if link.intake.origin.mirror]
        return shown[0] if shown else None

    def sources(self, now_ns: int) -> list[responses.Origin]:
        """The same of every source."""
        return [link.shown(now_ns) for link in self._links.values() if not link.intake.origin.mirror]

    @property
    def close_behind(self) -> bool:
        """Whether a mirror has nearly everything that its origin has."""
        return any(0 <= link.pending < CLOSE for link in self._links.values())


def _entries(config: StreamConfig) -> Iterator[StreamSource]:
    if config.mirror is not None:
        yield config.mirror
    for entry in config.sources:
        if entry is not None:
            yield entry


def _without_consumer(entry: StreamSource) -> StreamSource:
    bare = copy(entry)
    bare.consumer = None
    bare.opt_start_seq, bare.opt_start_time = 0, None
    return bare
