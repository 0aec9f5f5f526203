"""Shared by the programs that run test suites of other projects: export, run with pytest, read the report, compare.

Not a program itself; `natspy.py` and `faststream.py` are.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable
from pathlib import Path

Outcomes = dict[str, str]
SERVERS = ("nats-server", "ours")


def export(suite: Path, folder: Path, names: list[str]) -> None:
    """Export files and folders of a checkout, or of the newest commit of a bare repository, to a new folder."""
    if (suite / "HEAD").is_file() and (suite / "objects").is_dir():
        command = ["git", f"--git-dir={suite}", "archive", "HEAD", *names]
        archive = subprocess.run(command, capture_output=True, check=True)
        subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
        return
    for name in names:
        copy = shutil.copytree if (suite / name).is_dir() else shutil.copy
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        copy(suite / name, folder / name)


def run_pytest(options: argparse.Namespace, folder: Path, added: list[str], **environment: str) -> Outcomes:
    """Run pytest in a folder; return the outcome of each test: passed, failed or skipped."""
    report = folder / "report.xml"
    command = [options.python, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", *added]
    command += [f"--timeout={options.timeout}", f"--junitxml={report}"]
    command += ["-k", options.expression] if options.expression else []
    process = subprocess.Popen(
        command, cwd=folder, env={**os.environ, **environment}, stdout=sys.stderr, start_new_session=True
    )
    try:
        process.wait()
    finally:  # also servers that a failed test has left
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return _read(report) if report.exists() else {}


def _read(report: Path) -> Outcomes:
    outcomes: Outcomes = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        name = case.get("classname", "").rpartition("tests.")[2]
        outcomes[f"{name}.{case.get('name')}"] = outcome
    return outcomes


def make_parser(description: str, suite: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument(
        "--suite", type=Path, required=True, help=f"checkout or bare git directory of {suite}"
    )
    parser.add_argument("--python", default=sys.executable, help="interpreter with the suite's test packages")
    parser.add_argument("--server", choices=[*SERVERS, "both"], default="ours")
    parser.add_argument("-k", dest="expression", default="", help="pytest's selection of tests")
    parser.add_argument("--timeout", type=int, default=60, help="seconds per test")
    parser.add_argument("--json", type=Path, help="file for the outcomes")
    return parser


def compare(options: argparse.Namespace, run: Callable[[str], Outcomes]) -> int:
    """Run the suite with each server, print the results, return the exit status."""
    servers = SERVERS if options.server == "both" else (options.server,)
    results = {server: run(server) for server in servers}
    show(results)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    return int(any(outcome == "failed" for outcome in results.get("ours", {}).values()))


def show(results: dict[str, Outcomes]) -> None:
    for server, outcomes in results.items():
        counts = Counter(outcomes.values())
        print(f"{server}: {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
        if len(results) == 1:
            print("\n".join(f"  failed {test}" for test, outcome in outcomes.items() if outcome == "failed"))
    if len(results) == 2:
        ours, reference = results["ours"], results["nats-server"]
        worse = [test for test, outcome in reference.items() if outcome == "passed" != ours.get(test)]
        print(f"passed on nats-server but not on Headrace: {len(worse)}")
        print("\n".join(f"  {test}" for test in worse))
