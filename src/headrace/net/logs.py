"""Log lines, as text in nats-server's format or as JSON.

A line is queued and written by a separate thread, so that a slow reader (a full pipe, a slow disk) never blocks the
server: when the queue is full, lines are dropped, and their number is logged as soon as there is space again.
Credentials are never logged: every text passes through `redact`.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from headrace.config.options import LogFormat, ServerOptions

QUEUED_LINES_MAX = 10_000
FLUSH_TIMEOUT_S = 1.0

_SECRET_FIELDS = "pass|password|auth_token|token|jwt|sig|nkey_seed"
_SECRET = re.compile(rf'("(?:{_SECRET_FIELDS})"\s*:\s*)(?:"(?:[^"\\]|\\.)*"?|[^,}}\s]+)', re.IGNORECASE)
_URL_SECRET = re.compile(r"(\w+://)[^/\s@]+@")


def redact(text: str) -> str:
    """Hide the values of secret JSON fields and the user part of URLs."""
    return _URL_SECRET.sub(r"\1[hidden]@", _SECRET.sub(r'\1"[hidden]"', text))


class Logger:
    """The server's log. Check `debug_enabled` and `trace_enabled` before building costly texts."""

    def __init__(
        self, *, debug: bool = False, trace: bool = False, write: Callable[[str, str], None] | None = None
    ) -> None:
        self.debug_enabled = debug
        self.trace_enabled = trace
        self._write = write

    def info(self, text: str) -> None:
        self._emit("INF", text)

    def warn(self, text: str) -> None:
        self._emit("WRN", text)

    def error(self, text: str) -> None:
        self._emit("ERR", text)

    def fatal(self, text: str) -> None:
        self._emit("FTL", text)

    def debug(self, text: str) -> None:
        if self.debug_enabled:
            self._emit("DBG", text)

    def trace(self, text: str) -> None:
        if self.trace_enabled:
            self._emit("TRC", text)

    def reopen(self) -> None:
        """Continue in a new file with the same name, after the old one was moved away."""

    def close(self) -> None:
        """Write the queued lines, with a timeout."""

    def _emit(self, level: str, text: str) -> None:
        if self._write is not None:
            self._write(level, redact(text))


SILENT_LOGGER = Logger()


class QueuedLogger(Logger):
    """A log that writes to stderr or to a file."""

    def __init__(self, options: ServerOptions) -> None:
        super().__init__(debug=options.debug, trace=options.trace, write=self._enqueue)
        self._format = _format_json if options.log_format is LogFormat.JSON else _format_text
        self._timestamp = _Timestamp(enabled=options.log_time, utc=options.log_time_utc)
        self._line_writer = _LineWriter(options.log_file)

    def _enqueue(self, level: str, text: str) -> None:
        self._line_writer.enqueue(self._format(self._timestamp, level, text))

    def reopen(self) -> None:
        self._line_writer.reopen()

    def close(self) -> None:
        self._line_writer.close()


class _Timestamp:
    """The time of a line; the part that changes once a second is cached."""

    def __init__(self, *, enabled: bool, utc: bool) -> None:
        self.enabled = enabled
        self._to_struct_time = time.gmtime if utc else time.localtime
        self._second = -1
        self._text = ""

    def render(self) -> str:
        now_ns = time.time_ns()
        second, rest = divmod(now_ns, 1_000_000_000)
        if second != self._second:
            self._second = second
            self._text = time.strftime("%Y/%m/%d %H:%M:%S", self._to_struct_time(second))
        return f"{self._text}.{rest // 1000:06d}"


_PID = os.getpid()
_LEVELS = {"INF": "info", "WRN": "warning", "ERR": "error", "FTL": "fatal", "DBG": "debug", "TRC": "trace"}


def _format_text(timestamp: _Timestamp, level: str, text: str) -> bytes:
    time_part = f"{timestamp.render()} " if timestamp.enabled else ""
    return f"[{_PID}] {time_part}[{level}] {text}\n".encode(errors="backslashreplace")


def _format_json(timestamp: _Timestamp, level: str, text: str) -> bytes:
    fields: dict[str, object] = {"time_ns": time.time_ns()} if timestamp.enabled else {}
    fields |= {"level": _LEVELS[level], "pid": _PID, "text": text}
    return json.dumps(fields).encode() + b"\n"


class _LineWriter:
    """A thread that writes queued lines to a file descriptor; drops lines rather than wait."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = self._open()
        self._queue: SimpleQueue[bytes | None] = SimpleQueue()
        self._dropped = 0
        self._reopen = False
        self._thread = threading.Thread(target=self._run, name="headrace-log", daemon=True)
        self._thread.start()

    def _open(self) -> int:
        if self._path:
            return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
        return sys.__stderr__.fileno() if sys.__stderr__ is not None else os.open(os.devnull, os.O_WRONLY)

    def enqueue(self, line: bytes) -> None:
        if self._queue.qsize() >= QUEUED_LINES_MAX:
            self._dropped += 1
            return
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            self._queue.put(f"[{_PID}] [WRN] {dropped} log lines were dropped: nobody read them\n".encode())
        self._queue.put(line)

    def reopen(self) -> None:
        self._reopen = bool(self._path)
        self._queue.put(b"")

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join(FLUSH_TIMEOUT_S)

    def _run(self) -> None:
        while (line := self._queue.get()) is not None:
            if self._reopen:
                self._reopen = False
                os.close(self._fd)
                self._fd = self._open()
            try:
                _write_all(self._fd, line)
            except OSError:
                # A closed pipe or a full disk: the server continues without its log.
                continue
        if self._path:
            os.close(self._fd)


def _write_all(fd: int, line: bytes) -> None:
    rest = memoryview(line)
    while rest:
        rest = rest[os.write(fd, rest) :]
