"""The leafnode parser in pure Python, with the names and behaviour of the compiled `leafnode_parser`.

Owns the framing of what another server sends (`LeafnodeParser`), not the effects of an operation. Consecutive deliveries
of one consumer can be handed over as one run of records, so that a mirror stores them in one step. Invariant: any bytes,
however they are split, become the same operations in the same order or raise ProtocolError. It is used where the
compiled version was not built, and documents in readable form what that version does.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from headrace._native.parser_pure import parse_digits, split_args
from headrace._native.record_header import RECORD_HEADER, RECORD_HEADER_BYTES
from headrace.errors import ProtocolError

UNKNOWN = "Unknown Protocol Operation"
TOO_LONG = "maximum control line exceeded"
TOO_LARGE = "Maximum Payload Violation"
UNAUTHORIZED = "Authorization Violation"
LINE_MAX = 64 * 1024
#: The most messages and bytes of a run, and the largest header and payload of a message in it.
RUN_COUNT_MAX = 1024
RUN_BYTES_MAX = 256 * 1024
RUN_MESSAGE_MAX = 32 * 1024
_NUMBER_DIGITS_MAX = 19
_NUMBER_MAX = (1 << 63) - 1
_SUBJECT_MAX = 0xFFFF
_FLAG_HEADER = 0x8000
_CRLF = b"\r\n"
_BLANKS = b" \t\r"
_NO_QUEUES: tuple[bytes, ...] = ()
_ACK = b"$JS.ACK."
_PLAIN_HEADER = b"NATS/1.0\r\n"
_TRACE_DEST = b"Nats-Trace-Dest"


class LeafnodeHandler(Protocol):
    """Handles the operations.

    Messages are not accepted before it is `authenticated`, so that an unknown peer costs at most one line.
    """

    @property
    def authenticated(self) -> bool: ...
    def on_info(self, body: bytes) -> None: ...
    def on_connect(self, body: bytes) -> None: ...
    def on_ping(self) -> None: ...
    def on_pong(self) -> None: ...
    def on_error(self, text: str) -> None: ...
    def on_interest(self, subject: bytes, queue: bytes | None, weight: int) -> None: ...
    def on_no_interest(self, subject: bytes, queue: bytes | None) -> None: ...
    def on_message(
        self, subject: bytes, reply: bytes, queues: Sequence[bytes], header: bytes, payload: bytes
    ) -> None: ...
    def takes_deliveries(self, subject: bytes) -> bool:
        """Whether `on_deliveries` may be called for messages on this subject."""

    def on_deliveries(
        self,
        subject: bytes,
        ack_prefix: bytes,
        records: bytearray,
        seqs: array[int],
        consumer_seq: int,
        num_pending: int,
    ) -> int:
        """Handle a run of deliveries in the form of stored records; return how many of them were taken.

        The reply of each is `ack_prefix`, its sequence, its consumer sequence, its time and the number of pending
        messages, then `@` and the subject of the record. `consumer_seq` is that of the first, the others follow without a
        gap; `num_pending` is that of the last. `on_message` is called for those that were not taken.
        """


class Message(NamedTuple):
    """One LMSG or HMSG."""

    subject: bytes
    reply: bytes
    queues: Sequence[bytes]
    header: bytes
    payload: bytes


class _Delivery(NamedTuple):
    """The parts of a reply `prefix seq . consumer_seq . time_ns . num_pending @ subject`."""

    prefix: bytes
    seq: int
    consumer_seq: int
    time_ns: int
    num_pending: int
    subject: bytes


class _Run:
    """Deliveries that are handed over together."""

    __slots__ = ("first", "last", "messages", "records", "seqs")

    def __init__(self, message: Message, delivery: _Delivery) -> None:
        self.messages: list[Message] = []
        self.records = bytearray()
        self.seqs = array("Q")
        self.first = self.last = delivery
        self.add(message, delivery)

    def continues_with(self, message: Message, delivery: _Delivery) -> bool:
        """Whether a delivery is the next one of the same consumer, and there is space for it."""
        last = self.last
        return (
            message.subject == self.messages[0].subject
            and delivery.prefix == last.prefix
            and delivery.seq > last.seq
            and delivery.consumer_seq == last.consumer_seq + 1
            and len(self.messages) < RUN_COUNT_MAX
            and len(self.records) < RUN_BYTES_MAX
        )

    def add(self, message: Message, delivery: _Delivery) -> None:
        header, payload = message.header, message.payload
        size = RECORD_HEADER_BYTES + len(delivery.subject) + len(header) + len(payload)
        flags = _FLAG_HEADER if header else 0
        self.records += RECORD_HEADER.pack(
            size, len(delivery.subject), flags, len(header), 0, delivery.seq, delivery.time_ns
        )
        self.records += b"".join((delivery.subject, header, payload))
        self.seqs.append(delivery.seq)
        self.messages.append(message)
        self.last = delivery


class LeafnodeParser:
    """Parses the other server's bytes to operations. It must not be fed after a ProtocolError.

    Between two chunks it keeps an unfinished operation: at most `line_max` of a control line, or a message of at most
    `payload_max`.
    """

    __slots__ = (
        "_buffer",
        "_handler",
        "_line_max",
        "_needed_bytes",
        "_payload_max",
        "_run",
        "_single_subject",
    )

    def __init__(self, handler: LeafnodeHandler, payload_max: int, line_max: int = LINE_MAX) -> None:
        self._handler = handler
        self._payload_max = payload_max
        self._line_max = line_max
        self._buffer = bytearray()
        self._needed_bytes = 0
        self._run: _Run | None = None
        self._single_subject = b""  # in this chunk, its deliveries are not handed over as runs

    @property
    def buffered_bytes(self) -> int:
        """Number of bytes kept until more arrive."""
        return len(self._buffer)

    def feed(self, data: bytes) -> None:
        """Parse the next chunk."""
        buffer = self._buffer
        if buffer:
            buffer += data
            if len(buffer) < self._needed_bytes:
                return
            data = bytes(buffer)
            buffer.clear()
        self._needed_bytes = 0
        self._single_subject = b""
        try:
            done = self._parse_operations(data)
        finally:
            self._hand_over_run()
        if done < len(data):
            buffer += data[done:]

    def _parse_operations(self, data: bytes) -> int:
        """Process every complete operation; return where the unfinished one starts."""
        at, end = 0, len(data)
        while at < end:
            stop = data.find(b"\n", at)
            if (end if stop < 0 else stop) - at > self._line_max:
                raise ProtocolError(TOO_LONG)
            if stop < 0:
                return at
            verb = data[at : at + 5].upper()
            if verb == b"LMSG " or verb == b"HMSG ":
                if not self._handler.authenticated:
                    raise ProtocolError(UNAUTHORIZED)
                after = self._parse_message(data[at + 5 : stop], data, stop + 1, headed=verb == b"HMSG ")
                if after < 0:
                    self._needed_bytes = stop + 1 - after - at
                    return at
                at = after
            else:
                self._hand_over_run()
                handle_control_line(self._handler, data[at:stop])
                at = stop + 1
        return at

    def _parse_message(self, line: bytes, data: bytes, body: int, *, headed: bool) -> int:
        """Parse a message whose payload starts at `body`.

        Returns where the next operation starts, or minus the size it needs.
        """
        args = split_args(line)
        header_size, total = parse_sizes(args, headed=headed)
        if total > self._payload_max:
            raise ProtocolError(TOO_LARGE)
        after = body + total
        if after + 2 > len(data):
            return -(total + 2)
        if data[after : after + 2] != _CRLF:
            raise ProtocolError(UNKNOWN)
        reply, queues = parse_reply_and_queues(args[1 : -2 if headed else -1])
        split = body + header_size
        self._on_message(Message(args[0], reply, queues, data[body:split], data[split:after]))
        return after + 2

    def _on_message(self, message: Message) -> None:
        """Add a message to the run, or handle it alone."""
        delivery = _parse_delivery(message)
        run = self._run
        if delivery is not None and run is not None and run.continues_with(message, delivery):
            run.add(message, delivery)
            return
        self._hand_over_run()
        if delivery is None or message.subject == self._single_subject:
            self._handler.on_message(*message)
        elif self._handler.takes_deliveries(message.subject):
            self._run = _Run(message, delivery)
        else:
            self._single_subject = message.subject
            self._handler.on_message(*message)

    def _hand_over_run(self) -> None:
        run, self._run = self._run, None
        if run is None:
            return
        subject = run.messages[0].subject
        first, last = run.first, run.last
        taken = self._handler.on_deliveries(
            subject, first.prefix, run.records, run.seqs, first.consumer_seq, last.num_pending
        )
        if taken < len(run.messages):
            self._single_subject = subject
        for message in run.messages[taken:]:
            self._handler.on_message(*message)


def _parse_delivery(message: Message) -> _Delivery | None:
    """Parse the reply of a delivery; None if the message cannot be part of a run."""
    reply, header = message.reply, message.header
    if message.queues or not reply.startswith(_ACK) or len(header) + len(message.payload) > RUN_MESSAGE_MAX:
        return None
    if header and (not header.startswith(_PLAIN_HEADER) or _TRACE_DEST in header):
        return None
    tokens = reply.split(b".", 8)
    if len(tokens) < 9:
        return None
    pending, mark, subject = tokens[8].partition(b"@")
    numbers = [_parse_number(each) for each in (*tokens[5:8], pending)]
    if min(numbers) < 0 or not numbers[0] or not mark or not is_storable_subject(subject):
        return None
    return _Delivery(b".".join(tokens[:5]) + b".", numbers[0], numbers[1], numbers[2], numbers[3], subject)


def _parse_number(digits: bytes) -> int:
    """Return the value of at most 19 digits, or -1."""
    if len(digits) > _NUMBER_DIGITS_MAX or not digits.isdigit():
        return -1
    value = int(digits)
    return value if value <= _NUMBER_MAX else -1


def is_storable_subject(subject: bytes) -> bool:
    """Return whether no token is empty and a record can have this subject."""
    return len(subject) <= _SUBJECT_MAX and b"" not in subject.split(b".")


def parse_sizes(args: Sequence[bytes], *, headed: bool) -> tuple[int, int]:
    """Parse the size of the header and the total size of a message."""
    if len(args) <= (2 if headed else 1):
        raise ProtocolError(UNKNOWN)
    total = parse_digits(args[-1])
    header_size = parse_digits(args[-2]) if headed else 0
    if not 0 <= header_size <= total:
        raise ProtocolError(UNKNOWN)
    return header_size, total


def parse_reply_and_queues(args: Sequence[bytes]) -> tuple[bytes, Sequence[bytes]]:
    """Parse reply and queue groups of a message: `[reply]`, `+ reply queue...` or `| queue...`."""
    if len(args) < 2:
        return (args[0], _NO_QUEUES) if args else (b"", _NO_QUEUES)
    if args[0] == b"+":
        return args[1], args[2:]
    if args[0] == b"|":
        return b"", args[1:]
    raise ProtocolError(UNKNOWN)


def handle_control_line(handler: LeafnodeHandler, line: bytes) -> None:
    """Process a line other than LMSG and HMSG."""
    verb, _, rest = line.removesuffix(b"\r").strip(_BLANKS).partition(b" ")
    verb = verb.upper()
    if verb == b"LS+":
        handler.on_interest(*parse_interest(split_args(rest)))
    elif verb == b"LS-":
        args = split_args(rest)
        if not 1 <= len(args) <= 2:
            raise ProtocolError(UNKNOWN)
        handler.on_no_interest(args[0], args[1] if len(args) == 2 else None)
    elif verb == b"PING":
        handler.on_ping()
    elif verb == b"PONG":
        handler.on_pong()
    elif verb == b"INFO":
        handler.on_info(rest.strip())
    elif verb == b"CONNECT":
        handler.on_connect(rest.strip())
    elif verb == b"-ERR":
        handler.on_error(rest.strip().strip(b"'").decode("utf-8", "replace"))
    elif verb != b"+OK":
        raise ProtocolError(UNKNOWN)


def parse_interest(args: Sequence[bytes]) -> tuple[bytes, bytes | None, int]:
    """Parse subject, queue and weight of an LS+."""
    if len(args) == 1:
        return args[0], None, 1
    weight = parse_digits(args[2]) if len(args) == 3 else -1
    if weight < 0:
        raise ProtocolError(UNKNOWN)
    return args[0], args[1], max(weight, 1)
