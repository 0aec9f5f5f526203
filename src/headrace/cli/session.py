"""The connection of a command, and the decorators that add the common options to commands.

`@with_connection` turns a coroutine `async def f(session, ...)` into a command that also takes the connection options
and `--json`, and ends with an exit code. Nothing of the client is imported before a command runs.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from headrace.cli import connection_target as targets
from headrace.cli.connection_target import ConnectionTarget
from headrace.cli.exit_codes import CLOSED_PIPE, INTERRUPTED, NO_CONNECTION, CliError, to_cli_error
from headrace.cli.output import print_note

if TYPE_CHECKING:
    import asyncio

    from headrace.client import Client, JetStream

T = TypeVar("T")
AsyncCommand = Callable[..., Coroutine[Any, Any, int | None]]
_CLOSE_TIMEOUT_S = 2.0
_RETRY_S = 0.05
#: How the server's error begins if the user may not publish or subscribe.
_DENIED = "permissions violation"
_JSON = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class CliSession:
    """An open connection and the options of the command line for it."""

    def __init__(self, target: ConnectionTarget, json: bool = False) -> None:
        self.target = target
        self.json = json
        self._clients: list[Client] = []
        self._reconnects = False
        self._last_error: Exception | None = None
        self._requests: set[asyncio.Future[Any]] = set()
        #: What the server refused because of the user's permissions; "" if nothing.
        self.denied = ""

    @property
    def nc(self) -> Client:
        return self._clients[0]

    @property
    def js(self) -> JetStream:
        return self.nc.jetstream(**self.target.jetstream_options())

    @property
    def timeout(self) -> float:
        return self.target.timeout

    async def api_request(self, call: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the JetStream API's response, without the type that every response has."""
        response = await self.js.api_request(call, body)
        response.pop("type", None)
        return response

    async def list_all(
        self, call: str, part: str, body: Mapping[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """Return all items of a listing, page by page."""
        found: list[dict[str, Any]] = []
        while True:
            page = await self.api_request(call, {**(body or {}), "offset": len(found)})
            items = page.get(part) or []
            found += items
            if not items or len(found) >= page["total"]:
                return found

    async def open(self) -> Client:
        """Open another connection, to the first server that answers."""
        last_error: Exception | None = None
        for url in self.target.servers:
            try:
                client = await self._connect(url)
            except Exception as error:
                last_error = error
                continue
            self._clients.append(client)
            return client
        raise self._make_connection_error(last_error)

    async def _connect(self, url: str) -> Client:
        from headrace.client import Client

        client, options = Client(), self.target.client_options()
        try:
            await client.connect(
                url,
                name="headrace command line",
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=_RETRY_S,  # type: ignore[arg-type]
                connect_timeout=self.timeout,  # type: ignore[arg-type]
                error_cb=self._on_error,
                disconnected_cb=self._on_disconnect,
                reconnected_cb=self._on_reconnect,
                closed_cb=self._on_close,
                **options,
            )
        except BaseException:
            with suppress(Exception):
                await client.close()
            raise
        return client

    def _make_connection_error(self, error: Exception | None) -> CliError:
        from nats.errors import Error as NatsError
        from nats.errors import NoServersError

        error = self._last_error if isinstance(error, NoServersError) else error
        server_text = self.target.display_urls
        if isinstance(error, CliError):
            return error
        if isinstance(error, ModuleNotFoundError):
            return CliError(f"--creds and --nkey require the package {error.name}: pip install {error.name}")
        if isinstance(error, ConnectionRefusedError):
            text = f"no server at {server_text}; start one with 'headrace serve', or choose another with --server"
        elif isinstance(error, TimeoutError):
            text = f"{server_text} did not respond within {self.timeout:g} s: is it the port for clients, by default 4222?"
        elif isinstance(error, NatsError) and "uthorization" in str(error):
            text = f"{server_text} rejected the credentials: use --user and --password, --token, --creds or --nkey"
        elif "expecting INFO" in str(error):
            text = f"{server_text} is no NATS server: is it the port for clients, by default 4222?"
        else:
            text = f"cannot connect to {server_text}: {str(error).removeprefix('nats: ') or type(error).__name__}"
        return CliError(text, NO_CONNECTION)

    def enable_reconnect(self) -> None:
        """Reconnect when the connection is lost: for commands that run until they are stopped."""
        self._reconnects = True
        for client in self._clients:
            client.options |= {
                "allow_reconnect": True,
                "max_reconnect_attempts": -1,
                "reconnect_time_wait": 1,
            }

    async def _on_error(self, error: Exception) -> None:
        """Record the error: nats-py reports why a connection failed only to this callback."""
        self._last_error = error
        if _DENIED in str(error).lower():
            self.denied = f"{str(error).removeprefix('nats: ')}; ask for the permission, or use another user with --user"

    def check_permissions(self) -> None:
        """Raise CliError if the server refused something until the last flush."""
        if self.denied:
            raise CliError(self.denied)

    async def _on_disconnect(self) -> None:
        if self._reconnects and self._clients and not self.nc.is_closed:
            print_note("headrace: connection lost; reconnecting ...")

    async def _on_reconnect(self) -> None:
        if self._reconnects:
            print_note("headrace: reconnected")

    async def _on_close(self) -> None:
        for request in self._requests:
            request.cancel()

    async def run_while_connected(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of a request that may take long; raise at once if the connection is lost.

        nats-py waits for a reply until the timeout also on a closed connection.
        """
        import asyncio

        request = asyncio.ensure_future(work)
        self._requests.add(request)
        try:
            return await request
        except asyncio.CancelledError:
            if not self.nc.is_closed:
                raise
            raise CliError("the connection was lost", NO_CONNECTION) from None
        finally:
            self._requests.discard(request)

    async def close(self) -> None:
        import asyncio

        self._reconnects = False
        for client in self._clients:
            try:
                await asyncio.wait_for(client.close(), _CLOSE_TIMEOUT_S)
            except (TimeoutError, OSError):
                continue


def with_connection(work: AsyncCommand) -> Callable[..., None]:
    """Make a command of a coroutine that gets a session."""
    return _make_command(work, report_error)


def nagios_check(code: int) -> Callable[[AsyncCommand], Callable[..., None]]:
    """Make a command of a monitoring check: print any error as CRITICAL and exit with this code."""

    def report_critical(error: Exception) -> int:
        print(f"CRITICAL: {to_cli_error(error)}")
        return code

    return lambda work: _make_command(work, report_critical)


def with_target(work: Callable[..., int | None]) -> Callable[..., None]:
    """Make a command of a function that gets the server's address and credentials as `session`, not connected."""

    def run_work(ctx: typer.Context, flags: dict[str, Any], json: bool, values: dict[str, Any]) -> int | None:
        target = targets.resolve_target({**get_root_flags(ctx), **passed_options(flags)})
        return work(CliSession(target, json), **values)

    return _make_session_command(work, run_work, report_error)


def _make_command(work: AsyncCommand, on_error: Callable[[Exception], int]) -> Callable[..., None]:
    def run_work(ctx: typer.Context, flags: dict[str, Any], json: bool, values: dict[str, Any]) -> int | None:
        async def run_session() -> int | None:
            session = CliSession(
                targets.resolve_target({**get_root_flags(ctx), **passed_options(flags)}), json
            )
            try:
                await session.open()
                return await work(session, **values)
            except Exception as error:
                from headrace.cli.name_advice import explain_error

                explained = await explain_error(session, error, values)
                if explained is error:
                    raise  # its cause says more
                raise explained from error
            finally:
                await session.close()

        return _run(run_session())

    return _make_session_command(work, run_work, on_error)


def _make_session_command(
    work: Callable[..., Any],
    run_work: Callable[[typer.Context, dict[str, Any], bool, dict[str, Any]], int | None],
    on_error: Callable[[Exception], int],
) -> Callable[..., None]:
    """Make a command that takes the options of `work`, of connections, and `--json`."""
    own = [
        each for each in inspect.signature(work, eval_str=True).parameters.values() if each.name != "session"
    ]
    if not any(each.name == "json" for each in own):
        own.append(_make_parameter("json", _JSON, False))

    @wraps(work)
    def command(ctx: typer.Context, **values: Any) -> None:
        flags = {name: values.pop(name) for name in targets.OPTIONS}
        json = bool(values.pop("json"))
        run_command(lambda: run_work(ctx, flags, json, values), on_error)

    shared = [_make_parameter(name, kind, None) for name, kind in targets.OPTIONS.items()]
    everything = [_make_parameter("ctx", typer.Context), *own, *shared]
    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in everything]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def without_connection(work: Callable[..., int | None]) -> Callable[..., None]:
    """Make a command without a connection, with the same error messages and exit codes."""

    @wraps(work)
    def command(*arguments: Any, **values: Any) -> None:
        run_command(lambda: work(*arguments, **values))

    return command


def with_options(options: Mapping[str, Any], into: str) -> Callable[[AsyncCommand], AsyncCommand]:
    """Add many options to a command; those that were given arrive as one mapping."""

    def decorate(work: AsyncCommand) -> AsyncCommand:
        signature = inspect.signature(work, eval_str=True)
        own = [each for each in signature.parameters.values() if each.name != into]
        own = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own]

        @wraps(work)
        def gather_options(session: CliSession, **values: Any) -> Coroutine[Any, Any, int | None]:
            chosen = passed_options({name: values.pop(name) for name in options})
            return work(session, **values, **{into: chosen})

        more = [_make_parameter(name, kind, None) for name, kind in options.items()]
        gather_options.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
        return gather_options

    return decorate


def get_root_flags(context: typer.Context) -> dict[str, Any]:
    """Return the connection options given before the command: `headrace -s URL stream ls`."""
    params = context.find_root().params
    return passed_options({name: params.get(name) for name in targets.OPTIONS})


def report_error(error: Exception) -> int:
    """Print the error message; return the exit code."""
    failure = to_cli_error(error)
    print_note(f"headrace: {failure}")
    return failure.code


def run_command(work: Callable[[], int | None], on_error: Callable[[Exception], int] = report_error) -> None:
    """Run a command and exit with its code."""
    try:
        code = work() or 0
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        code = CLOSED_PIPE
        discard_stdout()
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except Exception as error:
        code = on_error(error)
    if code:
        raise typer.Exit(code)


def discard_stdout() -> None:
    """Redirect stdout to /dev/null, because the reading end of the pipe is closed."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)


def _run(coroutine: Coroutine[Any, Any, int | None]) -> int | None:
    import asyncio

    with asyncio.Runner() as runner:
        return runner.run(coroutine)


def passed_options(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in (None, [], ())}


def _make_parameter(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
