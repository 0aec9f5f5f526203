"""A stream read as a stream: offsets, limits, and what Spark has finished.

Owns the streaming reader's driver side. Invariants: an offset is decided once and read the same ever after; the position
that Spark has finished (the horizon) is the larger of what `commit` named and the start that `latestOffset` was given,
because the last batch of AvailableNow gets no `commit`. Idle, it waits for news instead of letting Spark ask all the time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from headrace.spark import newest
from headrace.spark.batch import rows
from headrace.spark.consuming import Acknowledger
from headrace.spark.doors import Door, door_of
from headrace.spark.leases import Lease, Reach, may_read_claims
from headrace.spark.offsets import Offset, offset_at, resolve, surviving_end, surviving_start
from headrace.spark.options import EARLIEST, LATEST, NEWEST, Bound, OptionError, Options
from headrace.spark.planning import Range, divide
from headrace.spark.streams import Facts

_POLL_S = 0.02


class StreamStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The messages of a stream as they come."""

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        if options.ending != LATEST:
            raise OptionError("option `ending` is for batch reads; a streaming query ends by its trigger")
        self.options = options
        self.schema = schema
        self._door: Door | None = None
        self._seen: Facts | None = None
        self._target: int | None = None
        self._pins: dict[str, int] = {}
        self._batch_s = time.monotonic()
        self._acknowledger: Acknowledger | None = None
        self._lease: Lease | None = None

    # What Spark asks, in the order in which it does

    def initialOffset(self) -> dict[str, Any]:
        facts = self._facts()
        start = resolve(self._starting(facts), facts, self._entry().seq_at)
        begin = offset_at(facts, min(max(start, facts.first_seq), facts.next_seq))
        has_all = self._starting(facts) in (EARLIEST, NEWEST)
        begin = replace(begin, began=1 if has_all else begin.next_seq)
        if self.options.starting == NEWEST and facts.messages:
            begin = replace(begin, newest=begin.next_seq - 1)
        self._protect(begin)
        return begin.to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._facts().next_seq

    def getDefaultReadLimit(self) -> ReadLimit:
        if self.options.messages_max:
            return ReadMaxRows(self.options.messages_max)
        if self.options.bytes_max:
            return ReadMaxBytes(self.options.bytes_max)
        return ReadAllAvailable()

    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        if start is None:
            return offset_at(self._facts(), self._facts().next_seq).to_json()
        position = Offset.from_json(start, self.options)
        if position.newest:
            # The first batch is one whole, and no limit divides it.
            return position.at(position.next_seq, self._pin_for(position.next_seq)).to_json()
        self._finished(position)
        facts = self._news(position)
        begin = surviving_start(position, facts, self.options)
        self._protect(begin)
        end = self._limited(begin.next_seq, facts, limit or self.getDefaultReadLimit())
        if end <= begin.next_seq and begin == position:
            return start
        self._batch_s = time.monotonic()
        return begin.at(end, self._pin_for(end)).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return offset_at(self._seen, self._seen.next_seq).to_json() if self._seen else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, to = Offset.from_json(start, self.options), Offset.from_json(end, self.options)
        if begin.identity == to.identity and self._still_pinned(to.pin):
            # What the batch was planned on is held, whatever became of the stream since.
            self._protect(begin)
            return self._parts(begin, to, begin.next_seq, to.pin)
        facts = self._facts()
        begin = surviving_start(begin, facts, self.options)
        self._protect(begin)
        to = surviving_end(to, facts, self.options)
        return self._parts(begin, to, facts.first_seq, self._pin_for(to.next_seq))

    def _parts(self, begin: Offset, to: Offset, first_seq: int, pin: str) -> Sequence[InputPartition]:
        token = self._entry().token(pin)
        if begin.newest:
            return newest.plan(self.options, begin.newest + 1, pin, token)
        return divide(begin.next_seq, to.next_seq, self.options, first_seq=first_seq, pin=pin, token=token)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        return rows(self.options, partition, self.schema)

    def commit(self, end: dict[str, Any]) -> None:
        self._finished(Offset.from_json(end, self.options))

    def stop(self) -> None:
        """Pins and claims of what is not finished stay until their leases end: a restart reads the same rows."""
        if self._lease is not None:
            self._lease.close()

    # How it is found out

    def _entry(self) -> Door:
        if self._door is None:
            self._door = door_of(self.options)
        return self._door

    def _facts(self) -> Facts:
        before, self._seen = self._seen, self._entry().facts()
        if before is not None and not _goes_on(before, self._seen):
            # Pins show what was there before; the consumer went with the stream, or is to begin again.
            self._pins.clear()
            self._acknowledger = None
        self._need_consumer(self._seen)
        return self._seen

    def _starting(self, facts: Facts) -> Bound:
        """Where a new query begins. What a queue holds is to be worked on, so nothing of it is passed over."""
        if facts.retention == "limits":
            return self.options.starting or LATEST
        if self.options.starting not in (None, EARLIEST):
            raise OptionError(
                f"stream {facts.name!r} has {facts.retention} retention, so it is read from its beginning: "
                "leave out option `starting`"
            )
        return EARLIEST

    def _news(self, position: Offset) -> Facts:
        """The stream, as soon as it has something behind the position; at the latest after the time to wait."""
        deadline = time.monotonic() + (0.0 if self._target is not None else self.options.wait_ns / 1e9)
        while True:
            facts = self._facts()
            if facts.next_seq != position.next_seq or facts.identity != position.identity:
                return facts
            if time.monotonic() >= deadline:
                return facts
            time.sleep(_POLL_S)

    def _limited(self, begin: int, facts: Facts, limit: ReadLimit) -> int:
        """Where the next batch ends."""
        end = facts.next_seq if self._target is None else min(facts.next_seq, max(self._target, begin))
        if isinstance(limit, ReadMaxRows):
            end = min(end, begin + limit.max_rows)
        if isinstance(limit, ReadMaxBytes) or (self.options.bytes_max and isinstance(limit, ReadMaxRows)):
            bytes_max = getattr(limit, "max_bytes", self.options.bytes_max)
            end = min(end, begin + max(bytes_max // facts.message_bytes, 1))
        return begin if self._too_few(end - begin) else end

    def _too_few(self, count: int) -> bool:
        if self._target is not None or count >= self.options.rows_min:
            return False
        return time.monotonic() - self._batch_s < self.options.delay_ns / 1e9

    # What is held

    def _pin_for(self, end: int) -> str:
        """A pin that shows everything below `end`: the newest one serves as many batches as it covers."""
        for pin, covered in self._pins.items():
            if covered >= end:
                return pin
        covered = self._facts().next_seq
        pin = self._entry().pin()
        if pin:
            self._pins[pin] = covered
        return pin

    def _still_pinned(self, pin: str) -> bool:
        """Whether the pin of an offset is there; not when its lease is over, or it was planned for the wire."""
        if not (self.options.path and pin):
            return False
        if not self._entry().holds(pin):
            self._pins.pop(pin, None)
            return False
        return True

    def _finished(self, position: Offset) -> None:
        """Spark will not ask for anything below this position again."""
        facts = self._seen or self._facts()
        if position.identity != facts.identity:
            # Nothing of the stream that is there now has been read.
            return
        position = replace(position, next_seq=min(position.next_seq, facts.next_seq))
        self._protect(position)
        for pin in [pin for pin, covered in self._pins.items() if covered <= position.next_seq]:
            del self._pins[pin]
            self._entry().unpin(pin)
        if self._acknowledger is not None:
            self._acknowledger.finish(position.next_seq)

    def _protect(self, position: Offset) -> None:
        """Claims of messages behind what is finished may be read again, so that no collector takes them."""
        if self._lease is None:
            if not may_read_claims(self.options, self.schema.names):
                return
            self._lease = Lease(self.options)
        finished = 0 if position.newest else position.next_seq - 1
        self._lease.hold(Reach(finished, position.began))

    def _need_consumer(self, facts: Facts) -> None:
        """Streams that keep messages only for their consumers need one that speaks for this query."""
        if self._acknowledger is not None:
            return
        if self.options.consumer:
            self._acknowledger = Acknowledger(self.options)
        elif facts.retention != "limits":
            raise OptionError(
                f"stream {facts.name!r} has {facts.retention} retention: name the durable consumer that speaks for "
                "this query in option `consumer`; it is made if it does not exist"
            )


def _goes_on(before: Facts, now: Facts) -> bool:
    """Whether this is the stream that it was, with nothing lost at its end."""
    return before.identity == now.identity and before.next_seq <= now.next_seq
