"""The configuration format."""

import textwrap
import time

import pytest

from headrace.config.config_parser import ConfigFileError, parse_config


def read(
    text: str, files: dict[str, str] | None = None, environment: dict[str, str] | None = None
) -> dict[str, object]:
    def find(path: str) -> str:
        if files is None or path not in files:
            raise FileNotFoundError(2, "No such file or directory")
        return files[path]

    return dict(parse_config(textwrap.dedent(text), "conf/server.conf", find, environment or {}))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("# nothing\n// here", {}),
        ("a: 1", {"a": 1}),
        ("a = 1", {"a": 1}),
        ("a 1", {"a": 1}),
        ("a:1,b:2;c:3", {"a": 1, "b": 2, "c": 3}),
        ("a: -1", {"a": -1}),
        ("a: 1.5", {"a": 1.5}),
        ("a: 8k", {"a": 8000}),
        ("a: 64MB", {"a": 64 << 20}),
        ("a: 1Gi", {"a": 1 << 30}),
        ("a: yes\nb: OFF", {"a": True, "b": False}),
        ('a: "yes"', {"a": "yes"}),
        ("a: 'raw \\n'", {"a": "raw \\n"}),
        (r'a: "tab\t quote\" \x41"', {"a": 'tab\t quote" A'}),
        ("a: 127.0.0.1:4222", {"a": "127.0.0.1:4222"}),
        ("a: nats://user@host:4222 # comment", {"a": "nats://user@host:4222"}),
        ("a: /tmp/x // comment", {"a": "/tmp/x"}),
        ("a: id:XYZ", {"a": "id:XYZ"}),
        ("a: [1, 2, 3]", {"a": [1, 2, 3]}),
        ("a: [\n x\n y # one\n 'z'\n]", {"a": ["x", "y", "z"]}),
        ("a { b: 1 }", {"a": {"b": 1}}),
        ("a\n{\n b: 1\n}", {"a": {"b": 1}}),
        ("a: { b { c: [ {d: 1}, {d: 2} ] } }", {"a": {"b": {"c": [{"d": 1}, {"d": 2}]}}}),
        ('{"a": {"b": [1, true, "x"]}, "c": null}', {"a": {"b": [1, True, "x"]}, "c": "null"}),
        ('"quoted key": 1', {"quoted key": 1}),
        ("a (\n one\n two\n)\nb: 1", {"a": "\n one\n two", "b": 1}),
        ("a: 1\na: 2", {"a": 2}),
        ("a: 5\nb: $a", {"a": 5, "b": 5}),
        ("a: 5\nb { c: $a }", {"a": 5, "b": {"c": 5}}),
        ("a: $2a$11$abc", {"a": "$2a$11$abc"}),
        ("a: [$KV.>, $JS.API.>]", {"a": ["$KV.>", "$JS.API.>"]}),
        ("a: 2s\nb: 10m", {"a": "2s", "b": 10_000_000}),
    ],
)
def test_what_is_read(text: str, expected: dict[str, object]) -> None:
    assert read(text) == expected


@pytest.mark.parametrize(
    ("text", "place", "word"),
    [
        ("a: 1 b: 2", "1:6", "new line"),
        ("a: {\n b: 1", "2:6", "}"),
        ("a: [1, 2", "1:9", "]"),
        ("a:", "1:3", "missing"),
        ("\n\nb: 1\n  ws{ a: 1 }", "4:3", "space"),
        ('a: "no end', "1:4", "closing"),
        (r'a: "\q"', "1:8", "escape"),
        ("a: 1\n}", "2:1", "expected a key"),
        ("{a: 1} b", "1:8", "after the end"),
        ("a: $UNKNOWN", "1:4", "UNKNOWN"),
        (": 1", "1:1", "key"),
        ("include missing.conf", "1:9", "missing.conf"),
        ("a (\n no end", "1:3", "block"),
        ("a{" * 200, "1:1", "space"),
        ("a { " * 200, "", "deep"),
    ],
)
def test_mistakes_have_a_place(text: str, place: str, word: str) -> None:
    with pytest.raises(ConfigFileError) as caught:
        read(text)
    assert str(caught.value).startswith(f"conf/server.conf:{place}")
    assert word in str(caught.value)


def test_variables_of_the_environment() -> None:
    assert read("a: $PORT\nb: $NAME", environment={"PORT": "4222", "NAME": "x y"}) == {"a": 4222, "b": "x y"}


def test_files_are_included_from_the_folder_of_the_file() -> None:
    files = {
        "conf/users.conf": "users [ {user: $NAME} ]\ninclude 'more/last.conf'",
        "conf/more/last.conf": "z: 1",
    }
    text = "NAME: ada\nauthorization { include ./users.conf }\nport: 1"
    assert read(text, files) == {
        "NAME": "ada",
        "authorization": {"users": [{"user": "ada"}], "z": 1},
        "port": 1,
    }


def test_files_that_include_each_other_are_refused() -> None:
    with pytest.raises(ConfigFileError, match="included files"):
        read("include a.conf", {"conf/a.conf": "include a.conf"})


def test_a_long_configuration_takes_time_in_proportion() -> None:
    text = "".join(f"tag{number}: 1\n" for number in range(40_000)) + "port: 1\n"
    begun = time.thread_time()
    places = parse_config(text, "x.conf", lambda path: "", {}).positions
    assert time.thread_time() - begun < 4
    assert (places["tag39999"].line, places["port"].column) == (40_000, 1)
