"""What the command line says to a newcomer who mistypes a name, takes the wrong port or lacks a permission."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from cli.conftest import Headrace
from conformance.servers import Server, Setup

USERS = """authorization { users [
  { user: admin, password: pw }
  { user: ann, password: pw, permissions: { publish: ["orders.>"], subscribe: ["_INBOX.>", "orders.>"] } }
] }"""
ANN = ("--user", "ann", "--password", "pw")


def test_a_mistyped_name_gets_similar_ones(headrace: Headrace, stream: str) -> None:
    headrace("stream", "info", f"{stream}x", code=3)
    assert f"'{stream}x'; did you mean '{stream}'" in headrace.error
    headrace("stream", "info", stream.lower(), code=3)
    assert f"did you mean '{stream}'" in headrace.error
    headrace("consumer", "add", stream, "billing")
    headrace("consumer", "info", stream, "biling", code=3)
    assert "did you mean 'billing'?" in headrace.error
    assert "headrace consumer ls" in headrace.error
    headrace("stream", "info", "nothing-like-it", code=3)
    assert "stream not found: 'nothing-like-it'; list streams with" in headrace.error


def test_a_mistyped_bucket_or_key(headrace: Headrace, name: str) -> None:
    headrace("kv", "add", f"{name}settings")
    headrace("kv", "get", f"{name}setings", "color", code=3)
    assert f"did you mean '{name}settings'?" in headrace.error
    headrace("kv", "get", f"{name}settings", "colour", code=3)
    assert "headrace kv keys" in headrace.error


def test_subjects_of_another_stream_name_the_command_that_finds_it(headrace: Headrace, stream: str) -> None:
    headrace("stream", "add", f"{stream}2", "--subjects", f"{stream}.1", code=1)
    assert "headrace stream ls --subject" in headrace.error


def test_a_port_that_is_not_for_clients(headrace: Headrace) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=lambda: listening.accept()[0].close(), daemon=True).start()
        headrace("stream", "ls", "-s", f"127.0.0.1:{listening.getsockname()[1]}", code=5)
    assert "is it the port for clients" in headrace.error


@pytest.fixture
def guarded(server: Server) -> Iterator[Server]:
    """A server whose user ann may do little."""
    with Server(server.kind, Setup(config=USERS)) as running:
        yield running


def test_what_the_permissions_deny_is_an_error(headrace: Headrace, guarded: Server) -> None:
    headrace.url = guarded.url
    headrace("pub", "other.1", "x", *ANN, code=1)
    assert 'violation for publish to "other.1"' in headrace.error
    headrace("sub", "other.>", *ANN, code=1)
    assert 'violation for subscription to "other.>"' in headrace.error
    headrace("reply", "other.1", "x", *ANN, code=1)
    headrace("stream", "ls", "--timeout", "1", *ANN, code=1)
    assert "violation for publish" in headrace.error
    headrace("pub", "orders.1", "x", *ANN)


@pytest.mark.parametrize("words", [["--version"], ["help"], ["help", "kv"]])
def test_the_usual_ways_to_ask_for_help(headrace: Headrace, words: list[str]) -> None:
    assert ("0." if words == ["--version"] else "Usage") in headrace(*words)
