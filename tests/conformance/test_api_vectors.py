"""Replays the JetStream API transcripts of tests/wire, in order, against an empty server of each kind.

A file is replayed once; each of its steps is a separate test, so that a failure names the step.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from conformance import transcript
from conformance.client import Client, Message
from conformance.servers import Server, Setup
from conformance.transcript import Conversation

Answers = dict[str, list[list[str]]]
SILENCE = ["(silence)"]
WAIT_S = 60.0


@pytest.fixture(scope="module")
def replay(kind: str) -> Callable[[str], Answers]:
    """Return the replies to a file's steps, which are replayed on first use."""
    replayed: dict[str, Answers] = {}

    def answers(file: str) -> Answers:
        if file not in replayed:
            with Server(kind) as server, Client(server.port) as client:
                replayed[file] = _replay(client, transcript.load(file))
        return replayed[file]

    return answers


def _replay(client: Client, steps: list[Conversation]) -> Answers:
    sid = client.subscribe("_I.>")
    answers: Answers = {step.number: [] for step in steps}
    ack = ""
    for step in steps:
        _send(client, step, ack)
        wanted = len(_replies(step.expected))
        while len(answers[step.number]) < wanted:
            try:
                message = client.next(sid, WAIT_S)
            except TimeoutError:
                break
            number = message.subject.removeprefix("_I.") if message.subject.startswith("_I.") else step.number
            answers[number].append(_shown(message))
            ack = message.reply or ack
    for message in client.pending(sid):  # replies that no step expects
        answers[message.subject.removeprefix("_I.")].append(_shown(message))
    return answers


def _send(client: Client, step: Conversation, ack: str) -> None:
    subject, _, body = step.sent[0].partition(" ")
    headers = dict(line[2:].split(": ", 1) for line in step.sent[1:])
    client.publish(subject.replace("‹ack›", ack), body.encode(), headers or None, f"_I.{step.number}")


def _shown(message: Message) -> list[str]:
    """Format a message in the notation of the files."""
    lines = [] if message.subject.startswith("_I.") else [f"@ {message.subject} {message.reply}"]
    lines += transcript.to_lines(message.header) if message.header else []
    if message.payload or not lines:
        lines.append(message.payload.decode() or "(empty)")
    return lines


def _replies(expected: list[str]) -> list[list[str]]:
    replies: list[list[str]] = [[]]
    for line in expected:
        if line == "--":
            replies.append([])
        else:
            replies[-1].append(line)
    return [] if replies == [SILENCE] else replies


def _steps(file: str) -> list[object]:
    return [pytest.param(step, id=str(step)) for step in transcript.load(file)]


def _check(step: Conversation, received: list[list[str]]) -> None:
    expected = _replies(step.expected)
    lines = [line for reply in received for line in (*reply, "--")]
    wanted = [line for reply in expected for line in (*reply, "--")]
    if transcript.differences(wanted, lines):
        pytest.fail(_explain(step, wanted, lines), pytrace=False)


def _explain(step: Conversation, wanted: list[str], lines: list[str]) -> str:
    """Return the difference, with JSON on several lines and accepted placeholders filled in."""
    pairs = [*zip(wanted, lines, strict=False)]
    spread = [transcript.json_text(w, r) if w.startswith("{") else w for w, r in pairs]
    got = [transcript.json_text(r, r) if r.startswith("{") else r for r in lines]
    left = "\n".join([*spread, *wanted[len(pairs) :]]).splitlines()
    return f"{step.title}\n{transcript.differences(left, chr(10).join(got).splitlines())}"


@pytest.mark.parametrize("step", _steps("streams.txt"))
def test_stream_api_transcript_matches(replay: Callable[[str], Answers], step: Conversation) -> None:
    _check(step, replay("streams.txt")[step.number])


@pytest.mark.parametrize("step", _steps("consumers.txt"))
def test_consumer_api_transcript_matches(replay: Callable[[str], Answers], step: Conversation) -> None:
    _check(step, replay("consumers.txt")[step.number])


def test_an_account_info_does_not_count_itself(fresh_server: Server) -> None:
    with Client(fresh_server.port) as client:
        assert (client.api("INFO")["api"]["total"], client.api("INFO")["api"]["total"]) == (0, 1)
        client.api("STREAM.INFO.NO")
        counts = client.api("INFO")["api"]
        assert (counts["total"], counts["errors"]) == (3, 1)


def test_unknown_keys_where_nobody_minds(launch: Callable[[Setup], Server]) -> None:
    with Client(launch(Setup(config="jetstream { strict: false }")).port) as client:
        assert "error" not in client.api("STREAM.CREATE.S", {"name": "S", "unknown": 1})
        assert "error" not in client.api("STREAM.INFO.S", {"unknown": 1})
        config = {"name": "C", "ack_policy": "explicit", "unknown": {"more": 1}}
        assert "error" not in client.api("CONSUMER.CREATE.S.C", {"stream_name": "S", "config": config})
        assert client.api("STREAM.PURGE.S", {"unknown": 1})["success"]
