"""Names for shell completion, requested from the server; quick, and silent on any error."""

from __future__ import annotations

import asyncio
from typing import Any

import typer

_TIMEOUT_S = 1.0


def complete_streams(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the streams with this prefix."""
    return _request_names(ctx, incomplete, "STREAM.NAMES", "streams")


def complete_consumers(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the consumers, of the stream named before, with this prefix."""
    return _request_names(ctx, incomplete, f"CONSUMER.NAMES.{ctx.params.get('stream')}", "consumers")


def complete_buckets(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the buckets with this prefix."""
    found = _request_names(ctx, f"KV_{incomplete}", "STREAM.NAMES", "streams")
    return [name.removeprefix("KV_") for name in found]


def _request_names(ctx: typer.Context, incomplete: str, call: str, part: str) -> list[str]:
    from headrace.cli.connection_target import OPTIONS, resolve_target
    from headrace.cli.session import CliSession, get_root_flags, passed_options

    async def request() -> list[Any]:
        flags = {**get_root_flags(ctx), **passed_options({name: ctx.params.get(name) for name in OPTIONS})}
        session = CliSession(resolve_target({**flags, "timeout": _TIMEOUT_S}))
        try:
            await session.open()
            return await session.list_all(call, part)
        finally:
            await session.close()

    try:
        names = asyncio.run(asyncio.wait_for(request(), 2 * _TIMEOUT_S))
    except Exception:
        # Completion cannot report errors: return no names.
        return []
    return [str(name) for name in names if str(name).startswith(incomplete)]
