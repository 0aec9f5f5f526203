"""Log lines: nats-server's format, JSON, no credentials, and never blocking."""

import json
import os
import re
import threading
from pathlib import Path

import pytest

from headrace.config.options import LogFormat, ServerOptions
from headrace.net import logs
from headrace.net.logs import Logger, QueuedLogger, redact

LINE = re.compile(r"^\[\d+\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} \[(INF|WRN|ERR|FTL|DBG|TRC)\] (.*)$")


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_lines_have_the_format_of_nats_server(tmp_path: Path) -> None:
    file = tmp_path / "log"
    log = QueuedLogger(ServerOptions(log_file=str(file)))
    log.info("one")
    log.warn("two")
    log.error("three")
    log.fatal("four")
    log.debug("not asked for")
    log.trace("not asked for")
    log.close()
    matches = [LINE.match(line) for line in lines_of(file)]
    assert [match and match.groups() for match in matches] == [
        ("INF", "one"),
        ("WRN", "two"),
        ("ERR", "three"),
        ("FTL", "four"),
    ]


def test_debug_and_trace_on_request(tmp_path: Path) -> None:
    file = tmp_path / "log"
    log = QueuedLogger(ServerOptions(log_file=str(file), debug=True, trace=True, log_time=False))
    log.debug("d")
    log.trace("t")
    log.close()
    assert lines_of(file) == [f"[{os.getpid()}] [DBG] d", f"[{os.getpid()}] [TRC] t"]


def test_json_log_lines_are_valid_json(tmp_path: Path) -> None:
    file = tmp_path / "log"
    log = QueuedLogger(ServerOptions(log_file=str(file), log_format=LogFormat.JSON))
    log.warn('a "quoted"\nline')
    log.close()
    (line,) = lines_of(file)
    record = json.loads(line)
    assert record.pop("time_ns") > 0
    assert record == {"level": "warning", "pid": os.getpid(), "text": 'a "quoted"\nline'}


@pytest.mark.parametrize(
    "text",
    [
        'CONNECT {"user":"ada","pass":"s3cret"}',
        'CONNECT {"PASS" : "s3cret","verbose":false}',
        'CONNECT {"auth_token":"s3cret"}',
        'CONNECT {"jwt":"s3cret","sig":"s3cret"}',
        'CONNECT {"pass":"with \\"quote s3cret"}',
        'CONNECT {"pass":"s3cret',
        "route to nats://ada:s3cret@example:4222 failed",
        "token url nats://s3cret@example:4222",
    ],
)
def test_credentials_are_hidden(text: str, tmp_path: Path) -> None:
    assert "s3cret" not in redact(text)
    file = tmp_path / "log"
    log = QueuedLogger(ServerOptions(log_file=str(file), trace=True))
    log.trace(text)
    log.close()
    assert "s3cret" not in file.read_text()


def test_what_is_no_secret_stays() -> None:
    text = 'CONNECT {"user":"ada","verbose":false,"name":"x"}'
    assert redact(text) == text


def test_reopen_continues_in_a_new_file(tmp_path: Path) -> None:
    file, moved = tmp_path / "log", tmp_path / "log.1"
    log = QueuedLogger(ServerOptions(log_file=str(file), log_time=False))
    log.info("before")
    log.close()
    log = QueuedLogger(ServerOptions(log_file=str(file), log_time=False))
    file.rename(moved)
    log.reopen()
    log.info("after")
    log.close()
    assert lines_of(moved) == [f"[{os.getpid()}] [INF] before"]
    assert lines_of(file) == [f"[{os.getpid()}] [INF] after"]


def test_a_reader_who_does_not_read_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    written: list[bytes] = []

    def write(_: int, data: bytes) -> int:
        release.wait(30)
        written.append(bytes(data))
        return len(data)

    monkeypatch.setattr(os, "write", write)
    monkeypatch.setattr(logs, "QUEUED_LINES_MAX", 10)
    log = QueuedLogger(ServerOptions(log_time=False))
    for number in range(100):
        log.info(str(number))
    release.set()
    while not written:
        pass
    log.close()
    assert len(written) <= 12
    assert written[0].endswith(b"[INF] 0\n")


def test_how_many_lines_were_dropped_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(logs, "QUEUED_LINES_MAX", 0)
    log = QueuedLogger(ServerOptions(log_file=str(tmp_path / "log"), log_time=False))
    log.info("dropped")
    log.info("dropped")
    monkeypatch.setattr(logs, "QUEUED_LINES_MAX", 10)
    log.info("written")
    log.close()
    first, second = lines_of(tmp_path / "log")
    assert "2 log lines were dropped" in first
    assert second.endswith("written")


def test_a_silent_log_takes_everything() -> None:
    log = Logger()
    log.info("nobody hears it")
    log.close()
