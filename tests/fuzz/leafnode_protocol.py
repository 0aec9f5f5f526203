"""Fuzz target: bytes of another server on a leafnode connection: operations or a ProtocolError, for any chunks."""

from __future__ import annotations

from typing import Any, NamedTuple

from headrace.errors import ProtocolError
from headrace.protocol import leafnode

from .input_generator import NUMBERS, Maker
from .target import Pair

LINE_MAX = 300
PAYLOAD_MAX = 40
_SUBJECTS = b"a a.b a.> > * $JS.API.> $LDS.x _INBOX.a.b a..b \xff \x00 a\x01b lmsg + | $JS.ACK.a.b@c".split()
_SUBJECTS += [b"a\x0bb", b"c\x0c"]
_VERBS = b"LS+ LS- ls+ PING PONG INFO CONNECT -ERR +OK LMSG HMSG RS+ RMSG SUB LS LSX".split()
_BODIES = b'{} {"server_id":"x"} {"domain":1} [] {"nonce":"\xff"} {"headers":true,"jetstream":true} nul \'x\''.split()
_WORDS = (*_SUBJECTS, *_VERBS, *_BODIES, b"\r\n", b" ", b"NATS/1.0\r\n\r\n")
_ENDS = (b"\r\n", b"\r\n", b"\r\n", b"\n", b" \r\n")
_BLOCKS = (b"", b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\nA: b\r\n\r\n")


class Case(NamedTuple):
    ready: bool
    data: bytes
    pieces: list[bytes]


class Recorder:
    """Records the operations that it receives."""

    def __init__(self, ready: bool) -> None:
        self.ready = ready
        self.told: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *args: self.told.append((name, *[tuple(a) if isinstance(a, list) else a for a in args]))


def start(maker: Maker) -> Pair:
    return make, check


def make(maker: Maker) -> Case:
    if maker.chance(0.05):
        data = maker.bytes(80)
    else:
        data = b"".join([_operation(maker) for _ in range(1 + maker.below(5))])
    if maker.chance(0.4):
        data = maker.damaged(data, _WORDS)
    return Case(maker.chance(0.9), data, maker.pieces(data))


def _operation(maker: Maker) -> bytes:
    dice = maker.below(10)
    if dice < 5:
        return _message(maker)
    if dice < 8:
        words = [maker.pick(_VERBS[:3]), maker.pick(_SUBJECTS)]
        if maker.chance(0.4):
            words += [b"q", maker.pick(NUMBERS)]
        return b" ".join(words) + maker.pick(_ENDS)
    return maker.pick(_VERBS) + b" " + maker.pick(_BODIES) + maker.pick(_ENDS)


def _message(maker: Maker) -> bytes:
    header, payload = maker.pick(_BLOCKS), maker.bytes(10)
    if maker.chance(0.5):
        queues = [b"q%d" % each for each in range(maker.below(3))]
        reply = maker.pick((b"", b"r.1"))
        return leafnode.encode_msg(maker.pick(_SUBJECTS), reply, queues, header, payload)
    words = [b"HMSG" if header else b"LMSG"]
    words += [maker.pick(_SUBJECTS) for _ in range(maker.below(5))]
    if header:
        words.append(b"%d" % len(header))
    words.append(b"%d" % len(header + payload) if maker.chance(0.8) else maker.pick(NUMBERS))
    return b" ".join(words) + b"\r\n" + header + payload + b"\r\n"


def check(case: Case) -> None:
    assert _outcome(case.ready, case.pieces) == _outcome(case.ready, [case.data]), (
        "cut, it says another thing"
    )


def _outcome(ready: bool, pieces: list[bytes]) -> Any:
    handler = Recorder(ready)
    parser = leafnode.LeafnodeParser(handler, PAYLOAD_MAX, LINE_MAX)
    try:
        for piece in pieces:
            parser.feed(piece)
            assert parser.buffered_bytes <= LINE_MAX + PAYLOAD_MAX + 4, (
                f"{parser.buffered_bytes} bytes are held"
            )
    except ProtocolError as error:
        return handler.told, error.text
    return handler.told, parser.buffered_bytes
