"""Unmodified nats.js clients (tests/js) against both servers.

npm installs the packages into tests/js/node_modules if they are missing; `make test` checks that node exists.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from conformance.servers import Server

FOLDER = Path(__file__).parent.parent / "js"
MISSING = "node and npm are missing; the nats.js tests need them. On Debian: apt-get install nodejs npm"


@pytest.fixture(scope="module")
def node() -> str:
    program, npm = shutil.which("node"), shutil.which("npm")
    if not program or not npm:
        pytest.fail(MISSING)
    modules = FOLDER / "node_modules"
    with (FOLDER / "package.json").open() as lock:  # concurrent workers install only once
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not all((modules / package).is_dir() for package in json.load(lock)["dependencies"]):
            command = [npm, "install", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error"]
            subprocess.run(command, cwd=FOLDER, check=True, timeout=300)
    return program


@pytest.mark.parametrize(
    "script", ["core.mjs", "streams.mjs", "kv.mjs", "consumers.mjs", "objects.mjs", "services.mjs"]
)
def test_each_nats_js_script_passes(server: Server, node: str, script: str) -> None:
    command = [node, str(FOLDER / script), f"127.0.0.1:{server.port}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
