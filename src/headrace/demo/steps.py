"""Framework of the demo: steps with checks and timing, and the summary table."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client
from rich.markup import escape
from rich.table import Table

from headrace.server import Server

TIMEOUT_S = 10.0


@dataclass(slots=True)
class DemoContext:
    """Environment of the demo: the server, a directory for files, and objects that steps share."""

    server: Server
    folder: Path
    shared: dict[str, Any] = field(default_factory=dict)

    async def connect(self) -> Client:
        return await nats.connect(self.server.url, connect_timeout=int(TIMEOUT_S))


class StepSkipped(Exception):
    """A step cannot run on this machine; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step: a description, and the action, which returns the result or fails an assertion."""

    title: str
    description: str
    run: Callable[[DemoContext], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class StepResult:
    step: Step
    status: str  # ok, skipped or failed
    message: str
    duration_s: float


async def run_step(step: Step, context: DemoContext) -> StepResult:
    started = time.perf_counter()
    try:
        status, message = "ok", await step.run(context)
    except StepSkipped as skipped:
        status, message = "skipped", str(skipped)
    except Exception as error:
        status, message = "failed", f"{type(error).__name__}: {error}"
    return StepResult(step, status, message, time.perf_counter() - started)


def make_summary_table(results: Sequence[StepResult]) -> Table:
    colours = {"ok": "green", "skipped": "yellow", "failed": "red"}
    table = Table(title="Summary")
    for column in ("", "step", "result"):
        table.add_column(column)
    table.add_column("s", justify="right")
    for result in results:
        step, colour = result.step, colours[result.status]
        table.add_row(
            f"[{colour}]{result.status}[/]",
            step.title,
            escape(result.message),
            f"{result.duration_s:.1f}",
        )
    return table
