"""Measures how long an audit of claims takes: `python bench/claims_audit.py [--claims 1000000] [--keep FOLDER] [--json]`.

The input is two days of synthetic claims: an audit trail of about three events per claim in a separate store, read from
its files, and the remaining objects in a folder. Nine of ten claims were read and collected; the others are in use,
leaked or lost. The time covers the whole job on `local[2]`: reading, joining, the table, the figures and the report.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parent))

import numpy as np

from headrace.claims import ClaimConfig, Ttl
from headrace.spark import jobs
from headrace.storage import FileDisk, open_store
from spark import CORES, WallClock, _ticks, session  # bench/spark.py, which comes first on the path

NS = 1_000_000_000
DAY_S = 86_400
TOPICS = [b"camera-%d" % number for number in range(40)]
FLOOR_S = 60.0
EVENTS = (b"created", b"retrieved", b"released", b"collected")
#: Of a hundred claims: in use; overdue; collected but the object still exists; not collected but the object is gone.
LIVE, OVERDUE, UNDELETED, VANISHED = 5, 1, 1, 1


class Claims:
    """Synthetic claims as columns."""

    def __init__(self, count: int) -> None:
        random = np.random.default_rng(7)
        self.now_s = int(time.time())
        self.kind = random.integers(0, 100, count)
        is_live = self.kind < LIVE
        age = random.integers(0, 2 * DAY_S, count)
        age[is_live] = random.integers(0, DAY_S // 2, int(is_live.sum()))
        age[self._overdue()] = random.integers(DAY_S + 7200, 2 * DAY_S, int(self._overdue().sum()))
        self.created_s = self.now_s - age
        lifetime = np.minimum(random.lognormal(6.5, 1.6, count), DAY_S).astype(np.int64) + 1
        self.ended_s = np.minimum(self.created_s + lifetime, self.now_s)
        self.size = (random.lognormal(13.5, 1.2, count)).astype(np.int64) + 1024
        self.expires_s = self.created_s + DAY_S

    def _overdue(self) -> Any:
        return (self.kind >= LIVE) & (self.kind < LIVE + OVERDUE)

    @property
    def is_ended(self) -> Any:
        return self.kind >= LIVE + OVERDUE + VANISHED

    @property
    def has_object(self) -> Any:
        return (self.kind < LIVE + OVERDUE) | (self.kind >= 100 - UNDELETED)

    def key(self, number: int, hours: dict[int, bytes]) -> bytes:
        hour = int(self.expires_s[number]) // 3600
        text = hours.get(hour)
        if text is None:
            text = hours[hour] = time.strftime("%Y%m%d%H", time.gmtime(hour * 3600)).encode()
        return b"bench/%s/%s/%032x" % (TOPICS[number % len(TOPICS)], text, number)

    def events(self) -> tuple[Any, Any, Any]:
        """Return (time, claim, event) of all events, in order."""
        ended = np.flatnonzero(self.is_ended)
        every = np.arange(len(self.kind))
        times = [self.created_s, self.ended_s[ended] - 1, self.ended_s[ended] - 1, self.ended_s[ended]]
        numbers = [every, ended, ended, ended]
        kinds = [np.full(len(each), place) for place, each in enumerate(numbers)]
        time_s, claim, kind = (np.concatenate(each) for each in (times, numbers, kinds))
        order = np.lexsort((kind, time_s))
        return time_s[order], claim[order], kind[order]


def write_trail(root: Path, claims: Claims) -> int:
    disk = FileDisk(root)
    store = open_store(disk, WallClock())
    log = store.create("CLAIMS_AUDIT")
    hours: dict[int, bytes] = {}
    times, numbers, kinds = claims.events()
    for start in range(0, len(times), 1000):
        tick = []
        for number, kind in zip(
            numbers[start : start + 1000].tolist(), kinds[start : start + 1000], strict=True
        ):
            body = b"{}"
            if kind == 0:
                size = int(claims.size[number])
                fact = (claims.key(number, hours), size * 2, size, int(claims.expires_s[number]))
                body = b'{"key":"%s","size":%d,"stored":%d,"expires_at":%d}' % fact
            tick.append((b"$CLAIMS.audit.bench.%032x.%s" % (number, EVENTS[kind]), b"", body))
        seconds, starts = np.unique(times[start : start + 1000], return_index=True)
        for second, first, last in zip(seconds.tolist(), starts, [*starts[1:], len(tick)], strict=True):
            log.append_many(tick[first:last], second * NS)
        if not store.in_flight:
            store.commit()
        disk.drain()
    store.close()
    disk.close()
    return len(times)


def write_objects(folder: Path, claims: Claims) -> int:
    hours: dict[int, bytes] = {}
    made: set[Path] = set()
    found = np.flatnonzero(claims.has_object).tolist()
    for number in found:
        path = folder / "claims" / claims.key(number, hours).decode()
        if path.parent not in made:
            path.parent.mkdir(parents=True, exist_ok=True)
            made.add(path.parent)
        descriptor = os.open(path, os.O_CREAT | os.O_WRONLY)
        os.ftruncate(descriptor, int(claims.size[number]))
        os.close(descriptor)
    return len(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--claims", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--keep", default="", help="folder for the table and the report; it is not removed")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="claims-audit-") as name:
        folder = Path(name)
        claims = Claims(given.claims)
        events = write_trail(folder / "store", claims)
        objects = write_objects(folder / "objects", claims)
        spark = session(folder)
        config = ClaimConfig(
            "bench", store={"path": str(folder / "objects")}, ttl=Ttl(DAY_S, True, 300, 3600)
        )
        target = given.keep or str(folder / "audit")
        seconds, spent = [], []
        for _ in range(given.rounds):
            before = sum(_ticks(0))
            done = jobs.claims_audit(spark, {"path": str(folder / "store")}, target, configs=[config])
            seconds.append(done.seconds)
            spent.append((sum(_ticks(0)) - before) / os.sysconf("SC_CLK_TCK") / CORES)
        spark.stop()
    figures = {
        "claims": done.claims,
        "events": events,
        "objects": objects,
        "leaks": done.leaks,
        "vanished": done.vanished,
        "first_s": round(seconds[0], 1),
        "best_s": round(min(seconds), 1),
        "first_s_by_processor_time": round(spent[0], 1),
        "load": round(os.getloadavg()[0], 1),
    }
    print(
        json.dumps(figures)
        if given.json
        else "\n".join(f"{name:10} {value}" for name, value in figures.items())
    )
    if given.claims >= 1_000_000 and seconds[0] > FLOOR_S:
        sys.exit(f"the first run took more than {FLOOR_S:g} s")


if __name__ == "__main__":
    main()
