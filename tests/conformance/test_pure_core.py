"""Runs the conformance tests on a server with the pure core."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
#: Publishing, delivery, acks, batches, expiry, sourcing, leafnodes: every module of the core is used.
FILES = [
    "test_core_nats.py",
    "test_publish.py",
    "test_atomic_batch.py",
    "test_fast_ingest.py",
    "test_direct_get.py",
    "test_consumers_pull.py",
    "test_consumers_push.py",
    "test_consumers_acks.py",
    "test_ttl.py",
    "test_client_kv.py",
]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(bool(os.environ.get("HEADRACE_PURE")), reason="already running on the pure core")
def test_the_server_behaves_the_same_without_a_compiler() -> None:
    environment = {**os.environ, "HEADRACE_PURE": "1"}
    environment.pop("PYTEST_XDIST_WORKER", None)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-k", "headrace"]
    done = subprocess.run(
        [*command, *(str(HERE / name) for name in FILES)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout
