"""`headrace serve` as a process, for tests: starts it on a free port, reads its log, always ends it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from support.loop_stalls import find_stalls

TIMEOUT_S = 120.0
_LISTENING = re.compile(r"Listening for client connections on \S*:(\d+)")


def headrace(*arguments: str, timeout_s: float = TIMEOUT_S) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    command = [sys.executable, "-m", "headrace", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)


class Serving:
    """A running `headrace serve`."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def port(self) -> int:
        found = _LISTENING.search(self.log)
        assert found is not None, self.log
        return int(found[1])

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def wait_for(self, text: str) -> None:
        """Wait until the log contains a text."""
        deadline = time.monotonic() + TIMEOUT_S
        while text not in self.log:
            assert self.process.poll() is None or text in self.log, self.log
            assert time.monotonic() < deadline, f"{text!r} not in the log:\n{self.log}"
            time.sleep(0.005)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; after SIGSTOP, wait until the process is suspended."""
        self.process.send_signal(number)
        if number == signal.SIGSTOP:
            os.waitpid(self.process.pid, os.WUNTRACED)

    def ended(self) -> int:
        """Wait for the process to end; return its exit code."""
        return self.process.wait(TIMEOUT_S)


@contextlib.contextmanager
def serving(
    folder: Path, *flags: str, program: tuple[str, ...] = ("-m", "headrace"), may_stall: bool = False
) -> Iterator[Serving]:
    """Run `headrace serve` with these flags; yield it when it is ready for clients. Fail at the end if one operation
    held up all clients.
    """
    log = folder / "stderr"
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, *program, "serve", "-p", "-1", *flags],
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            stdin=subprocess.DEVNULL,
            cwd=folder,
            env=os.environ,
        )
    try:
        running = Serving(process, log)
        running.wait_for("Server is ready")
        yield running
        assert may_stall or not find_stalls(running.log), find_stalls(running.log)
    finally:
        process.kill()
        process.wait()
