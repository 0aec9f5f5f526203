"""The connection of a command, and what happens to a request when it is lost."""

from __future__ import annotations

import asyncio

import pytest

from headrace.cli import backup
from headrace.cli.connection_target import ConnectionTarget
from headrace.cli.exit_codes import NO_CONNECTION, CliError
from headrace.cli.session import CliSession
from support.scripted_server import ScriptedServer


async def test_a_request_of_a_backup_ends_with_the_connection() -> None:
    """Not after its timeout of two minutes."""
    script = ScriptedServer()
    script.on_publish = lambda message: script.cut()
    async with script.serve() as server:
        session = CliSession(ConnectionTarget(server=server.url))
        await session.open()
        async with asyncio.timeout(60):
            with pytest.raises(CliError, match="the connection was lost") as raised:
                await backup._request(session, "$SYS.REQ.SERVER.PIN", {})
        assert raised.value.code == NO_CONNECTION
        await session.close()


async def test_a_cancelled_request_stays_cancelled() -> None:
    script = ScriptedServer()
    asked = asyncio.Event()
    script.on_publish = lambda message: asked.set()
    async with script.serve() as server:
        session = CliSession(ConnectionTarget(server=server.url))
        await session.open()
        request = asyncio.create_task(backup._request(session, "$SYS.REQ.SERVER.PIN", {}))
        await asked.wait()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        await session.close()
