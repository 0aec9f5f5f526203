"""A standalone Spark cluster as processes: a master, two workers with one core each, and one driver.

Owns all these processes and those that they start, found by a mark in their environment. Invariant: `close` leaves none
of them running. Must not know queries or servers.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyspark

from kills.class_archive import make_archive
from support.ports import free_port

ROOT = Path(__file__).parents[2]
_HOME = Path(pyspark.__file__).parent
_MARK = "SPARK_KILLS_RUN"
_START_S = 180.0
_STOP_S = 180.0
_PAUSE_S = 0.02
#: What Python processes of Spark run: tasks, the planning of a streaming read, and commits of a streaming and a batch
#: write.
TASKS, PLANNING = "worker", "python_streaming_source_runner"
STREAM_COMMITS, BATCH_COMMITS = "python_streaming_sink_runner", "commit_data_source_write"
_DEPLOY = "org.apache.spark.deploy"


class ProcessInfo(NamedTuple):
    """A running process."""

    pid: int
    parent: int
    command: str


def iter_processes(mark: str) -> Iterator[ProcessInfo]:
    """Return the running processes that have a mark in their environment."""
    wanted = f"{_MARK}={mark}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if wanted not in (entry / "environ").read_bytes().split(b"\0"):
                continue
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if fields[0] != "Z":
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                yield ProcessInfo(int(entry.name), int(fields[1]), command)
        except OSError:
            continue


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = _START_S) -> None:
    """Wait until a condition holds; raise TimeoutError if it never does."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} after {timeout_s:g} s")
        time.sleep(_PAUSE_S)


def make_environment(mark: str, folder: Path, source: Path) -> dict[str, str]:
    """Return the environment of all programs; `mark` is found in that of all processes that they start."""
    scratch = folder / "scratch"  # for what a killed process leaves behind
    scratch.mkdir(exist_ok=True)
    return {
        **os.environ,
        _MARK: mark,
        "TMPDIR": str(scratch),
        "SPARK_LOCAL_DIRS": str(scratch),
        "SPARK_HOME": str(_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(source), os.environ.get("PYTHONPATH", "")])),
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_DAEMON_MEMORY": "256m",
        # Executors that are killed again and again are no reason to end the application.
        "SPARK_MASTER_OPTS": "-Dspark.deploy.maxExecutorRetries=-1",
        # Tasks are short and cores few: the second compiler and parallel collection cost more than they save.
        "JDK_JAVA_OPTIONS": f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData -Djava.io.tmpdir={scratch}",
    }


class Program:
    """A process with its log."""

    def __init__(
        self, command: list[str], log: Path, environment: dict[str, str], out: Path | None = None
    ) -> None:
        self.log = log
        with log.open("ab") as err, (out or log).open("ab") as stdout:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=stdout, stderr=err, env=environment, cwd=log.parent
            )

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def wait_for_log(self, text: str) -> None:
        """Wait until the log contains a text."""
        wait_until(lambda: text in self.read_log() or not self.is_running, f"{text!r} is not in {self.log}")
        if text not in self.read_log():
            raise RuntimeError(f"{self.log} ends without {text!r}:\n{self.read_log()[-3000:]}")

    def read_log(self) -> str:
        return self.log.read_text(errors="replace")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdin:
            self.process.stdin.close()


class Driver:
    """The driver program, one process at a time; a query that it runs can be started again by a new one."""

    def __init__(
        self, master: str, folder: Path, mark: str, jvm_options: str, environment: dict[str, str]
    ) -> None:
        self._master, self._folder, self._mark, self._jvm_options = master, folder, mark, jvm_options
        self._environment = environment
        self._events = folder / "driver.events"
        self.log = folder / "driver.log"
        self._program: Program | None = None
        self._given: dict[str, Any] | None = None
        self._read = 0

    @property
    def is_running(self) -> bool:
        return self._program is not None and self._program.is_running

    @property
    def pid(self) -> int:
        assert self._program is not None
        return self._program.process.pid

    def start_query(self, given: dict[str, Any]) -> None:
        """Run a query, in the driver that runs or a new one; return when it was started."""
        self._given = given
        if not self.is_running:
            self._start()
        self._send(given)
        self.wait_for("started")

    def restart(self, *, spare_orphans: bool = False) -> None:
        """Start the program again, with the same query; Python processes of the old JVM may live on for a while."""
        assert self._given is not None
        if spare_orphans and self._program is not None:
            self._program.kill()
        else:
            self.kill()
        self._start()
        self._send(self._given)

    def stop_query(self) -> None:
        """Stop the query; the driver keeps running."""
        self._given = None
        self.read_events()
        self._send("stop")
        self.wait_for("stopped", _STOP_S)

    def wait_for(self, event: str, timeout_s: float = _START_S) -> None:
        found: list[dict[str, Any]] = []

        def has_happened() -> bool:
            found.extend(self.read_events())
            return any(each["event"] == event for each in found) or not self.is_running

        wait_until(has_happened, f"the driver has not {event}; see {self.log}", timeout_s)
        if not any(each["event"] == event for each in found):
            raise RuntimeError(f"the driver ended before it has {event}:\n{self.log.read_text()[-3000:]}")

    def read_events(self) -> list[dict[str, Any]]:
        """Return the events since the last call."""
        text = self._events.read_text() if self._events.exists() else ""
        end = text.rfind("\n") + 1
        lines, self._read = text[self._read : end].splitlines(), max(end, self._read)
        return [json.loads(line) for line in lines if line.startswith("{")]

    def kill(self) -> None:
        """Kill the program and all that it started."""
        if self._program is None:
            return
        for pid in self.family():
            kill_process(pid)
        self._program.kill()
        self._program = None

    def family(self) -> list[int]:
        """Return the processes that the program started, and itself at the end."""
        generations = [[self.pid]]
        running = list(iter_processes(self._mark))
        while generations[-1]:
            generations.append([each.pid for each in running if each.parent in generations[-1]])
        return [pid for generation in reversed(generations) for pid in generation]

    def _start(self) -> None:
        command = [sys.executable, str(ROOT / "bench" / "kills" / "driver.py"), self._master]
        command += [str(self._folder), self._jvm_options]
        self._program = Program(command, self.log, self._environment, self._events)

    def _send(self, command: dict[str, Any] | str) -> None:
        assert self._program is not None
        stdin = self._program.process.stdin
        assert stdin is not None
        stdin.write(json.dumps(command).encode() + b"\n")
        stdin.flush()


class SparkCluster:
    """Master, workers and the driver."""

    def __init__(self, folder: Path, source: Path = ROOT / "src", *, is_archived: bool = False) -> None:
        """Start it with the package in `source`; with an archive of classes for faster starts, if `is_archived`."""
        self._mark = f"{os.getpid()}-{time.time_ns()}"
        self._environment = make_environment(self._mark, folder, source)
        self._programs: list[Program] = []
        spark_class = str(_HOME / "bin" / "spark-class")
        port = free_port()
        url = f"spark://127.0.0.1:{port}"
        host = ["--host", "127.0.0.1", "--webui-port", "0"]
        try:
            master = [spark_class, f"{_DEPLOY}.master.Master", *host, "--port", str(port)]
            self._add(master, folder / "master.log").wait_for_log("I have been elected leader")
            for number in (1, 2):
                work = ["-c", "1", "-m", "1g", "-d", str(folder / f"work{number}"), url]
                worker = [spark_class, f"{_DEPLOY}.worker.Worker", *host, *work]
                self._add(worker, folder / f"worker{number}.log")
            for program in self._programs[1:]:
                program.wait_for_log("Successfully registered with master")
        except BaseException:
            self.close()
            raise
        archive = make_archive(folder / "classes.jsa", self._environment) if is_archived else ""
        self.driver = Driver(url, folder, self._mark, archive, self._environment)

    def _add(self, command: list[str], log: Path) -> Program:
        self._programs.append(Program(command, log, self._environment))
        return self._programs[-1]

    def processes(self) -> list[ProcessInfo]:
        return list(iter_processes(self._mark))

    def executors(self) -> list[ProcessInfo]:
        """Return the JVMs that run tasks."""
        return [each for each in self.processes() if "CoarseGrainedExecutorBackend" in each.command]

    def driver_jvms(self) -> list[ProcessInfo]:
        return [
            each for each in self.processes() if each.parent == self.driver.pid and "java" in each.command
        ]

    def python_workers(self, modules: Collection[str]) -> dict[str, list[int]]:
        """Return the Python processes of executors and of the driver's JVM by their module: daemons and workers."""
        found: dict[str, list[int]] = {}
        for each in self.processes():
            module = each.command.split()[-1].rpartition(".")[2] if " -m pyspark." in each.command else ""
            if module in modules:
                found.setdefault(module, []).append(each.pid)
        return found

    def close(self) -> None:
        for program in self._programs:
            program.kill()
        for each in self.processes():
            kill_process(each.pid)


def kill_process(pid: int) -> bool:
    """Kill a process; return whether it was there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
