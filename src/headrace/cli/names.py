"""Names for shell completion, asked from the server; silent and quick, whatever happens."""

from __future__ import annotations

import asyncio
from typing import Any

import typer

_PATIENCE_S = 1.0


def streams(ctx: typer.Context, incomplete: str) -> list[str]:
    """The streams that begin so."""
    return _asked(ctx, incomplete, "STREAM.NAMES", "streams")


def consumers(ctx: typer.Context, incomplete: str) -> list[str]:
    """The consumers, of the stream named before, that begin so."""
    return _asked(ctx, incomplete, f"CONSUMER.NAMES.{ctx.params.get('stream')}", "consumers")


def buckets(ctx: typer.Context, incomplete: str) -> list[str]:
    """The buckets that begin so."""
    found = _asked(ctx, f"KV_{incomplete}", "STREAM.NAMES", "streams")
    return [name.removeprefix("KV_") for name in found]


def _asked(ctx: typer.Context, incomplete: str, call: str, part: str) -> list[str]:
    from headrace.cli.link import Link, given, root_flags
    from headrace.cli.target import OPTIONS, resolve

    async def ask() -> list[Any]:
        flags = {**root_flags(ctx), **given({name: ctx.params.get(name) for name in OPTIONS})}
        link = Link(resolve({**flags, "timeout": _PATIENCE_S}))
        try:
            await link.open()
            return await link.listed(call, part)
        finally:
            await link.close()

    try:
        names = asyncio.run(asyncio.wait_for(ask(), 2 * _PATIENCE_S))
    except Exception:
        # Completion has nowhere to explain itself: no names is the answer.
        return []
    return [str(name) for name in names if str(name).startswith(incomplete)]
