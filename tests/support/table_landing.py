"""A stream on a server and its table, for tests: publish, write, verify, resync, and the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from conformance.client import Client
from conformance.servers import Server
from headrace.tables.config import TableConfig
from headrace.tables.inspection import resync, verify_table
from headrace.tables.stream_range import StreamRangeReader
from headrace.tables.worker import LandingStats, TableWorker
from support.tables import make_table, reload


class Landing:
    """A stream on the shared server, and its table."""

    def __init__(self, server: Server, client: Client, name: str, folder: Path) -> None:
        self.server, self.client, self.name = server, client, name
        self.connection = {"servers": server.url}
        self.folder = folder
        self.config: TableConfig

    def make_table(self, **values: Any) -> None:
        _, self.config = make_table(self.folder, name=self.name, **values)

    def publish(self, count: int, size: int = 10) -> None:
        for number in range(count):
            self.client.store(f"{self.name}.{number % 3}", b"%0*d" % (size, number))

    def land(self, **options: Any) -> LandingStats:
        worker = TableWorker(self.name, self.config, self.connection, **options)
        try:
            return worker.land()
        finally:
            worker.close()

    def verify(self) -> list[str]:
        reader = StreamRangeReader(self.config, self.connection, self.name)
        try:
            return verify_table(reload(self.config), reader).problems
        finally:
            reader.close()

    def resync(self, seq: int | None = None, **options: Any) -> int:
        reader = StreamRangeReader(self.config, self.connection, self.name)
        try:
            return resync(reload(self.config), reader, seq, **options).seq
        finally:
            reader.close()


def run_cli(landing: Landing, *arguments: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "headrace", "-s", landing.server.url, "table", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=landing.folder, timeout=300)
    return done.returncode, done.stdout, done.stderr
