"""A sample of `make test-cluster`: tests of the client on three nats-servers, in a process with that target."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.cluster_server import replicate

FOLDER = Path(__file__).parent
SAMPLE = ("test_client_ttl.py", "test_client_kv_reader.py")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cluster"), pytest.mark.timeout(960)]


def test_a_sample_of_the_client_tests_passes() -> None:
    command = [sys.executable, "-m", "pytest", "-q", *(str(FOLDER / name) for name in SAMPLE)]
    environment = {**os.environ, "HEADRACE_TARGET": "cluster"}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        env=environment,
        cwd=FOLDER.parents[1],
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def test_streams_get_replicas_unless_they_name_a_number() -> None:
    assert replicate(b'{"name":"S"}') == b'{"name": "S", "num_replicas": 3}'
    assert replicate(b'{"name":"S","num_replicas":2}') == b'{"name":"S","num_replicas":2}'
    assert replicate(b'{"persist_mode":"async"}') == b'{"persist_mode":"async"}'
    assert replicate(b"not JSON") == b"not JSON"
