"""Runs `headrace migrate` as a process of its own, from this source or a copy with a planted bug."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from support.cluster_leaf import Pair

SOURCE = Path(__file__).parents[2] / "src"


#: What the tool prints when a step begins.
STEP = re.compile(r"headrace: (\w+)")


class FinishedMove(NamedTuple):
    """The receipts by stream, and how long each step took."""

    receipts: dict[str, dict[str, Any]]
    steps_s: dict[str, float]


class MoveTool:
    """The command line between the two sides of a pair, for a set of streams."""

    def __init__(self, pair: Pair, names: Sequence[str], source: Path = SOURCE) -> None:
        self._pair, self._names, self._source = pair, names, source

    def start(
        self, command: str, *, back: bool, options: Sequence[str] = (), **process: Any
    ) -> subprocess.Popen[str]:
        """Start a command, which moves to the cluster or back to Headrace."""
        words = ["-s", self._pair.ours.url, "migrate", command, *self._names, "--to", self._pair.cluster.urls]
        words += [*options, *(["--back"] if back else [])]
        environment = {**os.environ, "PYTHONPATH": str(self._source)}
        process = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, **process}
        return subprocess.Popen(
            [sys.executable, "-m", "headrace", *words], text=True, env=environment, **process
        )

    def move(self, *, back: bool) -> FinishedMove:
        """Move all streams."""
        tool = self.start("move", back=back, options=["--json"], stdout=subprocess.PIPE)
        assert tool.stderr is not None
        assert tool.stdout is not None
        starts: list[tuple[str, float]] = []
        errors = []
        for line in tool.stderr:
            errors.append(line)
            if step := STEP.fullmatch(line.strip()):
                starts.append((step[1], time.monotonic()))
        output = tool.stdout.read()
        assert tool.wait() == 0, "".join(errors)
        ends_s = [*(start_s for _, start_s in starts[1:]), time.monotonic()]
        steps_s = {
            step: round(end_s - start_s, 2) for (step, start_s), end_s in zip(starts, ends_s, strict=True)
        }
        return FinishedMove(json.loads(output), steps_s)
