"""Writes a stream to its table, and kills itself at the N-th step.

    python -m support.table_victim TABLES_FILE NAME SERVER_URL STEP [--loop]

Steps are all moments around which the state on disk, in an object store or in the catalog changes: a file is created,
written or closed, the catalog commits. With 0 it is not killed. With `--loop` it writes until SIGTERM, and retries after
errors as the service of tables does; it ends with code 3 if the table stopped for a reason that a person must decide.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFile

from headrace.tables.config import TableConfig, load_tables
from headrace.tables.data_files import DataFileWriter
from headrace.tables.service import FATAL_ERRORS
from headrace.tables.synced_files import SyncedFile
from headrace.tables.worker import TableWorker

STOPPED = 3
#: Small blocks, so that the next one is in transit during a commit.
BLOCKS = {"batchRows": "10"}
_PAUSE_S, _RETRY_S = 0.5, 0.3


class KillSwitch:
    """Counts steps, and kills the process at one of them."""

    def __init__(self, kill_step: int) -> None:
        self._kill_step = kill_step
        self._steps = 0

    def wrap(self, owner: type, name: str) -> None:
        """Make the beginning and the end of a method two steps."""
        method: Callable[..., Any] = getattr(owner, name)

        def call(*arguments: Any, **keywords: Any) -> Any:
            self._on_step()
            result = method(*arguments, **keywords)
            self._on_step()
            return result

        setattr(owner, name, call)

    def _on_step(self) -> None:
        self._steps += 1
        if self._steps == self._kill_step:
            os.kill(os.getpid(), signal.SIGKILL)


def run_until_stopped(name: str, config: TableConfig, url: str) -> int:
    """Write until SIGTERM; return the exit code."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    worker: TableWorker | None = None
    while not stop.is_set():
        worker = worker or TableWorker(name, config, {"servers": url, **BLOCKS}, stop=stop)
        try:
            worker.land()
            stop.wait(_PAUSE_S)
        except FATAL_ERRORS as error:
            print(error, file=sys.stderr, flush=True)
            return STOPPED
        except Exception as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            worker.close()
            worker = None
            stop.wait(_RETRY_S)
    return 0


def main() -> None:
    path, name, url, step = sys.argv[1:5]
    switch = KillSwitch(int(step))
    for owner, method in (
        (SyncedFile, "__init__"),
        (SyncedFile, "write"),
        (SyncedFile, "close"),
        (PyArrowFile, "create"),
        (DataFileWriter, "finish"),
        (SqlCatalog, "commit_table"),
        (RestCatalog, "commit_table"),
    ):
        switch.wrap(owner, method)
    config = load_tables(Path(path))[name]
    if "--loop" in sys.argv:
        sys.exit(run_until_stopped(name, config, url))
    worker = TableWorker(name, config, {"servers": url})
    worker.land()
    worker.close()


if __name__ == "__main__":
    main()
