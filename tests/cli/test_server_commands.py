"""Addresses, contexts, credentials, checks, bench and top, on both servers."""

import sys
from pathlib import Path

import pytest

from cli import identities
from cli.conftest import Headrace
from conformance.servers import KINDS, Server, Setup
from support import certificates

NOBODY = "nats://127.0.0.1:1"


def test_the_server_is_measured_and_shown(headrace: Headrace) -> None:
    assert headrace.json("server", "ping", "--count", 2)["count"] == 2
    assert headrace.json("server", "info")["jetstream"] is True
    assert headrace.json("account", "info")["api"]["level"] >= 1
    assert "storage" in headrace("account", "info")


def test_the_error_says_that_there_is_no_server(headrace: Headrace) -> None:
    for command in (["stream", "ls"], ["kv", "ls"], ["pub", "a", "b"], ["server", "ping"]):
        headrace(*command, "--server", NOBODY, code=5)
        assert "headrace serve" in headrace.error
    assert headrace("server", "check", "connection", "-s", NOBODY, code=2).startswith("CRITICAL: ")


def test_one_of_several_servers_is_enough(headrace: Headrace) -> None:
    headrace("server", "ping", "--server", f"{NOBODY},{headrace.url}")


def test_the_connection_may_stand_before_the_command(headrace: Headrace) -> None:
    url = headrace.url
    headrace.url = NOBODY
    headrace("--server", url, "stream", "ls")
    headrace("--server", url, "claims", "ls")
    headrace("stream", "ls", code=5)


def test_a_selected_context_is_used(headrace: Headrace) -> None:
    url, headrace.url = headrace.url, ""
    headrace("context", "add", "here", "--server", url, "--description", "of a test")
    headrace("server", "ping", "--context", "here")
    headrace("context", "select", "here")
    headrace("server", "ping")
    headrace("claims", "ls")
    listed = headrace.json("context", "ls")
    assert listed == [{"name": "here", "selected": True, "url": url, "description": "of a test"}]
    headrace("context", "add", "here", code=4)
    headrace("context", "rm", "here", code=2)
    headrace("context", "rm", "here", "--force")
    headrace("server", "ping", "--context", "here", code=3)


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_credentials_are_refused_and_right_ones_connect(
    kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    users = 'authorization { users [ {user: "ada", password: "s3cret"} ] }'
    with Server(kind, Setup(config=users)) as server:
        headrace = Headrace(server.url, capsys, monkeypatch)
        headrace("stream", "ls", code=5)
        assert "rejected the credentials" in headrace.error
        headrace("stream", "ls", "--user", "ada", "--password", "wrong", code=5)
        headrace("stream", "ls", "--user", "ada", "--password", "s3cret")
        headrace("stream", "ls", "--server", server.url.replace("//", "//ada:wrong@"), code=5)
        assert "wrong" not in headrace.error
        headrace(
            "context", "add", "ada", "-s", server.url, "--user", "ada", "--password", "s3cret", "--select"
        )
        assert "s3cret" not in headrace("context", "show", "ada")
        headrace("stream", "ls", code=5)
        headrace.url = ""
        headrace("stream", "ls")


@pytest.mark.parametrize("kind", KINDS)
def test_keys_and_credential_files(
    kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    person, seed = identities.user(), tmp_path / "seed"
    seed.write_bytes(person.seed)
    users = f"authorization {{ users [ {{nkey: {person.public}}} ] }}"
    with Server(kind, Setup(config=users, jetstream=False)) as server:
        headrace = Headrace(server.url, capsys, monkeypatch)
        headrace("server", "ping", code=5)
        headrace("server", "ping", "--nkey", seed)
        monkeypatch.setitem(sys.modules, "nkeys", None)
        headrace("server", "ping", "--nkey", seed, code=1)
        assert "pip install nkeys" in headrace.error
        monkeypatch.delitem(sys.modules, "nkeys")
    trusting, credentials = identities.trusting_server(tmp_path)
    with Server(kind, Setup(config=trusting, jetstream=False)) as server:
        headrace = Headrace(server.url, capsys, monkeypatch)
        headrace("server", "ping", code=5)
        headrace("server", "ping", "--creds", credentials)
        headrace("server", "ping", "--creds", tmp_path / "missing", code=5)
        assert "missing" in headrace.error


@pytest.mark.parametrize("kind", KINDS)
def test_tls_client_certificates_connect(
    kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = certificates.make(tmp_path)
    flags = ("--tls", "--tlscert", made.cert, "--tlskey", made.key)
    with Server(kind, Setup(flags=(*flags, "--tlsverify", "--tlscacert", made.ca))) as server:
        headrace = Headrace(server.url, capsys, monkeypatch)
        headrace("server", "ping", "--tlsca", made.ca, code=5)
        pair = ("--tlscert", made.client_cert, "--tlskey", made.client_key)
        headrace("server", "ping", "--tlsca", made.ca, *pair)
        headrace("server", "ping", "--tlsca", tmp_path / "missing", code=2)
        assert "missing" in headrace.error


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_without_streams(
    kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Server(kind, Setup(jetstream=False)) as server:
        headrace = Headrace(server.url, capsys, monkeypatch)
        headrace("stream", "ls", code=6)
        assert "not enabled" in headrace.error
        assert headrace.json("server", "info")["jetstream"] is False
        headrace("req", "nobody", "x", code=6)


def test_server_checks_exit_with_nagios_codes(headrace: Headrace, stream: str) -> None:
    assert headrace("server", "check", "connection").startswith("connection OK: ")
    headrace("server", "check", "connection", "--critical", "1ns", code=2)
    assert headrace.json("server", "check", "jetstream")["status"] == "OK"
    headrace("server", "check", "stream", stream, "--min-messages", 1, code=2)
    headrace("pub", f"{stream}.1", "x", "--count", 3)
    headrace("server", "check", "stream", stream, "--min-messages", 1)
    headrace("consumer", "add", stream, "w")
    headrace("server", "check", "consumer", stream, "w", "--warn", 3, "--critical", 9, code=1)
    headrace("server", "check", "consumer", stream, "w", "--critical", 3, code=2)
    headrace("server", "check", "consumer", stream, "nobody", code=2)


def test_bench_reports_every_message(headrace: Headrace) -> None:
    (published,) = headrace.lines("bench", "pub", "--msgs", 200, "--clients", 2)
    assert published["messages"] == 200
    (delivered,) = headrace.lines("bench", "sub", "--msgs", 200, "--clients", 2)
    assert delivered["messages"] == 400
    before = headrace.json("stream", "ls", "--names")
    stored, read = headrace.lines("bench", "js", "--msgs", 200, "--memory")
    assert (stored["messages"], read["messages"]) == (200, 200)
    assert headrace.json("stream", "ls", "--names") == before


def test_top_in_lines(headrace: Headrace, stream: str) -> None:
    headrace("pub", f"{stream}.1", "x", "--count", 3)
    headrace("consumer", "add", stream, "w")
    first, second = headrace.lines("top", "--count", 2, "--interval", 0.1)
    (row,) = [row for row in second["streams"] if row["name"] == stream]
    assert (row["messages"], row["stored_per_s"]) == (3, 0)
    assert {"stream": stream, "name": "w"}.items() <= next(
        each for each in first["consumers"] if each["stream"] == stream
    ).items()
    headrace("top", code=2)


def test_words_with_anybody(headrace: Headrace, stream: str, name: str) -> None:
    assert headrace("pub", f"{stream}.1", "x", "-J", "--msg-id", "1") == f"stored in {stream}, sequence 1\n"
    assert headrace.lines("pub", f"{stream}.1", "x", "-J", "--msg-id", "1")[0]["duplicate"] is True
    headrace("pub", f"{stream}.1", "x", "-J", "--expect-last", 9, code=4)
    headrace("pub", f"{stream}.1", "x", "--ttl", "1h", code=2)
    headrace("pub", f"{stream}.1", "--lines", stdin=b"a\nb\n")
    assert headrace("stream", "get", stream, 3, "--raw") == "b"
    headrace("pub", "a", "b", "--file", "c", code=2)
    headrace("pub", f"{stream}.1", "--file", "/no/such/file", code=3)
    headrace("req", f"nobody.{name}", "x", code=6)
    headrace("req", f"nobody.{name}", "x", "--replies", 2, code=6)
    headrace("reply", name, code=2)
    headrace("pub", "not a subject", "x", code=2)
    headrace("pub", name, "x", "-H", "a: b\r\nc: d", code=2)
    headrace("pub", name, stdin=bytes(2**21), code=1)
    assert "max_payload" in headrace.error
