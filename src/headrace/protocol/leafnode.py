"""The leafnode protocol: parses and encodes what two servers send each other.

`INFO`, `CONNECT`, `PING`, `PONG`, `-ERR` as between client and server; `LS+ subject [queue weight]` and `LS- subject
[queue]` for interest; `LMSG` and `HMSG` for messages, whose arguments may name the queue groups that are to receive
them (`subject + reply queue... size`, `subject | queue... size`). Owns the framing only, not the effects of an
operation. Invariant: any bytes, however they are split, either become operations or raise ProtocolError.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headrace._native.parser_pure import split_args
from headrace.errors import ProtocolError

UNKNOWN = "Unknown Protocol Operation"
TOO_LONG = "maximum control line exceeded"
TOO_LARGE = "Maximum Payload Violation"
UNAUTHORIZED = "Authorization Violation"
LINE_MAX = 64 * 1024
DIGITS_MAX = 9
_CRLF = b"\r\n"
_BLANKS = b" \t\r"
_NO_QUEUES: tuple[bytes, ...] = ()


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


class LeafnodeParser:
    """Parses the other server's bytes to operations. It must not be fed after a ProtocolError.

    Between two chunks it keeps an unfinished operation: at most `line_max` of a control line, or a message of at most
    `payload_max`.
    """

    __slots__ = ("_buffer", "_handler", "_line_max", "_needed_bytes", "_payload_max")

    def __init__(self, handler: LeafnodeHandler, payload_max: int, line_max: int = LINE_MAX) -> None:
        self._handler = handler
        self._payload_max = payload_max
        self._line_max = line_max
        self._buffer = bytearray()
        self._needed_bytes = 0

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
        done = self._parse_operations(data)
        if done < len(data):
            buffer += data[done:]

    def _parse_operations(self, data: bytes) -> int:
        """Process every complete operation; return where the unfinished one starts."""
        at, end = 0, len(data)
        find, starts, on_message = data.find, data.startswith, self._handler.on_message
        most = self._payload_max if self._handler.authenticated else -1
        while at < end:
            stop = find(b"\n", at)
            if starts(b"LMSG ", at) and stop > 0:
                # The common case, handled directly: a complete, well-formed message with a reply.
                args = split_args(data[at + 5 : stop])
                size = args[-1] if len(args) == 3 else b""
                if size.isdigit() and len(size) <= DIGITS_MAX:
                    body = stop + 1
                    after = body + int(size)
                    if (
                        after - body <= most
                        and data[after : after + 2] == _CRLF
                        and stop - at <= self._line_max
                    ):
                        on_message(args[0], args[1], _NO_QUEUES, b"", data[body:after])
                        at = after + 2
                        continue
            if stop < 0:
                if end - at > self._line_max:
                    raise ProtocolError(TOO_LONG)
                return at
            if stop - at > self._line_max:
                raise ProtocolError(TOO_LONG)
            verb = data[at : at + 5].upper()
            if verb == b"LMSG " or verb == b"HMSG ":
                if not self._handler.authenticated:
                    raise ProtocolError(UNAUTHORIZED)
                body = self._parse_message(data[at + 5 : stop], data, stop + 1, headed=verb == b"HMSG ")
                if body < 0:
                    self._needed_bytes = stop + 1 - body - at
                    return at
                at = body
            else:
                self._parse_control(data[at:stop].removesuffix(b"\r"))
                at = stop + 1
        return at

    def _parse_message(self, line: bytes, data: bytes, body: int, *, headed: bool) -> int:
        """Parse a message whose payload starts at `body`.

        Returns where the next operation starts, or minus the size it needs.
        """
        args = split_args(line)
        sizes = 2 if headed else 1
        if len(args) <= sizes:
            raise ProtocolError(UNKNOWN)
        total = parse_digits(args[-1])
        header = parse_digits(args[-2]) if headed else 0
        if not 0 <= header <= total:
            raise ProtocolError(UNKNOWN)
        if total > self._payload_max:
            raise ProtocolError(TOO_LARGE)
        after = body + total
        if after + 2 > len(data):
            return -(total + 2)
        if data[after : after + 2] != _CRLF:
            raise ProtocolError(UNKNOWN)
        reply, queues = parse_reply_and_queues(args[1:-sizes])
        split = body + header
        self._handler.on_message(args[0], reply, queues, data[body:split], data[split:after])
        return after + 2

    def _parse_control(self, line: bytes) -> None:
        verb, _, rest = line.strip(_BLANKS).partition(b" ")
        handler, verb = self._handler, verb.upper()
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


def parse_digits(digits: bytes) -> int:
    """Return the value of one to nine decimal digits, or -1."""
    return int(digits) if len(digits) <= DIGITS_MAX and digits.isdigit() else -1


def parse_reply_and_queues(args: Sequence[bytes]) -> tuple[bytes, Sequence[bytes]]:
    """Parse reply and queue groups of a message: `[reply]`, `+ reply queue...` or `| queue...`."""
    if len(args) < 2:
        return (args[0], _NO_QUEUES) if args else (b"", _NO_QUEUES)
    if args[0] == b"+":
        return args[1], args[2:]
    if args[0] == b"|":
        return b"", args[1:]
    raise ProtocolError(UNKNOWN)


def parse_interest(args: Sequence[bytes]) -> tuple[bytes, bytes | None, int]:
    """Parse subject, queue and weight of an LS+."""
    if len(args) == 1:
        return args[0], None, 1
    weight = parse_digits(args[2]) if len(args) == 3 else -1
    if weight < 0:
        raise ProtocolError(UNKNOWN)
    return args[0], args[1], max(weight, 1)


# Encoding


def encode_interest(subject: bytes, queue: bytes | None, weight: int) -> bytes:
    """Announce interest in a subject; with a queue, `weight` is its number of members."""
    return b"LS+ %s\r\n" % subject if queue is None else b"LS+ %s %s %d\r\n" % (subject, queue, weight)


def encode_no_interest(subject: bytes, queue: bytes | None) -> bytes:
    """Withdraw interest in a subject."""
    return b"LS- %s\r\n" % subject if queue is None else b"LS- %s %s\r\n" % (subject, queue)


def encode_msg(subject: bytes, reply: bytes, queues: Sequence[bytes], header: bytes, payload: bytes) -> bytes:
    """Encode a message for all subscribers and for one member of each named queue group."""
    if queues:
        to = b"+ %s " % reply if reply else b"| "
        target = b"%s %s%s " % (subject, to, b" ".join(queues))
    else:
        target = b"%s %s " % (subject, reply) if reply else b"%s " % subject
    if not header:
        return b"LMSG %s%d\r\n%s\r\n" % (target, len(payload), payload)
    size = len(header)
    return b"HMSG %s%d %d\r\n%s%s\r\n" % (target, size, size + len(payload), header, payload)


# If a message shows a subject other than the one it was sent to, that one follows its reply: `$JS.ACK...@shown`.

_ACK = b"$JS.ACK."
_ACK_DOTS = 8  # minimum number of dots before the `@`


def encode_original_subject(reply: bytes, subject: bytes) -> bytes:
    """Return the reply with the subject to show appended."""
    return b"%s@%s" % (reply, subject) if reply and _find_original_subject(reply) < 0 else reply


def decode_original_subject(reply: bytes) -> tuple[bytes, bytes]:
    """Return the reply, and the subject to show; b"" if there is none."""
    at = _find_original_subject(reply)
    return (reply[:at], reply[at + 1 :]) if at >= 0 else (reply, b"")


def _find_original_subject(reply: bytes) -> int:
    """Return where the subject to show begins; -1 if there is none.

    Names and subjects may also have an `@`, numbers do not.
    """
    if b"@" not in reply or not reply.startswith(_ACK):
        return -1
    at = 0
    for _ in range(_ACK_DOTS):
        at = reply.find(b".", at) + 1
        if not at:
            return -1
    return reply.find(b"@", at)
