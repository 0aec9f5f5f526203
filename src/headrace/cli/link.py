"""The connection that a command works with, and the decorators that give commands their common options.

`@connected` turns a coroutine `async def f(link, ...)` into a command that also takes the connection's options and
`--json`, and ends with an exit code. Nothing of the client is imported before a command runs.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import target as targets
from headrace.cli.failures import CLOSED_PIPE, INTERRUPTED, NO_CONNECTION, Failure, explain
from headrace.cli.show import note
from headrace.cli.target import Target

if TYPE_CHECKING:
    from headrace.client import Client, JetStream

Work = Callable[..., Coroutine[Any, Any, int | None]]
_CLOSE_S = 2.0
_AGAIN_S = 0.05
_JSON = Annotated[bool, typer.Option("--json", help="JSON for programs.")]


class Link:
    """An open connection and what the command line said about it."""

    def __init__(self, target: Target, json: bool = False) -> None:
        self.target = target
        self.json = json
        self._clients: list[Client] = []
        self._stays = False
        self._reason: Exception | None = None

    @property
    def nc(self) -> Client:
        return self._clients[0]

    @property
    def js(self) -> JetStream:
        return self.nc.jetstream(**self.target.jetstream_options())

    @property
    def timeout(self) -> float:
        return self.target.timeout

    async def api(self, call: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The JetStream API's answer, without the type that every answer names."""
        answer = await self.js.api_request(call, body)
        answer.pop("type", None)
        return answer

    async def listed(
        self, call: str, part: str, body: Mapping[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """All items of a listing, page by page."""
        found: list[dict[str, Any]] = []
        while True:
            page = await self.api(call, {**(body or {}), "offset": len(found)})
            items = page.get(part) or []
            found += items
            if not items or len(found) >= page["total"]:
                return found

    async def open(self) -> Client:
        """Another connection; the first server that answers is taken."""
        failed: Exception | None = None
        for url in self.target.servers:
            try:
                client = await self._connect(url)
            except Exception as error:
                failed = error
                continue
            self._clients.append(client)
            return client
        raise self._unreachable(failed)

    async def _connect(self, url: str) -> Client:
        from headrace.client import Client

        client, options = Client(), self.target.client_options()
        try:
            await client.connect(
                url,
                name="headrace command line",
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=_AGAIN_S,  # type: ignore[arg-type]
                connect_timeout=self.timeout,  # type: ignore[arg-type]
                error_cb=self._note,
                disconnected_cb=self._lost,
                reconnected_cb=self._found,
                **options,
            )
        except BaseException:
            with suppress(Exception):
                await client.close()
            raise
        return client

    def _unreachable(self, error: Exception | None) -> Failure:
        from nats.errors import Error as NatsError
        from nats.errors import NoServersError

        error = self._reason if isinstance(error, NoServersError) else error
        where = self.target.shown
        if isinstance(error, Failure):
            return error
        if isinstance(error, ModuleNotFoundError):
            return Failure(f"--creds and --nkey need the package {error.name}: pip install {error.name}")
        if isinstance(error, ConnectionRefusedError):
            text = f"no server listens at {where}; start one with 'headrace serve', or name another: --server"
        elif isinstance(error, TimeoutError):
            text = f"{where} did not answer within {self.timeout:g} s"
        elif isinstance(error, NatsError) and "uthorization" in str(error):
            text = f"{where} refused the credentials: give --user and --password, --token, --creds or --nkey"
        else:
            text = f"cannot connect to {where}: {str(error).removeprefix('nats: ') or type(error).__name__}"
        return Failure(text, NO_CONNECTION)

    def stay(self) -> None:
        """Come back when the connection is lost: for commands that go on until they are stopped."""
        self._stays = True
        for client in self._clients:
            client.options |= {
                "allow_reconnect": True,
                "max_reconnect_attempts": -1,
                "reconnect_time_wait": 1,
            }

    async def _note(self, error: Exception) -> None:
        """Requests raise their own errors; a connection that fails says why only here."""
        self._reason = error

    async def _lost(self) -> None:
        if self._stays and self._clients and not self.nc.is_closed:
            note("headrace: the connection was lost; connecting again ...")

    async def _found(self) -> None:
        if self._stays:
            note("headrace: connected again")

    async def close(self) -> None:
        import asyncio

        self._stays = False
        for client in self._clients:
            try:
                await asyncio.wait_for(client.close(), _CLOSE_S)
            except (TimeoutError, OSError):
                continue


def connected(work: Work) -> Callable[..., None]:
    """A command that runs a coroutine with a link."""
    return _command(work, explained)


def graded(code: int) -> Callable[[Work], Callable[..., None]]:
    """The same for a check that a monitoring system runs: whatever fails ends with this code, told on the output."""

    def told(error: Exception) -> int:
        print(f"CRITICAL: {explain(error)}")
        return code

    return lambda work: _command(work, told)


def _command(work: Work, explained: Callable[[Exception], int]) -> Callable[..., None]:
    own = [each for each in inspect.signature(work, eval_str=True).parameters.values() if each.name != "link"]
    if not any(each.name == "json" for each in own):
        own.append(_keyword("json", _JSON, False))

    @wraps(work)
    def command(ctx: typer.Context, **values: Any) -> None:
        flags = {name: values.pop(name) for name in targets.OPTIONS}
        json = bool(values.pop("json"))

        async def session() -> int | None:
            link = Link(targets.resolve({**root_flags(ctx), **given(flags)}), json)
            try:
                await link.open()
                return await work(link, **values)
            finally:
                await link.close()

        finish(lambda: _run(session()), explained)

    shared = [_keyword(name, kind, None) for name, kind in targets.OPTIONS.items()]
    everything = [_keyword("ctx", typer.Context), *own, *shared]
    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in everything]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def plain(work: Callable[..., int | None]) -> Callable[..., None]:
    """A command without a connection, whose errors are explained likewise."""

    @wraps(work)
    def command(*arguments: Any, **values: Any) -> None:
        finish(lambda: work(*arguments, **values))

    return command


def configured(options: Mapping[str, Any], into: str) -> Callable[[Work], Work]:
    """Gives a command many options at once; those that were given arrive as one mapping."""

    def decorate(work: Work) -> Work:
        signature = inspect.signature(work, eval_str=True)
        own = [each for each in signature.parameters.values() if each.name != into]
        own = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own]

        @wraps(work)
        def gathering(link: Link, **values: Any) -> Coroutine[Any, Any, int | None]:
            chosen = given({name: values.pop(name) for name in options})
            return work(link, **values, **{into: chosen})

        more = [_keyword(name, kind, None) for name, kind in options.items()]
        gathering.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
        return gathering

    return decorate


def root_flags(context: typer.Context) -> dict[str, Any]:
    """The connection's options given before the command: `headrace -s URL stream ls`."""
    params = context.find_root().params
    return given({name: params.get(name) for name in targets.OPTIONS})


def explained(error: Exception) -> int:
    """Say in a line what went wrong; the exit code."""
    failure = explain(error)
    note(f"headrace: {failure}")
    return failure.code


def finish(work: Callable[[], int | None], explained: Callable[[Exception], int] = explained) -> None:
    """Run a command to its exit code."""
    try:
        code = work() or 0
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        code = CLOSED_PIPE
        silence()
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except Exception as error:
        code = explained(error)
    if code:
        raise typer.Exit(code)


def silence() -> None:
    """Nobody reads the output any more: what is still to be written is dropped without a word."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _run(session: Coroutine[Any, Any, int | None]) -> int | None:
    import asyncio

    with asyncio.Runner() as runner:
        return runner.run(session)


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in (None, [], ())}


def _keyword(name: str, kind: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)
