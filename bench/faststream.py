"""Runs FastStream's tests for NATS against Headrace and against nats-server, and compares the results.

    python bench/faststream.py --suite PATH [--python PYTHON] [--server ours|nats-server|both] [-k
    EXPRESSION] [--json FILE]

PATH is a checkout of FastStream or its bare git directory; it is exported into a temporary folder that is removed
afterwards. PYTHON is an interpreter that has `faststream[nats,otel,cli,prometheus]` of the same version, with pytest,
pytest-asyncio, pytest-timeout, dirty-equals, fastapi, httpx and pydantic-settings. The suite connects to port 4222, so
no other process may listen there meanwhile.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from client_suites import Outcomes, compare, export, make_parser, run_pytest

from conformance.servers import NATS_SERVER, OURS, Server, Setup

EXPORTED = ["faststream", "tests", "docs/docs_src", "examples", "pyproject.toml"]
SUITES = ("tests/brokers/nats", "tests/docs/nats", "tests/asgi/nats", "tests/asyncapi/nats")
MARKERS = "nats and not slow"


def run(options: argparse.Namespace, server: str) -> Outcomes:
    """Return the outcome of each test: passed, failed or skipped."""
    kind = OURS if server == "ours" else NATS_SERVER
    with tempfile.TemporaryDirectory(prefix="faststream-") as temporary:
        folder = Path(temporary)
        export(options.suite, folder, EXPORTED)
        added = ["-m", MARKERS, *(name for name in SUITES if (folder / name).is_dir())]
        with Server(kind, Setup(flags=("-p", "4222"))):
            return run_pytest(options, folder, added, PYTHONPATH=temporary, HOME=temporary)


def main() -> int:
    options = make_parser(__doc__, "FastStream").parse_args()
    return compare(options, lambda server: run(options, server))


if __name__ == "__main__":
    sys.exit(main())
