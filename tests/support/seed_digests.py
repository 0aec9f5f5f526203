"""Digests of a seed in processes with different hash seeds."""

from __future__ import annotations

import os
import subprocess
import sys


def digests(module: str, seed: int) -> set[str]:
    """Return the results of `run(seed)` of a test module under two hash seeds, with the sources of this process."""
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
