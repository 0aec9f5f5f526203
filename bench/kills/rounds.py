"""Runs the rounds of one combination of server, query and mode: publish, kill, start again, check.

Owns a query with its streams and checkpoint over several rounds. Invariant: a round ends when the target is complete and
every epoch has ended, or with a violation. After a violation the query is not used again.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from kills.ledger import Ledger, Written
from kills.moments import RECORDED, STAGED, STORED, EpochWatcher, has_ended, is_idle
from kills.plan import AT_LEAST_ONCE, DRIVER, EXECUTOR, PYTHON, SERVER, RoundPlan
from kills.plan import STAGED as STAGED_MODE
from kills.servers import Backend, Message, Streams
from kills.spark_cluster import (
    BATCH_COMMITS,
    PLANNING,
    STREAM_COMMITS,
    TASKS,
    SparkCluster,
    kill_process,
    wait_until,
)

_ROWS, _EPOCH_ROWS, _BATCH_ROWS = 4000, 1500, (2, 10, 100)
_EPOCHS_AIMED = 2
#: Kind of a violation: Spark has not ended an epoch in time. What is missing then may still come.
STUCK = "stuck"
#: Queries that write one row for each that they read.
_ONE_TO_ONE = ("copy", "shuffle", "foreach")
_PAUSE_S = 0.2
_VICTIM_S = 180.0
_EXAMPLES = 5
_PY_SPY_S = 20.0


@dataclass
class RoundResult:
    """What a round did and found. `moment` says how far the epoch was when the victim was killed."""

    plan: RoundPlan
    is_atomic: bool
    aim: str = ""
    moment: str = ""
    killed: str = ""
    #: Which share of the rows of the last epoch was stored when the victim was dead; None if that is not known.
    stored_share: float | None = None
    seconds: float = 0.0
    #: Rows that are stored more than once, in all rounds of the query so far.
    repeated: int = 0
    rows: int = 0
    #: Errors with which the query ended; it was started again.
    failures: list[str] = field(default_factory=list)
    violations: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        fields = asdict(self)
        return {**fields.pop("plan"), **fields}


class Victim(NamedTuple):
    """Processes that are killed together."""

    name: str
    pids: list[int]


class QueryUnderTest:
    """A query of one combination, with its streams and its checkpoint."""

    def __init__(
        self, cluster: SparkCluster, backend: Backend, plan: RoundPlan, folder: Path, draw: random.Random
    ) -> None:
        self._cluster, self._backend, self._draw, self._folder = cluster, backend, draw, folder
        name = f"{plan.query}_{plan.mode}_{plan.number}"
        self._streams = Streams(f"IN_{name}", f"OUT_{name}")
        self._checkpoint = folder / "checkpoint"
        self._ledger = Ledger(plan.query, _ROWS, draw, at_least_once=plan.mode == AT_LEAST_ONCE)
        self._modules = (TASKS, PLANNING, BATCH_COMMITS if plan.query == "foreach" else STREAM_COMMITS)
        self._read_seq = 0
        self._messages: dict[Written, list[Message]] = {}
        self._is_atomic = draw.random() < 0.5
        backend.create(self._streams, is_atomic=self._is_atomic)
        cluster.driver.start_query(self._describe_query(plan))

    def _describe_query(self, plan: RoundPlan) -> dict[str, Any]:
        return {
            "servers": ",".join(self._backend.urls),
            "source": self._streams.source,
            "target": self._streams.target,
            "query": plan.query,
            "mode": plan.mode,
            "checkpoint": str(self._checkpoint),
            "epoch_rows": _EPOCH_ROWS,
            "batch_rows": self._draw.choice(_BATCH_ROWS),
        }

    def run_round(self, plan: RoundPlan, limit_s: float) -> RoundResult:
        """Run a round; the result has violations if something is wrong or nothing moves for `limit_s`."""
        started = time.monotonic()
        result = RoundResult(plan, self._is_atomic)
        aims = [STAGED, RECORDED, STORED, STORED] if plan.mode == STAGED_MODE else [STORED]
        result.aim = self._draw.choice(aims) if plan.is_aimed else ""
        rows = self._ledger.begin_round()
        watcher = EpochWatcher(self._backend, self._streams, self._checkpoint)
        self._cluster.driver.read_events()
        chosen = self._choose_victim(plan.victim)  # now, because looking for it takes a while
        self._backend.publish(self._streams.source, rows)
        result.moment = watcher.wait_for(result.aim, self._draw.randrange(_EPOCHS_AIMED), self._draw)
        result.killed = self._kill(plan.victim, chosen)
        if plan.victim != SERVER and plan.mode != AT_LEAST_ONCE and plan.query in _ONE_TO_ONE:
            result.stored_share = watcher.find_stored_share()
        self._await_rows(result, limit_s)
        self._check(result)
        result.rows = len(self._ledger.expected)
        result.seconds = round(time.monotonic() - started, 1)
        return result

    def finish(self) -> dict[str, Any]:
        """Stop the query and check once more; return violations that came after the last round."""
        self._cluster.driver.stop_query()
        self._read_target()
        found = self._explain(self._ledger.find_violations())
        if not found:
            self._backend.delete(self._streams)
        return found

    def abandon(self) -> None:
        """End the query after a violation; its driver is not used again."""
        self._cluster.driver.kill()

    def _find_victims(self, victim: str) -> list[Victim]:
        """Return what can be killed."""
        cluster = self._cluster
        if victim == EXECUTOR:
            return [Victim("ExecutorBackend", [each.pid]) for each in cluster.executors()]
        if victim == PYTHON:
            workers = cluster.python_workers(self._modules)
            return [Victim(name, [self._draw.choice(pids)]) for name, pids in sorted(workers.items())]
        if victim == DRIVER and cluster.driver_jvms():
            # Python processes of a JVM that was killed may still commit an epoch, unless they are killed too.
            jvm = Victim("JVM", [each.pid for each in cluster.driver_jvms()])
            return [jvm, Victim("JVM and Python", cluster.driver.family())]
        return [Victim("server", [])] if victim == SERVER else []

    def _choose_victim(self, victim: str) -> Victim:
        wait_until(lambda: self._find_victims(victim) != [], f"no {victim} runs", _VICTIM_S)
        return self._draw.choice(self._find_victims(victim))

    def _kill(self, victim: str, chosen: Victim) -> str:
        """Kill a victim, and start again what does not start by itself; return what was killed."""
        if victim == SERVER:
            return self._backend.kill(self._streams, self._draw)
        # Workers come and go: choose again if the chosen one has gone.
        while not sum(map(kill_process, chosen.pids)):
            chosen = self._choose_victim(victim)
        if victim == DRIVER:
            self._cluster.driver.restart(spare_orphans=chosen.name == "JVM")
        return chosen.name

    def _await_rows(self, result: RoundResult, limit_s: float) -> None:
        """Wait until the target is complete and every epoch has ended."""
        deadline = time.monotonic() + limit_s
        driver = self._cluster.driver
        while True:
            result.failures += [each["error"] for each in driver.read_events() if each["event"] == "failed"]
            if not driver.is_running:
                result.failures.append("the driver ended")
                driver.restart()
            has_settled = is_idle(self._checkpoint)
            self._read_target()
            if self._ledger.is_complete and has_settled:
                break
            if time.monotonic() > deadline:
                if not has_ended(self._checkpoint, self._backend.last_seq(self._streams.source)):
                    result.violations[STUCK] = f"not complete after {limit_s:g} s"
                break
            time.sleep(_PAUSE_S)
        if not result.violations:
            self._backend.settle(self._streams)

    def _read_target(self) -> None:
        """Add what is new in the target to the ledger."""
        prefix = f"{self._streams.target}."
        for message in self._backend.read(self._streams.target, self._read_seq):
            row = (message.subject.removeprefix(prefix), message.data)
            self._ledger.add([row])
            self._messages.setdefault(row, []).append(message)
            self._read_seq = message.seq

    def _check(self, result: RoundResult) -> None:
        result.repeated = self._ledger.repeated
        result.violations |= self._explain(self._ledger.find_violations())

    def _explain(self, violations: dict[str, list[Written]]) -> dict[str, Any]:
        """Return the number of rows of each kind, and some examples with their messages."""
        return {
            kind: {
                "count": len(rows),
                "examples": [[row, self._messages.get(row, [])] for row in rows[:_EXAMPLES]],
            }
            for kind, rows in violations.items()
        }

    def dump(self, folder: Path) -> None:
        """Write what explains a violation: stacks, logs, streams and the checkpoint."""
        folder.mkdir(parents=True, exist_ok=True)
        for jvm in self._cluster.driver_jvms():
            os.kill(jvm.pid, signal.SIGQUIT)  # its stacks go to the log
        workers = [pid for each in self._cluster.python_workers(self._modules).values() for pid in each]
        stacks = [_dump_stack(pid) for pid in workers]
        (folder / "python-stacks").write_text("\n\n".join(stacks))
        (folder / "streams.json").write_text(json.dumps(self._backend.describe(self._streams), indent=1))
        (folder / "server.log").write_text(self._backend.read_log())
        messages = [message._asdict() for each in self._messages.values() for message in each]
        (folder / "target.json").write_text(json.dumps(sorted(messages, key=lambda each: each["seq"])))
        shutil.copytree(self._checkpoint, folder / "checkpoint", dirs_exist_ok=True)
        time.sleep(1.0)  # for the stacks
        shutil.copy(self._cluster.driver.log, folder / "driver.log")


def _dump_stack(pid: int) -> str:
    py_spy = Path(sys.executable).with_name("py-spy")
    command = [str(py_spy), "dump", "--pid", str(pid)]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_PY_SPY_S, check=False).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{pid}: {error}"
