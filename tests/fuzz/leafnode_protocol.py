"""Fuzz target: bytes of another server on a leafnode connection: operations or a ProtocolError, for any chunks.

The compiled and the pure parser must agree; runs of deliveries are compared message by message.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from headrace._native import leafnode_parser_pure, load_native
from headrace._native.deliveries_pure import iter_records
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
_BLOCKS = (
    b"",
    b"NATS/1.0\r\n\r\n",
    b"NATS/1.0\r\nA: b\r\n\r\n",
    b"NATS/1.0 100 x\r\n\r\n",
    b"NATS/1.0\r\nNats-Trace-Dest: x\r\n\r\n",
)
_PREFIXES = (b"$JS.ACK.S.C.1.",) * 6 + (
    b"$JS.ACK.S.D.1.",
    b"$JS.ACK.S.C.",
    b"$JS.ACK.d.a.S.C.1.",
    b"$JS.ACK.....",
)


class Case(NamedTuple):
    ready: bool
    taken_max: int
    data: bytes
    pieces: list[bytes]


class Recorder:
    """Records the operations that it receives; it takes up to `taken_max` messages of a run."""

    def __init__(self, ready: bool, taken_max: int = 0) -> None:
        self.authenticated = ready
        self.taken_max = taken_max
        self.told: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *args: self.told.append((name, *[tuple(a) if isinstance(a, list) else a for a in args]))

    def takes_deliveries(self, subject: bytes) -> bool:
        return self.taken_max > 0

    def on_deliveries(
        self, subject: bytes, prefix: bytes, records: bytearray, seqs: Any, consumer_seq: int, pending: int
    ) -> int:
        """Record the messages of a run as `on_message` would."""
        stored = list(iter_records(memoryview(records)))
        assert [each[0] for each in stored] == seqs.tolist(), "sequences and records differ"
        taken = min(len(stored), self.taken_max)
        for place, (seq, time_ns, shown, header, payload) in enumerate(stored[:taken]):
            reply = b"%s%d.%d.%d.*@%s" % (prefix, seq, consumer_seq + place, time_ns, shown)
            self.told.append(("on_message", subject, reply, (), header, payload))
        return taken

    def on_message(self, subject: bytes, reply: bytes, queues: Any, header: bytes, payload: bytes) -> None:
        """Record a message; if it could be in a run, without what a run does not say about it."""
        if self.taken_max:
            reply = _normalized(reply)
        self.told.append(("on_message", subject, reply, tuple(queues), header, payload))


def _normalized(reply: bytes) -> bytes:
    """Return the reply of a delivery without leading zeros and without the number of pending messages."""
    tokens = reply.split(b".", 8)
    pending, mark, shown = tokens[-1].partition(b"@")
    if len(tokens) < 9 or not mark or not all(each.isdigit() for each in (*tokens[5:8], pending)):
        return reply
    numbers = b".".join(b"%d" % int(each) for each in tokens[5:8])
    return b"%s.%s.*@%s" % (b".".join(tokens[:5]), numbers, shown)


def start(maker: Maker) -> Pair:
    return make, check


def make(maker: Maker) -> Case:
    if maker.chance(0.05):
        data = maker.bytes(80)
    else:
        data = b"".join([_operation(maker) for _ in range(1 + maker.below(5))])
        if maker.chance(0.5):
            data = _deliveries(maker) + data + _deliveries(maker)
    if maker.chance(0.4):
        data = maker.damaged(data, _WORDS)
    return Case(maker.chance(0.9), maker.pick((0, 1, 2, 100)), data, maker.pieces(data))


def _deliveries(maker: Maker) -> bytes:
    """Generate deliveries of a consumer, mostly consecutive."""
    seq, consumer_seq, messages = 1 + maker.below(5), 1 + maker.below(5), []
    for _ in range(maker.below(6)):
        numbers = [b"%d" % each for each in (seq, consumer_seq, 1 << 60, maker.below(9))]
        if maker.chance(0.1):
            numbers[maker.below(4)] = maker.pick(NUMBERS)
        reply = maker.pick(_PREFIXES) + b".".join(numbers) + b"@" + maker.pick(_SUBJECTS)
        to = maker.pick((b"$JS.M.x", b"$JS.M.x", b"$JS.M.x", b"a"))
        header = maker.pick(_BLOCKS) if maker.chance(0.3) else b""
        messages.append(leafnode.encode_msg(to, reply, (), header, maker.bytes(10)))
        seq += maker.pick((1, 1, 1, 2, 0))
        consumer_seq += maker.pick((1, 1, 1, 1, 2))
    return b"".join(messages)


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
    compiled, pure = load_native("leafnode_parser"), leafnode_parser_pure
    whole = _outcome(pure, case, [case.data])
    assert _outcome(compiled, case, [case.data]) == whole, "the compiled and the pure parser differ"
    for core in (compiled, pure):
        assert _outcome(core, case, case.pieces) == whole, "cut, it says another thing"


def _outcome(core: Any, case: Case, pieces: list[bytes]) -> Any:
    handler = Recorder(case.ready, case.taken_max)
    parser = core.LeafnodeParser(handler, PAYLOAD_MAX, LINE_MAX)
    try:
        for piece in pieces:
            parser.feed(piece)
            assert parser.buffered_bytes <= LINE_MAX + PAYLOAD_MAX + 4, (
                f"{parser.buffered_bytes} bytes are held"
            )
    except ProtocolError as error:
        return handler.told, error.text
    return handler.told, parser.buffered_bytes
