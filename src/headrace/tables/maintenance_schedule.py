"""When the worker of a table maintains it.

Owns the thread that deletes orphan files while the worker commits. Snapshots expire between two commits of the worker, so
that neither makes the other one repeat its commit.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from headrace.tables.maintenance import EXPIRED_MIN, remove_orphans_if_due
from headrace.tables.orphan_files import MaintenanceStopped
from headrace.tables.redaction import describe_error
from headrace.tables.worker import TableWorker

_log = logging.getLogger("headrace.tables")
#: How often a table is asked whether something is due; snapshots also after so many commits.
_CHECK_INTERVAL_S = 3600.0
_COMMITS_BETWEEN = EXPIRED_MIN


class MaintenanceSchedule:
    """The maintenance of one table, whichever worker writes it."""

    def __init__(self, is_stopped: Callable[[], bool]) -> None:
        self._is_stopped = is_stopped
        self._next_s = self._next_orphans_s = 0.0
        self._next_commits = 0
        self._thread: threading.Thread | None = None

    def run_if_due(self, worker: TableWorker) -> None:
        """Maintain the table; an error is logged, and the next attempt is due an interval later."""
        now_s = time.monotonic()
        if now_s >= self._next_s or worker.stats.commits >= self._next_commits:
            self._next_s = now_s + _CHECK_INTERVAL_S
            self._next_commits = worker.stats.commits + _COMMITS_BETWEEN
            self._expire(worker)
        if now_s >= self._next_orphans_s and (self._thread is None or not self._thread.is_alive()):
            self._next_orphans_s = now_s + _CHECK_INTERVAL_S
            self._thread = threading.Thread(
                target=self._remove_orphans, args=(worker,), name=f"headrace-table-orphans-{worker.name}"
            )
            self._thread.start()

    def finish(self) -> None:
        """Wait for the deletion of orphan files; it ends soon when the service is stopped."""
        if self._thread is not None:
            self._thread.join()

    def _expire(self, worker: TableWorker) -> None:
        try:
            if expired := worker.expire_snapshots():
                _log.info("table %s: %s snapshots expired", worker.name, expired)
        except Exception as error:
            _log.warning("table %s: maintenance: %s", worker.name, describe_error(error, worker.config))

    def _remove_orphans(self, worker: TableWorker) -> None:
        try:
            if report := remove_orphans_if_due(worker.config, self._is_stopped):
                _log.info("table %s: maintenance: %s", worker.name, report)
        except MaintenanceStopped:
            _log.info("table %s: maintenance was stopped; the next worker continues it", worker.name)
        except Exception as error:
            _log.warning("table %s: maintenance: %s", worker.name, describe_error(error, worker.config))
