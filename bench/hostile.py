"""Measures how long an unrelated client waits during the attacks of tests/hostile, compared with nats-server.

    python bench/hostile.py [--scale 1.0] [--only slow,silent] [--rounds 3] [--sides ours,peer]

Attackers and the unrelated client (the bystander) are separate processes. Quiet periods and attacks alternate, and each
attack is made on both servers before the next, so that other load on the machine affects all of them. Figures go to
out/hostile.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from tests.hostile import attacks  # noqa: E402
from tests.hostile.attacked_server import CONFIG, Bystander, Scene  # noqa: E402

MIB = 1024 * 1024
QUIET_S = 3.0
COMMANDS = {
    "ours": [sys.executable, "-m", "headrace", "serve"],
    "peer": [str(Path(sys.executable).parent / "nats-server")],
}
FLOOD = 8 * MIB


@dataclass
class Victim:
    """The server from the attackers' point of view: the attributes of a `Scene` that they use."""

    port: int
    pid: int

    memory = Scene.memory
    descriptors = Scene.descriptors

    @property
    def running(self) -> Any:
        return self

    @property
    def process(self) -> Any:
        return self


ATTACKS: dict[str, tuple[str, Callable[[Any, float], Any]]] = {
    "slow": (
        "500 of 1,000 subscribers do not read while messages flood in",
        lambda v, s: attacks.slow_readers(v, int(500 * s), int(500 * s), 65_536, FLOOD),
    ),
    "silent": ("10,000 connections send nothing", lambda v, s: attacks.silent(v, int(10_000 * s))),
    "greeting": (
        "1,000 connections send an incomplete CONNECT of 60,000 bytes",
        lambda v, s: attacks.silent(v, int(1_000 * s), b"CONNECT {" + b" " * 60_000),
    ),
    "drip": ("500 connections send a byte per second", lambda v, s: attacks.dripping(v, int(500 * s), 1.0)),
    "churn": ("20,000 connections open and close", lambda v, s: attacks.churn(v, int(20_000 * s))),
    "churn1k": (
        "1,000 connections per second open and close",
        lambda v, s: attacks.churn(v, int(10_000 * s), at_once=5, per_s=1_000),
    ),
    "malformed": (
        "2,000 malformed CONNECTs and control lines",
        lambda v, s: attacks.malformed(v, max(1, int(100 * s))),
    ),
    "subs": ("64,000 subscriptions with wildcards", lambda v, s: attacks.subscriptions(v, int(64_000 * s))),
    "pulls": (
        "20,000 pull requests for everything",
        lambda v, s: attacks.pulls(v, max(600, int(20_000 * s))),
    ),
}


#: Activity during quiet periods, for attacks that need one.
BASELINES: dict[str, Callable[[Any, float], Any]] = {
    "slow": lambda v, s: attacks.slow_readers(v, 0, int(1_000 * s), 65_536, FLOOD),
}


def attack(name: str, victim: Victim, scale: float, result: Any, quiet: bool) -> None:
    """Run an attack in a separate process, at low priority: real attackers would have their own machines."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    act = BASELINES[name] if quiet else ATTACKS[name][1]
    result.put(repr(asyncio.run(act(victim, scale)))[:300])


@contextmanager
def server(folder: Path, command: list[str]) -> Iterator[Victim]:
    config = CONFIG % {"pending": 1 * MIB, "tls": ""}
    (folder / "server.conf").write_text(config)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "-a", "127.0.0.1", "-p", "-1", "-c", "server.conf"], cwd=folder, stdout=log, stderr=log
        )
    try:
        while True:
            text = (folder / "log").read_text()
            found = re.search(r"Listening for client connections on \S*:(\d+)", text)
            if found and "Server is ready" in text:
                break
            if process.poll() is not None:
                raise SystemExit(text)
            time.sleep(0.02)
        yield Victim(int(found[1]), process.pid)
    finally:
        process.kill()
        process.wait()


async def wait_for(process: Any) -> None:
    while process.is_alive():
        await asyncio.sleep(0.01)


async def apart(bystander: Bystander, name: str, victim: Victim, scale: float, *, quiet: bool) -> str:
    """Attack from another process while the bystander continues; return what the attackers received."""
    result: Any = multiprocessing.Queue()
    process = multiprocessing.Process(target=attack, args=(name, victim, scale, result, quiet))
    process.start()
    await bystander.while_(wait_for(process), pause_s=0.01)
    return str(result.get(timeout=5))


async def measure(name: str, victim: Victim, scale: float, rounds: int) -> dict[str, Any]:
    """Alternate quiet periods and attacks; return the waits in each, and the server's memory and open files."""
    bystander = await Bystander.arrive(victim.port)
    descriptors, quiet, busy, peak, heard = victim.descriptors(), [], [], 0, ""
    memory = victim.memory()
    for _ in range(rounds):
        if name in BASELINES:
            await apart(bystander, name, victim, scale, quiet=True)
        else:
            await bystander.while_(asyncio.sleep(QUIET_S), pause_s=0.01)
        quiet += bystander.waits
        heard = await apart(bystander, name, victim, scale, quiet=False)
        peak = max(peak, victim.memory())
        busy += bystander.waits
    deadline = time.monotonic() + 10
    while victim.descriptors() > descriptors and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    bystander.peer.close()
    return {
        "what": ATTACKS[name][0],
        "quiet_p50_ms": round(statistics.median(quiet) * 1e3, 2),
        "busy_p50_ms": round(statistics.median(busy) * 1e3, 2),
        "quiet_p99_ms": round(p99(quiet) * 1e3, 1),
        "busy_p99_ms": round(p99(busy) * 1e3, 1),
        "throughput_kept": round(statistics.mean(quiet) / statistics.mean(busy), 2),
        "asked": len(busy),
        "memory_grown_mib": round((peak - memory) / MIB, 1),
        "descriptors_left": victim.descriptors() - descriptors,
        "heard": heard,
    }


def p99(waits: list[float]) -> float:
    return statistics.quantiles(waits, n=100, method="inclusive")[98]


def show(side: str, found: dict[str, Any]) -> None:
    print(
        f"    {side:5} p50 {found['quiet_p50_ms']:6.2f} to {found['busy_p50_ms']:6.2f} ms   "
        f"p99 {found['quiet_p99_ms']:6.1f} to {found['busy_p99_ms']:6.1f} ms, "
        f"{found['busy_p99_ms'] / found['quiet_p99_ms']:5.2f} times   kept {found['throughput_kept']:5.2f}   "
        f"memory +{found['memory_grown_mib']} MiB   files left open {found['descriptors_left']}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(ATTACKS))
    parser.add_argument(
        "--sides", default="ours,peer", help="attack Headrace (ours), nats-server (peer) or both"
    )
    parser.add_argument("--figures", type=Path, default=ROOT / "out" / "hostile.json")
    arguments = parser.parse_args()
    figures: dict[str, Any] = {"load": os.getloadavg(), "scale": arguments.scale}
    for name in arguments.only.split(","):
        print(f"{name}: {ATTACKS[name][0]}")
        figures[name] = {}
        for side in arguments.sides.split(","):
            with tempfile.TemporaryDirectory() as folder, server(Path(folder), COMMANDS[side]) as victim:
                found = asyncio.run(measure(name, victim, arguments.scale, arguments.rounds))
            figures[name][side] = found
            show(side, found)
    arguments.figures.parent.mkdir(exist_ok=True)
    arguments.figures.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
