"""Replays the client protocol transcripts of tests/wire against both servers, byte by byte."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from conformance import transcript
from conformance.client import EOF, Wire
from conformance.servers import Server, Setup
from conformance.transcript import Conversation

FILES = ("core.txt", "auth.txt", "limits.txt", "permissions.txt", "liveness.txt")

#: The servers that the titles name in brackets.
SETUPS = {
    "D": Setup(),
    "U": Setup(flags=("--user", "ivan", "--pass", "foo")),
    "T": Setup(flags=("--auth", "tok")),
    "L": Setup(settings={"max_payload": 8, "max_subscriptions": 2, "max_subscription_tokens": 3}),
    "G": Setup(settings={"ping_interval": "300ms", "ping_max": 2}),
    "P": Setup(
        config="""authorization { users = [ { user: a, password: pa, permissions: {
            publish: { allow: ["foo.>"], deny: "foo.secret" }
            subscribe: { allow: ["bar.>", "qq v1"], deny: "bar.no" } } } ] }"""
    ),
}


@pytest.fixture(scope="module")
def servers(kind: str) -> Iterator[Callable[[str], Server]]:
    """Return the server of a letter, started on first use."""
    started: dict[str, Server] = {}

    def server(letter: str) -> Server:
        if letter not in started:
            started[letter] = Server(kind, SETUPS[letter])
        return started[letter]

    yield server
    for running in started.values():
        running.close()


def _parameters() -> list[object]:
    return [pytest.param(talk, id=str(talk)) for file in FILES for talk in transcript.load(file)]


@pytest.mark.parametrize("talk", _parameters())
def test_each_protocol_transcript_matches(servers: Callable[[str], Server], talk: Conversation) -> None:
    expected = list(talk.expected)
    with Wire(servers(talk.server).port, answer_pings=talk.server != "G") as wire:
        wire.send(transcript.to_bytes(talk.sent))
        received = wire.frames(_frames_in(talk.expected))
        if received[-1:] != [EOF]:
            wire.send(b"PING\r\n")  # only the reply to this may follow
            received.append(wire.frame())
            expected.append("PONG")
    lines = [line for frame in received for line in _lines(frame)]
    difference = transcript.differences(expected, lines)
    if difference:
        pytest.fail(f"{talk.title}\n{difference}", pytrace=False)


def _lines(frame: bytes) -> list[str]:
    return [transcript.END] if frame == EOF else transcript.to_lines(frame)


def _frames_in(expected: list[str]) -> int:
    """Return how many protocol frames the lines contain: a payload belongs to its control line."""
    data = transcript.to_bytes([line for line in expected if line != transcript.END])
    count = 0
    while data:
        line, _, rest = data.partition(b"\r\n")
        size = int(line.split()[-1]) + 2 if line.startswith((b"MSG ", b"HMSG ")) else 0
        data = rest[size:]
        count += 1
    return count + (transcript.END in expected)
