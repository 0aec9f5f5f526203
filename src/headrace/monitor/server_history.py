"""Ten minutes of history of a server, for the web page: rates, commit latency, memory and disk.

Owns a fixed number of samples, made by a timer of the event loop. A sample reads counters that exist anyway, so it costs
the same whatever the server does, and nothing on the path of a message.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, NamedTuple

from headrace.broker import Accounts
from headrace.monitor.metrics import iter_commit_latency
from headrace.monitor.monitored_server import MonitoredServer
from headrace.monitor.varz import get_resident_bytes
from headrace.storage.io.latency import BOUNDS_US

SAMPLE_S = 5.0
SAMPLES_MAX = 120


class ServerSample(NamedTuple):
    """Figures of one interval; rates are per second."""

    time_ms: int
    in_msgs: float
    out_msgs: float
    in_bytes: float
    out_bytes: float
    commits: float
    commit_p50_us: int
    commit_p99_us: int
    memory: int
    stored_bytes: int
    free_bytes: int
    connections: int


class ServerHistory:
    """The samples of the last ten minutes."""

    def __init__(self, server: MonitoredServer) -> None:
        self._server = server
        self._samples: deque[ServerSample] = deque(maxlen=SAMPLES_MAX)
        self._handle: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._at_s = 0.0
        self._traffic = (0, 0, 0, 0)
        self._commit_counts: list[int] = []

    def start(self) -> None:
        """Begin to take samples in the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._at_s = self._loop.time()
        self._traffic = self._server.listener.registry.get_traffic()
        self._commit_counts = _sum_commits(self._server.accounts)
        self._handle = self._loop.call_later(SAMPLE_S, self._on_timer)

    def stop(self) -> None:
        """Stop taking samples."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def to_columns(self) -> dict[str, Any]:
        """Return the samples as one list per figure, the oldest first."""
        columns = zip(*self._samples, strict=True) if self._samples else [[] for _ in ServerSample._fields]
        return {
            "interval_s": SAMPLE_S,
            "samples_max": SAMPLES_MAX,
            **dict(zip(ServerSample._fields, map(list, columns), strict=True)),
        }

    def _on_timer(self) -> None:
        assert self._loop is not None
        self.take_sample()
        self._handle = self._loop.call_later(SAMPLE_S, self._on_timer)

    def take_sample(self) -> None:
        """Add the figures since the sample before."""
        assert self._loop is not None
        server, accounts = self._server, self._server.accounts
        now_s = self._loop.time()
        seconds, self._at_s = max(now_s - self._at_s, 1e-3), now_s
        traffic, before = server.listener.registry.get_traffic(), self._traffic
        self._traffic = traffic
        rates = [max(now - then, 0) / seconds for now, then in zip(traffic, before, strict=True)]
        counts = _sum_commits(accounts)
        added = [now - then for now, then in zip(counts, self._commit_counts, strict=False)] or counts
        self._commit_counts = counts
        jetstreams = list(accounts.jetstreams())
        self._samples.append(
            ServerSample(
                time_ms=server.now_ns() // 1_000_000,
                in_msgs=rates[0],
                out_msgs=rates[2],
                in_bytes=rates[1],
                out_bytes=rates[3],
                commits=sum(added) / seconds,
                commit_p50_us=find_quantile_us(added, 0.5),
                commit_p99_us=find_quantile_us(added, 0.99),
                memory=get_resident_bytes(),
                stored_bytes=sum(each.quota.usage("file")[0] for each in jetstreams),
                free_bytes=min((each.store.disk.free() for each in jetstreams), default=0),
                connections=len(server.listener.connections),
            )
        )


def _sum_commits(accounts: Accounts) -> list[int]:
    """Return how many commits of all accounts took how long."""
    totals = [0] * (len(BOUNDS_US) + 1)
    for _, latency in iter_commit_latency(accounts):
        totals = [total + count for total, count in zip(totals, latency.counts, strict=True)]
    return totals


def find_quantile_us(counts: list[int], share: float) -> int:
    """Return the bound below which this share of all commits is; 0 if there are none."""
    total, seen = sum(counts), 0
    for bucket, count in enumerate(counts):
        seen += count
        if count and seen >= share * total:
            return BOUNDS_US[min(bucket, len(BOUNDS_US) - 1)]
    return 0
