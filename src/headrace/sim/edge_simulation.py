"""A day at the edge: clients publish at sites, a hub copies the sites' streams, and everything breaks now and then.

Owns the workload, the faults and the check: afterwards every copy at the hub equals its site's history, in order, without
loss or duplicate, and a work queue at a site is empty. The same seed gives the same run.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from headrace.sim.clock import SECOND_NS
from headrace.sim.network.edge_sites import HUB, EdgeSites
from headrace.sim.sim_broker import SimBroker
from headrace.storage import StoreOptions

EVENTS, JOBS = "EVENTS", "JOBS"
#: Mean seconds between bursts of a site, and the size of a burst: the largest takes the network half a minute.
_BURST_PAUSE_S, _BURST_MAX = 240.0, 400
_PAYLOAD_MAX = 200
_OUTAGE_MAX_S = 600
_HEAL_MAX_S = 1200
#: What happens, and how often it is chosen.
_FAULTS = {"cut": 8, "outage": 6, "crash site": 3, "kill site": 2, "crash hub": 2, "kill hub": 1}

History = list[tuple[int, bytes]]
"""Sequence and payload of each message of a stream."""


class CopyDifference(AssertionError):
    """A copy does not equal its upstream's history."""


class EdgeSimulation:
    """One run: `run` for some hours, then `check`."""

    def __init__(
        self, seed: int | str, options: StoreOptions, sites: int = 4, *, fault_pause_s: float = 300.0
    ) -> None:
        """`fault_pause_s` is the mean time between faults."""
        random.seed(seed)  # the brokers' own jitter
        self.servers = EdgeSites(seed, options, sites)
        self.faults: Counter[str] = Counter()
        self.acked: dict[tuple[str, str], list[int]] = {
            (site, stream): [] for site in self.servers.site_names for stream in (EVENTS, JOBS)
        }
        self._rng = self.servers.rng
        self._fault_pause_s = fault_pause_s
        self._waiting: dict[str, dict[int, tuple[str, int]]] = {site: {} for site in self.servers.site_names}
        self._last_number = 0
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._set_up()

    def _set_up(self) -> None:
        for site in self.servers.site_names:
            self.servers.connect(site)
            self._create(site, EVENTS, subjects=[f"events.{site}.>"])
            self._create(site, JOBS, subjects=[f"jobs.{site}.>"], retention="workqueue")
        sites = self.servers.site_names
        self._create(HUB, EVENTS, sources=[_upstream(site, EVENTS) for site in sites])
        self._create(HUB, JOBS, sources=[_upstream(site, JOBS, is_durable=True) for site in sites])
        for number, site in enumerate(sites[:2]):
            self._create(HUB, _mirror_of(site), mirror=_upstream(site, EVENTS, is_durable=number == 0))

    def _create(self, server: str, stream: str, **config: Any) -> None:
        reply = self.servers.call(server, f"STREAM.CREATE.{stream}", name=stream, **config)
        assert "error" not in reply, reply

    # What happens

    def run(self, hours: float) -> None:
        """Let clients publish and faults happen for this long, then repair everything and wait for the copies."""
        end_ns = self.servers.clock.now_ns() + int(hours * 3600 * SECOND_NS)
        for site in self.servers.site_names:
            self._plan_burst(site)
        self._plan_fault()
        while self._due:
            self._due.sort(key=lambda event: event[:2])
            due_ns, _, act = self._due.pop(0)
            if due_ns > end_ns:
                break
            self.servers.advance(max(due_ns - self.servers.clock.now_ns(), 0))
            act()
        self._due.clear()
        self._heal()

    def _plan(self, mean_s: float, act: Callable[[], None]) -> None:
        delay_ns = int(self._rng.expovariate(1 / mean_s) * SECOND_NS)
        self._due.append((self.servers.clock.now_ns() + delay_ns, self._rng.randrange(1 << 30), act))

    def _plan_burst(self, site: str) -> None:
        def publish_burst() -> None:
            self._publish(site, int(_BURST_MAX ** self._rng.random()))
            self._plan_burst(site)

        self._plan(_BURST_PAUSE_S, publish_burst)

    def _publish(self, site: str, count: int) -> None:
        broker = self.servers.brokers[site]
        for _ in range(count):
            self._last_number += 1
            stream = self._rng.choice((EVENTS, JOBS))
            filler = b"x" * self._rng.randrange(_PAYLOAD_MAX)
            payload = b"%s %d %s" % (site.encode(), self._last_number, filler)
            request_id = broker.publish(f"{stream.lower()}.{site}.x", payload)
            self._waiting[site][request_id] = (stream, self._last_number)
        self.servers.run_steps(self._rng.randrange(count + 1))
        self._confirm(site)

    def _confirm(self, site: str) -> None:
        """Note which messages were acknowledged."""
        replies, waiting = self.servers.brokers[site].replies, self._waiting[site]
        for request_id in [each for each in waiting if each in replies]:
            stream, number = waiting.pop(request_id)
            assert "error" not in replies.pop(request_id).json
            self.acked[site, stream].append(number)

    def _plan_fault(self) -> None:
        def inject_fault() -> None:
            self._inject(self._rng.choices(list(_FAULTS), list(_FAULTS.values()))[0])
            self._plan_fault()

        self._plan(self._fault_pause_s, inject_fault)

    def _inject(self, fault: str) -> None:
        site = self._rng.choice(self.servers.site_names)
        self.faults[fault] += 1
        if fault in ("cut", "outage"):
            self.servers.disconnect(site)
        else:
            self._restart(site if fault.endswith("site") else HUB, is_crash=fault.startswith("crash"))
        self._plan(_OUTAGE_MAX_S / 4 if fault == "outage" else 2.0, self._connect_all)

    def _restart(self, name: str, *, is_crash: bool) -> None:
        """Restart a server in the middle of its work: while a burst is copied."""
        for site in self.servers.site_names:
            self._publish(site, 1 + self._rng.randrange(_BURST_MAX // 8))
        if name == HUB or self._rng.random() < 0.5:
            self.servers.advance(self._rng.randrange(5 * SECOND_NS))
        self.servers.interrupt(name)
        if name != HUB:
            self._confirm(name)
            self._waiting[name].clear()
        (self.servers.crash if is_crash else self.servers.kill)(name)

    def _connect_all(self) -> None:
        for site in self.servers.site_names:
            if not self.servers.is_connected(site):
                self.servers.connect(site)

    def _heal(self) -> None:
        """Connect all sites, and wait until the copies are complete."""
        for _ in range(_HEAL_MAX_S // 30):
            self._connect_all()
            self.servers.advance(30 * SECOND_NS)
            if not self._find_differences():
                break
        for site in self.servers.site_names:
            self._confirm(site)

    # The check

    def check(self) -> None:
        """Raise `CopyDifference` if a copy lacks, repeats or reorders anything."""
        if differences := self._find_differences():
            raise CopyDifference("; ".join(differences))

    def _find_differences(self) -> list[str]:
        hub = self.servers.hub
        events, jobs = _read(hub, EVENTS), _read(hub, JOBS)
        found = []
        for number, site in enumerate(self.servers.site_names):
            broker = self.servers.brokers[site]
            history = _read(broker, EVENTS)
            copied, copied_jobs = _of_site(events, site), _of_site(jobs, site)
            if copied != _payloads(history):
                found.append(
                    f"{site}: {len(copied)} of {len(history)} events were copied, or in another order"
                )
            if number < 2 and _read(hub, _mirror_of(site)) != history:
                found.append(f"{site}: the mirror differs")
            if left := len(_read(broker, JOBS)):
                found.append(f"{site}: {left} jobs are left")
            found += self._check_acked(site, EVENTS, copied)
            found += self._check_acked(site, JOBS, copied_jobs)
        return found

    def _check_acked(self, site: str, stream: str, copied: list[bytes]) -> list[str]:
        numbers = [int(payload.split()[1]) for payload in copied]
        if numbers != sorted(set(numbers)):
            return [f"{site}: {stream} has repeated messages, or another order"]
        lost = set(self.acked[site, stream]) - set(numbers)
        return [f"{site}: {stream} lacks {len(lost)} acknowledged messages"] if lost else []


def _upstream(site: str, stream: str, *, is_durable: bool = False) -> dict[str, Any]:
    """Return how the hub names a site's stream."""
    entry: dict[str, Any] = {"name": stream, "external": {"api": f"$JS.{site}.API", "deliver": ""}}
    return entry | ({"consumer": {"name": "hub", "server_managed": True}} if is_durable else {})


def _mirror_of(site: str) -> str:
    return f"{EVENTS}_{site}"


def _read(broker: SimBroker, stream: str) -> History:
    log = broker.jetstream.streams[stream].log
    seqs = log.find_seqs(None, log.first_seq, log.last_seq).tolist()
    return [(seq, message[3]) for seq in seqs if (message := log.get(seq)) is not None]


def _of_site(stored: History, site: str) -> list[bytes]:
    """Return the payloads of one site's messages in a stream of all sites."""
    return [payload for payload in _payloads(stored) if payload.split()[0] == site.encode()]


def _payloads(stored: History) -> list[bytes]:
    return [payload for _, payload in stored]
