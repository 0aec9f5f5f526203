"""Runs the published examples of FastStream for NATS and of taskiq-nats against Headrace and against nats-server.

    python bench/examples.py --suite PATH --python PYTHON [--server ours|nats-server|both]

PATH is a checkout of FastStream or its bare git directory; its examples and those of its documentation run as they are,
with `faststream run`. PYTHON is an interpreter that has `faststream[nats,cli]` and `taskiq-nats`, whose README is in its
metadata; the addresses `nats1` and `nats2` in it are replaced by `localhost`. The examples connect to port 4222, so no
other process may listen there meanwhile. An example passes if it did what it shows, and
logged no error. The program fails if one passes with nats-server only.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from client_suites import export

from conformance.servers import NATS_SERVER, OURS, Server, Setup

#: Modules of FastStream with an application, and what its log shows when it has worked.
FASTSTREAM = {
    "docs.docs_src.nats.js.main": "Hi!",
    "docs.docs_src.nats.js.pull_sub": "started successfully",
    "docs.docs_src.nats.js.key_value": "Processed",
    "docs.docs_src.nats.js.object": "File mock",
    "docs.docs_src.nats.direct": "Processed",
    "docs.docs_src.nats.pattern": "Processed",
    "examples.nats.e01_basic": "Processed",
    "examples.nats.e02_basic_rpc": "started successfully",
    "examples.nats.e03_publisher": "Processed",
    "examples.nats.e04_js_basic": "Processed",
    "examples.nats.e05_basic_and_js": "Processed",
    "examples.nats.e06_key_value": "Processed",
    "examples.nats.e07_object_storage": "Processed",
    "examples.nats.e08_wildcards": "Processed",
    "examples.nats.e09_pull_sub": "started successfully",
}
_ERRORS = re.compile(r"Traceback|\bERROR\b|CRITICAL")
_LIMIT_S = 30.0
_README = "import importlib.metadata as m; print(m.metadata('taskiq-nats').get_payload())"


class Program:
    """A process whose output is kept."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self._path = Path(tempfile.mkstemp(dir=folder, suffix=".log")[1])
        with self._path.open("wb") as log:
            self._process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)

    @property
    def output(self) -> str:
        return self._path.read_text(errors="replace")

    def shows(self, text: str) -> bool:
        """Wait until the output has a text, or an error."""
        deadline_s = time.monotonic() + _LIMIT_S
        while time.monotonic() < deadline_s and text not in self.output:
            if _ERRORS.search(self.output) or self._process.poll() is not None:
                break
            time.sleep(0.1)
        return text in self.output and not _ERRORS.search(self.output)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextlib.contextmanager
def running(command: list[str], folder: Path) -> Iterator[Program]:
    program = Program(command, folder)
    try:
        yield program
    finally:
        program.stop()


def run_faststream(python: str, folder: Path) -> Iterator[tuple[str, bool, str]]:
    for module, shown in FASTSTREAM.items():
        if not (folder / f"{module.replace('.', '/')}.py").exists():
            continue
        with running([python, "-m", "faststream", "run", f"{module}:app"], folder) as program:
            passed = program.shows(shown)
        yield f"faststream {module}", passed, program.output


def list_taskiq_programs(python: str) -> list[str]:
    """Return the programs of the README; one that defines two brokers becomes two programs."""
    readme = subprocess.run([python, "-c", _README], capture_output=True, text=True, check=True).stdout
    blocks = re.findall(r"^```python\n(.*?)^```$", readme, re.DOTALL | re.MULTILINE)
    programs = []
    for block in blocks:
        text = re.sub(r"nats[12]:4222", "localhost:4222", block)
        text = text.replace("NatsBroker, JetStreamBroker", "NatsBroker")  # the second name does not exist
        first, *second = re.split(r"^# Or you can use .*\n", text, maxsplit=1, flags=re.MULTILINE)
        if second:
            programs.append(first + second[0][second[0].index("\n\n\n@broker") :])
        programs.append(text)
    return programs


def run_taskiq(python: str, folder: Path) -> Iterator[tuple[str, bool, str]]:
    for number, text in enumerate(list_taskiq_programs(python)):
        name = f"taskiq_example_{number}"
        (folder / f"{name}.py").write_text(text)
        worker_command = [python, "-m", "taskiq", "worker", "--workers", "1", f"{name}:broker"]
        with running(worker_command, folder) as worker:
            passed = worker.shows("Listening started")
            time.sleep(1.0)  # the worker subscribes after that
            has_result = "wait_result" in text
            with running([python, f"{name}.py"], folder) as client:
                shown = (client, "Hello, NATS!") if has_result else (worker, "I love taskiq")
                passed = passed and shown[0].shows(shown[1])
        broker = re.findall(r"^broker = (\w+)", text, re.MULTILINE)[-1]
        title = f"taskiq-nats {broker}{' with results' if has_result else ''}"
        yield title, passed, worker.output + client.output


def run_all(options: argparse.Namespace, kind: str) -> dict[str, bool]:
    """Return which examples passed."""
    outcomes: dict[str, bool] = {}
    with tempfile.TemporaryDirectory(prefix="examples-") as temporary:
        folder = Path(temporary)
        export(options.suite, folder, ["docs/docs_src", "examples"])
        with Server(kind, Setup(flags=("-p", "4222"))):
            for runs in (run_faststream, run_taskiq):
                for title, passed, output in runs(options.python, folder):
                    print(f"{kind}: {'passed' if passed else 'FAILED'}: {title}", flush=True)
                    outcomes[title] = passed
                    if not passed:
                        print(output[-3000:])
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--suite", type=Path, required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("--server", choices=["ours", "nats-server", "both"], default="both")
    options = parser.parse_args()
    kinds = {"ours": [OURS], "nats-server": [NATS_SERVER], "both": [OURS, NATS_SERVER]}[options.server]
    outcomes = {kind: run_all(options, kind) for kind in kinds}
    expected = outcomes.get(NATS_SERVER, {})
    ours = outcomes.get(OURS, {})
    worse = [title for title, passed in ours.items() if not passed and expected.get(title, True)]
    print(
        "Headrace runs all examples that nats-server runs" if not worse else f"only on nats-server: {worse}"
    )
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
