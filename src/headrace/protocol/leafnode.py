"""The leafnode protocol: encodes what two servers send each other; `LeafnodeParser` of the core parses it.

`INFO`, `CONNECT`, `PING`, `PONG`, `-ERR` as between client and server; `LS+ subject [queue weight]` and `LS- subject
[queue]` for interest; `LMSG` and `HMSG` for messages, whose arguments may name the queue groups that are to receive
them (`subject + reply queue... size`, `subject | queue... size`). Owns the form of each operation, not its effects.
"""

from __future__ import annotations

from collections.abc import Sequence

UNAUTHORIZED = "Authorization Violation"


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
