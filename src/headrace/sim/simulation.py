"""Simulates a complete broker from one seed: clients, streams, consumers, batches, TTLs, copies to another server.

Owns the course of a run; `sim_config` decides what exists, `workload_actions` what can happen. Invariant: the seed
decides everything, so two runs give the same digest. Swarm testing: each seed disables some kinds of event, because a
run with everything enabled rarely goes deep anywhere. First faults occur, and no promise may break (`HistoryChecker`);
then all faults end, and everything that is pending must complete.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from random import Random
from typing import Any

from headrace.jetstream_api.times import parse_ttl
from headrace.protocol import headers
from headrace.sim.checkers.delivery_checker import DeliveryChecker
from headrace.sim.checkers.history_checker import EXPIRY_SLACK_NS, HistoryChecker, parse_ident
from headrace.sim.checkers.store_invariants import Violation, check_store
from headrace.sim.clock import SECOND_NS
from headrace.sim.network.sim_client import ANONYMOUS, SimClient
from headrace.sim.network.single_server import SingleServer
from headrace.sim.network.two_servers import TwoServers
from headrace.sim.sim_broker import SimBroker
from headrace.sim.workloads.feature_actors import FEATURE_ACTORS
from headrace.sim.workloads.migration_actors import MIGRATION_ACTORS
from headrace.sim.workloads.permission_actors import ChurningStream, PermissionActors
from headrace.sim.workloads.sim_config import (
    CHURNING_STREAM,
    CONSUMERS,
    INTEREST_STREAM,
    MARKER_COPIES,
    RESTRICTED_USER,
    STREAMS,
    derive_options,
)
from headrace.sim.workloads.workload_actions import ACTIONS, OPTIONAL_ACTIONS, make_worker_request
from headrace.storage import StoreOptions

HEAL_NS = 90 * SECOND_NS
_STEPS_MAX = 200_000


class Simulation:
    """The run of one seed."""

    def __init__(self, seed: int, store: StoreOptions | None = None) -> None:
        self.seed = seed
        self.options = derive_options(seed, store or StoreOptions(), ACTIONS)
        self.rng = Random(f"world {seed}")
        random.seed(f"jitter {seed}")  # used by the broker itself
        self.history_checker = HistoryChecker({name: rules for name, (rules, _) in STREAMS.items()})
        self.delivery_checker = DeliveryChecker(self.history_checker, self.rng)
        self.permission_actors, self.churning_stream = PermissionActors(), ChurningStream()
        actors = FEATURE_ACTORS | MIGRATION_ACTORS
        self.feature_actors = {name: actors[name]() for name in self.options.features if name in actors}
        kind = TwoServers if self.options.two_servers else SingleServer
        self.servers: TwoServers | SingleServer = kind(
            f"site {seed}", self.options.store, self.options.server_limits
        )
        self.servers.stays_full = 0.5
        self.clients: list[SimClient] = []
        self.crashes = 0
        self._cids = 0
        self._digest = hashlib.blake2b(digest_size=16)
        self._set_up()

    def __str__(self) -> str:
        return f"Simulation(seed={self.seed}): {self.options}"

    @property
    def local(self) -> SimBroker:
        return self.servers.local

    @property
    def now_ns(self) -> int:
        return self.local.clock.now_ns()

    def run(self) -> str:
        """Run with faults, then heal; return a digest of everything that happened."""
        for _ in range(self.options.events):
            self.run_event()
        self.heal()
        return self._digest.hexdigest()

    # Setup

    def _set_up(self) -> None:
        if isinstance(self.servers, TwoServers):
            self.servers.connect()
            self.servers.run_until_idle()
        for name in self.options.streams:
            self._create_stream(self.local, {"name": name, **STREAMS[name][1]})
        for actor in self.feature_actors.values():
            self._create_stream(self.local, actor.config)
        for stream, name, config in self._iter_consumers():
            body = {"stream_name": stream, "config": {"durable_name": name, **config}}
            self.call(self.local, f"CONSUMER.CREATE.{stream}.{name}", **body)
        if isinstance(self.servers, TwoServers):
            external = {"api": "$JS.NEAR.API", "deliver": ""}
            mirror = {"name": "P", "external": external}
            self._create_stream(self.servers.remote, {"name": "M", "mirror": mirror})
            durable = {"name": "D", "server_managed": True}
            source = {"name": "Q", "external": external, "consumer": durable}
            config = {"name": "S", "sources": [source], "allow_atomic": True}
            self._create_stream(self.servers.remote, config)
            for copy in MARKER_COPIES:
                self._create_stream(self.servers.remote, copy)
            if self.options.lossy:
                self.servers.should_lose = lambda *_: self.rng.random() < 0.1
        for actor in self.feature_actors.values():
            actor.set_up(self)
        self.connect_all()

    def _create_stream(self, broker: SimBroker, config: dict[str, Any]) -> None:
        name = config["name"]
        compression = {"compression": "s2"} if name in self.options.compressed else {}
        self.call(broker, f"STREAM.CREATE.{name}", **config, **compression)

    def _iter_consumers(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
        for stream in self.options.streams:
            for name, config in CONSUMERS.get(stream, ()):
                yield stream, name, config

    def call(self, broker: SimBroker, endpoint: str, **body: Any) -> Any:
        response = self.servers.call(broker, endpoint, **body)
        if "error" in response:
            raise Violation(f"{endpoint} was rejected: {response['error']}")
        return response

    def connect(self, *, restricted: bool | None = None) -> SimClient:
        """Connect a new client; one client without restrictions receives the push consumer's messages."""
        self._cids += 1
        receives_push = not any(other.open and other.receives_push for other in self.clients)
        if restricted is None:
            restricted = self.options.restricted_users and not receives_push and self.rng.random() < 0.5
        client = SimClient(self.local, self._cids, self.rng, RESTRICTED_USER if restricted else ANONYMOUS)
        if receives_push and not restricted:
            client.receives_push = True
            client.subscribe(lambda msg: self.delivery_checker.on_delivery(client, "push", msg), b"d.push")
        if self.options.restricted_users:
            self.permission_actors.add_client(client)
        return client

    def connect_all(self) -> None:
        """Reconnect all clients."""
        self.disconnect()
        for _ in range(self.options.clients):
            self.clients.append(self.connect())

    def disconnect(self, client: SimClient | None = None) -> None:
        """Break one connection, or all."""
        for each in [client] if client is not None else list(self.clients):
            each.disconnect()
            self.history_checker.on_disconnect(each.cid)
            if each is self.client_for("pull"):
                self.delivery_checker.on_disconnect()
        if client is None:
            self.clients = []

    def client_for(self, consumer: str) -> SimClient:
        """Return the client that reads from a consumer: always the same one, so that a confirmation arrives after
        everything that was delivered before.
        """
        return self.clients[len(consumer) % len(self.clients)]

    # Events

    def run_event(self) -> None:
        """Run one event, perhaps a crash."""
        if self.rng.random() < self.options.crash_share:
            if self.rng.random() < 0.5:
                self._start_commit()
            self.crash()
            return
        name = self.rng.choice(self.options.actions)
        self._trace("do", name)
        (ACTIONS.get(name) or OPTIONAL_ACTIONS[name])(self)
        for _ in range(self.rng.randrange(self.options.steps_max)):
            if not self.step():
                break
        if self.local.store.poisoned is not None:
            self.crash()

    def _start_commit(self) -> None:
        """Get a frame in flight to the disk."""
        ACTIONS["publish"](self)
        for _ in range(60):
            if self.local.store.in_flight:
                break
            self.step()
        for _ in range(self.rng.randrange(4)):
            self.local.disk.step()

    def step(self) -> bool:
        """Do one step, somewhere; return False if there is nothing to do."""
        clients = self.clients
        client_count = len(clients)
        first = at = int(self.rng.random() * (client_count + 1))
        while True:
            if clients[at].step() if at < client_count else self.servers.step():
                return True
            at = at + 1 if at < client_count else 0
            if at == first:
                return False

    def run_until_idle(self) -> None:
        """Run until nothing is left to do at this moment."""
        for _ in range(_STEPS_MAX):
            if not self.step():
                return
        raise Violation(f"C11: the simulation is still busy after {_STEPS_MAX:,} steps")

    def advance(self, duration_ns: int) -> None:
        """Let time pass on all servers; clients continue meanwhile."""
        end_ns = self.now_ns + duration_ns
        while self.now_ns < end_ns:
            self.run_until_idle()
            self.servers.advance(min(SECOND_NS // 2, end_ns - self.now_ns))
        self.run_until_idle()

    def crash(self, *, killed: bool = False) -> None:
        """Crash the local server, by power loss or by killing it, with all its connections; then check its state."""
        self.crashes += 1
        self.disconnect()
        if self.rng.random() < 0.5:
            self.local.disk.capacity = None
        if killed:
            self.servers.kill_local()
        else:
            self.servers.crash_local()
        self.servers.run_until_idle()
        self.delivery_checker.on_server_idle()
        self.connect_all()
        self.check("kill" if killed else "crash", quiescent=False)

    def client(self) -> SimClient:
        return self.rng.choice(self.clients)

    def get_known_seqs(self, stream: str) -> list[int]:
        """Return every sequence that was ever seen to belong to a message."""
        return [seq for name, seq in self.history_checker.seq_owners if name == stream]

    def check(self, when: str, *, quiescent: bool) -> None:
        """Check every stream against the history."""
        for name in STREAMS:
            stream = self.local.jetstream.streams.get(name)
            if stream is not None:
                self.history_checker.check(name, stream.log, self.now_ns, quiescent=quiescent)
                self._trace(when, name, repr(_read_contents(stream.log)))
        if CHURNING_STREAM in self.local.jetstream.streams:
            self.churning_stream.check(self.local.jetstream.streams[CHURNING_STREAM].log)
        for actor in self.feature_actors.values():
            actor.check(self, self.local.jetstream.streams[actor.config["name"]].log, quiescent=quiescent)
        self._check_limits()
        check_store(self.local.store)

    def _check_limits(self) -> None:
        """Check that the account uses no more than it may, apart from delete markers, which the server itself writes."""
        limits, jetstream = self.options.server_limits.account, self.local.jetstream
        if 0 <= limits.max_streams < len(jetstream.streams):
            raise Violation(f"limits: {len(jetstream.streams)} streams, max_streams is {limits.max_streams}")
        used = jetstream.quota.usage("file")[0] - jetstream.streams["T"].log.bytes
        if 0 <= limits.max_storage < used:
            raise Violation(f"limits: {used} bytes stored, max_storage is {limits.max_storage}")

    # Healing

    def heal(self) -> None:
        """Stop all faults: all pending work completes, and everything must be where it belongs."""
        self.local.disk.faults.clear()
        self.local.disk.capacity = None
        self.run_until_idle()
        if self.local.store.poisoned is not None:
            self.crash()
        if isinstance(self.servers, TwoServers):
            self.servers.remote.disk.capacity = None
            if self.servers.should_lose is not None or not self.servers.is_connected:
                self.servers.should_lose = None
                self.servers.connect()
        self.disconnect()
        self.clients = [self.connect()]
        self.advance(HEAL_NS)
        if self.options.restricted_users:
            self.permission_actors.check(self)
        if "rearrange" in self.options.features:
            self.call(self.local, "CONSUMER.CREATE.W.worker", **json.loads(make_worker_request(["w.>"])))
            self.call(self.local, "CONSUMER.RESET.W.worker", seq=1)
        if INTEREST_STREAM in self.options.streams:
            for name in list(self.local.jetstream.streams[INTEREST_STREAM].consumers):
                if name.startswith("passing"):
                    self.call(self.local, f"CONSUMER.DELETE.{INTEREST_STREAM}.{name}")
        for actor in self.feature_actors.values():
            actor.finish(self)
        for stream, name, _ in self._iter_consumers():
            self._drain_consumer(stream, name)
        self.advance(10 * SECOND_NS)
        if any(client.pending_requests for client in self.clients):
            raise Violation(
                f"C11: {[client.pending_requests for client in self.clients]} requests got no reply"
            )
        self.check("end", quiescent=True)
        self.delivery_checker.check(self.local)
        if isinstance(self.servers, TwoServers):
            self._check_copies(self.servers.remote)
            self._check_marker_copies(self.servers.remote)
        self._check_reopening()

    def _drain_consumer(self, stream: str, consumer: str) -> None:
        """Read everything that is left, and acknowledge it."""
        self.delivery_checker.ack_everything = True
        for _ in range(400):
            info = self.call(self.local, f"CONSUMER.INFO.{stream}.{consumer}")
            if not info["num_pending"] and not info["num_ack_pending"]:
                return
            if consumer != "push":
                self.delivery_checker.pull(self.clients[0], stream, consumer, 50)
            self.advance(SECOND_NS // 2)
        state = {
            key: value for key, value in info.items() if key.startswith(("num_", "delivered", "ack_floor"))
        }
        raise Violation(f"C11: {consumer} of {stream} did not reach the end of the stream: {state}")

    def _check_copies(self, remote: SimBroker) -> None:
        upstream, mirror = self.local.jetstream.streams["P"].log, remote.jetstream.streams["M"].log
        copied = dict(_read_contents(mirror))
        for seq, ident in copied.items():
            self.history_checker.record_seq_owner("P", seq, ident, "mirrored")
        missing = [seq for seq, _ in _read_contents(upstream) if seq not in copied]
        if missing:
            raise Violation(f"C1: the mirror does not have {missing[:9]}")
        sourced = [ident for _, ident in _read_contents(remote.jetstream.streams["S"].log)]
        if len(set(sourced)) != len(sourced):
            raise Violation("C2: the sourced stream contains duplicates")
        orders = [
            self.history_checker.sent[ident].order for ident in sourced if ident in self.history_checker.sent
        ]
        if len(orders) != len(sourced):
            raise Violation("C2: the sourced stream contains messages that were never sent")
        gone = self.history_checker.removals["Q"].requested_deletes
        acked = (m for m in self.history_checker.by_stream["Q"] if m.seq and m.seq not in gone)
        lost = [m.ident for m in acked if m.ident not in set(sourced)]
        if lost or self.local.jetstream.streams["Q"].log.messages:
            left = self.local.jetstream.streams["Q"].log.messages
            raise Violation(f"C1: {lost[:9]} were not sourced, {left} are left in the upstream")

    def _check_marker_copies(self, remote: SimBroker) -> None:
        """Check the copies of a stream with delete markers: one has TTLs and markers of its own, one has none."""
        for name in ("TC", "TN"):
            copied = [ident for ident in _iter_idents(remote.jetstream.streams[name].log) if ident]
            if len(set(copied)) != len(copied):
                raise Violation(f"C2: {name} contains duplicates: {copied}")
        log = remote.jetstream.streams["TC"].log
        for seq in log.find_seqs(None, log.first_seq, log.last_seq).tolist():
            message = log.get(seq)
            ttl_s = parse_ttl(headers.get(message[2], b"Nats-TTL") or b"")[1] if message is not None else 0
            deadline_ns = log.get_time_ns(seq) + ttl_s * SECOND_NS
            if not ttl_s or deadline_ns + EXPIRY_SLACK_NS < self.now_ns:
                raise Violation(f"C8: TC {seq} with a TTL of {ttl_s} s should have expired")
        mirrored = dict(_read_contents(remote.jetstream.streams["TN"].log))
        missing = [
            seq for seq, _ in _read_contents(self.local.jetstream.streams["T"].log) if seq not in mirrored
        ]
        if missing:
            raise Violation(f"C1: TN does not have {missing[:9]}")

    def _check_reopening(self) -> None:
        """C10: two more restarts find the same state."""
        before = {name: _read_contents(stream.log) for name, stream in self.local.jetstream.streams.items()}
        for _ in range(2):
            self.disconnect()
            self.servers.kill_local()
            self.servers.run_until_idle()
            after = {
                name: _read_contents(stream.log) for name, stream in self.local.jetstream.streams.items()
            }
            if after != before:
                raise Violation("C10: the state differs after another restart")
            check_store(self.local.store)

    def _trace(self, *items: str) -> None:
        self._digest.update("\0".join(items).encode() + b"\n")


def _iter_idents(log: Any) -> Iterator[bytes]:
    for _, ident in _read_contents(log):
        yield ident


def _read_contents(log: Any) -> list[tuple[int, bytes]]:
    found = ((seq, log.get(seq)) for seq in log.find_seqs(None, log.first_seq, log.last_seq).tolist())
    return [(seq, parse_ident(message[3])) for seq, message in found if message is not None]
