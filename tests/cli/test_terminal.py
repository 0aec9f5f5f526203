"""The command line in a real terminal: tables, confirmations, keys and Ctrl-C."""

import re

import pytest

from cli.conftest import Headrace
from cli.terminal import Terminal


def test_help_is_drawn() -> None:
    with Terminal("--help") as terminal:
        assert terminal.ended() == 0
        assert "─ Streams ─" in terminal.text
        assert "serve" in terminal.text


def test_a_table_is_drawn(headrace: Headrace, stream: str) -> None:
    with Terminal("stream", "ls", url=headrace.url) as terminal:
        assert terminal.ended() == 0
        assert "╭" in terminal.text
        assert stream in terminal.text


@pytest.mark.parametrize(("answer", "code", "left"), [("n", 1, 0), ("y", 0, 3)])
def test_destroying_is_asked_for(headrace: Headrace, stream: str, answer: str, code: int, left: int) -> None:
    with Terminal("stream", "rm", stream, url=headrace.url) as terminal:
        terminal.expect(f"Remove stream {stream} and its 0 messages? [y/N]")
        terminal.press(f"{answer}\n")
        assert terminal.ended() == code
        assert ("nothing was changed" in terminal.text) == (answer == "n")
    headrace("stream", "info", stream, code=left)
    if answer == "y":
        headrace("stream", "add", stream, "--subjects", f"{stream}.>")


def test_ctrl_c_ends_cleanly(headrace: Headrace, name: str) -> None:
    with Terminal("sub", f"{name}.>", url=headrace.url) as terminal:
        terminal.expect(f"Subscribed to {name}.>")
        headrace("pub", f"{name}.1", "\x1b]0;mine now\x07\x1b[2Jhello")
        terminal.expect("hello")
        assert terminal.interrupted() == 130
        assert "Traceback" not in terminal.text
        # A payload cannot send control sequences to the terminal.
        assert "\\x1b]0;mine now\\x07\\x1b[2Jhello" in terminal.text
        assert "\x1b]0;" not in terminal.raw


def test_a_payload_is_asked_for(headrace: Headrace, stream: str) -> None:
    with Terminal("pub", "-J", f"{stream}.1", url=headrace.url) as terminal:
        terminal.expect("Enter the payload")
        terminal.press("hello\n\x04")
        assert terminal.ended() == 0
    assert headrace.json("stream", "get", stream, 1)["payload"] == "hello\n"


def test_ctrl_c_instead_of_a_payload_ends_cleanly(headrace: Headrace, name: str) -> None:
    with Terminal("pub", name, url=headrace.url) as terminal:
        terminal.expect("Enter the payload")
        assert terminal.interrupted() == 130
        assert "Traceback" not in terminal.text


def test_ctrl_c_at_a_question_changes_nothing(headrace: Headrace, stream: str) -> None:
    with Terminal("stream", "purge", stream, url=headrace.url) as terminal:
        terminal.expect("[y/N]")
        assert terminal.interrupted() == 130
        assert "Traceback" not in terminal.text


def test_top_is_live_and_gives_the_terminal_back(headrace: Headrace, stream: str) -> None:
    headrace("consumer", "add", stream, "slow")
    with Terminal("top", "--interval", 0.1, url=headrace.url) as terminal:
        terminal.expect(stream)
        headrace("pub", f"{stream}.1", "x", "--count", 7)
        terminal.expect(f"{stream} > slow")
        terminal.press("q")
        assert terminal.ended() == 0
        assert terminal.as_it_was()
        assert terminal.raw.count("\x1b[?1049h") == terminal.raw.count("\x1b[?1049l") == 1


def test_long_work_shows_its_progress(headrace: Headrace) -> None:
    with Terminal("bench", "pub", "--msgs", 20_000, url=headrace.url) as terminal:
        assert terminal.ended() == 0
        assert "publishing" in terminal.text
        assert "pub: " in terminal.text


@pytest.mark.parametrize("columns", [80, 100])
def test_help_gives_explanations_most_of_the_line(columns: int) -> None:
    with Terminal("stream", "add", "--help", columns=columns) as terminal:
        assert terminal.ended() == 0
        lines = terminal.text.splitlines()
    assert all(len(line.rstrip()) <= columns for line in lines)
    assert any(re.match(r"│ --max-msgs N +Maximum messages; -1: unlimited\. +│", line) for line in lines)
    (switch,) = [line for line in lines if "--[no-]discard-per-subject" in line]
    assert switch.index("With --discard new") < columns / 2
