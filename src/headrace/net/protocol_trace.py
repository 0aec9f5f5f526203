"""Protocol lines in the log, as nats-server writes them with `trace: true`.

Owns the sessions and parsers of traced connections, which log what passes through them. A connection without tracing has
neither, so tracing costs nothing unless it is on. Turning it on applies to clients that connect from then on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace._native import Parser
from headrace.broker import Session
from headrace.broker.routing.session import parse_connect
from headrace.net.logs import Logger

_LINE_MAX = 1 << 20
#: The line end after a payload.
EMPTY_SIZE = 2
_PAYLOAD_VERBS = ("PUB", "HPUB", "MSG", "HMSG")
_ESCAPES = {ord("\r"): "\\r", ord("\n"): "\\n", ord("\t"): "\\t", ord('"'): '\\"', ord("\\"): "\\\\"}


def quote(data: bytes) -> str:
    """Return a text in double quotes, with unprintable characters escaped, as Go's %q does."""
    parts = ['"']
    for char in data.decode("utf-8", "surrogateescape"):
        code = ord(char)
        if code in _ESCAPES:
            parts.append(_ESCAPES[code])
        elif 0xDC80 <= code <= 0xDCFF:
            parts.append(f"\\x{code - 0xDC00:02x}")
        elif char.isprintable():
            parts.append(char)
        else:
            parts.append(f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}")
    return "".join([*parts, '"'])


class LineSplitter:
    """Splits one direction of a connection into lines and payloads; keeps what is incomplete for the next call."""

    def __init__(self) -> None:
        self._rest = b""
        self._broken = False

    def feed(self, data: bytes) -> Iterator[str]:
        """Yield the texts of the log lines for what arrived."""
        data, at = self._rest + data, 0
        while not self._broken and (stop := data.find(b"\n", at)) >= 0:
            line = data[at:stop].rstrip(b"\r")
            words = line.decode("utf-8", "replace").split()
            verb = words[0].upper() if words else ""
            size = self._payload_size(verb, words)
            if len(data) < stop + 1 + size:
                break
            if verb not in ("INFO", ""):
                yield f"[{_describe(verb, line)}]"
            if size > EMPTY_SIZE:
                yield f"MSG_PAYLOAD: [{quote(data[stop + 1 : stop + size - 1])}]"
            at = stop + 1 + size
        self._rest = b"" if self._broken or len(data) - at > _LINE_MAX * 65 else data[at:]

    def _payload_size(self, verb: str, words: list[str]) -> int:
        if verb not in _PAYLOAD_VERBS:
            return 0
        if not words[-1].isdigit() or len(words[-1]) > 9:
            self._broken = True  # the connection is about to be closed
            return 0
        return int(words[-1]) + EMPTY_SIZE


def _describe(verb: str, line: bytes) -> str:
    if verb == "+OK":
        return "OK"
    if verb == "-ERR":
        return f"-ERR {line.decode('utf-8', 'replace')[5:].strip(chr(39))}"
    arguments = line[len(verb) :].decode("utf-8", "replace").strip()
    return f"{verb} {arguments}" if arguments else verb


class TracedSession(Session):
    """A session whose input and output are logged."""

    __slots__ = ("_details", "_log", "_output")

    def __init__(self, log: Logger, *args: Any) -> None:
        super().__init__(*args)
        self._log = log
        self._details = ""
        self._output = LineSplitter()

    def log_line(self, direction: str, text: str) -> None:
        """Write one line of the trace."""
        transport: Any = self.transport
        address = f"{transport.client_ip}:{transport.client_port}"
        self._log.trace(f"{address} - cid:{self.cid}{self._details} - {direction} {text}")

    def on_connect(self, args: bytes) -> None:
        super().on_connect(args)
        self._details = self._describe_client(parse_connect(args))

    def _describe_client(self, fields: dict[str, Any]) -> str:
        """Return what nats-server adds to the lines of a client: version, language and name, then account and user."""
        version = [f"v{self.version}"] if self.version else []
        client = ":".join([*version, *filter(None, (self.lang, self.name))])
        labels = {"nkey": "nkey:{}", "user": "user:{}", "jwt": "jwt", "auth_token": "token"}
        user = next((text.format(fields[key]) for key, text in labels.items() if fields.get(key)), "")
        account = self.identity.account if self.identity is not None else ""
        parts = [client, f"{account}/{user}" if user else ""]
        return "".join(f" - {quote(part.encode())}" for part in parts if part)

    def drain(self) -> bytearray:
        return self._log_output(super().drain())

    def drain_chunks(self) -> list[bytes | bytearray]:
        return [self._log_output(bytearray().join(super().drain_chunks()))]

    def _log_output(self, output: bytearray) -> bytearray:
        for text in self._output.feed(bytes(output)):
            self.log_line("->>", text)
        return output


class TracingParser:
    """Logs what a client sends, then passes it to the parser."""

    def __init__(self, parser: Parser, session: TracedSession) -> None:
        self._parser = parser
        self._session = session
        self._input = LineSplitter()

    @property
    def payload_max(self) -> int:
        return self._parser.payload_max

    @payload_max.setter
    def payload_max(self, most: int) -> None:
        self._parser.payload_max = most

    def feed(self, data: bytes | bytearray, size: int = -1) -> None:
        chunk = bytes(data) if size < 0 else bytes(memoryview(data)[:size])
        for text in self._input.feed(chunk):
            self._session.log_line("<<-", text)
        self._parser.feed(data, size)
