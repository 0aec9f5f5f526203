"""`headrace serve`: runs a server as a process.

Owns the process: exit codes, signals, the event loop. The server itself is `headrace.server`. Nothing slow is imported
before it is needed. See ADRs 3 and 13.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from headrace import COMPATIBLE_VERSION, __version__
from headrace._native import describe_core
from headrace.auth.authenticator import Authenticator
from headrace.cli.gc_tuning import PortionedGc
from headrace.cli.malloc_tuning import tune_malloc
from headrace.cli.serve_flags import USAGE, Action, CommandLine, UsageError, parse
from headrace.cli.standby_handover import StandbyHandover
from headrace.config.archive_options import REMOTE
from headrace.config.options import OptionsError, ServerOptions
from headrace.errors import ArchiveFenced, HeadraceError, StoreLocked
from headrace.net.logs import Logger, QueuedLogger
from headrace.net.reload import find_restart_only_changes, merge_options
from headrace.server import Server

if TYPE_CHECKING:
    from headrace.cli.table_process import TableProcess

OK, FAILED, USAGE_ERROR = 0, 1, 2
SWITCH_INTERVAL_S = 0.0002
#: A standby whose start was refused tries again after this time.
RETRY_S = 1.0

# NumPy is used only for its arrays; threads for linear algebra would cost start-up time and memory.
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
    """Do what the command line asks for; return the exit code."""
    try:
        command_line = parse(arguments)
        return _ACTIONS[command_line.action](command_line)
    except UsageError as error:
        print(f"headrace serve: {error}", file=sys.stderr)
        print("Try 'headrace serve --help' for the flags.", file=sys.stderr)
        return USAGE_ERROR
    except OptionsError as error:
        print(f"headrace serve: {error}", file=sys.stderr)
        return FAILED


def format_version() -> str:
    return f"headrace {__version__} (compatible with nats-server: v{COMPATIBLE_VERSION}; core: {describe_core()})"


def _print_version(command_line: CommandLine) -> int:
    print(format_version())
    return OK


def _print_help(command_line: CommandLine) -> int:
    print(USAGE)
    return OK


def _check_settings(command_line: CommandLine) -> int:
    options, _ = command_line.resolve()
    _check_tables(options)
    print("headrace serve: the configuration is valid")
    return OK


def _check_tables(options: ServerOptions) -> None:
    if options.tables:
        from headrace.cli.table_process import check_tables_file

        check_tables_file(options.tables)


def _send_signal(command_line: CommandLine) -> int:
    """`-sl stop=1234` or `-sl stop=/run/headrace.pid`."""
    name, _, target = command_line.signal.partition("=")
    if name not in SIGNALS:
        raise OptionsError(f"unknown signal {name!r}: use one of {', '.join(sorted(SIGNALS))}")
    target = target or command_line.settings.get("pid_file", "")
    if not target:
        raise OptionsError(f"no process given: use --signal {name}=<pid> or --signal {name}=<pid file>")
    try:
        pid = int(target) if target.isdigit() else _read_pid(target)
        os.kill(pid, SIGNALS[name])
    except (OSError, ValueError) as error:
        raise OptionsError(f"cannot send the signal to {target!r}: {error}") from error
    return OK


def _read_pid(path: str) -> int:
    with open(path, encoding="ascii") as file:
        return int(file.read())


def _run(command_line: CommandLine) -> int:
    options, warnings = command_line.resolve()
    _check_tables(options)
    try:
        log = QueuedLogger(options)
    except OSError as error:
        raise OptionsError(f"cannot write the log file {options.log_file!r}: {error}") from error
    try:
        for warning in warnings:
            log.warn(warning)
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_main(command_line, options, log))
    except (HeadraceError, OSError) as error:
        log.fatal(str(error))
        return FAILED
    finally:
        log.close()


_ACTIONS: dict[Action, Callable[[CommandLine], int]] = {
    Action.RUN: _run,
    Action.CHECK: _check_settings,
    Action.VERSION: _print_version,
    Action.HELP: _print_help,
    Action.SIGNAL: _send_signal,
}


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's if it is installed, otherwise None for asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _main(command_line: CommandLine, options: ServerOptions, log: Logger) -> int:
    stop = asyncio.Event()
    server = await _start(Configuration(command_line, options, log), log, stop)
    if server is None:
        return OK
    tune_malloc()
    # A commit switches threads several times and waits up to this long for each switch; Python's default is 5 ms.
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    PortionedGc(asyncio.get_running_loop().call_soon_threadsafe, server.count_ended).start()
    tables = _start_tables(options, server, log)
    stopped = asyncio.ensure_future(server.wait_stopped())
    stop_requested = asyncio.ensure_future(stop.wait())
    await asyncio.wait((stopped, stop_requested), return_when=asyncio.FIRST_COMPLETED)
    stop_requested.cancel()
    if tables is not None:
        await tables.stop()
    await server.stop()
    await stopped
    log.info("Server Exiting..")
    return FAILED if server.archive is not None and server.archive.failure else OK


def _start_tables(options: ServerOptions, server: Server, log: Logger) -> TableProcess | None:
    """Start the worker of the tables, which connects to the server as a client."""
    if not options.tables:
        return None
    from headrace.cli.table_process import TableProcess

    return TableProcess(options.tables, server.url, log)


async def _start(configuration: Configuration, log: Logger, stop: asyncio.Event) -> Server | None:
    """Start the server; as a standby, when no other one serves. Return None if stopped before."""
    while True:
        handover = StandbyHandover()
        if configuration.options.standby:
            _install_signal_handlers(configuration.reload, stop.set, stop, log)
            waited = await _wait_as_standby(configuration.options, log, stop)
            if waited is None:
                return None
            handover = waited
        server = Server(options=configuration.options, log=log, time_floor_ns=handover.time_floor_ns)
        _install_signal_handlers(
            partial(_reload, server, log, configuration.command_line), server.begin_lame_duck, stop, log
        )
        try:
            await server.start()
            return server
        except (StoreLocked, ArchiveFenced) as error:
            if not configuration.options.standby:
                raise  # another standby was faster otherwise
            log.warn(f"Standby: {error}")
        finally:
            handover.stop()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), RETRY_S)
            return None


async def _wait_as_standby(
    options: ServerOptions, log: Logger, stop: asyncio.Event
) -> StandbyHandover | None:
    """Wait until this server may serve; return None if it is stopped before."""
    from headrace.cli.standby import Standby

    if not await Standby(options, log).wait(stop):
        return None
    if options.archive is None:
        return StandbyHandover()
    if options.archive.ack != REMOTE:
        log.warn(
            "Standby: the archive has ack: local, so this server does not follow it: it only waits for the lock of a shared "
            "volume. Set ack: remote for a standby with a disk of its own"
        )
        return StandbyHandover()
    from headrace.cli.archive_standby import ArchiveStandby

    return await ArchiveStandby(options, log).wait(stop)


class Configuration:
    """The configuration of a server that has not started yet; a reload replaces what a running server could reload."""

    def __init__(self, command_line: CommandLine, options: ServerOptions, log: Logger) -> None:
        self.command_line = command_line
        self.options = options
        self._log = log

    async def reload(self) -> None:
        """Read the configuration for the start; keep the current one if the new one has an error."""
        try:
            (options, warnings), _ = await asyncio.to_thread(_read_configuration, self.command_line)
            merged = merge_options(self.options, options)
        except HeadraceError as error:
            self._log.error(f"Failed to reload the configuration: {error}")
            return
        for warning in warnings:
            self._log.warn(warning)
        for name in sorted(find_restart_only_changes(self.options, options)):
            self._log.warn(f"The change of {name} requires a restart")
        self.options = merged
        self._log.info("Reloaded server configuration; this server uses it when it starts")


async def _reload(server: Server, log: Logger, command_line: CommandLine) -> None:
    """Reload the configuration; keep the current one if the new one has an error.

    The file is read on another thread, because one with thousands of users takes long.
    """
    try:
        (options, warnings), authenticator = await asyncio.to_thread(_read_configuration, command_line)
        for warning in warnings:
            log.warn(warning)
        server.reload(options, authenticator)
    except HeadraceError as error:
        log.error(f"Failed to reload the configuration: {error}")


def _read_configuration(
    command_line: CommandLine,
) -> tuple[tuple[ServerOptions, tuple[str, ...]], Authenticator]:
    options, warnings = command_line.resolve()
    return (options, warnings), Authenticator(options)


class Reloads:
    """The reloads that were requested; they are made one after the other."""

    def __init__(self, reload: Callable[[], Awaitable[None]]) -> None:
        self._reload = reload
        self._task: asyncio.Task[None] | None = None
        self._is_requested = False

    def request(self) -> None:
        """Reload now, or once more after the reload that is running."""
        self._is_requested = True
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while self._is_requested:
            self._is_requested = False
            await self._reload()


def _install_signal_handlers(
    reload: Callable[[], Awaitable[None]],
    begin_lame_duck: Callable[[], None],
    stop: asyncio.Event,
    log: Logger,
) -> None:
    def request_stop(name: str) -> None:
        log.info(f'Trapped "{name}" signal')
        stop.set()

    handlers: dict[signal.Signals, Callable[[], None]] = {
        signal.SIGINT: lambda: request_stop("interrupt"),
        signal.SIGTERM: lambda: request_stop("terminated"),
        signal.SIGUSR1: log.reopen,
        signal.SIGUSR2: begin_lame_duck,
        signal.SIGHUP: Reloads(reload).request,
    }
    loop = asyncio.get_running_loop()
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
