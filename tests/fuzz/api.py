"""Fuzz target: API requests, valid and broken, made from the table of endpoints.

Each gets one JSON reply and raises nothing; a rejected request changes nothing. Publishes with arbitrary headers,
pulls, acks and direct gets go to the same broker: they may be answered or not, but raise nothing, and the broker
continues.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from conformance import config_samples as samples
from headrace.broker.handlers.api_dispatch import match_endpoint
from headrace.broker.jetstream import ENDPOINTS
from headrace.protocol import subjects
from headrace.sim import SimDisk
from headrace.sim.sim_broker import SimBroker
from headrace.storage import StoreOptions

from .headers import make as header_block
from .input_generator import NUMBERS, Maker
from .target import Pair

KIB = 1 << 10
OPTIONS = StoreOptions(
    journal_bytes=1024 * KIB, segment_bytes=256 * KIB, block_bytes=8 * KIB, large_bytes=16 * KIB
)
SECOND = 1_000_000_000
#: After this many requests the broker is replaced by a new one.
LIFE = 250
_INBOX = b"_FUZZ."

_PATHS = sorted(".".join(path) for path in ENDPOINTS)
_STREAMS = (
    "Q",
    "Q",
    "Q",
    "O",
    "P",
    "M",
    "N",
    "Z",
    "a b",
    "",
    "..",
    "../x",
    "a/b",
    "*",
    ">",
    "\x00",
    "é",
    "S" * 300,
)
_CONSUMERS = ("C", "C", "D", "E", "", "..", "a/b", "*", "n" * 300, "\\", "$JS")
_SUBJECTS = (
    "q",
    "q",
    "q.a",
    "k.a",
    "o.1",
    "w.1",
    "a.1",
    "x",
    ">",
    "*",
    "q.*",
    "",
    "..",
    "a b",
    "$JS.API.INFO",
    "\x00",
    "q." + "a." * 40,
)
_OTHER: dict[str, tuple[Any, ...]] = {
    "seq": (0, 1, 2, 99, -1, 1 << 63, 1 << 64, 1.5, "1"),
    "last_by_subj": _SUBJECTS,
    "next_by_subj": _SUBJECTS,
    "subjects_filter": _SUBJECTS,
    "filter": _SUBJECTS,
    "subject": _SUBJECTS,
    "multi_last": (["q"], [">"], [""], [], ["q"] * 2000),
    "up_to_seq": (0, 1, -1),
    "up_to_time": ("2020-01-01T00:00:00Z", "x"),
    "start_time": ("2020-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "x", 5),
    "batch": (0, 1, 5, -1, 1 << 40),
    "max_bytes": (0, 1, 100, -1),
    "no_wait": (True, 1),
    "no_hdr": (True, "x"),
    "keep": (0, 1, -1),
    "expires": (0, 1, SECOND, -1, 1 << 63),
    "idle_heartbeat": (0, 1, SECOND, -1),
    "offset": (0, 1, -1, 1 << 62),
    "no_erase": (True,),
    "deleted_details": (True,),
    "pause_until": ("2030-01-01T00:00:00Z", "x", None),
    "group": ("g", "", "a b"),
    "id": ("x", 1),
    "lease": (1, 0, -1, 1e300, "1"),
    "pin": ("0-1", "../x", 1, None),
    "grant": (True,),
    "deliver_subject": _SUBJECTS,
    "chunk_size": (0, 1, -1, 1 << 40),
    "window_size": (0, -1),
    "priority": (0, 9, -1, 99),
    "min_pending": (0, 1, -1),
    "config": ({}, {"name": "N"}, {"name": "../x"}, 1, []),
    "state": ({}, {"messages": 1 << 70}, 1),
    "jsck": (True,),
}
_FLOW = {"flow_control": True, "idle_heartbeat": SECOND}
_ACKS = (
    b"",
    b"+ACK",
    b"-NAK",
    b"+WPI",
    b"+NXT",
    b"+TERM",
    b"+TERM why",
    b"-NAK 5s",
    b"x",
    b"+NXT 5",
    b'+NXT {"batch":2}',
)
_BROKEN = (
    b"{",
    b"nul",
    b"[]",
    b"1",
    b'"x"',
    b"{}{}",
    b"\xff",
    b'{"a":',
    b'{"config":',
    b"[" * 2000,
    b'{"a":' * 2000,
    b" {} ",
    b"null",
)
_WORDS = [*_BROKEN[:8], b'"name":', b"null", b"-1", b"true", b"1e400", b'"\\ud800"', b'"Q"']


class Case(NamedTuple):
    subject: bytes
    header: bytes
    body: bytes
    wait_ns: int


def start(maker: Maker) -> Pair:
    room = Room()
    return make, room.check


def make(maker: Maker) -> Case:
    dice = maker.below(20)
    header = header_block(maker) if maker.chance(0.1) else b""
    wait_ns = maker.pick((1, SECOND, 60 * SECOND)) if maker.chance(0.03) else 0
    if dice < 2:
        subject = maker.pick(_SUBJECTS).encode()
        return Case(subject, header_block(maker) if dice else b"", maker.bytes(20), wait_ns)
    if dice < 4:
        return Case(_beside(maker), header, _small_body(maker), wait_ns)
    if dice < 5:
        return Case(b"$JS.ACK." + _acknowledged(maker), header, _ack(maker), wait_ns)
    path = maker.pick(_PATHS)
    words = [path, maker.pick(_STREAMS)]
    if path.startswith("CONSUMER"):
        words += [maker.pick(_CONSUMERS)] if maker.chance(0.9) else []
        words += [maker.pick(_SUBJECTS)] if path == "CONSUMER.CREATE" and maker.chance(0.3) else []
    if path in ("INFO", "STREAM.NAMES", "STREAM.LIST") and maker.chance(0.9):
        words = [path]
    subject = "$JS.API." + ".".join(words)
    return Case(subject.encode(), header, _body(maker, path, words), wait_ns)


def _beside(maker: Maker) -> bytes:
    kind = maker.pick(("CONSUMER.MSG.NEXT", "DIRECT.GET", "DIRECT.GET.LAST", "STREAM.MSG", "X", "CONSUMER"))
    return f"$JS.API.{kind}.{maker.pick(_STREAMS)}.{maker.pick(_CONSUMERS)}".encode()


def _acknowledged(maker: Maker) -> bytes:
    numbers = [maker.pick(NUMBERS) if maker.chance(0.2) else b"%d" % (1 + maker.below(4)) for _ in range(5)]
    return b".".join(
        [b"Q", maker.pick((b"C", b"C", b"A", b"F")), *numbers][: 7 if maker.chance(0.9) else maker.below(8)]
    )


def _ack(maker: Maker) -> bytes:
    if maker.chance(0.2):
        return b'-NAK {"delay":%s}' % maker.pick(NUMBERS)
    return maker.pick(_ACKS)


def _small_body(maker: Maker) -> bytes:
    if maker.chance(0.2):
        return maker.pick(_BROKEN) if maker.chance(0.5) else maker.pick(NUMBERS)
    chosen = {maker.pick(tuple(_OTHER)): None for _ in range(maker.below(3))}
    return json.dumps({name: maker.pick(_OTHER[name]) for name in chosen}).encode()


def _body(maker: Maker, path: str, words: list[str]) -> bytes:
    if maker.chance(0.1):
        return maker.pick(_BROKEN) if maker.chance(0.6) else b""
    if path in ("STREAM.CREATE", "STREAM.UPDATE"):
        body = samples.stream(maker.rng)
        if maker.chance(0.7) and len(words) > 1:
            body["name"] = words[1]
    elif path in ("CONSUMER.CREATE", "CONSUMER.DURABLE.CREATE"):
        body = {
            "stream_name": words[1],
            "config": samples.consumer(maker.rng),
            "action": maker.pick(("", "", "create", "update", 1)),
        }
        if maker.chance(0.7) and len(words) > 2:
            body["config"] |= {"name": words[2], "durable_name": words[2]}
    else:
        return _small_body(maker)
    encoded = json.dumps(body).encode()
    return maker.damaged(encoded, _WORDS) if maker.chance(0.3) else encoded


def _overhearing(configs: list[Any]) -> set[str]:
    """Return the streams that store advisories about requests, or copy such streams: they grow with each request."""
    found: set[str] = set()
    while True:
        more = {config.name for config in configs if _overhears(config, found)}
        if more == found:
            return found
        found = more


def _overhears(config: Any, others: set[str]) -> bool:
    origins = {source.name for source in (*config.sources, *([config.mirror] if config.mirror else []))}
    heard = any(subjects.overlaps(subject.encode(), b"$JS.EVENT.>") for subject in config.subjects)
    return heard or bool(origins & others)


class Room:
    """A broker with a few streams, consumers and messages, and its state before the request."""

    def __init__(self) -> None:
        self._renew()

    def _renew(self) -> None:
        self._left = LIFE
        self.heard: list[tuple[bytes, bytes]] = []
        self.broker = broker = SimBroker(SimDisk(), OPTIONS)
        broker.start()
        flags = dict.fromkeys(
            ("allow_direct", "allow_msg_ttl", "allow_atomic", "allow_batched", "allow_msg_schedules"), True
        )
        assert "error" not in broker.call("STREAM.CREATE.Q", name="Q", subjects=["q", "q.>"], **flags)
        assert "error" not in broker.call(
            "STREAM.CREATE.K", name="K", subjects=["k.>"], allow_msg_counter=True, allow_direct=True
        )
        broker.call(
            "STREAM.CREATE.O", name="O", subjects=["o.>"], max_msgs_per_subject=3, allow_rollup_hdrs=True
        )
        broker.call("STREAM.CREATE.P", name="P", subjects=["w.>", "a.>"], storage="memory")
        broker.call("STREAM.CREATE.M", name="M", mirror={"name": "O"})
        for name in ("C", "D"):
            config = {"durable_name": name, "ack_policy": "explicit"}
            broker.call(f"CONSUMER.CREATE.Q.{name}", stream_name="Q", config=config)
        for name, more in (("A", {}), ("F", _FLOW)):  # what a forged sequence could do most to
            config = {"durable_name": name, "ack_policy": "all", "deliver_subject": f"_PUSH.{name}", **more}
            assert "error" not in broker.call(f"CONSUMER.CREATE.Q.{name}", stream_name="Q", config=config)
            broker.router.subscribe_internal(f"_PUSH.{name}".encode(), self)
        for subject in ("q", "q.a", "o.1", "w.1", "a.1", "q"):
            broker.publish(subject, b"x")
        broker.router.subscribe_internal(_INBOX + b"*", self)
        broker.router.publish(b"$JS.API.CONSUMER.MSG.NEXT.Q.C", _INBOX + b"0", b"", b"2")
        broker.run_until_idle()
        self.seen = self._state()

    def on_message(
        self, session: object, subject: bytes, reply: bytes, header: bytes, payload: bytes
    ) -> None:
        self.heard.append((subject, payload))

    def _state(self) -> Any:
        """Return the state that requests may change, as far as it is cheap to compute."""
        streams = self.broker.jetstream.streams.values()
        restless = _overhearing([stream.config for stream in streams])
        return [
            (
                stream.name,
                stream.config,
                *((log.first_seq, log.last_seq, log.messages) if stream.name not in restless else ()),
                sorted(stream.consumers),
                [consumer.config for consumer in stream.consumers.values()],
            )
            for stream in streams
            for log in (stream.log,)
        ]

    def _check_ack_floors(self) -> None:
        """No acknowledgement moves a floor beyond what was delivered."""
        for stream in self.broker.jetstream.streams.values():
            for consumer in stream.consumers.values():
                ack_state = consumer.ack_state
                floor = ack_state.get_ack_floor()
                assert floor[0] <= ack_state.consumer_seq, f"{consumer.name}: {floor}"
                assert floor[1] <= max(stream.log.last_seq, ack_state.stream_seq), f"{consumer.name}: {floor}"

    def check(self, case: Case) -> None:
        self._left -= 1
        if not self._left:
            self._renew()
        broker = self.broker
        self.heard.clear()
        reply = _INBOX + b"%d" % self._left
        broker.router.publish(case.subject, reply, case.header, case.body)
        broker.run_until_idle()
        if case.wait_ns:
            broker.advance(case.wait_ns)
        assert broker.store.poisoned is None, "the store is poisoned"
        self._check_ack_floors()
        answers = [payload for subject, payload in self.heard if subject == reply]
        before, self.seen = self.seen, self._state()
        if not case.subject.startswith(b"$JS.API."):
            return
        words = case.subject.decode("utf-8", "replace").removeprefix("$JS.API.").split(".")
        endpoint, _ = match_endpoint(ENDPOINTS, words)
        if endpoint is None or not subjects.is_valid(case.subject) or not subjects.is_literal(case.subject):
            return
        assert len(answers) == 1, f"{len(answers)} answers"
        told = json.loads(answers[0])
        assert endpoint.response_type in told["type"], told
        if "error" in told:
            assert {"code", "err_code", "description"} <= set(told["error"]), told
            assert case.wait_ns or self.seen == before, f"refused with {told['error']}, it changed something"
