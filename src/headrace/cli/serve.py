"""`headrace serve`: a server as a process of its own.

Owns the process: exit codes, signals, the event loop. The server itself is `headrace.server`. Nothing slow is
imported before it is needed.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable, Sequence

from headrace import COMPATIBLE_VERSION, __version__
from headrace.cli.flags import USAGE, Action, CommandLine, UsageError, parse
from headrace.cli.memory import keep_heap_whole
from headrace.errors import HeadraceError
from headrace.net.logs import Log, WrittenLog
from headrace.net.options import Options, OptionsError
from headrace.server import Server

OK, FAILED, MISUSED = 0, 1, 2
TURN_S = 0.0002

# NumPy is used for its arrays alone; threads for linear algebra would cost start-up time and memory.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

SIGNALS = {
    "stop": signal.SIGTERM,
    "term": signal.SIGTERM,
    "quit": signal.SIGINT,
    "ldm": signal.SIGUSR2,
    "reload": signal.SIGHUP,
    "reopen": signal.SIGUSR1,
}


def serve(arguments: Sequence[str]) -> int:
    """Do what the command line asks for; the exit code."""
    try:
        line = parse(arguments)
        return _ACTIONS[line.action](line)
    except UsageError as error:
        print(f"headrace serve: {error}", file=sys.stderr, flush=True)
        print(USAGE)
        return MISUSED
    except OptionsError as error:
        print(f"headrace serve: {error}", file=sys.stderr)
        return FAILED


def version_text() -> str:
    return f"headrace {__version__} (compatible with nats-server: v{COMPATIBLE_VERSION})"


def _version(line: CommandLine) -> int:
    print(version_text())
    return OK


def _help(line: CommandLine) -> int:
    print(USAGE)
    return OK


def _check(line: CommandLine) -> int:
    line.resolve()
    print("headrace serve: the settings are fine")
    return OK


def _signal(line: CommandLine) -> int:
    """`-sl stop=1234` or `-sl stop=/run/headrace.pid`."""
    name, _, target = line.signal.partition("=")
    if name not in SIGNALS:
        raise OptionsError(f"unknown signal {name!r}: use one of {', '.join(sorted(SIGNALS))}")
    target = target or line.settings.get("pid_file", "")
    if not target:
        raise OptionsError(f"which process? Give its id or its pid file: --signal {name}=<pid>")
    try:
        pid = int(target) if target.isdigit() else _pid_in(target)
        os.kill(pid, SIGNALS[name])
    except (OSError, ValueError) as error:
        raise OptionsError(f"cannot signal {target!r}: {error}") from error
    return OK


def _pid_in(path: str) -> int:
    with open(path, encoding="ascii") as file:
        return int(file.read())


def _run(line: CommandLine) -> int:
    options, warnings = line.resolve()
    try:
        log = WrittenLog(options)
    except OSError as error:
        raise OptionsError(f"cannot write the log file {options.log_file!r}: {error}") from error
    try:
        for warning in warnings:
            log.warn(warning)
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_main(line, options, log))
    except (HeadraceError, OSError) as error:
        log.fatal(str(error))
        return FAILED
    finally:
        log.close()


_ACTIONS: dict[Action, Callable[[CommandLine], int]] = {
    Action.RUN: _run,
    Action.CHECK: _check,
    Action.VERSION: _version,
    Action.HELP: _help,
    Action.SIGNAL: _signal,
}


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's where it is installed, asyncio's own elsewhere."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _main(line: CommandLine, options: Options, log: Log) -> int:
    server = Server(options=options, log=log)
    stop = asyncio.Event()
    _trap(server, stop, log, line)
    await server.start()
    keep_heap_whole()
    # Whoever commits waits this long for a loop that does not rest, several times a commit; Python's own 5 ms add up.
    sys.setswitchinterval(TURN_S)
    # What was made while starting lives as long as the process: the collector need not look at it again.
    gc.collect()
    gc.freeze()
    stopped = asyncio.ensure_future(server.wait_stopped())
    asked = asyncio.ensure_future(stop.wait())
    await asyncio.wait((stopped, asked), return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    await server.stop()
    await stopped
    log.info("Server Exiting..")
    return OK


def _reload(server: Server, log: Log, line: CommandLine) -> None:
    """Read the configuration again; a mistake in it changes nothing."""
    try:
        options, warnings = line.resolve()
        for warning in warnings:
            log.warn(warning)
        server.reload(options)
    except HeadraceError as error:
        log.error(f"Failed to reload the configuration: {error}")


def _trap(server: Server, stop: asyncio.Event, log: Log, line: CommandLine) -> None:
    def ask_stop(name: str) -> None:
        log.info(f'Trapped "{name}" signal')
        stop.set()

    handlers: dict[signal.Signals, Callable[[], None]] = {
        signal.SIGINT: lambda: ask_stop("interrupt"),
        signal.SIGTERM: lambda: ask_stop("terminated"),
        signal.SIGUSR1: log.reopen,
        signal.SIGUSR2: server.begin_lame_duck,
        signal.SIGHUP: lambda: _reload(server, log, line),
    }
    loop = asyncio.get_running_loop()
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
