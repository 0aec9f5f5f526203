"""The `headrace` command.

`serve` bypasses the command framework, because it must accept clients as soon as possible.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["serve"]:
        from headrace.cli.serve import serve

        return serve(words[1:])
    try:
        from headrace.cli.app import run

        return run(words)
    except KeyboardInterrupt:
        return INTERRUPTED
