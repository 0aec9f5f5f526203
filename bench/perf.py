"""`make bench`: compares the speed of Headrace ("ours") and nats-server on this machine.

A ratio above 1 means that Headrace is faster.

    perf.py [--only NAME,...] [--scale 1.0] [--rounds 3] [--growth] [--json FILE] [--ours CMD] [--peer CMD]

Both servers run on loopback and are warmed up; each workload runs on both in turn, and the best round of each side
counts. A workload that Headrace cannot run yet is shown as "not yet". CMD contains {port} and {dir}.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from growth import GROWTHS, Growth
from load import Connection, NotYet, median_s
from workloads import WORKLOADS, Workload, publish

BIN = Path(sys.executable).parent
SERVE = "-a 127.0.0.1 -p {port} -js -sd {dir}/store"
COMMANDS = {
    "ours": f"{sys.executable} -m headrace serve {SERVE}",
    "peer": f"{BIN}/nats-server {SERVE}",
    "peer_sync": f"{BIN}/nats-server -c {{dir}}/sync.conf -a 127.0.0.1 -p {{port}}",
}
SYNC_CONF = 'jetstream {{ store_dir: "{dir}/store", sync_interval: always }}\n'
NOT_YET = "not yet"
#: One publish in flight: microseconds that it may take in addition to the disk's own sync (floor, goal).
SYNC1_OVERHEAD_US = (300, 150)

#: The two servers and the load generator keep about this many processes running; a higher load is other work.
BUSY_LOAD = 3.0

Result = dict[str, Any]


class Server:
    """A server process in a temporary folder, on a free port."""

    def __init__(
        self, command: str, env: dict[str, str] | None = None, files: dict[str, str] | None = None
    ) -> None:
        """`files` are written to its folder before it starts, by name."""
        self.folder = tempfile.mkdtemp(prefix="perf-")
        self.port, self.http_port = _free_port(), _free_port()
        self.env = env
        for name, text in {"sync.conf": SYNC_CONF.format(dir=self.folder), **(files or {})}.items():
            Path(self.folder, name).write_text(text)
        self.words = shlex.split(command.format(port=self.port, dir=self.folder, http=self.http_port))
        self.start()

    def start(self) -> None:
        """Start the process and wait until it accepts connections."""
        with Path(self.folder, "log").open("wb") as log:
            cwd = self.folder if self.env else None  # a command of the user may have relative paths
            self.process = subprocess.Popen(self.words, stdout=log, stderr=log, env=self.env, cwd=cwd)
        self._wait()

    def kill(self) -> None:
        """Kill the process, as in a crash; `start` starts it again on the same store."""
        self.process.kill()
        self.process.wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + 30
        while True:
            try:
                Connection(self.port).close()
                return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    log = Path(self.folder, "log").read_text(errors="replace")
                    self.close()
                    raise RuntimeError(f"the server did not start:\n{log}") from None
                time.sleep(0.01)

    def read_log(self) -> bytes:
        return Path(self.folder, "log").read_bytes()

    def resident_mib(self) -> float:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Bench:
    """The servers of a run, started when first needed."""

    def __init__(self, commands: dict[str, str], scale: float, rounds: int) -> None:
        self.commands = commands
        self.scale = scale
        self.rounds = rounds
        self.servers: dict[str, Server] = {}
        self.sync_us: list[float] = []

    def server(self, side: str) -> Server:
        if side not in self.servers:
            self.servers[side] = Server(self.commands[side])
            with contextlib.suppress(Exception):  # an error shows again in the workloads
                publish(self.servers[side].port, 20 if side != "peer_sync" else 1, 128)
        return self.servers[side]

    def compare(self, workload: Workload) -> Result:
        """Run rounds on both sides in turn; return the best of each side."""
        best: Result = {}
        for _ in range(self.rounds):
            if (
                workload.name == "sync1"
            ):  # the disk's own speed changes with its load: measured beside each round
                self.sync_us.append(fdatasync_us(tempfile.gettempdir()))
            for side in ("ours", workload.against):
                if best.get(side) == NOT_YET:
                    continue
                value = self._measure(workload, side)
                best[side] = max(best.get(side, 0), value) if isinstance(value, float) else value
        return _result(best["ours"], best[workload.against])

    def _measure(self, workload: Workload, side: str) -> float | str:
        try:
            return workload.run(self.server(side).port, self.scale)
        except NotYet:
            if side != "ours":
                raise
            return NOT_YET
        except Exception as error:
            print(f"  {workload.name} on {side}: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
            return 0.0

    def grow(self, growth: Growth) -> Result:
        """Measure the ratio with little and with much data, each on new servers."""
        result: Result = {}
        for size in (growth.little, max(growth.little + 1, int(growth.much * self.scale))):
            rates: dict[str, Any] = {}
            for side in ("ours", "peer"):
                with contextlib.closing(Server(self.commands[side])) as server:
                    try:
                        growth.prepare(server.port, size)
                        rates[side] = max(growth.measure(server.port) for _ in range(self.rounds))
                    except NotYet:
                        rates[side] = NOT_YET
            result[str(size)] = _result(rates["ours"], rates["peer"])
        return result

    def close(self) -> None:
        for server in self.servers.values():
            server.close()


def _result(ours: Any, peer: Any) -> Result:
    ratio = ours / peer if isinstance(ours, float) and isinstance(peer, float) and peer else None
    return {"ours": ours, "peer": peer, "ratio": ratio}


def fdatasync_us(folder: str) -> float:
    """Return how long the disk itself takes to make an overwritten block durable: median, in microseconds."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"\0" * (1 << 20))
        os.fsync(file.fileno())
        block = b"x" * 4096

        def write_and_sync() -> None:
            os.pwrite(file.fileno(), block, 4096)
            os.fdatasync(file.fileno())

        return median_s(write_and_sync, 300) * 1e6


def _shown(value: Any, latency: bool) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{1e6 / value:,.0f} us" if latency and value else f"{value:,.0f}"


def _verdict(ratio: float | None, floor: float | None, goal: float | None) -> str:
    if ratio is None or floor is None or goal is None:
        return ""
    return "goal" if ratio >= goal else "floor" if ratio >= floor else "BELOW"


def show(workload: Workload, result: Result) -> None:
    ratio = f"{result['ratio']:.2f}" if result["ratio"] is not None else "-"
    limits = f"{workload.floor or '-':>5} {workload.goal or '-':>5}"
    ours, peer = (_shown(result[side], workload.latency) for side in ("ours", "peer"))
    verdict = _verdict(result["ratio"], workload.floor, workload.goal)
    print(
        f"{workload.name:12} {ours:>12} {peer:>12} {ratio:>7} {limits} {verdict:6} {workload.title}",
        flush=True,
    )


def show_sync1(result: Result, sync_us: float) -> None:
    if not isinstance(result["ours"], float) or not result["ours"]:
        return
    overhead = 1e6 / result["ours"] - sync_us
    floor, goal = SYNC1_OVERHEAD_US
    verdict = "goal" if overhead <= goal else "floor" if overhead <= floor else "BELOW"
    verdict = verdict if overhead > 0 else "inconclusive, the disk was busy with other work"
    print(f"{'':12} fdatasync {sync_us:.0f} us + {overhead:.0f} us (floor {floor}, goal {goal}): {verdict}")


def show_growth(growth: Growth, result: Result) -> None:
    for size, one in result.items():
        ratio = f"{one['ratio']:.2f}" if one["ratio"] is not None else "-"
        ours, peer = _shown(one["ours"], False), _shown(one["peer"], False)
        print(
            f"{growth.name:14} {int(size):>10,} {ours:>12} {peer:>12} {ratio:>7} {growth.title}", flush=True
        )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help=f"workloads, separated by commas: {', '.join(WORKLOADS)}")
    parser.add_argument("--scale", type=float, default=1.0, help="factor for the work in each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--growth",
        action="store_true",
        help="run the long workloads: 10 M messages, 1 M subjects, 1,000 consumers",
    )
    parser.add_argument("--json", type=Path, help="file for the figures")
    for side, command in COMMANDS.items():
        parser.add_argument(f"--{side}", default=command, help=argparse.SUPPRESS)
    return parser.parse_args()


def run(options: argparse.Namespace, bench: Bench) -> Result:
    results: Result = {}
    names = options.only.split(",") if options.only else list(WORKLOADS)
    print(f"{'workload':12} {'ours':>12} {'nats-server':>12} {'ratio':>7} {'floor':>5} {'goal':>5}")
    for name in names:
        results[name] = bench.compare(WORKLOADS[name])
        show(WORKLOADS[name], results[name])
        if name == "sync1":
            results[name]["fdatasync_us"] = min(bench.sync_us)
            show_sync1(results[name], results[name]["fdatasync_us"])
    load = os.getloadavg()[0]
    if load > BUSY_LOAD:
        print(f"load average {load:.1f}: other work ran on this machine, so these figures are not conclusive")
    memory = {side: round(server.resident_mib()) for side, server in bench.servers.items()}
    print(f"resident MiB: {memory}")
    return {**results, "resident_mib": memory, "load": load}


def run_growth(options: argparse.Namespace, bench: Bench) -> Result:
    results: Result = {}
    print(f"{'growth':14} {'size':>10} {'ours':>12} {'nats-server':>12} {'ratio':>7}")
    for growth in GROWTHS:
        if not options.only or growth.name in options.only.split(","):
            results[growth.name] = bench.grow(growth)
            show_growth(growth, results[growth.name])
    return results


def main() -> int:
    options = parse()
    bench = Bench({side: getattr(options, side) for side in COMMANDS}, options.scale, options.rounds)
    try:
        results = run_growth(options, bench) if options.growth else run(options, bench)
    finally:
        bench.close()
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
