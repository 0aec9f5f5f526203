"""The `headrace` command.

`serve` bypasses the command framework, because it must accept clients as soon as possible.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

__all__ = ["main"]

FAILED, INTERRUPTED = 1, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; return the exit code. Without `arguments` it is that of this process."""
    code = _run(list(sys.argv[1:] if arguments is None else arguments))
    if arguments is None and "obstore" in sys.modules:
        _exit_without_finalizing(code)
    return code


def _run(words: list[str]) -> int:
    try:
        if words[:1] == ["serve"]:
            return _serve(words[1:])
        from headrace.cli.app import run

        return run(words)
    except KeyboardInterrupt:
        return INTERRUPTED


def _exit_without_finalizing(code: int) -> NoReturn:
    """End the process although threads of obstore may still release Python objects.

    When the interpreter is finalized, Python ends such a thread at that moment, in the middle of Rust code, which aborts
    the process: a successful command would exit with SIGABRT.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _serve(words: Sequence[str]) -> int:
    """Run a server. Until it handles signals itself, an interrupt ends the process without a traceback.

    Until it is ready there is hardly any garbage, and collecting it would take a seventh of the start.
    """
    if sys.platform == "win32":
        print(
            "headrace serve: the server runs on Linux and macOS only; clients work here too", file=sys.stderr
        )
        return FAILED
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.disable()
    try:
        from headrace.cli.serve import serve

        return serve(words)
    finally:
        gc.enable()
