"""The code in the README runs as it is."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.processes import serving

pytestmark = pytest.mark.timeout(600)
ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)


def run(folder: Path, code: str) -> str:
    script = folder / "test_block.py"
    script.write_text(code)
    program = (
        ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder)]
        if "def test_" in code
        else []
    )
    done = subprocess.run(
        [sys.executable, *program, str(script)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=folder,
        env=os.environ,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_code_blocks_run(number: int, tmp_path: Path) -> None:
    code = BLOCKS[number]
    if "127.0.0.1:4222" not in code:
        run(tmp_path, code)
        return
    expected = "ORDERS 1\none flume, please\n" if "jetstream" in code else "hello, world\n"
    with serving(tmp_path, "-js", "-sd", str(tmp_path / "data")) as server:
        assert run(tmp_path, code.replace("127.0.0.1:4222", f"127.0.0.1:{server.port}")) == expected


def test_there_are_blocks() -> None:
    assert len(BLOCKS) >= 3
