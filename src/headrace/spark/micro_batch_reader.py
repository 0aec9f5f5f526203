"""Micro-batch reader: offsets, rate limits, and the position that Spark has finished.

Owns the driver side of the streaming reader. Invariants: an offset is decided once and reads the same ever after; the
position that Spark has finished (the horizon) is the larger of the offset passed to `commit` and the start passed to
`latestOffset`, because the last batch of AvailableNow gets no `commit`. When idle, it waits for new messages instead of
letting Spark poll continuously.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from headrace.reader.batch_cast import SeqRange
from headrace.reader.claim_lease import ClaimReaderLease, LeaseRange, may_read_claims
from headrace.reader.open_source import open_source
from headrace.reader.options import EARLIEST, LAST_PER_SUBJECT, LATEST, Bound, OptionError, ReadOptions
from headrace.reader.queue_acker import QueueAcker
from headrace.reader.read_source import ReadSource
from headrace.reader.stream_admin import StreamInfo
from headrace.spark.idle_pause import IdlePause
from headrace.spark.offsets import (
    FIRST_SEQ,
    Offset,
    end_after_loss,
    make_first_offset,
    make_offset,
    resolve_bound,
    restore_initial_offset,
    start_after_loss,
)
from headrace.spark.pyspark_compat import (
    HAS_READ_LIMITS,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from headrace.spark.query_rows import RowConverter
from headrace.spark.stream_identity import IdentityChecker


class JetStreamMicroBatchReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the messages of a stream as they arrive."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        check_streaming_options(options)
        self.options = options
        self._rows = RowConverter(options, schema)
        self.schema = self._rows.input_schema
        self._source: ReadSource | None = None
        self._identity_checker: IdentityChecker | None = None
        self._last_info: StreamInfo | None = None
        self._available_now_end: int | None = None
        #: The newest offset that Spark knows; PySpark does not pass the start of a batch before 4.2.
        self._newest_offset: dict[str, Any] | None = None
        self._pin_ends: dict[str, int] = {}
        self._idle_pause = IdlePause()
        self._finished: Offset | None = None
        self._last_batch_s = time.monotonic()
        self._acker: QueueAcker | None = None
        self._claim_lease: ClaimReaderLease | None = None

    # Spark's interface, in calling order

    def initialOffset(self) -> dict[str, Any]:
        stream_info = self._fetch_info()
        start = resolve_bound(
            self._get_starting(stream_info), stream_info, self._get_source().find_seq_at_time
        )
        start_offset = make_offset(stream_info, min(max(start, stream_info.first_seq), stream_info.next_seq))
        from_beginning = self._get_starting(stream_info) in (EARLIEST, LAST_PER_SUBJECT)
        start_offset = replace(start_offset, start_seq=1 if from_beginning else start_offset.next_seq)
        if self.options.starting == LAST_PER_SUBJECT and stream_info.messages:
            start_offset = replace(start_offset, last_per_subject_seq=start_offset.next_seq - 1)
        self._extend_lease(start_offset)
        start_offset = self._get_identity_checker().add_anchors(start_offset, stream_info)
        self._newest_offset = start_offset.to_json()
        return self._newest_offset

    def firstOffset(self) -> dict[str, Any]:
        """Return the offset of the stream's first message, whatever the options say; not a call of Spark."""
        stream_info = self._fetch_info()
        first_offset = make_first_offset(stream_info)
        self._extend_lease(first_offset)
        self._newest_offset = self._get_identity_checker().add_anchors(first_offset, stream_info).to_json()
        return self._newest_offset

    def prepareForTriggerAvailableNow(self) -> None:
        self._available_now_end = self._fetch_info().next_seq

    def getDefaultReadLimit(self) -> ReadLimit:
        if self.options.messages_max:
            return ReadMaxRows(self.options.messages_max)
        if self.options.bytes_max:
            return ReadMaxBytes(self.options.bytes_max)
        return ReadAllAvailable()

    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        self._newest_offset = self._find_latest_offset(start, limit or self.getDefaultReadLimit())
        return self._newest_offset

    def _find_latest_offset(self, start: dict[str, Any] | None, limit: ReadLimit) -> dict[str, Any]:
        known_start = start or self._newest_offset
        if known_start is None:  # a restart with a PySpark that does not pass it
            stream_info = self._fetch_info()
            end_offset = make_offset(stream_info, stream_info.next_seq)
            end_offset = self._get_identity_checker().add_anchors(end_offset, stream_info)
            # A query of several streams starts here if its checkpoint lacks this stream.
            return {**end_offset.to_json(), FIRST_SEQ: stream_info.first_seq}
        position = Offset.from_json(known_start)
        if position.last_per_subject_seq:
            # The first batch is not split by any limit.
            return position.with_next_seq(position.next_seq, self._pin_for(position.next_seq)).to_json()
        if start is not None and position != self._finished:
            self._on_batch_finished(position)
            self._finished = position
        stream_info = self._wait_for_data(position)
        start_offset = start_after_loss(self._recognize(position), stream_info, self.options)
        end = self._apply_limit(start_offset.next_seq, stream_info, limit)
        if end <= start_offset.next_seq and start_offset == position:
            return known_start
        self._extend_lease(start_offset)
        self._last_batch_s = time.monotonic()
        end_offset = start_offset.with_next_seq(end, self._pin_for(end))
        return self._get_identity_checker().add_anchors(end_offset, stream_info).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return make_offset(self._last_info, self._last_info.next_seq).to_json() if self._last_info else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._newest_offset = end
        end_offset = Offset.from_json(end)
        start_offset = restore_initial_offset(Offset.from_json(start), end_offset)
        if start_offset.identity == end_offset.identity and self._is_still_pinned(end_offset.pin):
            # The data that the batch was planned on is pinned, whatever has happened to the stream since.
            self._extend_lease(start_offset)
            return self._plan_batch(start_offset, end_offset, start_offset.next_seq, end_offset.pin)
        stream_info = self._fetch_info()
        end_offset = self._recognize(end_offset)
        start_offset = restore_initial_offset(self._recognize(start_offset), end_offset)
        start_offset = start_after_loss(start_offset, stream_info, self.options)
        self._extend_lease(start_offset)
        end_offset = end_after_loss(end_offset, stream_info, self.options)
        return self._plan_batch(
            start_offset, end_offset, stream_info.first_seq, self._pin_for(end_offset.next_seq)
        )

    def _plan_batch(
        self, start_offset: Offset, end_offset: Offset, first_seq: int, pin: str
    ) -> Sequence[InputPartition]:
        source = self._get_source()
        if start_offset.last_per_subject_seq:
            partitions = source.plan_last_per_subject(start_offset.last_per_subject_seq + 1, pin)
        else:
            partitions = source.plan(SeqRange(start_offset.next_seq, end_offset.next_seq, first_seq), pin)
        return [InputPartition(partition) for partition in partitions]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        rows = self._get_source().read(partition.value, self.schema)
        return self._rows.convert(rows, self.options.stream)

    def commit(self, end: dict[str, Any]) -> None:
        self._on_batch_finished(Offset.from_json(end))

    def stop(self) -> None:
        """Stop renewing the claim lease.

        Pins and claims of unfinished batches stay until their leases expire, so that a restart reads the same rows.
        """
        if self._claim_lease is not None:
            self._claim_lease.close()

    # State of the stream

    @property
    def average_message_bytes(self) -> int:
        """The average size of a message, as last seen."""
        return (self._last_info or self._fetch_info()).average_message_bytes

    def _get_source(self) -> ReadSource:
        if self._source is None:
            self._source = open_source(self.options)
        return self._source

    def _get_identity_checker(self) -> IdentityChecker:
        if self._identity_checker is None:
            self._identity_checker = IdentityChecker(self._get_source())
        return self._identity_checker

    def _recognize(self, position: Offset) -> Offset:
        """Return the position with the stream's current identity, if it is a position in this stream."""
        return self._get_identity_checker().recognize(position, self._last_info or self._fetch_info())

    def _fetch_info(self) -> StreamInfo:
        previous, self._last_info = self._last_info, self._get_source().get_info()
        if previous is not None and not _is_continuation(previous, self._last_info):
            # The pins are of the previous stream; its consumer is gone too, or must start again.
            self._pin_ends.clear()
            self._acker = None
            self._get_identity_checker().reset()
        self._ensure_acker(self._last_info)
        return self._last_info

    def _get_starting(self, stream_info: StreamInfo) -> Bound:
        """Return where a new query starts. Everything in a work queue must be processed, so nothing in it is skipped."""
        if stream_info.retention == "limits":
            return self.options.starting or LATEST
        if self.options.starting not in (None, EARLIEST):
            raise OptionError(
                f"stream {stream_info.name!r} has {stream_info.retention} retention, so it is read from its beginning: "
                "omit option `starting`"
            )
        return EARLIEST

    def _wait_for_data(self, position: Offset) -> StreamInfo:
        """Return the stream's state as soon as it has something after the position, or after the wait time."""
        wait_s = 0.0 if self._available_now_end is not None else self.options.wait_ns / 1e9
        deadline = time.monotonic() + wait_s
        while True:
            is_due = not wait_s or self._idle_pause.wait(max(deadline - time.monotonic(), 0.0))
            if not is_due and self._last_info is not None:
                return self._last_info
            stream_info = self._fetch_info()
            is_same_stream = self._recognize(position).identity == stream_info.identity
            if stream_info.next_seq != position.next_seq or not is_same_stream:
                self._idle_pause.on_data()
                return stream_info
            self._idle_pause.on_nothing()
            if time.monotonic() >= deadline:
                return stream_info

    def _apply_limit(self, start_seq: int, stream_info: StreamInfo, limit: ReadLimit) -> int:
        """Return where the next batch ends."""
        end = (
            stream_info.next_seq
            if self._available_now_end is None
            else min(stream_info.next_seq, max(self._available_now_end, start_seq))
        )
        if isinstance(limit, ReadMaxRows):
            end = min(end, start_seq + limit.max_rows)
        if isinstance(limit, ReadMaxBytes) or (self.options.bytes_max and isinstance(limit, ReadMaxRows)):
            bytes_max = getattr(limit, "max_bytes", self.options.bytes_max)
            end = min(end, start_seq + max(bytes_max // stream_info.average_message_bytes, 1))
        return start_seq if self._is_below_min_rows(end - start_seq) else end

    def _is_below_min_rows(self, count: int) -> bool:
        if self._available_now_end is not None or count >= self.options.rows_min:
            return False
        return time.monotonic() - self._last_batch_s < self.options.delay_ns / 1e9

    # Pins, leases and acknowledgements

    def _pin_for(self, end: int) -> str:
        """Return a pin that shows everything below `end`; one pin serves as many batches as it covers."""
        for pin, pinned_end in self._pin_ends.items():
            if pinned_end >= end:
                return pin
        pinned_end = self._fetch_info().next_seq
        pin = self._get_source().pin()
        if pin:
            self._pin_ends[pin] = pinned_end
        return pin

    def _is_still_pinned(self, pin: str) -> bool:
        """Return whether the pin of an offset exists.

        It does not if its lease expired or the batch was planned for direct gets.
        """
        if pin and self._get_source().has_pin(pin):
            return True
        self._pin_ends.pop(pin, None)
        return False

    def _on_batch_finished(self, position: Offset) -> None:
        """Release everything below this position: Spark will not ask for it again."""
        position = self._recognize(position)
        stream_info = self._last_info or self._fetch_info()
        if position.identity != stream_info.identity:
            # Nothing of the current stream has been read.
            return
        position = replace(position, next_seq=min(position.next_seq, stream_info.next_seq))
        self._extend_lease(position)
        for pin in [pin for pin, pinned_end in self._pin_ends.items() if pinned_end <= position.next_seq]:
            del self._pin_ends[pin]
            self._get_source().unpin(pin)
        # Without a message below the position there is nothing to acknowledge, and pulling would only delay the rest.
        if self._acker is not None and position.next_seq > stream_info.first_seq:
            self._acker.ack_below(position.next_seq)

    def _extend_lease(self, position: Offset) -> None:
        """Move the claim lease: messages after the finished position may be read again, so collectors must keep their
        claims.
        """
        if self._claim_lease is None and may_read_claims(self.options, self.schema.names):
            self._claim_lease = self._get_source().open_claim_lease()
        if self._claim_lease is None:
            return
        finished = 0 if position.last_per_subject_seq else position.next_seq - 1
        self._claim_lease.extend(LeaseRange(finished, position.start_seq))

    def _ensure_acker(self, stream_info: StreamInfo) -> None:
        """Create the acker.

        A stream that keeps messages only for its consumers needs one that acknowledges for this query.
        """
        if self._acker is not None:
            return
        if self.options.consumer:
            self._acker = QueueAcker(self.options)
        elif stream_info.retention != "limits":
            raise OptionError(
                f"stream {stream_info.name!r} has {stream_info.retention} retention: set option `consumer` to a durable "
                "consumer that acknowledges for this query; it is created if it does not exist"
            )


def check_streaming_options(options: ReadOptions) -> None:
    """Reject options that a streaming query, or this version of PySpark, does not support."""
    if options.ending != LATEST or options.ending_by_stream:
        raise OptionError("option `ending` is for batch reads; a streaming query ends with its trigger")
    if not HAS_READ_LIMITS and (options.messages_max or options.bytes_max or options.rows_min):
        raise OptionError(
            "limits of a batch, such as maxMessagesPerTrigger, need PySpark 4.2: before that, Spark does not tell a "
            "Python source where a batch starts"
        )


def _is_continuation(previous: StreamInfo, now: StreamInfo) -> bool:
    """Return whether this is the same stream, with nothing lost at its end."""
    return previous.identity == now.identity and previous.next_seq <= now.next_seq
