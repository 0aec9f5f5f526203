"""System calls of a real writing process fail below the compiled core: nothing acknowledged is lost."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from .test_kill_writer import TESTS, parse_acked, verify, write_and_kill

SOURCE = Path(__file__).with_name("failing_calls.c")
CORES = {"compiled": {}, "pure": {"HEADRACE_PURE": "1"}}

pytestmark = [
    pytest.mark.skipif(
        sys.platform != "linux" or shutil.which("gcc") is None, reason="needs LD_PRELOAD and a compiler"
    ),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("preload") / "failing_calls.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", path, SOURCE, "-ldl"], check=True, timeout=60)
    return str(path)


def failing(library: str, core: str, **settings: int) -> dict[str, str]:
    return {"LD_PRELOAD": library, **CORES[core], **{name: str(value) for name, value in settings.items()}}


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize(
    "failure", [{"FAIL_SYNC": 8}, {"FAIL_SYNC": 21}, {"FAIL_SYNC": 50}, {"FAIL_SEGMENT_SYNC": 4}]
)
def test_a_failed_sync_ends_all_acks(
    library: str, core: str, failure: dict[str, int], tmp_path: Path
) -> None:
    """The writer ends by itself: its store is poisoned. Segments are synced for large messages."""
    done = subprocess.run(
        [sys.executable, "-m", "crash.store_writer", str(tmp_path)],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(TESTS), **failing(library, core, **failure)},
        timeout=300,
    )
    assert done.returncode == 1
    assert b"StorePoisoned: a write failed: [Errno 5] sync failed" in done.stderr, done.stderr
    acked = parse_acked(done.stdout)
    assert acked
    verify(tmp_path, acked)


@pytest.mark.parametrize("core", CORES)
def test_short_writes_are_continued(library: str, core: str, tmp_path: Path) -> None:
    rng = Random(core)
    for _ in range(3):
        acked = write_and_kill(tmp_path, rng.random() * 0.3, failing(library, core, SHORT_WRITES=1))
        assert acked
        verify(tmp_path, acked)


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("nth", [5, 30])
def test_a_frame_without_space_is_not_acknowledged(library: str, core: str, nth: int, tmp_path: Path) -> None:
    acked = write_and_kill(tmp_path, 0.3, failing(library, core, FAIL_WRITE=nth))
    verify(tmp_path, acked)
