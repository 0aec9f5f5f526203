"""When to kill: watches the epochs of a query in its checkpoint and in the server's streams.

Owns the choice of the moment. A kill is aimed at an epoch that is half-written, or comes at a random time. Must not know
what is killed.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kills.servers import Backend, Streams

#: What a kill can be aimed at: the epoch that has begun and not ended has rows in the staging stream, a new progress
#: record, or rows in the target.
STAGED, RECORDED, STORED = "rows staged", "progress recorded", "rows stored"
#: Other moments: the epoch has begun and left nothing on the server; no epoch has begun.
BEGUN, IDLE = "epoch begun", "between epochs"
#: A kill comes after this time even if the moment does not, or if no epoch has begun for the time of `_QUIET_S`.
_AIM_S = 60.0
_QUIET_S = 2.0
#: Range of random times after the first epoch of the round has begun.
_RANDOM_S = 3.0
_POLL_S = 0.001
#: Rows of an epoch are stored within about this time, so different delays hit different places of it.
_DELAYS_S = (0.0, 0.0, 0.01, 0.05)


def list_epochs(checkpoint: Path, kind: str) -> list[int]:
    """Return the epochs in `offsets` (begun) or `commits` (ended), in order."""
    folder = checkpoint / kind
    names = [each.name for each in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(name) for name in names if name.isdigit())


def _read_end(path: Path) -> int:
    """Return the last sequence that every source of an epoch has read: `path` is its entry in `offsets`."""
    ends = [json.loads(line)["next_seq"] for line in path.read_text().splitlines()[2:] if line != "-"]
    return min(ends, default=1) - 1


def is_idle(checkpoint: Path) -> bool:
    """Return whether every epoch that has begun has ended."""
    begun, ended = (list_epochs(checkpoint, kind) for kind in ("offsets", "commits"))
    return bool(begun) and begun[-1:] == ended[-1:]


def has_ended(checkpoint: Path, last_seq: int) -> bool:
    """Return whether the epochs of all rows up to a sequence of the source have ended: Spark writes no row again."""
    if not is_idle(checkpoint):
        return False
    return _read_end(checkpoint / "offsets" / str(list_epochs(checkpoint, "offsets")[-1])) >= last_seq


@dataclass(frozen=True)
class Observation:
    """Numbers of the last epoch begun and ended, and the last sequences of the sink's streams."""

    begun: int
    ended: int
    staged: int
    recorded: int
    stored: int


class EpochWatcher:
    """Observes a query from the beginning of a round."""

    def __init__(self, backend: Backend, streams: Streams, checkpoint: Path) -> None:
        self._backend, self._streams, self._checkpoint = backend, streams, checkpoint
        self._first = self._before = self._last = self._observe()

    def wait_for(self, aim: str, epochs: int, draw: random.Random) -> str:
        """Wait for the moment, `epochs` after the present one; return what had happened in the epoch by then.

        Without an aim, wait for a random time.
        """
        if not aim:
            self._wait(lambda _: self._last.begun > self._first.begun)
            time.sleep(draw.uniform(0.0, _RANDOM_S))
            return self.observe_moment()
        moment = self._wait(lambda now: now == aim and self._last.ended >= self._first.ended + epochs)
        time.sleep(draw.uniform(0.0, draw.choice(_DELAYS_S)))
        return moment

    def _wait(self, is_reached: Callable[[str], bool]) -> str:
        """Wait until the moment is reached, or has passed; return the last one."""
        deadline = time.monotonic() + _AIM_S
        moment, quiet_since = self.observe_moment(), time.monotonic()
        while not is_reached(moment) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            moment = self.observe_moment()
            if moment != IDLE or self._last.ended == self._first.ended:
                quiet_since = time.monotonic()
            elif time.monotonic() - quiet_since > _QUIET_S:
                break
        return moment

    def find_stored_share(self) -> float | None:
        """Return which share of the last epoch's rows is in the target, if it has one row for each of the source."""
        begun = list_epochs(self._checkpoint, "offsets")
        if not begun:
            return None
        ends = [0, *(_read_end(self._checkpoint / "offsets" / str(epoch)) for epoch in begun[-2:])]
        first, last = ends[-2:]
        stored = self._backend.last_seq(self._streams.target)
        return round((stored - first) / (last - first), 3) if last > first <= stored else None

    def observe_moment(self) -> str:
        """Return how far the present epoch is."""
        now = self._observe()
        if now.ended != self._last.ended:
            self._before = now
        self._last = now
        before = self._before
        if now.begun == now.ended:
            return IDLE
        if now.stored > before.stored:
            return STORED
        if now.recorded > before.recorded:
            return RECORDED
        return STAGED if now.staged > before.staged else BEGUN

    def _observe(self) -> Observation:
        begun = list_epochs(self._checkpoint, "offsets")
        ended = list_epochs(self._checkpoint, "commits")
        last_seq = self._backend.last_seq
        return Observation(
            begun[-1] if begun else -1,
            ended[-1] if ended else -1,
            last_seq(self._streams.staging),
            last_seq(self._streams.progress),
            last_seq(self._streams.target),
        )
