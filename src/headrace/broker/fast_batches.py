"""Fast ingest: batches of any length whose members are stored as they come, with acknowledgements every so many.

What a member is says its reply subject, `<prefix>.<id>.<flow>.<ok|fail>.<position>.<operation>.$FI`. Each member is
checked and stored like a message of its own; only the way of answering differs. Nothing is staged, so an open batch is
a handful of numbers; what bounds them is their count, and time: one without traffic is forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from headrace.api import errors
from headrace.api.encode import dumps
from headrace.broker import admission
from headrace.broker.admission import Duplicate
from headrace.broker.levels import REQUIRED_LEVEL, level_too_high
from headrace.errors import RequestError, StoreError
from headrace.protocol import headers

if TYPE_CHECKING:
    from headrace.broker.session import Session
    from headrace.broker.stream import Stream
    from headrace.broker.timers import Handle

START, APPEND, COMMIT, COMMIT_END, PING = range(5)
_ID_BYTES_MAX = 64
_FLOW_DEFAULT, _FLOW_MAX = 10, 65_535
#: Acknowledgements come at least this often, shared among the open batches of a stream.
_FLOW_SHARED = 500
_POSITION_END = 2**64 - 1
_WORDS = 7


@dataclass(frozen=True, slots=True)
class FastLimits:
    """How many batches may be open, and for how long without traffic."""

    per_stream: int = 1000
    per_server: int = 50_000
    timeout_ns: int = 10_000_000_000


DEFAULT_LIMITS = FastLimits()


class FastRoom:
    """What all streams of a server have open together."""

    __slots__ = ("limits", "open")

    def __init__(self, limits: FastLimits) -> None:
        self.limits = limits
        self.open = 0


class Turn(NamedTuple):
    """What a reply subject says."""

    id: bytes
    flow: int
    gap_ok: bool
    position: int
    operation: int

    @property
    def commits(self) -> bool:
        return self.operation in (COMMIT, COMMIT_END)


def read_turn(reply: bytes) -> Turn | None:
    """The parts of a reply subject that ends in `.$FI`; None if they make no sense."""
    words = reply.rsplit(b".", _WORDS - 1)
    if len(words) != _WORDS:
        return None
    _, name, flow_text, gap, position_text, operation_text, _ = words
    operation, position = admission.number(operation_text), admission.number(position_text)
    if operation is None or operation > PING or gap not in (b"ok", b"fail"):
        return None
    if position is None or not 0 < position < _POSITION_END:
        return None
    wrong_first = operation in (APPEND, COMMIT_END) if position == 1 else operation == START
    if wrong_first:
        return None
    flow = min(admission.number(flow_text) or _FLOW_DEFAULT, _FLOW_MAX)
    return Turn(name, flow, gap == b"ok", position, operation)


class FastBatch:
    """An open batch, by positions: `last` is the newest seen, `stored` the newest settled, `told` the newest told."""

    __slots__ = ("deadline_ns", "flow", "flow_max", "gap_ok", "id", "last", "seq", "stored", "timer", "told")

    def __init__(self, name: bytes, gap_ok: bool, flow_max: int) -> None:
        self.id = name
        self.gap_ok = gap_ok
        self.flow = self.flow_max = flow_max
        self.last = self.stored = self.told = 0
        self.seq = 0  # in the stream
        self.deadline_ns = 0
        self.timer: Handle | None = None


class FastBatches:
    """The open fast batches of one stream."""

    __slots__ = ("_open", "_room", "_stream")

    def __init__(self, stream: Stream, room: FastRoom) -> None:
        self._stream = stream
        self._room = room
        self._open: dict[bytes, FastBatch] = {}

    def __len__(self) -> int:
        return len(self._open)

    def offer(self, session: Session, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """A message whose reply subject says that it belongs to a fast batch."""
        try:
            turn = self._check(reply, header, payload)
            batch = self._find(turn)
            header = self._check_level(batch, header)
            batch.deadline_ns = self._stream.jetstream.timers.now_ns() + self._room.limits.timeout_ns
            if turn.operation == PING:
                self._ping(batch, turn, reply)
            elif self._in_turn(batch, turn, reply):
                self._member(batch, turn, subject, reply, header, payload)
        except RequestError as refusal:
            self._refuse(reply, refusal)
        finally:
            self._stream.changed()

    # Checks, in the reference's order

    def _check(self, reply: bytes, header: bytes, payload: bytes) -> Turn:
        config = self._stream.config
        if config.sealed:
            raise errors.error(10109)
        if 0 <= config.max_msg_size < len(header) + len(payload):
            raise errors.error(10054)
        if not config.allow_batched:
            raise errors.error(10205)
        turn = read_turn(reply)
        if turn is None:
            raise errors.error(10206)
        if len(turn.id) > _ID_BYTES_MAX:
            raise errors.error(10207)
        return turn

    def _find(self, turn: Turn) -> FastBatch:
        """The open batch of that name, or a new one if this is a first message."""
        batch = self._open.get(turn.id)
        if batch is not None:
            return batch
        if turn.position != 1:
            raise errors.error(10208)
        limits = self._room.limits
        if len(self._open) >= limits.per_stream or self._room.open >= limits.per_server:
            raise errors.error(10211)
        batch = self._open[turn.id] = FastBatch(turn.id, turn.gap_ok, turn.flow)
        self._room.open += 1
        batch.flow = 1 if len(self._open) > 1 else min(_FLOW_SHARED, turn.flow)
        timers = self._stream.jetstream.timers
        batch.timer = timers.after(limits.timeout_ns, lambda: self._look(batch))
        return batch

    def _check_level(self, batch: FastBatch, header: bytes) -> bytes:
        if REQUIRED_LEVEL not in header:
            return header
        if level_too_high(header):
            self._close(batch)
            raise errors.error(10185)
        return headers.strip(header, REQUIRED_LEVEL)

    def _in_turn(self, batch: FastBatch, turn: Turn, reply: bytes) -> bool:
        """Whether the message is the next one, or may be; otherwise the batch ends with what it has."""
        expected = batch.last + 1
        if turn.position != expected:
            self._tell_gap(reply, expected, turn.position)
        if turn.position == expected or (batch.gap_ok and turn.position > expected):
            batch.last = turn.position
            return True
        self._finish(batch, reply)
        return False

    # One message

    def _ping(self, batch: FastBatch, turn: Turn, reply: bytes) -> None:
        """The client asks how far things are; it has sent everything up to its position."""
        if turn.position > batch.last:
            self._tell_gap(reply, batch.last + 1, turn.position + 1)
            if not batch.gap_ok:
                self._finish(batch, reply)
                return
            batch.last = batch.stored = turn.position
            if self._acknowledge(batch, reply):
                return
        self._tell_flow(batch, reply)

    def _member(
        self, batch: FastBatch, turn: Turn, subject: bytes, reply: bytes, header: bytes, payload: bytes
    ) -> None:
        if turn.operation == COMMIT_END:
            batch.last -= 1
            self._finish(batch, reply)
            return
        if turn.position == 1 and not turn.commits:
            self._tell_flow(batch, reply)
        try:
            batch.seq = self._store(subject, header, payload)
        except Duplicate as duplicate:
            self._repeated(batch, turn, reply, duplicate.seq)
        except RequestError as refusal:
            self._failed(batch, turn, reply, refusal)
        else:
            batch.stored = batch.last
            if turn.commits:
                self._finish(batch, reply)
            else:
                self._acknowledge(batch, reply)

    def _store(self, subject: bytes, header: bytes, payload: bytes) -> int:
        stream = self._stream
        try:
            return stream.admit_member(subject, header, payload)
        except StoreError as failure:
            raise stream.jetstream.store_refusal(failure) from failure

    def _repeated(self, batch: FastBatch, turn: Turn, reply: bytes, seq: int) -> None:
        """The message was stored before: it counts as done."""
        batch.stored = turn.position
        self._acknowledge(batch, reply)
        if not turn.commits:
            return
        if batch.last == 1 and not turn.gap_ok:
            self._close(batch)
            facts = (self._stream.ack_prefix, seq, self._shown(batch), turn.position)
            self._answer(reply, b'%b%d,"duplicate": true,"batch":%b,"count":%d}' % facts)
        else:
            self._finish(batch, reply)

    def _failed(self, batch: FastBatch, turn: Turn, reply: bytes, refusal: RequestError) -> None:
        """A member may not be stored: with gaps allowed the others go on, otherwise the batch ends before it."""
        if batch.last == 1 and not turn.gap_ok:
            self._close(batch)
            raise refusal
        facts = (turn.position, errors.encode_error(refusal))
        self._answer(reply, b'{"type":"err","seq":%d,"error":%b}' % facts)
        if turn.gap_ok and not turn.commits:
            return
        batch.last -= 1
        self._finish(batch, reply)

    # Answers; each waits for the frame that holds what it speaks of

    def _answer(self, reply: bytes, text: bytes) -> None:
        if not self._stream.config.no_ack:
            self._stream.ticker.hold(reply, b"", b"", text)

    def _refuse(self, reply: bytes, refusal: RequestError) -> None:
        if not self._stream.config.no_ack:
            self._stream.ticker.refuse(reply, errors.pub_ack_error(self._stream.name, refusal))

    def _tell_flow(self, batch: FastBatch, reply: bytes) -> None:
        self._answer(reply, b'{"type":"ack","seq":%d,"msgs":%d}' % (batch.told, batch.flow))

    def _tell_gap(self, reply: bytes, missing: int, position: int) -> None:
        self._answer(reply, b'{"type":"gap","last_seq":%d,"seq":%d}' % (missing, position))

    def _acknowledge(self, batch: FastBatch, reply: bytes) -> bool:
        """Every so many messages, say how far things are; how many may change each time, by a factor of two."""
        steps = (batch.stored - batch.told) // batch.flow
        if not steps:
            return False
        batch.told += steps * batch.flow
        most = min(max(_FLOW_SHARED // len(self._open), 1), batch.flow_max)
        batch.flow = min(batch.flow * 2, most) if batch.flow < most else max(batch.flow // 2, most)
        self._tell_flow(batch, reply)
        return True

    def _finish(self, batch: FastBatch, reply: bytes) -> None:
        """The batch ends with what it has."""
        self._close(batch)
        facts = (self._stream.ack_prefix, batch.seq, self._shown(batch), batch.last)
        self._answer(reply, b'%b%d,"batch":%b,"count":%d}' % facts)

    @staticmethod
    def _shown(batch: FastBatch) -> bytes:
        return dumps(batch.id.decode("utf-8", "replace"))

    # The end of a batch

    def _look(self, batch: FastBatch) -> None:
        """The timer rang: either nothing came since, or it has to ring again later."""
        timers = self._stream.jetstream.timers
        if batch.deadline_ns > timers.now_ns():
            batch.timer = timers.at_own(batch.deadline_ns, lambda: self._look(batch))
        else:
            self._close(batch)

    def _close(self, batch: FastBatch) -> None:
        if self._open.pop(batch.id, None) is None:
            return
        self._room.open -= 1
        if batch.timer is not None:
            batch.timer.cancel()

    def clear(self) -> None:
        """The stream goes, or fast batches were switched off: nobody is told."""
        for batch in list(self._open.values()):
            self._close(batch)
