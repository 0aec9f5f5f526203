"""`headrace stream view`, `find`, `gaps` and `copy` on both servers."""

from pathlib import Path

import pytest

from cli.conftest import Headrace
from cli.terminal import Terminal


@pytest.fixture
def orders(headrace: Headrace, stream: str) -> str:
    """A stream with four messages."""
    headrace("pub", f"{stream}.eu", '{"customer": "Ann"}', "-J", "-H", "Kind:a", "-H", "Source:web")
    headrace("pub", f"{stream}.us", '{"customer": "bob"}', "-J", "-H", "Kind:b")
    headrace("pub", f"{stream}.eu", "-J", stdin=b"\xffann\x00")
    headrace("pub", f"{stream}.us", "grüße", "-J")
    return stream


def test_a_pipe_gets_all_messages(headrace: Headrace, orders: str) -> None:
    found = headrace.lines("stream", "view", orders)
    assert [each["seq"] for each in found] == [1, 2, 3, 4]
    assert found[0]["headers"] == {"Kind": "a", "Source": "web"}
    assert found[2]["payload_base64"] == "/2FubgA="
    assert [each["seq"] for each in headrace.lines("stream", "view", orders, "--since", 3)] == [3, 4]
    filtered = headrace.lines("stream", "view", orders, "--subject", f"{orders}.us", "-n", 1)
    assert [each["seq"] for each in filtered] == [2]
    assert headrace("stream", "view", orders, "--raw", "-n", 1) == '{"customer": "Ann"}\n'
    assert f"[{orders}.us] sequence 2," in headrace("stream", "view", orders, "--page", 1)
    assert headrace("stream", "view", orders, "--since", "2100-01-01T00:00:00Z") == ""
    assert "no such messages" in headrace.error
    headrace("stream", "view", f"{orders}x", code=3)


def test_a_terminal_gets_pages(headrace: Headrace, orders: str) -> None:
    with Terminal("stream", "view", orders, "--page", 2, url=headrace.url) as terminal:
        terminal.expect("2 shown; Enter: next page, q: quit")
        assert "sequence 3" not in terminal.text
        terminal.press("\n")
        terminal.expect("grüße")
        assert terminal.ended() == 0
    with Terminal("stream", "view", orders, "--page", 1, url=headrace.url) as terminal:
        terminal.expect("1 shown; Enter: next page, q: quit")
        terminal.press("q\n")
        assert terminal.ended() == 0
        assert "sequence 2" not in terminal.text


def test_messages_are_found_by_their_content(headrace: Headrace, orders: str) -> None:
    def find(*words: object) -> list[int]:
        return [each["seq"] for each in headrace.lines("stream", "find", orders, *words)]

    assert find("ann") == [3]
    assert find("ann", "--ignore-case") == [1, 3]
    assert find('"customer": "(Ann|bob)"', "--regex") == [1, 2]
    assert find("grüße") == [4]
    assert find("--header", "Kind") == [1, 2]
    assert find("--header", "Kind:a") == [1]
    assert find("customer", "--header", "Kind:b", "--header", "Kind") == [2]
    assert find("--subject", f"{orders}.us", "--since", 3) == [4]
    assert find("--until", 3, "-n", 1) == [1]
    first = headrace.lines("stream", "find", orders, "Ann")[0]
    assert first == headrace.lines("stream", "view", orders, "-n", 1)[0]
    assert "grüße" in headrace("stream", "find", orders, "gr")
    headrace("stream", "find", orders, "nowhere", code=3)
    assert "no such message" in headrace.error
    headrace("stream", "find", orders, "(", "--regex", code=2)
    assert "is not a regular expression" in headrace.error
    headrace("stream", "find", orders, "--subject", "a..b", code=2)
    assert "invalid subject" in headrace.error


def test_gaps_are_ranges(headrace: Headrace, orders: str) -> None:
    assert headrace.json("stream", "gaps", orders) == []
    headrace("stream", "gaps", orders)
    assert "no deleted messages" in headrace.error
    for seq in (2, 3):
        headrace("stream", "rmm", orders, seq, "-f")
    assert headrace.json("stream", "gaps", orders) == [{"first": 2, "last": 3, "count": 2}]
    assert headrace("stream", "gaps", orders).splitlines()[1].split() == ["2", "3", "2"]


def test_a_copy_has_the_configuration(headrace: Headrace, orders: str, tmp_path: Path) -> None:
    headrace("stream", "copy", orders, f"{orders}c", code=2)
    assert f"--source {orders}" in headrace.error
    made = headrace.json(
        "stream", "copy", orders, f"{orders}c", "--subjects", f"{orders}c.>", "--max-msgs", 7
    )
    config = made["config"]
    assert (config["subjects"], config["max_msgs"], config["allow_atomic"]) == ([f"{orders}c.>"], 7, True)
    mirror = headrace.json("stream", "copy", orders, f"{orders}m", "--mirror", orders, "--no-allow-atomic")
    assert (mirror["config"]["mirror"]["name"], mirror["config"].get("subjects")) == (orders, None)
    headrace("stream", "copy", f"{orders}x", f"{orders}y", code=3)
    for each in ("c", "m"):
        headrace("stream", "rm", f"{orders}{each}", "-f")
