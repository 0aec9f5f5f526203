"""Which rounds a campaign has.

Owns the dimensions (server, query, mode, victim) and how rounds are spread over them. Invariant: the plan depends on the
number of rounds, the seed and the selection only, so that an interrupted campaign continues. Must not know Spark.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

HEADRACE, CLUSTER = SERVERS = ("headrace", "nats-cluster")
QUERIES = ("copy", "shuffle", "foreach", "aggregate", "join")
STAGED, IDS, AT_LEAST_ONCE = MODES = ("staged", "ids", "atLeastOnce")
EXECUTOR, DRIVER, PYTHON, SERVER = VICTIMS = ("executor", "driver", "python", "server")
DIMENSIONS: Mapping[str, tuple[str, ...]] = {
    "server": SERVERS,
    "query": QUERIES,
    "mode": MODES,
    "victim": VICTIMS,
}
#: Rounds of a query that is started once.
_BLOCK = 4


@dataclass(frozen=True)
class RoundPlan:
    """One round of the campaign."""

    number: int
    server: str
    query: str
    mode: str
    victim: str
    is_aimed: bool

    @property
    def combination(self) -> tuple[str, str, str]:
        return self.server, self.query, self.mode

    @property
    def key(self) -> tuple[Any, ...]:
        """What identifies the round in results."""
        return self.number, *self.combination, self.victim


def make_plan(rounds: int, seed: int, only: Sequence[str] = ()) -> list[RoundPlan]:
    """Spread rounds over all combinations; those of a combination are in blocks of a few, with different victims."""
    draw = random.Random(seed)
    chosen = {name: [each for each in of if each in only] or of for name, of in DIMENSIONS.items()}
    combinations = list(itertools.product(chosen["server"], chosen["query"], chosen["mode"]))
    draw.shuffle(combinations)
    quotas = [
        rounds // len(combinations) + (n < rounds % len(combinations)) for n in range(len(combinations))
    ]
    plan: list[RoundPlan] = []
    for start in range(0, max(quotas), _BLOCK):
        for place, combination in enumerate(combinations):
            # Another order for each, so that no victim comes first more often.
            victims = random.Random(f"{seed} {combination}").sample(chosen["victim"], len(chosen["victim"]))
            for turn in range(start, min(start + _BLOCK, quotas[place])):
                is_aimed = (turn + turn // len(victims) + place) % 2 == 0
                plan.append(RoundPlan(len(plan), *combination, victims[turn % len(victims)], is_aimed))
    return plan


def iter_blocks(plan: Sequence[RoundPlan]) -> Iterator[list[RoundPlan]]:
    """Return the rounds of one query each."""
    for _, block in itertools.groupby(plan, lambda each: each.combination):
        rounds = list(block)
        for start in range(0, len(rounds), _BLOCK):
            yield rounds[start : start + _BLOCK]


def select_open_rounds(plan: Sequence[RoundPlan], results: Sequence[dict[str, Any]]) -> list[RoundPlan]:
    """Return the rounds that have no result yet."""
    done = {tuple(each[name] for name in ("number", *DIMENSIONS)) for each in results}
    return [each for each in plan if each.key not in done]
