"""Positions in a stream as Spark's checkpoint keeps them.

Owns the form of an offset: everything that is needed to read the same range again, and to notice that it is no longer
there. Invariant: sequences only; an offset names the next message to read, whatever exists at that place.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

from headrace.errors import HeadraceError
from headrace.spark.options import EARLIEST, LATEST, NEWEST, Bound, Options
from headrace.spark.streams import Facts

VERSION = 1
#: Servers count nanoseconds in 64 bits, and take a later moment (after 2262) for an early one.
_LAST_NS = (1 << 63) - 1
_log = logging.getLogger("headrace.spark")


class DataLoss(HeadraceError):
    """Messages that a query had still to read are gone."""


@dataclass(frozen=True)
class Offset:
    """The next sequence to read of one very stream, and the pin that shows what was there below it.

    A batch that begins at an offset with `newest` has the last message of each subject up to that sequence. `began` is the
    first sequence that the query could read of this stream; where a checkpoint does not say it, that is where it goes on.
    """

    stream: str
    identity: str
    next_seq: int
    pin: str = ""
    newest: int = 0
    began: int = 0

    def to_json(self) -> dict[str, Any]:
        made = {
            "v": VERSION,
            "stream": self.stream,
            "identity": self.identity,
            "next_seq": self.next_seq,
        }
        more = {"pin": self.pin, "newest": self.newest, "began": self.began}
        return {**made, **{name: value for name, value in more.items() if value}}

    @classmethod
    def from_json(cls, value: dict[str, Any], options: Options) -> Offset:
        if value.get("v") != VERSION:
            raise HeadraceError(
                f"the checkpoint has an offset of another version: {value}; use the release that wrote it, "
                "or a new checkpointLocation"
            )
        if value["stream"] != options.stream:
            raise HeadraceError(
                f"the checkpoint is of stream {value['stream']!r}, the query reads {options.stream!r}; "
                "use another checkpointLocation"
            )
        return cls(
            value["stream"],
            value["identity"],
            int(value["next_seq"]),
            value.get("pin", ""),
            int(value.get("newest", 0)),
            int(value.get("began", value["next_seq"])),
        )

    def at(self, next_seq: int, pin: str = "") -> Offset:
        return replace(self, next_seq=next_seq, pin=pin, newest=0)


def offset_at(facts: Facts, next_seq: int) -> Offset:
    """A place in the stream as it is now."""
    return Offset(facts.name, facts.identity, next_seq)


def resolve(bound: Bound, facts: Facts, seq_of_time: Any) -> int:
    """The sequence that a bound means: the first to read, or the first not to."""
    if bound == EARLIEST:
        return facts.first_seq
    if bound in (LATEST, NEWEST):
        return facts.next_seq
    if bound.time_ns:
        return seq_of_time(min(max(bound.time_ns, 0), _LAST_NS)) or facts.next_seq
    return max(bound.seq, 1)


def surviving_start(start: Offset, facts: Facts, options: Options) -> Offset:
    """Where reading goes on: at `start`, or behind what is lost if that is acceptable. Raises DataLoss."""
    if start.identity != facts.identity:
        _lose(
            options,
            f"stream {facts.name!r} is not the one that the checkpoint speaks of: it was deleted and created again. "
            f"Everything from sequence {start.next_seq} of the former one on is lost",
        )
        return _beginning(facts)
    if start.next_seq > facts.next_seq:
        _lose(
            options,
            f"stream {facts.name!r} ends at sequence {facts.next_seq - 1}, but the query has read up to "
            f"{start.next_seq - 1}: the server lost its newest messages",
        )
        return start.at(facts.next_seq)
    if start.next_seq < facts.first_seq and facts.retention == "limits":
        _lose(
            options,
            f"stream {facts.name!r} begins at sequence {facts.first_seq}: sequences {start.next_seq} to "
            f"{facts.first_seq - 1} ({facts.first_seq - start.next_seq} in all) were removed before they were read",
        )
        return start.at(facts.first_seq)
    return start


def surviving_end(end: Offset, facts: Facts, options: Options) -> Offset:
    """Where a batch that was planned before can end now. Raises DataLoss."""
    if end.identity != facts.identity:
        # Its start is of the former stream too, so that loss has been told.
        return _beginning(facts)
    if end.next_seq > facts.next_seq:
        return surviving_start(end, facts, options)
    return end


def _beginning(facts: Facts) -> Offset:
    return replace(offset_at(facts, facts.first_seq), began=facts.first_seq)


def _lose(options: Options, what: str) -> None:
    if options.fail_on_data_loss:
        raise DataLoss(f"{what}. To go on without them set option failOnDataLoss=false")
    _log.warning("%s; going on, because failOnDataLoss is false", what)
