"""The programs of docs/reference/claims.md run as they are, on both servers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.servers import KINDS, Server

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "claims.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
PRINTS = ["video/quicktime 2500000\n", "scans.1 5000000\nscans.2 5\n", "5000000 bytes\n"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("block", "prints"), list(zip(BLOCKS, PRINTS, strict=True)), ids=range(len(BLOCKS)))
def test_every_block_of_the_claims_docs_runs(kind: str, tmp_path: Path, block: str, prints: str) -> None:
    if "faststream" in block:
        pytest.importorskip("faststream", reason="needs faststream[nats]: run make setup")
    assert "127.0.0.1:4222" in block
    script = tmp_path / "block.py"
    with Server(kind) as server:
        script.write_text(block.replace("127.0.0.1:4222", f"127.0.0.1:{server.port}"))
        done = subprocess.run(
            [sys.executable, str(script)],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            cwd=tmp_path,
        )
    assert (done.stdout, done.returncode) == (prints, 0), done.stderr
    assert "Traceback" not in done.stderr
