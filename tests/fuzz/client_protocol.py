"""Fuzz target: bytes of a client. The result does not depend on the chunks or on the core (compiled or pure).

Invalid input ends with a ProtocolError and nothing else, and the bytes kept between two chunks are bounded.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from support.native_and_pure import Desk

from .input_generator import NUMBERS, Maker
from .target import Pair

LINE_MAX = 96
PAYLOAD_MAX = 40
STRANGER_MAX = 64 * 1024

_SUBJECTS = (
    b"a a.b a.* a.> > a..b a. .a _INBOX.1 $NRG.x _R_.x a.b.c.d a.*b >.a * *.* $JS.API.INFO "
    b"$SYS.x a\x00b \xc3\xa9"
).split()
_VERBS = (
    b"SUB sub UNSUB PING PONG +OK INFO CONNECT -ERR PUB HPUB MSG LS+ A+ RS+ GET S SUBS unsub pInG".split()
)
_BODIES = (
    b'{} {"verbose":true} {"headers":true,"no_responders":true} {"headers":1} {"user":[]} {"protocol":2} '
    b'{"protocol":true} {"echo":false} {"verbose":null} [] nul {"name":"\\ud800"} {"pedantic":true} {"lang":"\\u0000"} '
    b'{"account":"x"} {"jwt":"a.b.c","sig":"x"} {"protocol":1e400} {"no_responders":true} 1'
).split()
_BODIES += [b"[" * 90, b'{"a":' * 18]
_WORDS = [*_SUBJECTS, *_VERBS, *_BODIES, b"NATS/1.0\r\n\r\n", b"q", b" ", b"\r\n", b"\n"]
_BLANKS = (b" ", b" ", b" ", b"  ", b"\t", b" \t ")
_ENDS = (b"\r\n", b"\r\n", b"\r\n", b"\n", b" \r\n", b"\r\r\n")
_BLOCKS = (b"", b"", b"", b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\nA: b\r\n\r\n", b"NATS/1.0\r\nA", b"x")
_GREETINGS = (
    b'CONNECT {"verbose":true,"headers":true,"no_responders":true}\r\n',
    b'CONNECT {"verbose":false,"pedantic":true}\r\n',
    b"CONNECT {}\r\n",
)


class Case(NamedTuple):
    greeting: bytes | None  # None: the client must send CONNECT first
    data: bytes
    pieces: list[bytes]


class Room:
    """A broker with one client after another and a second client that subscribes to everything."""

    def __init__(self, twin: str) -> None:
        self.desk = Desk(twin, cache_max=64)
        self.listener = self.desk.client()
        self.listener.say(b"SUB > 1\r\n")

    def outcome(self, greeting: bytes | None, pieces: list[bytes]) -> Any:
        """Return what both clients receive, and how many operations were accepted."""
        known = greeting is not None
        speaker = self.desk.client(b"", ready=known, line_max=LINE_MAX, payload_max=PAYLOAD_MAX)
        heard = speaker.say(greeting) if greeting is not None else b""
        bound = LINE_MAX * 2 + PAYLOAD_MAX + 16 if known else STRANGER_MAX
        for piece in pieces:
            heard += speaker.say(piece)
            if speaker.ended:
                break
            assert speaker.parser.buffered_bytes <= bound, f"{speaker.parser.buffered_bytes} bytes are held"
        subscribed = len(speaker.session.subs)
        speaker.session.close()
        speaker.session.table.dirty.clear()  # there is no writer for the sockets
        assert self.desk.hub.subscriptions == 1, "subscriptions are left behind"
        return heard, self.listener.heard(), speaker.session.in_msgs, subscribed

    def close(self) -> None:
        """Close the broker: routes refer to their subscribers until then."""
        self.listener.session.close()


#: The rooms of the previous start.
_rooms: list[Room] = []


def start(maker: Maker) -> Pair:
    while _rooms:
        _rooms.pop().close()
    compiled, pure = Room("compiled"), Room("pure")
    _rooms.extend((compiled, pure))

    def check(case: Case) -> None:
        whole = compiled.outcome(case.greeting, [case.data])
        assert compiled.outcome(case.greeting, case.pieces) == whole, "cut, it is another conversation"
        assert pure.outcome(case.greeting, case.pieces) == whole, "the kernels differ"

    return make, check


def make(maker: Maker) -> Case:
    dice = maker.below(20)
    if dice == 0:
        data = maker.bytes(60)
    else:
        data = b"".join([_operation(maker) for _ in range(1 + maker.below(5))])
    if dice < 8:
        data = maker.damaged(data, _WORDS)
    greeting = None if maker.chance(0.1) else maker.pick(_GREETINGS)
    return Case(greeting, data, maker.pieces(data))


def _operation(maker: Maker) -> bytes:
    dice = maker.below(10)
    if dice < 5:
        return _publication(maker)
    if dice < 6:
        return b"CONNECT " + maker.pick(_BODIES) + maker.pick(_ENDS)
    words = [maker.pick(_VERBS)]
    for _ in range(maker.below(4)):
        words += (maker.pick(_BLANKS), maker.pick(_SUBJECTS if maker.chance(0.6) else NUMBERS))
    return b"".join(words) + maker.pick(_ENDS)


def _publication(maker: Maker) -> bytes:
    header, payload = maker.pick(_BLOCKS), maker.bytes(12)
    words = [b"HPUB" if header else b"PUB", maker.pick(_SUBJECTS)]
    if maker.chance(0.3):
        words.append(maker.pick(_SUBJECTS))
    if header:
        words.append(b"%d" % len(header))
    words.append(b"%d" % len(header + payload) if maker.chance(0.9) else maker.pick(NUMBERS))
    return maker.pick(_BLANKS).join(words) + b"\r\n" + header + payload + b"\r\n"
