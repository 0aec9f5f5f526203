"""Headrace servers at sites, leafnodes of a cluster of three nats-servers, over slow networks that break all the time.

    python bench/edge.py [--minutes 60] [--sites 8] [--seed 1] [--drain 15]

Each site has its own network: 50 kbit/s in each direction, 600 ms for a round trip. Clients publish at the sites, on average
about half of what the network carries, in bursts several times as much. The cluster, with three replicas, copies:

- the events of all sites into one stream, through ephemeral consumers;
- the jobs of all sites, which are work queues, into one stream, through durable consumers;
- the events of each site into a mirror of their own, through an ephemeral or a durable consumer in turn.

Each site mirrors the settings of the cluster. Meanwhile networks are cut, refuse connections or deliver nothing for a
while, and sites and nodes are killed and started again; `--seed` replays the order of these faults. At the end every copy
must equal its upstream's history: nothing lost, nothing twice, in order. Otherwise it exits with 1.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import itertools
import logging
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(1, str(Path(__file__).parents[1] / "src"))

import nats.errors
from nats.js.api import AckPolicy, ConsumerConfig, ConsumerInfo

from conformance.servers import OURS, Server, Setup
from headrace.client import JetStream, connect, source_through
from headrace.client.sourcing_consumer import make_external
from headrace.errors import HeadraceError
from support.cluster import Cluster
from support.slow_network import SlowNetwork, SlowNetworks

BITS_PER_S, ROUND_TRIP_S = 50_000, 0.6
REPLICAS = 3
MAX_ACK_PENDING = 100
HUB = "HUB"
#: Messages a second of each stream of a site, in quiet periods and in bursts; and how long these last.
QUIET_RATE, BURST_RATE = 1.5, 12.0
QUIET_S, BURST_S = (20.0, 60.0), (5.0, 10.0)
PAYLOAD_BYTES = (60, 240)
#: Faults and how often they are chosen.
FAULTS = {"cut": 4, "outage": 2, "silence": 2, "kill site": 2, "kill node": 1}
FAULT_PAUSE_S = 12.0
_PUBLISH_TIMEOUT_S = 5.0
_CONNECT = {"max_reconnect_attempts": -1, "reconnect_time_wait": 0.2, "connect_timeout": 5}
_TEMPORARY = (nats.errors.Error, HeadraceError, OSError, TimeoutError)

Stored = list[tuple[int, str, str]]
"""Sequence, subject and text of each message of a stream."""


class Site:
    """A Headrace server with its network, and the numbers that its clients got acks for, by stream."""

    def __init__(self, name: str, server: Server, network: SlowNetwork) -> None:
        self.name, self.server, self.network = name, server, network
        self.acked: dict[str, list[int]] = {"EVENTS": [], "JOBS": []}
        self.has_durable_mirror = int(name[1:]) % 2 == 0

    @property
    def mirror(self) -> str:
        """The name of the stream of the cluster that mirrors the site's events."""
        return f"EVENTS_{self.name}"


class Edge:
    """The cluster and its sites, under load and faults."""

    def __init__(self, cluster: Cluster, sites: list[Site], seed: int) -> None:
        self._cluster, self._sites = cluster, sites
        self._chance = random.Random(seed)
        self._settings: list[int] = []
        self._faults: Counter[str] = Counter()
        self._node_lock = asyncio.Lock()
        self._site_locks = {site.name: asyncio.Lock() for site in sites}
        self._is_ending = False

    async def run(self, minutes: float, drain_minutes: float) -> list[str]:
        """Run for so long; return what is wrong at the end."""
        await asyncio.gather(*(self._await_connected(site) for site in self._sites))
        await self._set_up()
        started_s = time.monotonic()
        end_s = started_s + 60 * minutes
        loads = [
            asyncio.create_task(self._load_site(site, stream))
            for site in self._sites
            for stream in site.acked
        ]
        loads.append(asyncio.create_task(self._load_settings()))
        report = asyncio.create_task(self._report(started_s))
        await self._inject_faults(end_s)
        self._is_ending = True
        await asyncio.gather(*loads)
        print(f"published for {(time.monotonic() - started_s) / 60:.1f} min", flush=True)
        problems = await self._await_copies(60 * drain_minutes)
        report.cancel()
        self._print_figures(time.monotonic() - started_s)
        if problems:
            await self._print_copies()
        return problems

    async def _set_up(self) -> None:
        """Create the streams: first the upstreams, then the copies."""
        await self._api(
            self._cluster.urls, "STREAM.CREATE.SETTINGS", _stream("SETTINGS", subjects=["settings.>"])
        )
        events, jobs = [], []
        for site in self._sites:
            async with await connect(site.server.url, **_CONNECT) as connection:
                js = connection.jetstream()
                await js.add_stream(name="EVENTS", subjects=[f"events.{site.name}.>"])
                await js.add_stream(name="JOBS", subjects=[f"jobs.{site.name}.>"], retention="workqueue")
                consumer = await create_consumer(js, "JOBS", f"deliver.{site.name}.jobs")
                jobs.append(source_through(consumer, domain=site.name).as_dict())
                mirror = events_of(site)
                if site.has_durable_mirror:
                    consumer = await create_consumer(js, "EVENTS", f"deliver.{site.name}.events")
                    mirror = source_through(consumer, domain=site.name).as_dict()
            events.append(events_of(site))
            settings = {"name": "SETTINGS", "external": make_external(HUB).as_dict()}
            await self._api(
                site.server.url, "STREAM.CREATE.SETTINGS", {"name": "SETTINGS", "mirror": settings}
            )
            await self._api(
                self._cluster.urls, f"STREAM.CREATE.{site.mirror}", _stream(site.mirror, mirror=mirror)
            )
        await self._api(self._cluster.urls, "STREAM.CREATE.EVENTS", _stream("EVENTS", sources=events))
        await self._api(self._cluster.urls, "STREAM.CREATE.JOBS", _stream("JOBS", sources=jobs))

    async def _await_connected(self, site: Site) -> None:
        """Wait until the cluster reaches the JetStream of a site."""
        async with await connect(self._cluster.urls.split(","), **_CONNECT) as connection:
            while True:
                with suppress(*_TEMPORARY):
                    await connection.jetstream(domain=site.name).account_info()
                    return
                await asyncio.sleep(1)

    async def _api(self, urls: str, verb: str, body: Any = None) -> dict[str, Any]:
        async with await connect(urls.split(","), **_CONNECT) as connection:
            reply: dict[str, Any] = await connection.jetstream().api_request(verb, body, timeout=10)
            return reply

    async def _load_site(self, site: Site, stream: str) -> None:
        chance = random.Random(f"{site.name} {stream}")
        subject = f"{stream.lower()}.{site.name}.x"
        await self._publish(site.server.url, subject, site.acked[stream], _bursts(chance), chance)

    async def _load_settings(self) -> None:
        chance = random.Random("settings")
        await self._publish(self._cluster.urls, "settings.x", self._settings, iter(lambda: 3.0, 0), chance)

    async def _publish(
        self, urls: str, subject: str, acked: list[int], pauses: Iterator[float], chance: random.Random
    ) -> None:
        """Publish numbers one at a time until the end; one without an ack may be stored, and is not repeated."""
        async with await connect(urls.split(","), **_CONNECT) as connection:
            js = connection.jetstream()
            number = 0
            while not self._is_ending:
                number += 1
                text = base64.b64encode(chance.randbytes(chance.randint(*PAYLOAD_BYTES) * 3 // 4))
                with suppress(*_TEMPORARY):
                    await js.publish(subject, b"%d %s" % (number, text), timeout=_PUBLISH_TIMEOUT_S)
                    acked.append(number)
                await asyncio.sleep(next(pauses))

    async def _inject_faults(self, end_s: float) -> None:
        """Break something from time to time; wait until everything runs again."""
        running: list[asyncio.Task[None]] = []
        kinds, weights = list(FAULTS), list(FAULTS.values())
        while time.monotonic() < end_s:
            await asyncio.sleep(min(self._chance.expovariate(1 / FAULT_PAUSE_S), end_s - time.monotonic()))
            kind = self._chance.choices(kinds, weights)[0]
            site, node = self._chance.choice(self._sites), self._chance.randrange(REPLICAS)
            fault = self._break(kind, site, node, self._chance.random())
            running.append(asyncio.create_task(fault))
            self._faults[kind] += 1
        await asyncio.gather(*running)

    async def _break(self, kind: str, site: Site, node: int, extent: float) -> None:
        """Inject one fault; `extent` from 0 to 1 says how large it is."""
        if kind == "cut":
            site.network.cut(int(4000 * extent))
        elif kind == "silence":
            site.network.silence(1 + 25 * extent)
        elif kind == "outage":
            site.network.set_refusing(True)
            site.network.cut(0)
            await asyncio.sleep(1 + 30 * extent)
            site.network.set_refusing(False)
        elif kind == "kill site":
            async with self._site_locks[site.name]:
                await asyncio.to_thread(site.server.kill)
                await asyncio.sleep(10 * extent)
                await asyncio.to_thread(site.server.start)
        else:
            await self._kill_node(node, extent)

    async def _kill_node(self, number: int, extent: float) -> None:
        """Kill a node and start it again, one at a time: two of three must run."""
        node = self._cluster.nodes[number]
        async with self._node_lock:
            await asyncio.to_thread(node.kill)
            await asyncio.sleep(1 + 15 * extent)
            node.start()
            await asyncio.to_thread(self._cluster.await_meta_leader, node)
            await asyncio.sleep(5)  # it catches up before the next one is killed

    async def _report(self, started_s: float) -> None:
        """Print how far the copies are, once a minute."""
        while True:
            await asyncio.sleep(60)
            counts = {
                stream: sum(len(site.acked[stream]) for site in self._sites) for stream in ("EVENTS", "JOBS")
            }
            with suppress(*_TEMPORARY):
                for stream, count in counts.items():
                    state = (await self._api(self._cluster.urls, f"STREAM.INFO.{stream}"))["state"]
                    counts[stream] = f"{count} acked, {state['messages']} copied"
            print(
                f"{(time.monotonic() - started_s) / 60:5.1f} min  {counts}  {dict(self._faults)}", flush=True
            )

    async def _await_copies(self, timeout_s: float) -> list[str]:
        """Wait until every copy is complete; return what is wrong with those that are not."""
        started_s = time.monotonic()
        while problems := await self._find_differences():
            if time.monotonic() - started_s > timeout_s:
                break
            await asyncio.sleep(10)
        print(f"copies were complete {time.monotonic() - started_s:.0f} s after the last publish", flush=True)
        return problems

    async def _find_differences(self) -> list[str]:
        try:
            return [problem async for problem in self._differences()]
        except _TEMPORARY as error:
            return [f"a stream cannot be read: {error!r}"]

    async def _differences(self) -> Any:
        hub = self._cluster.urls
        events, jobs, settings = [await read(hub, stream) for stream in ("EVENTS", "JOBS", "SETTINGS")]
        if (lost := set(self._settings) - set(numbers(settings))) or len(settings) < len(self._settings):
            yield f"settings: the cluster lost {sorted(lost)[:5]}"
        for site in self._sites:
            history = await read(site.server.url, "EVENTS")
            for problem in (
                compare("acknowledged events", site.acked["EVENTS"], numbers(history), may_have_more=True),
                compare("copied events", texts(history), texts(of_site(events, site))),
                compare("mirror", history, await read(hub, site.mirror)),
                compare(
                    "acknowledged jobs", site.acked["JOBS"], numbers(of_site(jobs, site)), may_have_more=True
                ),
                await self._find_jobs_left(site),
                compare("settings", settings, await read(site.server.url, "SETTINGS")),
            ):
                if problem:
                    yield f"{site.name}: {problem}"

    async def _find_jobs_left(self, site: Site) -> str:
        state = (await self._api(site.server.url, "STREAM.INFO.JOBS"))["state"]
        return f"{state['messages']} jobs are left" if state["messages"] else ""

    async def _print_copies(self) -> None:
        """Print what the cluster says about its copies."""
        for stream in ["EVENTS", "JOBS", *(site.mirror for site in self._sites)]:
            with suppress(*_TEMPORARY):
                info = await self._api(self._cluster.urls, f"STREAM.INFO.{stream}")
                print(stream, info["cluster"], info.get("mirror"), info.get("sources"))

    def _print_figures(self, seconds: float) -> None:
        for site in self._sites:
            acked = {stream: len(numbers) for stream, numbers in site.acked.items()}
            network = site.network
            up, down = (100 * each.bytes * 8 / BITS_PER_S / seconds for each in (network.up, network.down))
            print(
                f"{site.name}: {acked}, {network.connections} connections, up {up:.0f} %, down {down:.0f} % of the network"
            )
        print(f"faults: {dict(self._faults)}; settings: {len(self._settings)}")


async def create_consumer(js: JetStream, stream: str, deliver_subject: str) -> ConsumerInfo:
    """Create a consumer that acknowledges often: after a cut, messages without an acknowledgement are sent again."""
    return await js.create_sourcing_consumer(stream, "hub", deliver_subject, max_ack_pending=MAX_ACK_PENDING)


def events_of(site: Site) -> dict[str, Any]:
    """Return how a copy names the site's events, without a durable consumer."""
    return {"name": "EVENTS", "external": make_external(site.name).as_dict()}


def _stream(name: str, **config: Any) -> dict[str, Any]:
    return {"name": name, "num_replicas": REPLICAS, **config}


def _bursts(chance: random.Random) -> Iterator[float]:
    """Yield pauses between messages: quiet periods, and bursts of more than the network carries."""
    while True:
        for rate, lengths in ((QUIET_RATE, QUIET_S), (BURST_RATE, BURST_S)):
            left_s = chance.uniform(*lengths)
            while left_s > 0:
                pause_s = chance.expovariate(rate)
                left_s -= pause_s
                yield pause_s


async def read(urls: str, stream: str) -> Stored:
    """Return all messages of a stream."""
    async with await connect(urls.split(","), **_CONNECT) as connection:
        js = connection.jetstream()
        state = (await js.api_request(f"STREAM.INFO.{stream}"))["state"]
        found: Stored = []
        if not state["messages"]:
            return found
        reader = await js.pull_subscribe("", stream=stream, config=ConsumerConfig(ack_policy=AckPolicy.NONE))
        while not found or found[-1][0] < state["last_seq"]:
            for message in await reader.fetch(500, timeout=10):
                found.append((message.metadata.sequence.stream, message.subject, message.data.decode()))
        return found


def of_site(stored: Stored, site: Site) -> Stored:
    return [message for message in stored if message[1].split(".")[1] == site.name]


def texts(stored: Stored) -> list[str]:
    return [text for _, _, text in stored]


def numbers(stored: Stored) -> list[int]:
    return [int(text.split()[0]) for text in texts(stored)]


def compare(what: str, expected: list[Any], found: list[Any], *, may_have_more: bool = False) -> str:
    """Return what is wrong with `found`, "" if nothing is.

    `may_have_more` is for ascending numbers: those without an ack may be missing or not.
    """
    if not may_have_more:
        return "" if found == expected else f"{what}: {describe(expected, found)}"
    if found != sorted(set(found)):
        return f"{what}: repeated or out of order"
    lost = sorted(set(expected) - set(found))
    return f"{what}: {len(lost)} lost, for example {lost[:5]}" if lost else ""


def describe(expected: list[Any], found: list[Any]) -> str:
    """Return where two lists differ."""
    pairs = itertools.zip_longest(expected, found)
    index, pair = next((index, pair) for index, pair in enumerate(pairs) if pair[0] != pair[1])
    return f"{len(expected)} expected, {len(found)} found; number {index} is {pair[1]} instead of {pair[0]}"


@contextmanager
def start_edge(folder: Path, count: int, seed: int) -> Iterator[Edge]:
    """Start the cluster, the networks and the servers of the sites."""
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(folder, REPLICAS, HUB))
        networks = stack.enter_context(SlowNetworks())
        sites = []
        for name in [f"S{number}" for number in range(1, count + 1)]:
            targets = [node.leaf_port for node in cluster.nodes]
            network = networks.add(targets, bits_per_s=BITS_PER_S, round_trip_s=ROUND_TRIP_S)
            sites.append(Site(name, stack.enter_context(Server(OURS, site_setup(name, network))), network))
        yield Edge(cluster, sites, seed)


def site_setup(name: str, network: SlowNetwork) -> Setup:
    urls = ", ".join(f"'nats-leaf://127.0.0.1:{port}'" for port in network.ports)
    # The nodes announce their own addresses, which would lead past the slow network.
    remote = f"{{ urls: [{urls}], ignore_discovered_servers: true }}"
    config = f"jetstream {{ domain: {name} }}\nleafnodes {{ reconnect: '1s', remotes: [{remote}] }}\n"
    return Setup(settings={"server_name": name}, config=config)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--sites", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--drain", type=float, default=15, help="minutes that the copies have after the last publish"
    )
    given = parser.parse_args()
    logging.getLogger("nats").setLevel(logging.CRITICAL)  # connections break all the time
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the servers too
    with tempfile.TemporaryDirectory() as folder, start_edge(Path(folder), given.sites, given.seed) as edge:
        problems = asyncio.run(edge.run(given.minutes, given.drain))
    for problem in problems:
        print(problem)
    print(f"{given.sites} sites, {given.minutes:g} min with seed {given.seed}: {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
