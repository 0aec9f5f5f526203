"""The parser with arbitrary input: the result does not depend on the chunks, and no unexpected error occurs."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace._native import LeafnodeParser
from headrace.protocol import leafnode
from support.native_and_pure import TWINS, Desk, load

from .leafnode_protocol import Recorder

LINE_MAX = 64
PAYLOAD_MAX = 40

SUBJECT = st.sampled_from(
    [b"a", b"a.b", b"a.*", b"a.>", b">", b"a..b", b"a.", b"_INBOX.1", b"$NRG.x", b"_R_.x", b"a.b.c.d"]
)
BLANK = st.sampled_from([b" ", b"  ", b"\t", b" \t "])
END = st.sampled_from([b"\r\n", b"\n", b" \r\n"])
NUMBER = st.sampled_from([b"0", b"1", b"2", b"002", b"x", b"41", b"-1", b"12345678901"])


@st.composite
def lines(draw: st.DrawFn) -> bytes:
    """Generate a control line, valid or nearly so."""
    verb = draw(
        st.sampled_from(
            [b"SUB", b"sub", b"UNSUB", b"PING", b"PONG", b"+OK", b"INFO", b"CONNECT", b"-ERR", b"PUB"]
        )
    )
    words = draw(st.lists(st.one_of(SUBJECT, NUMBER, st.just(b"q"), st.just(b"{}")), max_size=4))
    return verb + b"".join(draw(BLANK) + word for word in words) + draw(END)


@st.composite
def publications(draw: st.DrawFn) -> bytes:
    """Generate PUB or HPUB with its payload, sometimes of the wrong length."""
    header = draw(st.sampled_from([b"", b"", b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\nA: b\r\n\r\n"]))
    payload = draw(st.binary(max_size=12))
    words = [draw(SUBJECT)]
    if draw(st.booleans()):
        words.append(draw(SUBJECT))
    if header:
        words.append(b"%d" % len(header))
    words.append(b"%d" % (len(header + payload) + draw(st.sampled_from([0, 0, 0, 0, 1]))))
    verb = b"HPUB" if header else b"PUB"
    return verb + b"".join(draw(BLANK) + word for word in words) + b"\r\n" + header + payload + b"\r\n"


CONVERSATION = st.lists(
    st.one_of(publications(), publications(), lines(), st.binary(max_size=6)), min_size=1, max_size=12
).map(b"".join)


def outcome(twin: str, data: bytes, cuts: list[int], connected: bool = True) -> tuple[bytes, bytes, int]:
    """Return what publisher and subscriber receive when the input arrives in pieces, and the number of operations."""
    desk = Desk(twin)
    greeting = b'CONNECT {"verbose":true,"headers":true,"no_responders":true}\r\n' if connected else b""
    listener = desk.client()
    listener.say(b"SUB > 1\r\n")
    speaker = desk.client(b"", line_max=LINE_MAX, payload_max=PAYLOAD_MAX, ready=True)
    heard = speaker.say(greeting)
    for start, stop in itertools.pairwise([0, *sorted(cuts), len(data)]):
        heard += speaker.say(data[start:stop])
        assert speaker.parser.buffered_bytes <= LINE_MAX * 2 + PAYLOAD_MAX + 16
        if speaker.ended:
            break
    return heard, listener.heard(), speaker.session.in_msgs


@st.composite
def cut_conversations(draw: st.DrawFn) -> tuple[bytes, list[int]]:
    data = draw(CONVERSATION)
    return data, draw(st.lists(st.integers(0, len(data)), max_size=8))


@pytest.mark.parametrize("twin", TWINS)
@settings(max_examples=300, deadline=None)
@given(cut_conversations())
@example((b"PUB a 2\r\nhi\rxPING\r\n", [11]))
@example((b"PUB a 2\r\nhix", []))
@example((b"SUB" + b" " * 100 + b"a 1\r\n", [50]))
@example((b"CONNECT" + b"{" * 70, [20]))
def test_however_it_is_cut_the_same_happens(twin: str, case: tuple[bytes, list[int]]) -> None:
    data, cuts = case
    whole = outcome(twin, data, [])
    assert outcome(twin, data, list(range(len(data)))) == whole
    assert outcome(twin, data, cuts) == whole


@settings(max_examples=300, deadline=None)
@given(cut_conversations(), st.booleans())
def test_both_twins_do_the_same(case: tuple[bytes, list[int]], connected: bool) -> None:
    data, cuts = case
    assert outcome("compiled", data, cuts, connected) == outcome("pure", data, cuts, connected)


@pytest.mark.parametrize("twin", TWINS)
@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=200), max_size=10))
def test_whatever_comes_before_authentication_little_is_held(twin: str, chunks: list[bytes]) -> None:
    client = Desk(twin).client(b"", ready=False)
    for chunk in chunks:
        client.say(b"CONNECT " + chunk if client.parser.buffered_bytes == 0 else chunk)
        assert client.parser.buffered_bytes <= 64 * 1024
        if client.ended or client.session.authenticated:
            return


@st.composite
def interest(draw: st.DrawFn) -> list[tuple[str, bytes]]:
    """Generate a history of subscribing, unsubscribing and publishing."""
    token = st.sampled_from([b"a", b"b", b"c"])
    subject = st.lists(token, min_size=1, max_size=5).map(b".".join)
    pattern = st.lists(st.sampled_from([b"a", b"b", b"*"]), min_size=1, max_size=4).flatmap(
        lambda tokens: st.sampled_from([b".".join(tokens), b".".join([*tokens, b">"])])
    )
    step = st.one_of(
        st.tuples(st.just("sub"), pattern),
        st.tuples(st.just("unsub"), pattern),
        st.tuples(st.just("pub"), subject),
    )
    return draw(st.lists(step, max_size=40))


@pytest.mark.parametrize("twin", TWINS)
@settings(max_examples=300, deadline=None)
@given(interest())
def test_a_cached_route_is_what_the_patterns_say(twin: str, history: list[tuple[str, bytes]]) -> None:
    from headrace.protocol.subjects import matches

    desk = Desk(twin, cache_max=8)
    client = desk.client()
    held: set[bytes] = set()
    for what, subject in history:
        if what == "sub" and subject not in held:
            held.add(subject)
            client.say(b"SUB %s s:%s\r\n" % (subject, subject))
        elif what == "unsub":
            held.discard(subject)
            client.say(b"UNSUB s:%s\r\n" % subject)
        elif what == "pub":
            heard = client.say(b"PUB %s 0\r\n\r\n" % subject)
            sids = sorted(line.split()[2][2:] for line in heard.split(b"\r\n") if line.startswith(b"MSG"))
            assert sids == sorted(pattern for pattern in held if matches(pattern, subject))
    assert desk.hub.subscriptions == len(held)


def test_the_twins_are_two() -> None:
    assert load("compiled").Parser is not load("pure").Parser


@pytest.mark.parametrize("mark", [b"\x0b", b"\x0c"])
def test_a_word_ends_at_a_blank_and_nowhere_else(mark: bytes) -> None:
    """In pure Python, a subject with a vertical tab became two words: on a leafnode connection a subject and a reply."""
    subject = b"a" + mark + b"b"
    for twin in TWINS:
        client = Desk(twin).client()
        assert client.say(b"SUB > 1\r\nPUB %s 1\r\nx\r\n" % subject) == b"MSG %s 1 1\r\nx\r\n" % subject
        assert b"MSG x %s 0\r\n" % subject in client.say(b"SUB x %s\r\nPUB x 0\r\n\r\n" % subject)
    told = Recorder(True)
    LeafnodeParser(told, 100).feed(
        leafnode.encode_msg(subject, b"r" + mark, (), b"", b"x") + b"LS+ %s\r\n" % subject
    )
    assert told.told == [
        ("on_message", subject, b"r" + mark, (), b"", b"x"),
        ("on_interest", subject, None, 1),
    ]
