"""Options that a seed chooses for a claim simulation before it starts.

Owns streams, consumers, lifetimes and fault rates. Swarm testing: each seed disables some kinds of event, because a run
with everything enabled rarely goes deep anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any

from headrace.claims import Ttl
from headrace.sim.clock import SECOND_NS
from headrace.sim.object_store import ObjectFaults
from headrace.storage import StoreOptions

NAMESPACE = "ns"
THRESHOLD = 300
STREAMS: dict[str, dict[str, Any]] = {
    "A": {"allow_msg_ttl": True},
    "B": {"allow_msg_ttl": True, "max_msgs": 8},
    "N": {"max_msgs": 6, "discard": "new"},
    "W": {"allow_msg_ttl": True, "retention": "workqueue"},
    "O": {"allow_msg_ttl": True},
}
CONSUMERS: dict[str, tuple[tuple[str, dict[str, Any]], ...]] = {
    "A": (("one", {}), ("two", {"filter_subject": "a.1"})),
    "B": (("one", {}),),
    "N": (("one", {}), ("two", {})),
    "W": (("one", {}),),
    "O": (),
}
#: How often a simulation with features has this one. Multipart payloads take time, with gzip too much of it.
_FEATURE_SHARES = {"lease": 0.5, "copy": 0.8, "reset": 0.4, "large": 0.2}
#: Upstreams and copies exchange heartbeats every second: no copies where hours pass.
_COPY_MAX_AGE_S = 600


@dataclass(frozen=True, slots=True)
class ClaimSimulationOptions:
    """What a seed decides before the run."""

    events: int
    actions: tuple[str, ...]
    streams: tuple[str, ...]
    ttl: Ttl
    compression: str
    audit: bool
    dedup_window_s: int
    skew_s: int
    pauses_s: tuple[float, ...]
    payload_max: int
    page_size: int
    stall_share: float
    faults: ObjectFaults
    store: StoreOptions
    features: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in asdict(self).items())


def derive_options(
    seed: int, store: StoreOptions, events: Iterable[str], features: Iterable[str] = ()
) -> ClaimSimulationOptions:
    """Return the options of a seed; `events` and `features` are the available ones."""
    rng = Random(f"claim options {seed}")
    always = ("publish", "consume", "collect", "rest")
    ttl = _pick_ttl(rng)
    skew_s = rng.choice((0, 0, ttl.max_age // 20))
    options = ClaimSimulationOptions(
        events=rng.randrange(40, 140),
        actions=tuple(name for name in events if name in always or rng.random() < 0.6),
        streams=tuple(sorted(rng.sample(sorted(STREAMS), rng.randrange(1, 4)))),
        ttl=ttl,
        compression=rng.choice(("none", "none", "gzip", "zstd")),
        audit=rng.random() < 0.3,
        dedup_window_s=rng.choice((1, 20, 120)),
        skew_s=skew_s,
        pauses_s=rng.choice(((0.0, 0.01), (0.0, 0.01, 0.5, 3.0), (0.1, 5.0, 30.0))),
        payload_max=rng.choice((600, 3_000, 20_000)),
        page_size=rng.choice((1, 3, 1000)),
        stall_share=rng.choice((0.0, 0.0, 0.01)),
        faults=_pick_faults(rng, skew_s),
        store=store,
    )
    return _add_features(options, features, Random(f"claim parts {seed}"))


def _add_features(
    options: ClaimSimulationOptions, features: Iterable[str], rng: Random
) -> ClaimSimulationOptions:
    """Add some optional features; most simulations have none."""
    if rng.random() < 0.6:
        return options
    chosen = [name for name in features if rng.random() < _FEATURE_SHARES[name]]
    if options.ttl.max_age > _COPY_MAX_AGE_S and "copy" in chosen:
        chosen.remove("copy")
    if options.compression == "gzip" and "large" in chosen:
        chosen.remove("large")
    return replace(options, features=tuple(chosen))


def _pick_ttl(rng: Random) -> Ttl:
    max_age = rng.choice((60, 600, 3600, 7200))
    return Ttl(
        max_age,
        delete_after_read=rng.random() < 0.8,
        retention_after_read=rng.choice((0, 0, 5, max_age // 10)),
        grace_period=rng.choice((max_age // 10, max_age // 2, max_age)),
    )


def _pick_faults(rng: Random, skew_s: int) -> ObjectFaults:
    def share() -> float:
        return rng.choice((0.0, 0.0, 0.02, 0.1))

    return ObjectFaults(
        refused=share(),
        unanswered=share(),
        late=share(),
        twice=share(),
        slow=share(),
        hidden=share(),
        stale=rng.choice((0.0, 0.3)),
        broken_off=share(),
        skew_ns=rng.randint(-skew_s, skew_s) * SECOND_NS,
    )
