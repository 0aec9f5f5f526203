"""Output: figures for people, plain columns for pipes, no control characters on a terminal."""

from collections.abc import Callable

import pytest

from headrace.cli import output
from headrace.cli.exit_codes import CliError


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0s"),
        (250_000_000, "250ms"),
        (1_500_000_000, "1.5s"),
        (90 * 10**9, "1m30s"),
        (3600 * 10**9, "1h"),
        (86_400 * 10**9, "1d"),
        (90_061 * 10**9, "1d1h"),
    ],
)
def test_durations_are_printed_for_people(nanoseconds: int, text: str) -> None:
    assert output.format_duration(nanoseconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 * 2**40, "5.0 TiB")]
)
def test_sizes_are_printed_for_people(count: int, text: str) -> None:
    assert output.format_size(count) == text


def test_times_are_printed_for_people() -> None:
    assert output.format_time("2026-01-31T12:00:00.123456789Z") == "2026-01-31 12:00:00"
    assert output.format_time("2026-01-31T14:00:00+02:00") == "2026-01-31 12:00:00"
    assert output.format_time("0001-01-01T00:00:00Z") == ""
    assert output.format_age("0001-01-01T00:00:00Z") == "never"
    assert output.format_age("2020-01-31T12:00:00.123456789Z").endswith(("d", "h"))


def test_zeros_at_the_end_of_a_time_are_trimmed_as_servers_do() -> None:
    assert output.trim_time("2026-11-19T21:58:11.325625760Z") == "2026-11-19T21:58:11.32562576Z"
    assert output.trim_time("2026-11-19T21:58:10.000000000Z") == "2026-11-19T21:58:10Z"
    assert output.trim_time("2026-11-19T21:58:10Z") == "2026-11-19T21:58:10Z"


def test_control_characters_become_visible() -> None:
    assert output.escape_control("a\x1b]0;x\x07\u202eb\tc\nd\x9b") == "a\\x1b]0;x\\x07\\u202eb\tc\nd\\x9b"


def test_payloads_in_json() -> None:
    assert output.encode_payload("pears ü".encode()) == {"payload": "pears ü"}
    assert output.encode_payload(b"\xff") == {"payload_base64": "/w=="}


def test_tables_in_pipes_are_plain_columns(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(("name", "messages"), [("a", "1,000"), ("long name", "7")])
    assert capsys.readouterr().out == "NAME       MESSAGES\na             1,000\nlong name         7\n"
    output.print_table(("name",), [])
    assert capsys.readouterr().out == "NAME\n"


@pytest.mark.parametrize("answer", ["y\n", "YES\n"])
def test_a_confirmed_question_continues(answer: str, asked: Callable[[str], None]) -> None:
    asked(answer)
    output.confirm("Sure?", force=False)


@pytest.mark.parametrize("answer", ["n\n", "\n", "", "yesterday\n"])
def test_anything_else_is_a_no(answer: str, asked: Callable[[str], None]) -> None:
    asked(answer)
    with pytest.raises(CliError, match="nothing was changed"):
        output.confirm("Sure?", force=False)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Simulate a user at the terminal who gives this answer."""

    def answer_with(answer: str) -> None:
        class Person:
            def isatty(self) -> bool:
                return True

            def readline(self) -> str:
                return answer

        monkeypatch.setattr("sys.stdin", Person())

    return answer_with
