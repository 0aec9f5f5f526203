"""Runs the workers of several tables, each on its own thread, until they are stopped.

Owns the threads and when a table is tried again. Invariants: a table that stops for a reason that a person must decide
does not stop the others; everything else is retried, with pauses.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.errors import PositionConflict, StreamGap, StreamReplaced
from headrace.tables.config import TableConfig
from headrace.tables.maintenance_schedule import MaintenanceSchedule
from headrace.tables.redaction import describe_error, hide_secrets
from headrace.tables.worker import LandingStats, TableWorker

_log = logging.getLogger("headrace.tables")
#: What a person must decide.
FATAL_ERRORS = (PositionConflict, StreamGap, StreamReplaced)
_RETRY_S, _RETRY_S_MAX = 1.0, 60.0
#: How often a table that stopped is checked again.
RECHECK_S = 60.0
#: Called with the name of a table and what happened to it.
Report = Callable[[str, str], None]


@dataclass(frozen=True)
class RunOptions:
    """How the tables are run."""

    is_once: bool = False
    accept_new_stream: bool = False


class TableService:
    """The workers of several tables."""

    def __init__(
        self,
        tables: Mapping[str, TableConfig],
        connection: Mapping[str, str],
        options: RunOptions,
        report: Report,
    ) -> None:
        self.tables = tables
        self._connection = connection
        self._options = options
        self._report = report
        self._stop = threading.Event()
        #: Tables that append the messages of a stream that was created again; each does it once.
        self._accepting = set(tables) if options.accept_new_stream else set[str]()
        self.stats = {name: LandingStats() for name in tables}
        self.errors: dict[str, Exception] = {}
        self._schedules = {name: MaintenanceSchedule(self._stop.is_set) for name in tables}

    def run(self) -> dict[str, Exception]:
        """Run until all tables ended or `stop` is called; return the errors by table."""
        threads = [
            threading.Thread(target=self._run_table, args=(name,), name=f"headrace-table-{name}")
            for name in self.tables
        ]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.2)
            self._finish_maintenance()
        finally:
            self.stop()
            for thread in threads:
                thread.join()
            self._finish_maintenance()
        return self.errors

    def stop(self) -> None:
        """Let the workers finish the commit that they have begun."""
        self._stop.set()

    def _finish_maintenance(self) -> None:
        for schedule in self._schedules.values():
            schedule.finish()

    def _run_table(self, name: str) -> None:
        pause_s = _RETRY_S
        while not self._stop.is_set():
            try:
                self._run_worker(name)
                return
            except FATAL_ERRORS as error:
                self._on_stopped(name, error)
                if self._options.is_once:
                    return
                self._stop.wait(RECHECK_S)
                pause_s = _RETRY_S
                continue
            except Exception as error:
                if self._options.is_once:
                    self._on_stopped(name, error)
                    return
                _log.debug("table %s", name, exc_info=True)
                self.stats[name].retries += 1
                self._report(
                    name, f"{describe_error(error, self.tables[name])}; next attempt in {pause_s:g} s"
                )
            self._stop.wait(pause_s)
            pause_s = min(pause_s * 2, _RETRY_S_MAX)

    def _on_stopped(self, name: str, error: Exception) -> None:
        """Record why a table stopped, and report it unless that is known."""
        known = self.errors.get(name)
        self.errors[name] = error
        if str(known) != str(error):
            self._report(name, f"stopped: {hide_secrets(str(error), self.tables[name])}")

    def _run_worker(self, name: str) -> None:
        worker = TableWorker(
            name,
            self.tables[name],
            self._connection,
            accept_new_stream=name in self._accepting,
            stop=self._stop,
            stats=self.stats[name],
        )
        schedule = self._schedules[name]
        try:
            if name in self.errors:
                worker.check()
                del self.errors[name]
                self._report(name, "continues")
            while True:
                self._land(worker)
                schedule.run_if_due(worker)
                if self._options.is_once or self._stop.wait(worker.config.commit_interval_s):
                    return
        finally:
            if not worker.accepts_new_stream:
                self._accepting.discard(name)
            worker.close()

    def _land(self, worker: TableWorker) -> None:
        rows, started_s = worker.stats.rows, time.monotonic()
        worker.land()
        if written := worker.stats.rows - rows:
            elapsed_s = time.monotonic() - started_s
            self._report(
                worker.name, f"{written:,} rows up to sequence {worker.stats.seq:,} in {elapsed_s:.1f} s"
            )
