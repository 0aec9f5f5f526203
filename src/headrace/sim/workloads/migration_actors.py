"""Optional features of simulations with two servers: copies that change how they read their upstream.

Owns the upstream, its copy on the other server, and what must hold for both: nothing is lost or copied twice, and no
consumer is left behind, although either server crashes in the middle of a change. The upstream limits its consumers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.sim.checkers.history_checker import parse_ident
from headrace.sim.checkers.store_invariants import Violation, require
from headrace.sim.clock import SECOND_NS
from headrace.sim.network.sim_client import ReceivedMsg
from headrace.sim.network.two_servers import TwoServers
from headrace.sim.workloads.feature_actors import FeatureActor

if TYPE_CHECKING:
    from headrace.sim.simulation import Simulation
    from headrace.storage import StreamLog

_SUBJECTS = 3
#: Deletions that failed are repeated after two minutes at the latest.
_SETTLE_NS = 130 * SECOND_NS
_CONSUMER_LIMITS = {"max_ack_pending": 4, "inactive_threshold": 5 * SECOND_NS}


def _make_managed(name: str) -> dict[str, Any]:
    return {"consumer": {"name": name, "server_managed": True}}


def _by_user(stream: str, name: str) -> dict[str, Any]:
    return {"consumer": {"name": name, "deliver_subject": f"d.{stream}.{name}"}}


class MigrationActor(FeatureActor):
    """A filtered source that alternates between all kinds of consumers."""

    config: ClassVar[dict[str, Any]] = {
        "name": "Y",
        "subjects": ["y.>"],
        "consumer_limits": _CONSUMER_LIMITS,
    }
    #: Consumers that the user creates.
    user_managed: ClassVar[tuple[str, ...]] = ("U", "V")

    def __init__(self) -> None:
        super().__init__()
        self._upstream: str = self.config["name"]
        self._copy = self._upstream + "C"
        self._acked: set[bytes] = set()
        self._refused: set[bytes] = set()

    def _make_ways(self) -> list[dict[str, Any]]:
        filtered = {"filter_subject": f"{self._upstream.lower()}.*"}
        ways = [filtered, {**filtered, **_make_managed("D")}, {**filtered, **_make_managed("E")}]
        return ways + [_by_user(self._upstream, name) for name in self.user_managed]

    def _make_copy(self, way: dict[str, Any]) -> dict[str, Any]:
        external = {"api": "$JS.NEAR.API", "deliver": ""}
        return {"name": self._copy, "sources": [{"name": self._upstream, "external": external, **way}]}

    def set_up(self, sim: Simulation) -> None:
        assert isinstance(sim.servers, TwoServers)
        for name in self.user_managed:
            config = {
                "durable_name": name,
                "ack_policy": "flow_control",
                "filter_subject": f"{self._upstream.lower()}.*",
                "deliver_subject": _by_user(self._upstream, name)["consumer"]["deliver_subject"],
            }
            body = {"stream_name": self._upstream, "config": config}
            sim.call(sim.local, f"CONSUMER.CREATE.{self._upstream}.{name}", **body)
        body = self._make_copy(self._make_ways()[0])
        sim.call(sim.servers.remote, f"STREAM.CREATE.{self._copy}", **body)

    def act(self, sim: Simulation) -> None:
        """Publish, or change the way of reading; the other server may crash in the middle of that."""
        assert isinstance(sim.servers, TwoServers)
        rng, servers = sim.rng, sim.servers
        roll = rng.random()
        if roll < 0.6:
            for _ in range(rng.randrange(1, 5)):
                self._publish(sim)
            return
        self._migrate(sim)
        if roll < 0.85:
            return
        for _ in range(rng.randrange(60)):
            sim.step()
        servers.crash_remote()
        if rng.random() < 0.5:
            self._migrate(sim)
        if rng.random() < 0.8:
            servers.connect()

    def _migrate(self, sim: Simulation) -> None:
        assert isinstance(sim.servers, TwoServers)
        body = self._make_copy(sim.rng.choice(self._make_ways()))
        sim.servers.remote.call_nowait(f"STREAM.UPDATE.{self._copy}", **body)

    def _publish(self, sim: Simulation) -> None:
        ident, subject = self._next_ident(), f"{self._upstream.lower()}.{sim.rng.randrange(_SUBJECTS)}"
        payload = ident + b"x" * sim.rng.randrange(sim.options.payload_max)
        sim.client().request(subject, payload, self._make_handler(ident))

    def _make_handler(self, ident: bytes) -> Callable[[ReceivedMsg], None]:
        def on_reply(msg: ReceivedMsg) -> None:
            response = json.loads(msg.payload) if msg.payload else {"error": {}}
            (self._refused if "error" in response else self._acked).add(ident)

        return on_reply

    def finish(self, sim: Simulation) -> None:
        """Settle on one way of reading."""
        assert isinstance(sim.servers, TwoServers)
        remote = sim.servers.remote
        sim.call(remote, f"STREAM.UPDATE.{self._copy}", **self._make_copy(self._make_ways()[1]))
        sim.advance(_SETTLE_NS)

    def check(self, sim: Simulation, log: StreamLog, *, quiescent: bool) -> None:
        assert isinstance(sim.servers, TwoServers)
        copied = _read_idents(sim.servers.remote.jetstream.streams[self._copy].log)
        require(len(set(copied)) == len(copied), f"C2: {self._copy} contains messages twice: {copied}")
        unwanted = self._refused & set(copied)
        require(not unwanted, f"C13: {sorted(unwanted)[:9]} were rejected, but are copied")
        if not quiescent:
            return
        lost = self._acked - set(copied)
        require(not lost, f"C1: {sorted(lost)[:9]} were acknowledged, but not copied")
        self._check_upstream(log, copied)
        names = {name for name in sim.local.jetstream.streams[self._upstream].consumers if "JS_" not in name}
        require(
            names == {"D", *self.user_managed}, f"C11: {self._upstream} has the consumers {sorted(names)}"
        )

    def _check_upstream(self, log: StreamLog, copied: list[bytes]) -> None:
        if copied != _read_idents(log):
            raise Violation(f"C3: {self._copy} differs from its upstream: {copied} {_read_idents(log)}")


class QueueMigrationActor(MigrationActor):
    """The same with a work queue, which must be empty in the end; it allows one consumer at a time."""

    config: ClassVar[dict[str, Any]] = {
        "name": "Z",
        "subjects": ["z.>"],
        "retention": "workqueue",
        "consumer_limits": _CONSUMER_LIMITS,
    }
    user_managed: ClassVar[tuple[str, ...]] = ()

    def _check_upstream(self, log: StreamLog, copied: list[bytes]) -> None:
        require(not log.messages, f"C11: {_read_idents(log)[:9]} are left in {self._upstream}")


def _read_idents(log: StreamLog) -> list[bytes]:
    found = [log.get(seq) for seq in log.find_seqs(None, log.first_seq, log.last_seq).tolist()]
    return [parse_ident(bytes(message[3])) for message in found if message is not None]


#: By the name of their event; only for simulations with two servers.
MIGRATION_ACTORS: dict[str, type[FeatureActor]] = {"migrate": MigrationActor, "drain": QueueMigrationActor}
