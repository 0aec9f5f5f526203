"""`make demo`: demonstrates Headrace in a few steps and checks the result of each.

Starts a server on a free port, uses it with the standard client, and prints a summary table. The exit code is 1 if a
step fails.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from headrace import COMPATIBLE_VERSION, __version__
from headrace.demo import claim_steps, core_steps, crash_steps, spark_steps, stream_steps
from headrace.demo.steps import DemoContext, Step, StepResult, make_summary_table, run_step
from headrace.server import Server

__all__ = ["STEPS", "DemoContext", "Step", "StepResult", "main", "run_step"]

STEPS: tuple[Step, ...] = (
    *core_steps.STEPS,
    *stream_steps.STEPS,
    *crash_steps.STEPS,
    claim_steps.STEPS[0],
    *spark_steps.STEPS,
    claim_steps.STEPS[1],
)


async def run_demo(console: Console, *, keep_running: bool) -> int:
    with tempfile.TemporaryDirectory() as folder:
        return await _run_demo(console, Path(folder), keep_running=keep_running)


async def _run_demo(console: Console, folder: Path, *, keep_running: bool) -> int:
    async with Server(folder / "store", http_port=-1) as server:
        context = DemoContext(server, folder)
        version_text = f"Headrace {__version__} (compatible with nats-server {COMPATIBLE_VERSION})"
        console.print(f"{version_text}\nserver: {server.url}\nweb page: {server.monitor_url}\n")
        results = []
        for step in STEPS:
            console.print(f"[bold]{step.title}[/]: {step.description}")
            results.append(await run_step(step, context))
            console.print(f"   {results[-1].message}\n", markup=False)
        console.print(make_summary_table(results))
        if keep_running:
            console.print("\nThe server is still running. Press Ctrl-C to stop it.")
            console.print(f"server: {server.url}\nweb page: {server.monitor_url}")
            await server.wait_stopped()
    return 0 if all(result.status != "failed" for result in results) else 1


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make demo", description="Demonstrate Headrace in a few steps.")
    parser.add_argument(
        "--exit", action="store_true", help="exit after the last step instead of keeping the server running"
    )
    options = parser.parse_args(arguments)
    try:
        return asyncio.run(run_demo(Console(), keep_running=not options.exit))
    except KeyboardInterrupt:
        return 0
