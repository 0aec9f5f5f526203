"""The table of commands: all exist, nothing is imported before it is needed, mistakes are explained."""

import re
import subprocess
import sys

import pytest

from headrace.cli import app, docs_reference, main
from headrace.cli.consumer_options import parse_start, parse_time
from headrace.cli.exit_codes import CliError
from headrace.cli.stream_options import apply_options, split_pair

NAMES = [name for group in app.COMMANDS.values() for name, *_ in group]


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    assert re.match("usage: headrace", capsys.readouterr().out, re.IGNORECASE)


def test_every_command_and_option_says_what_it_does() -> None:
    for path, command in docs_reference.iter_commands():
        assert command.help, path
        for parameter in command.params:
            assert parameter.help or path == "headrace serve", f"{path} {parameter.name}"


@pytest.mark.parametrize("words", [[], *([name] for name in NAMES), ["consumer", "dlq"]], ids=" ".join)
def test_no_summary_is_cut_off(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*words, "--help"]) == 0
    shown = capsys.readouterr().out
    assert words or "  stream  " in shown
    assert not [line for line in shown.splitlines() if line.endswith("...") and not line.startswith("Usage:")]


def modules_after(code: str) -> set[str]:
    """Return the modules that a new process has imported."""
    code = f"import sys\n{code}\nprint('\\n'.join(sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_help_loads_no_command_and_no_client() -> None:
    loaded = modules_after("from headrace.cli import main; main(['--help'])")
    assert not loaded & {"nats", "numpy", "msgspec", "rich.console", "headrace.client"}
    assert not any(name.startswith("headrace.cli.stream") for name in loaded)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["strem", "ls"], "'stream'"),
        (["stream", "inof"], "'info'"),
        (["stream", "ls", "--jsn"], "--json"),
        (["kv", "get", "b"], "'key'"),
        (["stream", "info", "a.b"], "invalid name"),
        (["consumer", "add", "S", "a b"], "invalid name"),
        (["stream", "get", "S", "first"], "'seq'"),
    ],
)
def test_a_mistake_is_explained(words: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    said = capsys.readouterr().err
    assert hint in said
    assert "Traceback" not in said


def test_a_defect_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("headrace.cli.contexts.list_names", broken)
    with pytest.raises(ZeroDivisionError):
        main(["context", "ls"])


def test_options_of_streams() -> None:
    given = {
        "subjects": ["a,b", "c"],
        "retention": "work",
        "max_bytes": "unlimited",
        "max_age": "0",
        "ack": False,
        "sources": ["A", "B"],
        "republish": "a.>:b.>",
        "tags": ["ssd"],
        "cluster": "east",
        "metadata": ["team = mill"],
    }
    assert apply_options({"name": "S"}, given) == {
        "name": "S",
        "subjects": ["a", "b", "c"],
        "retention": "workqueue",
        "max_bytes": -1,
        "max_age": 0,
        "no_ack": True,
        "sources": [{"name": "A"}, {"name": "B"}],
        "republish": {"src": "a.>", "dest": "b.>"},
        "placement": {"tags": ["ssd"], "cluster": "east"},
        "metadata": {"team": "mill"},
    }


def test_options_that_say_nothing() -> None:
    with pytest.raises(CliError, match="use FROM:TO"):
        split_pair("a", "FROM:TO")
    with pytest.raises(CliError, match="name=value"):
        apply_options({}, {"metadata": ["x"]})
    with pytest.raises(CliError, match="exactly one"):
        apply_options({}, {"sources": ["A", "B"], "through": "c:d"})


def test_where_consumers_start() -> None:
    assert parse_start("subject") == {"deliver_policy": "last_per_subject"}
    assert parse_start("17") == {"deliver_policy": "by_start_sequence", "opt_start_seq": 17}
    assert parse_start("2026-01-31T12:00:00+02:00")["opt_start_time"] == "2026-01-31T10:00:00.000000Z"
    assert parse_time("1h", future=True) > parse_time("1h")
    with pytest.raises(CliError, match="is not a time"):
        parse_start("tomorrow")
