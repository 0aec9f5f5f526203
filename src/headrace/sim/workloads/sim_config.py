"""Setup of a simulation before it starts: its streams and consumers, its users, and the options of a seed.

Owns these tables. Limits are small, so that a run of a few hundred events reaches them. Must not know the broker.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any

from headrace.broker.routing.permissions import Permissions
from headrace.broker.streams.atomic_batch import BatchLimits
from headrace.jetstream_api.account_limits import NO_LIMITS, JetStreamLimits
from headrace.sim.checkers.history_checker import DEDUP_WINDOW_NS, StreamRules
from headrace.sim.clock import SECOND_NS
from headrace.sim.network.sim_client import SimIdentity
from headrace.sim.sim_broker import SimServerLimits
from headrace.sim.workloads.feature_actors import FEATURE_ACTORS
from headrace.sim.workloads.migration_actors import MIGRATION_ACTORS
from headrace.storage import StoreOptions

#: Shorter TTLs are raised to this.
MARKER_TTL_S = 5
SUBJECTS = 4
STREAMS: dict[str, tuple[StreamRules, dict[str, Any]]] = {
    "P": (StreamRules(), {"subjects": ["p.>"], "allow_atomic": True, "duplicate_window": DEDUP_WINDOW_NS}),
    "K": (
        StreamRules(per_subject=True),
        {"subjects": ["k.>"], "max_msgs_per_subject": 1, "allow_atomic": True, "allow_direct": True},
    ),
    "T": (
        StreamRules(ttl=True),
        {"subjects": ["t.>"], "allow_msg_ttl": True, "subject_delete_marker_ttl": MARKER_TTL_S * SECOND_NS},
    ),
    "W": (StreamRules(is_workqueue=True), {"subjects": ["w.>"], "retention": "workqueue"}),
    "L": (StreamRules(messages_max=8), {"subjects": ["l.>"], "max_msgs": 8}),
    "N": (StreamRules(), {"subjects": ["n.>"], "max_msgs": 6, "discard": "new"}),
    "Q": (
        StreamRules(is_sourced_away=True),
        {"subjects": ["q.>"], "retention": "workqueue", "allow_atomic": True},
    ),
    "I": (
        StreamRules(interested_consumers={"one": (b"i.0", b"i.1"), "other": (b"i.1", b"i.2")}),
        {"subjects": ["i.>"], "retention": "interest"},
    ),
}
#: Copies of T on the other server: one with TTLs and delete markers of its own, one without.
MARKER_COPIES: tuple[dict[str, Any], ...] = (
    {
        "name": "TC",
        "sources": [{"name": "T", "external": {"api": "$JS.NEAR.API", "deliver": ""}}],
        "subject_delete_marker_ttl": MARKER_TTL_S * SECOND_NS,
    },
    {"name": "TN", "mirror": {"name": "T", "external": {"api": "$JS.NEAR.API", "deliver": ""}}},
)
#: All copies on the other server.
COPIES = ("M", "S", *(str(copy["name"]) for copy in MARKER_COPIES))
#: The stream that is deleted and created again.
CHURNING_STREAM = "X"
#: Interest retention; some of its consumers are temporary. Only some simulations have it.
INTEREST_STREAM = "I"
#: Other optional features: events, most with a stream of their own.
OPTIONAL_FEATURES = ("heed", *FEATURE_ACTORS, "rearrange")
#: Consumers by stream; the push consumer is sent its messages, the others pull.
CONSUMERS: dict[str, tuple[tuple[str, dict[str, Any]], ...]] = {
    "P": (
        ("pull", {"ack_policy": "explicit", "ack_wait": 4 * SECOND_NS, "max_waiting": 2}),
        (
            "push",
            {
                "ack_policy": "explicit",
                "ack_wait": 3 * SECOND_NS,
                "deliver_subject": "d.push",
                "flow_control": True,
                "idle_heartbeat": SECOND_NS,
            },
        ),
        ("some", {"ack_policy": "explicit", "ack_wait": 2 * SECOND_NS, "filter_subject": "p.1"}),
        (
            "few",
            {
                "ack_policy": "explicit",
                "ack_wait": SECOND_NS,
                "max_deliver": 2,
                "max_ack_pending": 3,
                "filter_subject": "p.2",
            },
        ),
    ),
    "W": (("worker", {"ack_policy": "explicit", "ack_wait": 3 * SECOND_NS}),),
    "I": (
        ("one", {"ack_policy": "explicit", "ack_wait": 3 * SECOND_NS, "filter_subjects": ["i.0", "i.1"]}),
        ("other", {"ack_policy": "explicit", "ack_wait": 2 * SECOND_NS, "filter_subjects": ["i.1", "i.2"]}),
    ),
}
PULL_CONSUMERS = tuple(
    (stream, name)
    for stream, consumers in CONSUMERS.items()
    for name, config in consumers
    if "deliver_subject" not in config and stream != INTEREST_STREAM
)

_RESTRICTED_PERMISSIONS = Permissions(
    publish_allow=[b"*.*", b"$JS.API.>", b"$JS.ACK.>", b"$JS.FC.>"],
    publish_deny=[b"*.3", b"$JS.API.STREAM.PURGE.>"],
    subscribe_allow=[b"_C.>", b"_L.>", b"g.>"],
    subscribe_deny=[b"g.3", b"g.> spies"],
)


def _is_publish_denied(subject: str) -> bool:
    """The publish permission once more, for the checker."""
    return subject.startswith("$JS.API.STREAM.PURGE.") or (subject.endswith(".3") and subject.count(".") == 1)


#: A user with restricted permissions.
RESTRICTED_USER = SimIdentity("guest", "$G", _RESTRICTED_PERMISSIONS, _is_publish_denied)


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """What a seed decides before the run."""

    events: int
    actions: tuple[str, ...]
    clients: int
    restricted_users: bool  # some of the clients are restricted
    steps_max: int
    crash_share: float
    payload_max: int
    two_servers: bool
    features: tuple[str, ...]
    compressed: tuple[str, ...]  # the streams that are created with `compression: s2`
    lossy: bool  # the connection between the servers sometimes loses a message
    server_limits: SimServerLimits
    store: StoreOptions

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams of the table that exist in this simulation."""
        absent = ("" if self.two_servers else "Q") + ("" if "heed" in self.features else INTEREST_STREAM)
        return tuple(name for name in STREAMS if name not in absent)

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in asdict(self).items())


def derive_options(seed: int, store: StoreOptions, actions: Iterable[str]) -> SimulationOptions:
    """Return the options of a seed; it chooses some of the actions, always including the essential ones."""
    rng = Random(f"options {seed}")
    chosen = tuple(name for name in actions if name in ("publish", "pull") or rng.random() < 0.7)
    options = SimulationOptions(
        events=rng.randrange(120, 400),
        actions=chosen,
        clients=rng.randrange(1, 5),
        restricted_users=rng.random() < 0.4,
        steps_max=rng.choice((2, 8, 30, 100)),
        crash_share=rng.choice((0.0, 0.01, 0.03)),
        payload_max=rng.choice((20, 20, 400, 6_000)),
        two_servers=rng.random() < 0.4,
        features=(),
        compressed=(),
        lossy=rng.random() < 0.5,
        server_limits=_pick_server_limits(rng),
        store=_pick_store_options(store, rng),
    )
    options = replace(options, compressed=_pick_compressed(Random(f"compression {seed}")))
    return _add_features(options, Random(f"parts {seed}"))


def _add_features(options: SimulationOptions, rng: Random) -> SimulationOptions:
    """Add some optional features; none if an account's limits could block scheduled work."""
    if options.server_limits.account != NO_LIMITS:
        return options
    features = tuple(name for name in OPTIONAL_FEATURES if rng.random() < 0.2)
    if options.two_servers:
        features += tuple(name for name in MIGRATION_ACTORS if rng.random() < 0.3)
    return replace(options, features=features, actions=options.actions + features * 2)


def _pick_compressed(rng: Random) -> tuple[str, ...]:
    """Choose half of the streams in a third of the simulations; plain and compressed streams share a store."""
    if rng.random() >= 0.35:
        return ()
    actors = (FEATURE_ACTORS | MIGRATION_ACTORS).values()
    names = [*STREAMS, *COPIES, CHURNING_STREAM, *(actor.config["name"] for actor in actors)]
    return tuple(name for name in names if rng.random() < 0.5)


def _pick_store_options(store: StoreOptions, rng: Random) -> StoreOptions:
    """Choose journal files that one frame can exceed, and a headroom too small for a file."""
    journal, headroom = rng.choice((1, 1, 8)), rng.choice((1, 1, 8))
    return replace(
        store,
        journal_bytes=store.journal_bytes // journal,
        headroom_bytes=store.headroom_bytes // headroom,
    )


def _pick_server_limits(rng: Random) -> SimServerLimits:
    account = NO_LIMITS
    if rng.random() < 0.15:
        account = JetStreamLimits(max_streams=len(STREAMS) - 1, max_storage=rng.choice((4_000, 30_000)))
    return SimServerLimits(
        account=account,
        batches=BatchLimits(per_stream=rng.choice((2, 50)), messages=rng.choice((6, 1000))),
        flow_bytes=rng.choice((2_000, 2 << 20)),
    )
