"""`headrace consumer` on both servers."""

import pytest

from cli.conftest import Headrace
from conformance.servers import Server


@pytest.fixture
def filled(headrace: Headrace, stream: str) -> str:
    """The stream with five messages on two subjects in turn."""
    lines = "".join(f'{{"subject": "{stream}.{n % 2}", "payload": "m{n}"}}\n' for n in range(1, 6))
    headrace("batch", "--format", "ndjson", stdin=lines.encode())
    return stream


def test_a_consumer_from_its_making_to_its_end(headrace: Headrace, filled: str) -> None:
    options = ("--filter", f"{filled}.1", "--wait", "10s", "--max-deliver", 7, "--metadata", "team=mill")
    made = headrace.json("consumer", "add", filled, "w", *options)
    config = made["config"]
    assert (config["durable_name"], config["filter_subject"]) == ("w", f"{filled}.1")
    assert (config["ack_policy"], config["ack_wait"], config["max_deliver"]) == ("explicit", 10**10, 7)
    assert made["num_pending"] == 3
    assert headrace("consumer", "ls", filled, "--names") == "w\n"
    assert "pull" in headrace("consumer", "ls", filled)
    assert headrace.json("consumer", "edit", filled, "w", "--wait", "20s", "--dry-run") == {
        "ack_wait": 2 * 10**10
    }
    edited = headrace.json("consumer", "edit", filled, "w", "--max-pending", 9)
    assert edited["config"]["max_ack_pending"] == 9
    assert "max ack pending  9" in headrace("consumer", "info", filled, "w")
    headrace("consumer", "rm", filled, "w", code=2)
    headrace("consumer", "rm", filled, "w", "-f")
    headrace("consumer", "info", filled, "w", code=3)


def test_messages_are_pulled_and_answered(headrace: Headrace, filled: str) -> None:
    headrace("consumer", "add", filled, "w", "--wait", "30s")
    first = headrace.lines("consumer", "next", filled, "w", "--count", 2)
    assert [(each["sequence"], each["payload"], each["delivery"]) for each in first] == [
        (1, "m1", 1),
        (2, "m2", 1),
    ]
    (again,) = headrace.lines("consumer", "next", filled, "w", "--answer", "nak")
    assert again["sequence"] == 3
    (same,) = headrace.lines("consumer", "next", filled, "w", "--answer", "term")
    assert (same["sequence"], same["delivery"]) == (3, 2)
    assert headrace("consumer", "next", filled, "w", "-n", 2, "--raw") == "m4\nm5\n"
    headrace("consumer", "next", filled, "w", "--timeout", 0.2, code=6)
    assert headrace.json("consumer", "info", filled, "w")["ack_floor"]["stream_seq"] == 5


def test_a_reset_consumer_delivers_again(headrace: Headrace, filled: str) -> None:
    headrace("consumer", "add", filled, "w")
    headrace("consumer", "next", filled, "w", "--count", 3)
    assert headrace.json("consumer", "reset", filled, "w", "--seq", 2, "-f")["reset_seq"] == 2
    assert headrace("consumer", "sub", filled, "w", "--count", 2, "--raw") == "m2\nm3\n"
    headrace("consumer", "reset", filled, "nobody", "-f", "--timeout", 1, code=3)


def test_a_consumer_pauses(headrace: Headrace, filled: str) -> None:
    headrace("consumer", "add", filled, "w")
    assert headrace.json("consumer", "pause", filled, "w", "10m")["paused"]
    assert "paused" in headrace("consumer", "ls", filled)
    headrace("consumer", "next", filled, "w", "--timeout", 0.2, code=6)
    assert headrace("consumer", "resume", filled, "w") == "w is not paused\n"
    headrace("consumer", "pause", filled, "w", "sometime", code=2)


@pytest.mark.parametrize(
    ("start", "first"), [("all", "m1"), ("last", "m5"), ("subject", "m4"), ("3", "m3"), ("1h", "m1")]
)
def test_where_a_consumer_starts(headrace: Headrace, filled: str, start: str, first: str) -> None:
    more = ("--filter", f"{filled}.>") if start == "subject" else ()
    headrace("consumer", "add", filled, "w", "--start", start, *more)
    assert headrace("consumer", "next", filled, "w", "--raw") == f"{first}\n"


def test_consumer_sub_prints_pushed_messages(headrace: Headrace, filled: str) -> None:
    headrace("consumer", "add", filled, "p", "--deliver", f"deliver_{filled}", "--ack", "none")
    assert headrace("consumer", "sub", filled, "p", "--count", 5, "--raw") == "m1\nm2\nm3\nm4\nm5\n"
    headrace("consumer", "next", filled, "p", code=2)
    assert "consumer sub" in headrace.error


def test_a_consumer_for_sourcing(headrace: Headrace, filled: str) -> None:
    headrace("consumer", "add", filled, "s", "--for-sourcing", code=2)
    assert "--deliver" in headrace.error
    headrace("consumer", "add", filled, "s", "--for-sourcing", "--deliver", "x", "--wait", "1s", code=2)
    made = headrace.json("consumer", "add", filled, "s", "--for-sourcing", "--deliver", f"copy_{filled}")
    assert made["config"]["ack_policy"] == "flow_control"
    through = f"--source {filled} --through s:copy_{filled}"
    assert through in headrace.error
    copy = headrace.json("stream", "add", f"{filled}C", *through.split())
    assert copy["config"]["sources"][0]["consumer"] == {"name": "s", "deliver_subject": f"copy_{filled}"}
    headrace("stream", "rm", f"{filled}C", "-f")


def test_dead_letters_are_listed_and_redriven(headrace: Headrace, filled: str, server: Server) -> None:
    if not server.is_ours:
        headrace("consumer", "add", filled, "w", "--dead-letter", "elsewhere", code=1)
        assert "unknown field" in headrace.error
        return
    letters = f"{filled}-dead"
    headrace("stream", "add", letters, "--subjects", letters)
    options = ("--max-pending-per-subject", 1, "--dead-letter", letters, "--dead-letter-on", "term")
    config = headrace.json("consumer", "add", filled, "w", *options)["config"]
    assert config["max_ack_pending_per_subject"] == 1
    assert config["dead_letter"] == {"subject": letters, "on": ["term"]}
    headrace("consumer", "dlq", "ls", filled, "w")
    assert "no dead letters" in headrace.error
    headrace("consumer", "next", filled, "w", "--answer", "term", "-n", 2)
    found = headrace.json("consumer", "dlq", "ls", filled, "w")
    assert [(each["sequence"], each["stream_sequence"], each["reason"]) for each in found] == [
        (1, 1, "term"),
        (2, 2, "term"),
    ]
    assert "term" in headrace("consumer", "dlq", "ls", filled, "w")
    headrace("consumer", "dlq", "redrive", filled, "w", "-f", code=2)
    headrace("consumer", "dlq", "redrive", filled, "w", 9, "-f", code=3)
    (redriven,) = headrace.json("consumer", "dlq", "redrive", filled, "w", 2, "-f")["redriven"]
    assert redriven == {"dead_letter": 2, "stream": filled, "seq": 6}
    headrace("consumer", "dlq", "redrive", filled, "w", "--all", "-f")
    assert headrace.json("stream", "info", letters)["state"]["messages"] == 0
    config = headrace.json("consumer", "edit", filled, "w", "--dead-letter", "none")["config"]
    assert "dead_letter" not in config
    headrace("consumer", "dlq", "ls", filled, "w", code=3)
    headrace("stream", "rm", letters, "-f")


def test_a_redrive_that_fails_says_what_it_did(headrace: Headrace, filled: str, server: Server) -> None:
    """Also of dead letters that a transform stores on other subjects."""
    if not server.is_ours:
        return
    letters = f"{filled}-dead"
    options = ("--transform", f"{letters}:{letters}-stored")
    headrace("stream", "add", letters, "--subjects", letters, *options)
    headrace("consumer", "add", filled, "w", "--dead-letter", letters, "--dead-letter-on", "term")
    headrace("consumer", "next", filled, "w", "--answer", "term", "-n", 3)
    found = headrace.json("consumer", "dlq", "ls", filled, "w")
    assert [each["stream_sequence"] for each in found] == [1, 2, 3]
    messages = headrace.json("stream", "info", filled)["state"]["messages"]
    headrace("stream", "edit", filled, "--max-msgs", messages + 1, "--discard", "new")
    shown = headrace.json("consumer", "dlq", "redrive", filled, "w", "--all", "-f", code=1)
    assert [each["dead_letter"] for each in shown["redriven"]] == [1]
    assert "dead letter 2 was not redriven, nor were those after it" in headrace.error
    assert "maximum messages exceeded" in headrace.error
    assert "redrove 0 of 1 dead letters of w" in headrace(
        "consumer", "dlq", "redrive", filled, "w", 3, "-f", code=1
    )
    headrace("stream", "rm", letters, "-f")
