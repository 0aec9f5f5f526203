"""How the demo is told: steps that act, are checked and timed, and a table at the end."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client
from rich.table import Table

from headrace.server import Server

PATIENCE_S = 10.0


@dataclass(slots=True)
class Stage:
    """Where the story happens: a broker, a folder for everything else, and what earlier steps left behind."""

    server: Server
    folder: Path
    props: dict[str, Any] = field(default_factory=dict)

    async def connect(self) -> Client:
        return await nats.connect(self.server.url, connect_timeout=int(PATIENCE_S))


class Skipped(Exception):
    """A step cannot be shown on this machine; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to see: what it shows, and the act, which returns what was seen or fails an assertion."""

    title: str
    shows: str
    act: Callable[[Stage], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Outcome:
    step: Step
    mark: str  # ok, skipped or failed
    seen: str
    took_s: float


async def perform(step: Step, stage: Stage) -> Outcome:
    started = time.perf_counter()
    try:
        mark, seen = "ok", await step.act(stage)
    except Skipped as missing:
        mark, seen = "skipped", str(missing)
    except Exception as error:
        mark, seen = "failed", f"{type(error).__name__}: {error}"
    return Outcome(step, mark, seen, time.perf_counter() - started)


def summary(outcomes: Sequence[Outcome]) -> Table:
    colours = {"ok": "green", "skipped": "yellow", "failed": "red"}
    table = Table(title="What was shown")
    for column in ("", "step", "what it shows", "seen"):
        table.add_column(column)
    table.add_column("s", justify="right")
    for outcome in outcomes:
        step, colour = outcome.step, colours[outcome.mark]
        table.add_row(
            f"[{colour}]{outcome.mark}[/]", step.title, step.shows, outcome.seen, f"{outcome.took_s:.1f}"
        )
    return table
