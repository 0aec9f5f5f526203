"""What the operations of `stalls.py` share: the table of operations, and the data that they prepare."""

from __future__ import annotations

import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from load import CHUNK, Connection, publication, pump
from perf import Server

MILLION = 1_000_000
TIMEOUT_S = 300.0
#: Waits count from this long before the operation until this long after it.
MARGIN_S = 0.5
CONFIG_FILE = "server.conf"


class Client(Connection):
    """The client that runs an operation; it knows the server's process and its configuration file."""

    def __init__(self, server: Server) -> None:
        super().__init__(server.port)
        self.server = server

    def reload(self, config: str) -> None:
        """Replace the configuration file and let the server read it."""
        Path(self.server.folder, CONFIG_FILE).write_text(config)
        self.server.process.send_signal(signal.SIGHUP)

    def get_page(self, path: str) -> bytes:
        """Return a page of the monitor."""
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self.server.http_port}{path}", timeout=TIMEOUT_S
        ) as page:
            body: bytes = page.read()
            return body


Operation = Callable[[Client, float], Iterator[None]]


@dataclass(frozen=True)
class Row:
    """One operation. The part before its `yield` prepares data; the part after it is measured.

    `config` returns the server's configuration for a scale; without `peer`, nats-server has no such operation.
    """

    name: str
    run: Operation
    config: Callable[[float], str] | None = None
    peer: bool = True

    @property
    def title(self) -> str:
        return (self.run.__doc__ or self.name).splitlines()[0].rstrip(".")


ROWS: dict[str, Row] = {}


def row(
    name: str, config: Callable[[float], str] | None = None, peer: bool = True
) -> Callable[[Operation], Operation]:
    def register(run: Operation) -> Operation:
        ROWS[name] = Row(name, run, config, peer)
        return run

    return register


# Data


def fill(connection: Connection, subjects: list[bytes], size: int = 100, headers: bytes = b"") -> None:
    """Publish one message to each subject, in order, and wait for every ack."""
    reply, payload = connection.inbox + b".f", b"x" * size
    chunks = (
        b"".join(publication(s, payload, reply, headers) for s in subjects[i : i + CHUNK])
        for i in range(0, len(subjects), CHUNK)
    )
    pump(connection, chunks, b'"seq":', len(subjects) - len(subjects) % CHUNK or len(subjects), window=5_000)


def info(connection: Connection, name: str = "BIG") -> dict[str, Any]:
    state: dict[str, Any] = connection.api(f"STREAM.INFO.{name}", timeout_s=TIMEOUT_S)["state"]
    return state


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, "the operation did not finish"
        time.sleep(0.05)


def keys(count: int, times: int = 1) -> list[bytes]:
    """Yield the subjects of `count` keys in turn, each `times` times."""
    return [b"BIG.k.%d" % number for _ in range(times) for number in range(count)]


def update(connection: Connection, **config: Any) -> None:
    body = {"name": "BIG", "subjects": ["BIG.>"], **config}
    connection.api("STREAM.UPDATE.BIG", body, timeout_s=TIMEOUT_S)


def scaled(count: int, scale: float) -> int:
    return max(int(count * scale) // CHUNK, 1) * CHUNK
