"""Chooses what is read next of a stream, and reads it in the fastest way that its configuration allows.

Owns the checks between a table's position and its stream. Invariants: a stream that was deleted and created again, or lost
its newest messages, is not read; messages that were removed before they were read are noticed. Nothing else uses the
connection that the rows come from: the next block is in transit on it while one is written. Rows come through
`headrace.reader`: from snapshot files if `path` is configured, else by direct gets or an ordered pull. The messages of
work-queue and interest streams are read in the same way, and acknowledged through a durable consumer of the table when
they are committed; so the consumer decides what the stream keeps, never what is read.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NoReturn

import pyarrow as pa

from headrace.errors import DataLoss, StreamGap, StreamReplaced
from headrace.reader.batch_cast import SeqRange
from headrace.reader.blocking_connection import drop_connection
from headrace.reader.direct_get_decode import StoredMessage
from headrace.reader.open_source import open_source
from headrace.reader.options import parse_read_options
from headrace.reader.queue_acker import QueueAcker, delete_consumer
from headrace.reader.range_reader import info_address
from headrace.reader.read_source import ReadSource
from headrace.reader.stream_admin import StreamError, StreamInfo, fetch_info
from headrace.tables.claim_rows import fetch_payloads, make_claim_options, make_read_schema
from headrace.tables.config import TableConfig
from headrace.tables.gap_finder import Gap, GapFinder
from headrace.tables.position import LastMessage, TablePosition

_log = logging.getLogger("headrace.tables")


@dataclass(frozen=True)
class NextRange:
    """What is to be read: sequences from `start` (included) to `end` (excluded) of a stream."""

    info: StreamInfo
    start: int
    end: int
    #: Sequences that were removed before they were read: first and last; (0, 0) if there are none.
    gap: Gap = (0, 0)
    #: Whether the position is written even without rows, because the stream's first sequence has passed it: after a
    #: restart, what was read or recorded would be a gap again.
    is_passed: bool = False

    @property
    def is_empty(self) -> bool:
        return self.start >= self.end and not self.is_passed

    def continues(self, position: TablePosition | None) -> bool:
        """Return whether the range follows a position in the same stream."""
        return position is not None and position.identity == self.info.identity


class StreamRangeReader:
    """Reads ranges of one stream."""

    def __init__(self, config: TableConfig, connection: Mapping[str, str], name: str) -> None:
        self._config = config
        raw_options = {**connection, "stream": config.stream}
        if config.path:
            raw_options["path"] = config.path
        options = parse_read_options(raw_options)
        # Messages that limits remove while they are read are an error, unless gaps are allowed.
        self._options = replace(
            options,
            address=replace(options.address, name=f"headrace table {name}"),
            fail_on_data_loss=not config.allows_gaps,
            claim_reader=f"table-{name}" if config.claims == "inline" else "",
        )
        self._claim_options = make_claim_options(self._options, config)
        self._schema = make_read_schema(config)
        self._source: ReadSource = open_source(self._options)
        #: For requests while rows are read.
        self._control_options = replace(
            self._options, address=info_address(self._options), consumer=make_consumer_name(name)
        )
        self._acker: QueueAcker | None = None
        self._gaps: GapFinder | None = None
        self._may_read_messages = True

    def get_info(self) -> StreamInfo:
        return self._source.get_info()

    def check_stream(self) -> StreamInfo:
        """Return the stream's state; from now on a work-queue or interest stream keeps its messages for the table."""
        info = self.get_info()
        if info.retention != "limits" and self._acker is None:
            self._acker = QueueAcker(self._control_options)
        return info

    def on_committed(self, position: TablePosition | None) -> None:
        """Acknowledge what is in the table, if the stream keeps messages until then."""
        if self._acker is not None and position is not None:
            self._acker.ack_below(position.seq + 1)

    def delete_consumer(self) -> None:
        """Delete the table's consumer, if it has one: the stream no longer keeps messages for the table."""
        if self.get_info().retention != "limits":
            delete_consumer(self._control_options)

    def plan(
        self, position: TablePosition | None, accept_new_stream: bool = False, reached: int = 0
    ) -> NextRange:
        """Return what follows a position, or `reached` if everything up to that sequence was read after it.

        Raises TableError if the stream is not the one of the position.
        """
        info = self.check_stream()
        if position is None:
            return NextRange(info, info.first_seq, info.next_seq)
        if accept_new_stream and position.identity != info.identity:
            return NextRange(info, info.first_seq, info.next_seq)
        self.check_position(position, info)
        # A stream that is shorter than it was has lost what was read.
        first = max(position.seq, reached if reached < info.next_seq else 0) + 1
        is_passed = info.first_seq > position.seq + 1
        if info.first_seq <= first:
            return NextRange(info, first, info.next_seq, is_passed=is_passed)
        self._check_gap(info, first)
        return NextRange(info, info.first_seq, info.next_seq, (first, info.first_seq - 1), is_passed)

    def check_position(self, position: TablePosition, info: StreamInfo) -> None:
        """Raise StreamReplaced unless this is the stream of a position, with the message that the table has last."""
        check_identity(position, info)
        last = position.last_message
        if last is None or last.seq < info.first_seq:
            return
        # It may have been deleted since.
        if self.find_last_message(last.seq) not in (None, last):
            raise StreamReplaced(
                f"stream {info.name!r} has another message with sequence {last.seq} than the table: it was restored from an "
                "older state, or lost its newest messages, and then assigned their sequences again. Find out from which "
                "sequence on they differ, then set the position with 'headrace table resync --position'"
            )

    def find_last_message(self, seq: int) -> LastMessage | None:
        """Return the message with this sequence as that of a position; None if the stream does not have it."""
        found = self._find_message(seq) if seq else None
        return LastMessage(seq, found.time_ns // 1000) if found is not None and found.seq == seq else None

    def _find_message(self, seq: int) -> StoredMessage | None:
        """Return the first message from a sequence on; None also if this user may not read messages by request."""
        if not self._may_read_messages:
            return None
        try:
            return self._source.find_message(seq)
        except StreamError as error:
            if not self._config.path:
                raise
            # Rows come from files, for which this permission is not needed.
            self._may_read_messages = False
            _log.warning("a stream that was restored from an older state would not be noticed: %s", error)
            return None

    def _check_gap(self, info: StreamInfo, first: int) -> None:
        if not self._config.allows_gaps:
            self._raise_gap(info, first, info.first_seq - 1)

    def _raise_gap(self, info: StreamInfo, first: int, last: int) -> NoReturn:
        raise StreamGap(
            f"stream {info.name!r} has lost messages: {first} to {last} were removed before they were written to the table. "
            f"{_explain_removal(info)}To continue without them, set on_gap: continue"
        )

    def read(self, planned: NextRange) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range, in order. `take_gaps` returns what was removed before it was read."""
        if self._config.claims != "inline":
            yield from self.read_stored(planned)
            return
        if planned.start < planned.end:
            # Collectors keep the claims of what is read now.
            self._source.lease_claims(planned.start - 1)
        yield from fetch_payloads(self.read_stored(planned), self._claim_options)

    def read_stored(self, planned: NextRange, *, finds_gaps: bool = True) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range as the stream has them: claims are references.

        Without `finds_gaps`, a stream may remove messages that are in the table already.
        """
        self._gaps = None
        if planned.start >= planned.end:
            return
        pin = self._pin(planned)
        try:
            self._gaps = gaps = self._make_gap_finder(planned, pin) if finds_gaps else None
            seq_range = SeqRange(planned.start, planned.end, planned.info.first_seq)
            for partition in self._source.plan(seq_range, pin):
                for batch in self._source.read(partition, self._schema):
                    if gaps is not None:
                        gaps.on_rows(batch.column("seq").to_numpy())
                        self._check_found(gaps, planned.info)
                    yield batch
            if gaps is not None:
                gaps.on_end(planned.end)
                self._check_found(gaps, planned.info)
        except DataLoss as error:
            raise StreamGap(str(error).replace("failOnDataLoss=false", "on_gap: continue")) from error
        finally:
            if pin:
                self._source.unpin(pin)

    def _make_gap_finder(self, planned: NextRange, pin: str) -> GapFinder | None:
        if self._config.bucket:
            # What is missing was replaced as usual.
            return None
        if self._config.on_gap == "stop" and planned.info.retention == "limits":
            # The reader raises an error. In other streams it takes what is missing for acknowledged.
            return None
        if pin:
            first_seq = self.get_info().first_seq
            return GapFinder(planned.start, lambda: first_seq)
        return GapFinder(planned.start, lambda: self._get_info_while_reading().first_seq)

    def _check_found(self, gaps: GapFinder, info: StreamInfo) -> None:
        if not self._config.allows_gaps and (found := gaps.take()):
            self._raise_gap(info, *found[0])

    def take_gaps(self) -> list[Gap]:
        """Return what was removed before it was read, and found since the last call."""
        return self._gaps.take() if self._gaps is not None else []

    def find_end(self, planned: NextRange) -> int:
        """Return up to which sequence (excluded) a range is read whose rows have ended."""
        if not self._config.allows_gaps:
            return planned.end
        # Without the check for loss, a stream that lost its newest messages ends earlier than planned.
        return min(planned.end, self._get_info_while_reading().next_seq)

    def _get_info_while_reading(self) -> StreamInfo:
        return self.get_info() if self._config.path else fetch_info(self._control_options)

    def _pin(self, planned: NextRange) -> str:
        """Pin the files of a range; raise StreamGap if messages of it were removed meanwhile."""
        pin = self._source.pin()
        if not pin or self._config.allows_gaps:
            return pin
        # Whether the removal came before the pin is unknown, so that it counts as a gap.
        info = self.get_info()
        if info.first_seq > planned.start:
            self._source.unpin(pin)
            self._check_gap(info, planned.start)
        return pin

    def close(self) -> None:
        drop_connection(self._options.address)
        drop_connection(self._control_options.address)


def make_consumer_name(name: str) -> str:
    """Return the durable consumer of a table on a work-queue or interest stream."""
    return f"headrace-table-{name}"


def _explain_removal(info: StreamInfo) -> str:
    """Return how this stream removes messages without a purge or a limit of its size and age."""
    kept = int(info.config.get("max_msgs_per_subject", 0))
    if kept > 0:
        return f"The stream keeps {kept} of each subject, so they may have been replaced. "
    if info.config.get("allow_msg_ttl"):
        return "The stream allows a TTL for each message, so they may have expired. "
    return ""


def check_identity(position: TablePosition, info: StreamInfo) -> None:
    """Raise StreamReplaced unless this is the stream whose messages the table has."""
    if position.stream != info.name:
        raise StreamReplaced(
            f"the table has messages of stream {position.stream!r}, not of {info.name!r}: use another table, or set the "
            "position with 'headrace table resync'"
        )
    if position.identity != info.identity:
        raise StreamReplaced(
            f"stream {info.name!r} was deleted and created again since sequence {position.seq} was written. Its messages "
            "have sequences that the table has already. Use a new table, or 'headrace table run --accept-new-stream' to "
            "append them; for a restored or moved stream with the same messages, use 'headrace table resync'"
        )
    if info.next_seq - 1 < position.seq:
        raise StreamReplaced(
            f"stream {info.name!r} ends at sequence {info.next_seq - 1}, but the table has {position.seq}: the stream was "
            "restored from an older state. Set the position with 'headrace table resync'"
        )
