"""`make demo`: the story of Headrace in a few steps, each shown, and checked.

Starts a broker on a free port, acts on it with the standard client, and ends with a table; a step that does
not do what it says makes the exit code 1.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from headrace import COMPATIBLE_VERSION, __version__
from headrace.demo import claims, core, crashes, landing, streams
from headrace.demo.story import Outcome, Stage, Step, perform, summary
from headrace.server import Server

__all__ = ["STEPS", "Outcome", "Stage", "Step", "main", "perform"]

STEPS: tuple[Step, ...] = (
    *core.STEPS,
    *streams.STEPS,
    *crashes.STEPS,
    claims.STEPS[0],
    *landing.STEPS,
    claims.STEPS[1],
)


async def tell(console: Console, *, stay: bool) -> int:
    with tempfile.TemporaryDirectory() as folder:
        return await _tell(console, Path(folder), stay=stay)


async def _tell(console: Console, folder: Path, *, stay: bool) -> int:
    async with Server(folder / "store", http_port=-1) as server:
        stage = Stage(server, folder)
        about = f"Headrace {__version__} (compatible with nats-server {COMPATIBLE_VERSION})"
        console.print(f"{about} on {server.url}, its page on {server.page_url}\n")
        outcomes = []
        for step in STEPS:
            console.print(f"[bold]{step.title}[/]: {step.shows}")
            outcomes.append(await perform(step, stage))
            console.print(f"   {outcomes[-1].seen}\n", markup=False)
        console.print(summary(outcomes))
        if stay:
            console.print(
                f"\nThe broker stays up: {server.url}, and its page: {server.page_url}. Ctrl-C ends it."
            )
            await server.wait_stopped()
    return 0 if all(outcome.mark != "failed" for outcome in outcomes) else 1


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make demo", description="The story of Headrace in a few steps.")
    parser.add_argument("--exit", action="store_true", help="end after the last step")
    chosen = parser.parse_args(arguments)
    try:
        return asyncio.run(tell(Console(), stay=not chosen.exit))
    except KeyboardInterrupt:
        return 0
