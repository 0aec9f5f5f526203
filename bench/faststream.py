"""Runs FastStream's tests for NATS against Headrace and against nats-server, and compares the results.

    python bench/faststream.py --suite PATH [--python PYTHON] [--server ours|reference|both] [-k
    EXPRESSION] [--json FILE]

PATH is a checkout of FastStream or its bare git directory; it is exported into a temporary folder that is removed
afterwards. PYTHON is an interpreter that has `faststream[nats,otel,cli,prometheus]` of the same version, with pytest,
pytest-asyncio, pytest-timeout, dirty-equals, fastapi, httpx and pydantic-settings. The suite connects to port 4222, so
no other process may listen there meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from natspy import Outcomes, read, show

from conformance.servers import NATS_SERVER, OURS, Server, Setup

FOLDERS = ("faststream", "tests", "docs/docs_src", "examples", "pyproject.toml")
SUITES = ("tests/brokers/nats", "tests/docs/nats", "tests/asgi/nats", "tests/asyncapi/nats")
MARKERS = "nats and not slow"


def export(suite: Path, folder: Path) -> None:
    """Export what the tests need from a checkout or bare repository to a new folder."""
    if (suite / "tests").is_dir():
        for name in FOLDERS:
            copy = shutil.copytree if (suite / name).is_dir() else shutil.copy
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            copy(suite / name, folder / name)
    else:
        command = ["git", f"--git-dir={suite}", "archive", "HEAD", *FOLDERS]
        archive = subprocess.run(command, capture_output=True, check=True)
        subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)


def run(suite: Path, python: str, server: str, expression: str, timeout_s: int) -> Outcomes:
    """Return the outcome of each test: passed, failed or skipped."""
    kind = OURS if server == "ours" else NATS_SERVER
    with tempfile.TemporaryDirectory(prefix="faststream-") as temporary:
        folder = Path(temporary)
        export(suite, folder)
        report = folder / "report.xml"
        command = [python, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", "-m", MARKERS]
        command += [f"--timeout={timeout_s}", f"--junitxml={report}"]
        command += [name for name in SUITES if (folder / name).is_dir()]
        command += ["-k", expression] if expression else []
        environment = {**os.environ, "PYTHONPATH": str(folder), "HOME": temporary}
        with Server(kind, Setup(flags=("-p", "4222"))):
            subprocess.run(command, cwd=folder, env=environment, check=False, stdout=sys.stderr)
        return read(report)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--suite", type=Path, required=True, help="checkout or bare git directory of FastStream"
    )
    parser.add_argument(
        "--python", default=sys.executable, help="interpreter with FastStream's test packages"
    )
    parser.add_argument("--server", choices=["ours", "reference", "both"], default="ours")
    parser.add_argument("-k", dest="expression", default="", help="pytest's selection of tests")
    parser.add_argument("--timeout", type=int, default=60, help="seconds per test")
    parser.add_argument("--json", type=Path, help="file for the outcomes")
    options = parser.parse_args()
    servers = ["reference", "ours"] if options.server == "both" else [options.server]
    results = {
        server: run(options.suite, options.python, server, options.expression, options.timeout)
        for server in servers
    }
    show(results)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    return int(any(outcome == "failed" for outcome in results.get("ours", {}).values()))


if __name__ == "__main__":
    sys.exit(main())
