"""The table worker beside a server: `headrace serve --tables FILE` runs `headrace table run` as a child process.

Owns the process. Invariants: the server's event loop never waits for it; it ends with the server, gracefully before the
server closes its connections, and by itself if the server is killed: its standard input closes then.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

from headrace.config.options import OptionsError
from headrace.net.logs import Logger

#: Between two starts; pauses double, up to the longer one, and begin again after a run of that time.
_PAUSE_S, _PAUSE_S_MAX = 1.0, 60.0
#: How long the worker may finish its commit.
_STOP_TIMEOUT_S = 20.0
_CHECK_TIMEOUT_S = 120.0
_LINE_BYTES_MAX = 1 << 20
_PREFIX = "headrace: "


def check_tables_file(path: str) -> None:
    """Raise OptionsError if the file cannot be used. Another process reads it, with the libraries that it needs."""
    try:
        done = subprocess.run(
            _make_command("check", path), capture_output=True, text=True, timeout=_CHECK_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise OptionsError(f"tables {path!r} could not be checked within {_CHECK_TIMEOUT_S:g} s") from None
    if done.returncode:
        raise OptionsError(f"tables: {done.stderr.strip().removeprefix(_PREFIX)}")


def _make_command(*arguments: str) -> list[str]:
    command, path, *more = arguments
    return [sys.executable, "-m", "headrace", "table", command, "--config", path, *more]


class TableProcess:
    """Keeps the worker of a file with tables running."""

    def __init__(self, path: str, url: str, log: Logger) -> None:
        self._command = _make_command("run", path, "--server", url, "--stop-with-input")
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._is_stopping = False
        self._task = asyncio.get_running_loop().create_task(self._keep_running())

    async def stop(self) -> None:
        """Let the worker finish the commit that it has begun, and end it."""
        self._is_stopping = True
        process = self._process
        if process is not None and process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), _STOP_TIMEOUT_S)
            except TimeoutError:
                self._log.warn(f"Tables: killed, because the worker did not end within {_STOP_TIMEOUT_S:g} s")
                process.kill()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _keep_running(self) -> None:
        pause_s = _PAUSE_S
        while True:
            started_s = time.monotonic()
            try:
                await self._run()
            except OSError as error:
                self._log.error(f"Tables: cannot start the worker: {error}")
            if self._is_stopping:
                return
            if time.monotonic() - started_s > _PAUSE_S_MAX:
                pause_s = _PAUSE_S
            self._log.warn(f"Tables: next start in {pause_s:g} s")
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _PAUSE_S_MAX)

    async def _run(self) -> None:
        """Run the worker to its end, and log what it says."""
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            limit=_LINE_BYTES_MAX,
            # Ctrl-C in a terminal is for the server, which then ends the worker.
            start_new_session=True,
        )
        self._process = process
        self._log.info(f"Tables: worker started, process {process.pid}")
        assert process.stderr is not None
        try:
            async for line in process.stderr:
                self._log.info(f"Tables: {line.decode(errors='replace').rstrip().removeprefix(_PREFIX)}")
            code = await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
        self._log.info(f"Tables: worker ended with exit code {code}")
