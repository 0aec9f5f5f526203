"""The examples in the help: every command has one, and all of them parse."""

import shlex
from typing import Any

import pytest

from headrace.cli import docs_reference, main
from headrace.cli.examples import find_example

COMMANDS = {path: command for path, command in docs_reference.iter_commands() if path != "headrace serve"}


@pytest.mark.parametrize("path", COMMANDS)
def test_every_example_parses(path: str) -> None:
    example = find_example(path)
    assert example, f"add an example of {path} to headrace.cli.examples"
    words = shlex.split(example)[len(path.split()) :]
    command: Any = COMMANDS[path]
    assert command.make_context(path, words).command is command


@pytest.mark.parametrize("path", COMMANDS)
def test_every_example_fits_on_a_line(path: str) -> None:
    assert len(f" Example: {find_example(path)}") <= 80


def test_the_example_is_at_the_top_of_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stream", "ls", "--help"]) == 0
    first, second = capsys.readouterr().out.splitlines()[:2]
    assert first.startswith("Usage: headrace stream ls")
    assert second == f"Example: {find_example('headrace stream ls')}"


def test_names_are_whole_words() -> None:
    assert find_example("headrace stream") == "headrace stream ls --subject 'orders.>'"
    assert find_example("headrace str") == ""
