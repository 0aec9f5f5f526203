"""Runs nats-py's own test suite against Headrace and against nats-server, and compares the results.

    python bench/natspy.py --suite PATH [--server ours|nats-server|both] [-k EXPRESSION] [--json
    FILE]

PATH is a checkout of nats.py or its bare git directory; it is exported into a temporary folder that is removed
afterwards. The suite starts `nats-server` by name: a two-line wrapper of that name on PATH replaces it. It uses fixed
ports (4222 and up), so no other process may listen there meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from conformance.servers import nats_server_binary

Outcomes = dict[str, str]


def export(suite: Path, folder: Path) -> Path:
    """Export the `nats` package of a checkout or bare repository, with its tests, to a new folder."""
    if (suite / "nats" / "tests").is_dir():
        shutil.copytree(suite / "nats", folder / "nats")
    else:
        archive = subprocess.run(
            ["git", f"--git-dir={suite}", "archive", "HEAD", "nats"], capture_output=True, check=True
        )
        subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder / "nats"


def stand_in(folder: Path, server: str) -> Path:
    """Create a folder for PATH with an executable named nats-server."""
    folder.mkdir()
    program = folder / "nats-server"
    source = Path(__file__).parent.parent / "src"  # not the suite's own packages
    ours = f"env PYTHONPATH={source} {sys.executable} -m headrace serve"
    command = nats_server_binary() if server == "nats-server" else ours
    program.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    program.chmod(0o755)
    return folder


def run(suite: Path, server: str, expression: str, timeout_s: int) -> Outcomes:
    """Return the outcome of each test: passed, failed or skipped."""
    with tempfile.TemporaryDirectory(prefix="natspy-") as temporary:
        folder = Path(temporary)
        package = export(suite, folder)
        (package / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
        environment = {
            **os.environ,
            "PATH": f"{stand_in(folder / 'bin', server)}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(package / "src"),
            "TMPDIR": str(folder),
            "HOME": str(folder),
        }
        report = folder / "report.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:headrace",
            "--tb=no",
        ]
        command += [f"--timeout={timeout_s}", f"--junitxml={report}", "tests"]
        command += ["-k", expression] if expression else []
        subprocess.run(command, cwd=package, env=environment, check=False, stdout=sys.stderr)
        return read(report)


def read(report: Path) -> Outcomes:
    outcomes: Outcomes = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        outcomes[f"{case.get('classname', '').removeprefix('tests.')}.{case.get('name')}"] = outcome
    return outcomes


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--suite", type=Path, required=True, help="checkout or bare git directory of nats.py")
    parser.add_argument("--server", choices=["ours", "nats-server", "both"], default="ours")
    parser.add_argument("-k", dest="expression", default="", help="pytest's selection of tests")
    parser.add_argument("--timeout", type=int, default=60, help="seconds per test")
    parser.add_argument("--json", type=Path, help="file for the outcomes")
    options = parser.parse_args()
    servers = ["nats-server", "ours"] if options.server == "both" else [options.server]
    results = {server: run(options.suite, server, options.expression, options.timeout) for server in servers}
    show(results)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    return int(any(outcome == "failed" for outcome in results.get("ours", {}).values()))


if __name__ == "__main__":
    sys.exit(main())
