"""Writes a stream to an Iceberg table while everything is killed; each message must be in the table once.

    python bench/table_kills.py [--rounds 500] [--seed 1] [--plant sql|sql-s3|rest] [--retention limits|workqueue]
                                [--out out/table-kills.jsonl]

A program publishes without a pause, and two workers write the stream to its table. Each round kills one or two of these
and starts them again: a worker at a random moment, or at a random step (`tests/support/table_victim.py`); the broker; the
object store, which with `rest` is the catalog, too. Or another program rewrites all data files and expires old snapshots,
or a user rolls the table back: then both workers must stop, and `resync` lets them continue.

Every tenth round, the last one included, publishing pauses, and the table must have exactly the messages that the stream
has, each once, among them all that the broker acknowledged, with their payloads. With `--retention workqueue` messages
leave the stream when they are in the table, and some are large, so that a range has several commits; a rollback would be
final, so that there is none.

Prints a line for each round, appends it to `--out`, and exits with 1 if something was missing, there twice, or not noticed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Before this folder, in which `claims` is a program.
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from kills.table_load import QUEUE_SIZES, SIZES, TableLoad
from kills.table_plants import PLANTS, TablePlant
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, RESTError
from pyiceberg.table import Table

from conformance.client import Client
from conformance.servers import OURS, Server
from headrace.reader import read
from headrace.tables.claim_rows import STREAM_SCHEMA
from headrace.tables.config import save_tables
from headrace.tables.data_files import DataFileWriter
from headrace.tables.inspection import resync
from headrace.tables.position import find_position, parse_position
from headrace.tables.stream_range import StreamRangeReader
from support.table_victim import STOPPED
from support.tables import reload

ROOT = Path(__file__).parents[1]
STREAM = "LEDGER"
STEPS_MAX = 150
CHECK_ROUNDS = 10
WORKERS = 2
_TIMEOUT_S = 180.0
_PAUSE_S = 0.1
_MOMENT_S_MAX = 2.0
_SNAPSHOTS_MAX = 20
_ATTEMPTS_MAX = 12
#: What a foreign program meets while workers commit, and while the store or the catalog is away.
_FAILURES = (CommitFailedException, RESTError, OSError)


class Campaign:
    """The broker, the table, its workers, and what the broker acknowledged."""

    def __init__(self, server: Server, plant: TablePlant, folder: Path, seed: int, retention: str) -> None:
        self._server, self._plant, self._folder = server, plant, folder
        # What is killed depends on the seed alone, when and how also on what happened before.
        self._plan, self._chance = random.Random(seed), random.Random(seed)
        self._path = folder / "tables.yaml"
        save_tables(self._path, {STREAM: plant.config})
        self._is_queue = retention == "workqueue"
        config = {"name": STREAM, "subjects": ["ledger"], "allow_direct": True, "retention": retention}
        with Client(server.port) as client:
            client.api("STREAM.CREATE.LEDGER", config)
        self._load = TableLoad(server.url, STREAM, seed, QUEUE_SIZES if self._is_queue else SIZES)
        self._workers = [self._start(0) for _ in range(WORKERS)]
        self._problems: list[str] = []
        self._actions: dict[str, Callable[[], None]] = {
            "step": lambda: self._restart_worker(self._chance.randint(1, STEPS_MAX)),
            "worker": lambda: self._restart_worker(0),
            "broker": lambda: self._server.restart(crash=True),
            "rewrite": lambda: self._retry(self._rewrite),
            "rollback": self._roll_back,
            "store": lambda: self._plant.kill(self._chance),
        }
        self._load.start()

    def run_round(self, number: int) -> dict[str, Any]:
        started_s = time.monotonic()
        self._problems = []
        kinds = ["step", "step", "worker", "worker", "broker", "broker", *self._plant.victims * 2]
        victims = self._plan.sample(kinds, self._plan.randint(1, 2))
        if number % CHECK_ROUNDS in (5, 8):
            victims = ["rewrite" if number % CHECK_ROUNDS == 5 or self._is_queue else "rollback"]
        for victim in victims:
            time.sleep(self._chance.random() * _MOMENT_S_MAX)
            self._actions[victim]()
        self._load.resume()
        self._revive()
        rows = self._check() if number % CHECK_ROUNDS == 0 else 0
        return {
            "round": number,
            "plant": self._plant.kind,
            "retention": "workqueue" if self._is_queue else "limits",
            "victims": victims,
            "rows": rows,
            "acknowledged": len(self._load.acknowledged),
            "problems": self._problems,
            "seconds": round(time.monotonic() - started_s, 1),
        }

    def _restart_worker(self, step: int) -> None:
        index = self._chance.randrange(WORKERS)
        self._workers[index].kill()
        self._workers[index].wait()
        self._workers[index] = self._start(step)

    def _revive(self) -> None:
        """Start workers again that killed themselves at a step; report those that stopped."""
        for index, worker in enumerate(self._workers):
            code = worker.poll()
            if code is None:
                continue
            if code != -9:
                self._problems.append(f"a worker ended with {code}: {self._read_log()[-500:]}")
            self._workers[index] = self._start(0)

    def _rewrite(self) -> None:
        """Rewrite all data files, and expire old snapshots, as another program."""
        table = reload(self._plant.config)
        writer = DataFileWriter(table, self._plant.config, "rewritten")
        for batch in table.scan().to_arrow().sort_by("seq").cast(STREAM_SCHEMA).to_batches():
            writer.add(batch)
        with table.transaction() as transaction, transaction.update_snapshot().overwrite() as overwrite:
            for task in table.scan().plan_files():
                overwrite.delete_data_file(task.file)
            for data_file in writer.finish():
                overwrite.append_data_file(data_file)
        table = reload(self._plant.config)
        old = sorted(table.metadata.snapshots, key=lambda each: each.timestamp_ms)[:-_SNAPSHOTS_MAX]
        if old and self._chance.random() < 0.5:
            table.maintenance.expire_snapshots().by_ids([each.snapshot_id for each in old]).commit()

    def _roll_back(self) -> None:
        """Roll the table back as a user; both workers must stop, and continue after `resync`."""
        if not self._retry(self._try_roll_back):
            return
        deadline_s = time.monotonic() + _TIMEOUT_S
        while any(worker.poll() is None for worker in self._workers) and time.monotonic() < deadline_s:
            time.sleep(_PAUSE_S)
        codes = [worker.poll() for worker in self._workers]
        if any(code not in (STOPPED, -9) for code in codes):
            self._problems.append(f"a rollback was not noticed: codes {codes}")
        self._retry(self._resync)
        for worker in self._workers:
            worker.kill()
            worker.wait()
        self._workers = [self._start(0) for _ in range(WORKERS)]

    def _try_roll_back(self) -> bool:
        table = reload(self._plant.config)
        now = find_position(table)
        snapshots = [
            each
            for each in table.metadata.snapshots
            if each.summary and (position := parse_position(each.summary.additional_properties))
            if position != now
        ]
        if not snapshots:
            return False
        chosen = self._chance.choice(snapshots[-5:])
        try:
            table.manage_snapshots().rollback_to_snapshot(chosen.snapshot_id).commit()
        except CommitStateUnknownException:
            return self._retry(self._reload).current_snapshot() == chosen
        return True

    def _resync(self) -> bool:
        reader = StreamRangeReader(self._plant.config, {"servers": self._server.url}, "resync")
        try:
            resync(reload(self._plant.config), reader, None)
            return True
        finally:
            reader.close()

    def _retry(self, action: Callable[[], Any]) -> Any:
        """Repeat what a foreign program does until no worker is faster; for the last attempts nothing is published."""
        for left in reversed(range(_ATTEMPTS_MAX)):
            try:
                return action()
            except _FAILURES:
                if not left:
                    raise
                if left == _ATTEMPTS_MAX // 2:
                    self._load.pause()
                time.sleep(_PAUSE_S)

    def _check(self) -> int:
        """Compare the table with the stream when nothing is published; return the number of rows."""
        self._load.pause()
        deadline_s = time.monotonic() + _TIMEOUT_S
        with read(self._server.url, STREAM, columns=["seq", "data"]) as scan:
            live = {row["seq"]: int(row["data"].split()[0]) for row in scan.to_table().to_pylist()}
        with Client(self._server.port) as client:
            last_seq = client.api(f"STREAM.INFO.{STREAM}")["state"]["last_seq"]
        while self._find_position() < last_seq and time.monotonic() < deadline_s:
            time.sleep(_PAUSE_S)
            self._revive()
        rows = self._retry(self._read_rows)
        found = {row["seq"]: int(row["data"].split()[0]) for row in rows}
        if len(found) != len(rows):
            self._problems.append(f"{len(rows) - len(found)} rows twice")
        if (live.items() - found.items()) if self._is_queue else found != live:
            missing, extra = set(live) - set(found), set(found) - set(live)
            self._problems.append(f"missing {sorted(missing)[:10]}, not in the stream {sorted(extra)[:10]}")
        lost = {seq for seq, number in self._load.acknowledged.items() if found.get(seq) != number}
        if lost:
            self._problems.append(f"acknowledged and not in the table {sorted(lost)[:10]}")
        self._load.resume()
        return len(rows)

    def _reload(self) -> Table:
        return reload(self._plant.config)

    def _read_rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = (
            self._reload().scan(selected_fields=("seq", "data")).to_arrow().to_pylist()
        )
        return rows

    def _find_position(self) -> int:
        position = find_position(self._retry(self._reload))
        return position.seq if position else 0

    def _start(self, step: int) -> subprocess.Popen[bytes]:
        places = [str(ROOT / "src"), str(ROOT / "tests")]
        with (self._folder / "workers.log").open("ab") as log:
            return subprocess.Popen(
                [
                    *(sys.executable, "-m", "support.table_victim"),
                    *(str(self._path), STREAM, self._server.url, str(step), "--loop"),
                ],
                cwd=ROOT / "tests",
                env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
                stdout=log,
                stderr=log,
            )

    def _read_log(self) -> str:
        return (self._folder / "workers.log").read_text(errors="replace")

    def close(self) -> None:
        self._load.close()
        for worker in self._workers:
            worker.kill()
            worker.wait()


def run(kind: str, rounds: int, seed: int, retention: str, out: Path) -> int:
    """Run a campaign; return the number of rounds with problems."""
    failed = 0
    with tempfile.TemporaryDirectory(prefix="table-kills-") as name, Server(OURS) as server:
        plant = TablePlant(kind, Path(name), STREAM)
        try:
            campaign = Campaign(server, plant, Path(name), seed, retention)
            try:
                for number in range(1, -(-rounds // CHECK_ROUNDS) * CHECK_ROUNDS + 1):
                    result = campaign.run_round(number)
                    failed += bool(result["problems"])
                    line = json.dumps(result)
                    print(line, flush=True)
                    with out.open("a") as file:
                        file.write(line + "\n")
            finally:
                campaign.close()
        finally:
            plant.close()
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--plant", choices=PLANTS, action="append", help="default: all, the rounds divided")
    parser.add_argument("--retention", choices=("limits", "workqueue"), default="limits")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "table-kills.jsonl")
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    print(f"seed {arguments.seed}")
    plants = arguments.plant or list(PLANTS)
    failed = sum(
        run(kind, -(-arguments.rounds // len(plants)), arguments.seed, arguments.retention, arguments.out)
        for kind in plants
    )
    print(f"{arguments.rounds} rounds, {failed} with problems")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
