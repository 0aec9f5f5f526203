"""Runs a command in a real pseudo-terminal: sends keys, reads the screen."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from typing import Self

TIMEOUT_S = 90.0
INTERRUPT_AGAIN_S = 5.0
CTRL_C = "\x03"
_ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07|[()][A-Z0-9]|[=>])")


class Terminal:
    """`with Terminal("stream", "ls", url=...) as terminal: terminal.expect("text")`."""

    def __init__(self, *words: object, url: str = "", columns: int = 100, rows: int = 40) -> None:
        self._keys, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color", "HEADRACE_URL": url}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "headrace", *map(str, words)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment,
            start_new_session=True,
            preexec_fn=_own_terminal,
        )
        self.mode = termios.tcgetattr(slave)
        self._slave = slave
        self.raw = ""

    @property
    def text(self) -> str:
        """Return the output so far, without colours and cursor movements."""
        return _ESCAPES.sub("", self.raw).replace("\r", "")

    def expect(self, text: str) -> None:
        """Wait until the screen has shown a text."""
        deadline = time.monotonic() + TIMEOUT_S
        while text not in self.text:
            assert self._read(deadline - time.monotonic()), f"{text!r} was not shown:\n{self.text}"

    def press(self, keys: str) -> None:
        os.write(self._keys, keys.encode())

    def interrupt(self, text: str) -> None:
        """Press Ctrl-C, as often as necessary, until the screen has shown a text.

        Python does not notice a signal that arrives after it has printed a prompt and before it waits for a key.
        A person presses Ctrl-C again, and so does this.
        """
        deadline = time.monotonic() + TIMEOUT_S
        while text not in self.text:
            self.press(CTRL_C)
            again = time.monotonic() + INTERRUPT_AGAIN_S
            assert again < deadline, f"{text!r} was not shown:\n{self.text}"
            while text not in self.text and self._read(again - time.monotonic()):
                pass

    def ended(self) -> int:
        """Return the exit code, after all output was read."""
        deadline = time.monotonic() + TIMEOUT_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"it goes on:\n{self.text}"
            self._read(0.02)
        while self._read(0):
            pass
        return self.process.returncode

    def interrupted(self) -> int:
        """Press Ctrl-C, as often as necessary, until the command ends; return its exit code."""
        deadline = time.monotonic() + TIMEOUT_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"it goes on:\n{self.text}"
            self.press(CTRL_C)
            again = time.monotonic() + INTERRUPT_AGAIN_S
            while self.process.poll() is None and time.monotonic() < again:
                self._read(0.02)
        return self.ended()

    def as_it_was(self) -> bool:
        """Return whether the terminal's mode is the original one."""
        return termios.tcgetattr(self._slave)[:4] == self.mode[:4]

    def _read(self, timeout_s: float) -> bool:
        ready, _, _ = select.select([self._keys], [], [], max(0.0, timeout_s))
        if not ready:
            return False
        self.raw += os.read(self._keys, 65536).decode(errors="replace")
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._slave)
        os.close(self._keys)


def _own_terminal() -> None:
    """Make this the controlling terminal of the new session, so that Ctrl-C reaches the command."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
