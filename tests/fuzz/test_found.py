"""What fuzzing and hostile peers have found stays found: one test for each."""

from __future__ import annotations

import time
import tracemalloc
import zlib
from pathlib import Path

import pytest

from headrace.broker.pulls import Pulls
from headrace.errors import ProtocolError
from headrace.net.conf import ConfigError, parse
from headrace.net.settings import interpret, load
from headrace.protocol import leaf
from headrace.protocol import websocket as ws
from headrace.protocol.leaf import LeafParser
from headrace.sim import SimDisk
from headrace.sim.broker import SimBroker
from headrace.store import StoreOptions
from support.twins import TWINS, Desk
from support.twins import load as kernel

from .leaf import Recorder

DEEP = b'{"a":' + b"[" * 3500
OPTIONS = StoreOptions(journal_bytes=1 << 20, segment_bytes=1 << 18)


def settings(text: str) -> object:
    return interpret(parse(text, "x.conf", lambda path: "", {}))


@pytest.mark.parametrize("twin", TWINS)
def test_a_greeting_nested_deep_ends_the_connection_in_good_order(twin: str) -> None:
    assert Desk(twin).client(b"", ready=False).say(b"CONNECT " + DEEP + b"\r\n") == b"<EOF>"


def test_a_leafnode_greeting_nested_deep_does_too() -> None:
    from headrace.broker.leaf import _object

    with pytest.raises(ProtocolError):
        _object(DEEP)


@pytest.mark.parametrize("key", ["write_deadline", "lame_duck_duration"])
def test_a_duration_beyond_all_numbers_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        settings(f"{key}: {'9' * 400}")


def test_a_websocket_key_outside_ascii_is_refused() -> None:
    head = "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: \xff\r\n\r\n"
    with pytest.raises(ws.Refusal, match="invalid websocket key"):
        ws.check(ws.read_request(head.encode("latin-1")))


def test_what_follows_the_last_block_of_a_compressed_message_is_not_kept() -> None:
    """A frame may say that it is endless, and its compressed data be over with the first byte: the rest weighs nothing."""
    frames = ws.Frames(compress=True, inflated_max=1 << 20)
    deflater = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)
    over = deflater.compress(b"PING\r\n") + deflater.flush(zlib.Z_FINISH)
    head = b"\xc2\xff" + (1 << 40).to_bytes(8, "big") + bytes(4)
    assert b"".join(frames.receive(head + over)) == b"PING\r\n"
    chunk = bytes(65_536)
    tracemalloc.start()
    try:
        for _ in range(64):
            assert b"".join(frames.receive(chunk)) == b""
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 256 * 1024


@pytest.mark.parametrize("twin", TWINS)
def test_a_line_without_a_colon_hides_no_header(twin: str) -> None:
    block = b"NATS/1.0\r\nNats-TTL\r\nNats-TTL: 1s\r\n\r\n"
    assert kernel(twin).nats_headers(block) == {b"Nats-TTL": b"1s"}
    assert kernel(twin).nats_headers(b"Nats-TTL: 1s\r\n\r\n") == {}


@pytest.mark.parametrize(
    "text",
    [
        "a: " + "[" * 5000,
        "a: " + "9" * 5000,
        "port: -" + "9" * 5000,
        "a: " + "9" * 5000 + "KB",
        "accounts: [[a]]",
        "operator: \\0",
        "include 'a\\0b'",
    ],
)
def test_configuration_that_cannot_be_read_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^x\.conf:1:\d+: "):
        interpret(parse(text.replace("\\0", "\0"), "x.conf", lambda path: Path(path).read_text(), {}))


def test_a_configuration_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.conf").write_bytes(b"port: \xff\xfe")
    with pytest.raises(ConfigError, match="cannot read the configuration file"):
        load(str(tmp_path / "x.conf"), {})


def test_a_long_configuration_takes_time_in_proportion() -> None:
    text = "".join(f"tag{number}: 1\n" for number in range(40_000)) + "port: 1\n"
    begun = time.thread_time()
    places = parse(text, "x.conf", lambda path: "", {}).places
    assert time.thread_time() - begun < 4
    assert (places["tag39999"].line, places["port"].column) == (40_000, 1)


def test_a_refusal_with_an_endless_delay_is_one_without() -> None:
    """It went into the consumer's progress as it was, which then could not be written: nothing was acknowledged any more."""
    broker = SimBroker(SimDisk(), OPTIONS)
    broker.start()
    broker.call("STREAM.CREATE.Q", name="Q", subjects=["q"])
    config = {"durable_name": "C", "ack_policy": "explicit", "deliver_subject": "d"}
    broker.call("CONSUMER.CREATE.Q.C", stream_name="Q", config=config)
    inbox = Inbox()
    broker.hub.subscribe_internal(b"d", inbox)
    broker.publish("q", b"x")
    broker.settle()
    first = inbox.replies[0]
    broker.hub.publish(first, b"", b"", b'-NAK {"delay":%s}' % (b"9" * 40))
    broker.settle()
    broker.advance(1_000_000)
    assert len(inbox.replies) == 2
    number = broker.publish("q", b"y")
    broker.settle()
    assert broker.answers[number].json["seq"] == 2


@pytest.mark.parametrize("mark", [b"\x0b", b"\x0c"])
def test_a_word_ends_at_a_blank_and_nowhere_else(mark: bytes) -> None:
    """In plain Python a subject with a vertical tab became two words: on a leafnode a subject and a reply."""
    subject = b"a" + mark + b"b"
    for twin in TWINS:
        client = Desk(twin).client()
        assert client.say(b"SUB > 1\r\nPUB %s 1\r\nx\r\n" % subject) == b"MSG %s 1 1\r\nx\r\n" % subject
        assert b"MSG x %s 0\r\n" % subject in client.say(b"SUB x %s\r\nPUB x 0\r\n\r\n" % subject)
    told = Recorder(True)
    LeafParser(told, 100).feed(leaf.message(subject, b"r" + mark, (), b"", b"x") + b"LS+ %s\r\n" % subject)
    assert told.told == [
        ("on_message", subject, b"r" + mark, (), b"", b"x"),
        ("on_interest", subject, None, 1),
    ]


class Inbox:
    def __init__(self) -> None:
        self.replies: list[bytes] = []

    def offer(self, session: object, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        self.replies.append(reply)


def test_a_full_consumer_does_not_go_through_its_requests_for_each_one_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each pull beyond the limit took half a millisecond of the server's time, and everybody else's."""
    looked = 0
    look = Pulls.look

    def counted(pulls: Pulls, now_ns: int, *, at_end: bool) -> None:
        nonlocal looked
        looked += 1
        look(pulls, now_ns, at_end=at_end)

    monkeypatch.setattr(Pulls, "look", counted)
    broker = SimBroker(SimDisk(), OPTIONS)
    broker.start()
    broker.call("STREAM.CREATE.Q", name="Q", subjects=["q"])
    config = {"durable_name": "C", "ack_policy": "explicit"}
    broker.call("CONSUMER.CREATE.Q.C", stream_name="Q", config=config)
    body = b'{"batch":1000000,"expires":60000000000}'
    numbers = [broker.publish("$JS.API.CONSUMER.MSG.NEXT.Q.C", body) for _ in range(2_000)]
    broker.settle()
    refused = [number for number in numbers if number in broker.answers]
    assert len(refused) == 2_000 - 512
    assert looked < 600
    broker.advance(60_000_000_000)
    assert broker.publish("$JS.API.CONSUMER.MSG.NEXT.Q.C", body) not in broker.answers


@pytest.mark.parametrize("dest", ["x.{{ SplitFromLeft( 1 , 2 ) }}", "x.{{\r\nwildcard(1)\r\n}}"])
def test_blanks_in_a_transform_of_a_source_are_no_words(dest: str) -> None:
    """The stream was made and then not known: no answer came, and the next start of the server failed."""
    broker = SimBroker(SimDisk(), OPTIONS)
    broker.start()
    broker.call("STREAM.CREATE.O", name="O", subjects=["o.*"])
    sources = [{"name": "O", "subject_transforms": [{"src": "o.*", "dest": dest}]}]
    made = broker.call("STREAM.CREATE.N", name="N", sources=sources)
    broker.publish("o.abcd", b"x")
    broker.settle()
    broker.advance(20_000_000_000)
    found = broker.jetstream.streams["N"].log.get(1) if "error" not in made else None
    if found is not None:
        assert bytes(found[2]).count(b"\r\n") == 3
    again = SimBroker(broker.disk.kill(), OPTIONS, broker.clock)
    again.start()
    assert ("N" in again.jetstream.streams) == ("error" not in made)
