"""Every block of docs/reference/client.md runs as it is, on both servers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.servers import Server

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "client.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
PRINTS = [
    "HELLO 1\n",
    "10000 stored, 0 failed\n",
    "b'job 0'\nb'job 1'\nb'job 2'\n",
    "3 pear {'Content-Type': 'application/json'}\nOrder(fruit='pear', count=120)\n",
    "stored 1 to 2\nmessage 2: the subject is at 1\n",
    "ann is there, revision 2\n['bob.street', 'bob.city']\n3 values, markers are kept for 3600.0 s\n",
    "PUT pears b'1.40'\ninitial values complete\nPUT plums b'2.10'\nPURGE plums b''\n",
    "delivers again from 1\n",
    "2\n1000\n['green', 'blue']\nTrue\n",
]


@pytest.mark.slow
@pytest.mark.parametrize(("block", "prints"), list(zip(BLOCKS, PRINTS, strict=True)), ids=range(len(BLOCKS)))
def test_every_block_of_the_client_docs_runs(server: Server, tmp_path: Path, block: str, prints: str) -> None:
    assert "127.0.0.1:4222" in block
    script = tmp_path / "block.py"
    script.write_text(block.replace("127.0.0.1:4222", f"127.0.0.1:{server.port}"))
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=tmp_path,
    )
    assert (done.stdout, done.stderr, done.returncode) == (prints, "", 0)
