"""What a seed of the simulation decides before the run."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from random import Random

from headrace.storage import StoreOptions

from ..store_sizes import SIZES
from .bucket import NO_FAULTS, RequestFaults


@dataclass(frozen=True, slots=True)
class TwoBrokerOptions:
    """`events` faults of processes, at intervals of about `event_s`."""

    is_remote: bool
    events: int
    event_s: float
    burst: int
    rate: float
    publishers: int
    group_bytes: int
    group_delay_s: float
    base_bytes: int
    keep_ns: int
    takeover_s: float
    skew_ns: tuple[int, int]
    actions: tuple[str, ...]
    faults: RequestFaults
    store: StoreOptions
    keeps_numbers: bool  # a number of the log is never free again, as in a NATS cluster

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in asdict(self).items() if name != "store")


ACTIONS = (
    "suspend",
    "suspend in a create",
    "kill",
    "power",
    "cut",
    "outage",
    "clock",
    "drill",
    "kill standby",
)


def derive_options(seed: int) -> TwoBrokerOptions:
    """Return the options of a seed."""
    rng = Random(f"options {seed}")
    chosen = [name for name in ACTIONS if rng.random() < 0.6]
    if seed % 5 != 4 and Random(f"disks {seed}").random() < 0.4:  # `ack: local` would wait for an operator
        chosen.append("disk goes back")
    return TwoBrokerOptions(
        is_remote=seed % 5 != 4,
        events=rng.randrange(4, 10),
        event_s=rng.choice((1.0, 4.0)),
        burst=rng.choice((1, 4)),
        rate=rng.choice((2.0, 5.0)),
        publishers=rng.choice((1, 2)),
        group_bytes=rng.choice((1, 3000, 1 << 20)),
        group_delay_s=rng.choice((0.01, 0.2)),
        base_bytes=rng.choice((3000, 30_000, 1 << 30)),
        keep_ns=rng.choice((0, 5 * 10**9, 10**18)),
        takeover_s=rng.choice((0.7, 2.0, 3.0)),
        skew_ns=(rng.choice((0, 0, -3, 2)) * 10**9, rng.choice((0, 0, -8, 5)) * 10**9),
        actions=tuple(chosen) or ("suspend in a create",),
        faults=_derive_faults(rng),
        store=replace(SIZES[seed % 2]),
        keeps_numbers=Random(f"numbers {seed}").random() < 0.4,
    )


def _derive_faults(rng: Random) -> RequestFaults:
    level = rng.choice((0.0, 0.01, 0.04))
    if not level:
        return NO_FAULTS
    names = ("refused", "lost", "late", "unanswered", "twice", "slow", "conflict")
    shares = {name: level for name in names if rng.random() < 0.6}
    return RequestFaults(**shares, hidden=rng.choice((0.0, 0.3)))
