"""The exit code of a process that used an object store."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("obstore")

#: Many operations end just before the process does, so that threads of obstore still release what belongs to them.
_PROGRAM = """
import asyncio, sys
import obstore
from obstore.store import LocalStore
from headrace import cli

async def work():
    store = LocalStore(sys.argv[1])
    await asyncio.gather(*(obstore.put_async(store, str(number), b"x") for number in range(16)))

def run(words):
    asyncio.run(work())
    print("done")
    return 3

cli._run = run
sys.exit(cli.main())
"""


@pytest.mark.slow
def test_a_process_with_an_object_store_ends_with_the_code_of_its_command(tmp_path: Path) -> None:
    for _ in range(20):
        command = [sys.executable, "-c", _PROGRAM, str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode, done.stdout) == (3, "done\n"), done.stderr
