"""Connects the commands of `headrace claims`: adds the connection options, opens a nats-py connection, explains errors.

Claims use nats-py, not the client of the other commands, and a collector reconnects forever. Must not know what a
command does.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import typer

from headrace.cli import connection_target as targets
from headrace.cli.connection_target import ConnectionTarget
from headrace.cli.exit_codes import CliError
from headrace.cli.session import get_root_flags, passed_options

if TYPE_CHECKING:
    from nats.aio.client import Client as Connection

#: Options of the commands: those of all others, except the JetStream domain, which claims do not know.
_OPTIONS = {name: kind for name, kind in targets.OPTIONS.items() if name != "domain"}


def with_target(work: Callable[..., None]) -> Callable[..., None]:
    """Make a command of a function that gets a `target`: the server and credentials that were chosen."""
    own = [
        each for each in inspect.signature(work, eval_str=True).parameters.values() if each.name != "target"
    ]

    @wraps(work)
    def command(ctx: typer.Context, **values: Any) -> None:
        flags = passed_options({name: values.pop(name) for name in _OPTIONS})
        try:
            target = targets.resolve_target({**get_root_flags(ctx), **flags})
        except CliError as error:
            typer.echo(f"headrace claims: {error}", err=True)
            raise typer.Exit(error.code) from None
        work(target=target, **values)

    context = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in _OPTIONS.items()
    ]
    parameters = [context, *(each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own), *more]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def run_connected(target: ConnectionTarget, work: Callable[[Connection], Awaitable[int]]) -> None:
    """Connect, run, disconnect, exit; errors of users are explained."""
    try:
        code = _get_event_loop_module().run(_run(target, work))
    except ModuleNotFoundError as error:
        typer.echo(
            f"headrace claims: the package {error.name} is not installed: pip install 'headrace[claims]'",
            err=True,
        )
        code = 1
    except KeyboardInterrupt:
        code = 0
    raise typer.Exit(code)


async def _run(target: ConnectionTarget, work: Callable[[Connection], Awaitable[int]]) -> int:
    from nats.errors import Error as NatsError

    from headrace.errors import HeadraceError

    try:
        connection = await _connect(target)
    except CliError as error:
        typer.echo(f"headrace claims: {error}", err=True)
        return error.code
    except (NatsError, OSError) as error:
        typer.echo(f"headrace claims: cannot connect to {target.display_urls}: {error}", err=True)
        return 1
    try:
        return await work(connection)
    except HeadraceError as error:
        typer.echo(f"headrace claims: {error}", err=True)
        return 1
    finally:
        await connection.close()


async def _connect(target: ConnectionTarget) -> Connection:
    """Fail if no server can be reached now; reconnect forever once one was."""
    import nats
    from nats.errors import NoServersError

    from headrace.claims.lenient_parsing import connect

    if target.domain or target.api_prefix:
        raise CliError(
            "claims do not support a JetStream domain or another API prefix: connect to that domain itself"
        )
    logging.getLogger("nats").addHandler(logging.NullHandler())
    options = {**target.client_options(), "connect_timeout": target.timeout}
    last_errors: list[Exception] = []

    async def on_error(error: Exception) -> None:
        last_errors[:] = [error]

    try:
        test_connection = await nats.connect(
            target.servers, max_reconnect_attempts=1, reconnect_time_wait=0.1, error_cb=on_error, **options
        )
    except NoServersError as error:
        raise last_errors[0] if last_errors else error from None
    await test_connection.close()
    return await connect(target.servers, max_reconnect_attempts=-1, **options)


def _get_event_loop_module() -> Any:
    """Return uvloop if it is installed: a collector is a third faster with it."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return asyncio
    return uvloop
