"""Writes down what consumers did without being asked: at most every tenth of a second, all of them together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.ticks import Each

if TYPE_CHECKING:
    from headrace.broker.consumer import Consumer
    from headrace.broker.jetstream import JetStream

EVERY_NS = 100_000_000


class Scribe:
    """The consumers of the account whose progress is not written down yet, and those to be served next."""

    __slots__ = ("_jetstream", "_serving", "_unwritten")

    def __init__(self, jetstream: JetStream) -> None:
        self._jetstream = jetstream
        self._unwritten: dict[Consumer, None] = {}
        self._serving: dict[Consumer, None] = {}

    def note(self, consumer: Consumer) -> None:
        """A consumer's progress changed."""
        if not self._unwritten:
            self._jetstream.timers.after(EVERY_NS, self.write)
        self._unwritten[consumer] = None

    def write(self) -> None:
        """Put everything that changed into the frame under construction."""
        unwritten, self._unwritten = self._unwritten, {}
        if unwritten:
            self._jetstream.ticker.arm()
        with Each() as each:
            for consumer in unwritten:
                each(consumer.save)

    def serve(self, consumer: Consumer) -> None:
        """A consumer has something to deliver or somebody to deliver to: its turn comes at the end of this one."""
        if not self._serving:
            self._jetstream.later(self._serve_all)
        self._serving[consumer] = None

    def _serve_all(self) -> None:
        serving, self._serving = self._serving, {}
        with Each() as each:
            for consumer in serving:
                each(consumer.serve)
