"""What a seed comes to in processes with different orders of hashes."""

from __future__ import annotations

import os
import subprocess
import sys


def digests(module: str, seed: int) -> set[str]:
    """What `run(seed)` of a test module returns, under two orders, with the sources that this process has."""
    paths = os.pathsep.join(filter(None, ("tests", os.environ.get("PYTHONPATH", ""))))
    return {
        subprocess.run(
            [sys.executable, "-c", f"from {module} import run; print(run({seed}))"],
            env={"PYTHONHASHSEED": hashing, "PYTHONPATH": paths},
            capture_output=True,
            check=True,
            text=True,
        ).stdout.strip()
        for hashing in ("1", "2")
    }
