"""Sites that are leafnodes of a hub over slow networks, in virtual time: networks are cut, sites and the hub lose power or
are killed, while clients publish. Afterwards every copy equals its site's history. A day of it:
`python -m tests.sim.run_edge_simulation 0 1 --hours 24`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace.broker.commit.group_commit import GroupCommit
from headrace.broker.sourcing.upstream_requests import StartPosition, Upstream
from headrace.sim.edge_simulation import CopyDifference, EdgeSimulation

from .store_sizes import SIZES

SEEDS = range(3)
HOURS = 0.25
PLANTED_SEEDS = 30


@pytest.fixture(autouse=True)
def ended(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Remove all state of a simulation before the next one."""
    made: list[EdgeSimulation] = []
    create = EdgeSimulation.__init__

    def create_and_remember(self: EdgeSimulation, *args: Any, **options: Any) -> None:
        create(self, *args, **options)
        made.append(self)

    monkeypatch.setattr(EdgeSimulation, "__init__", create_and_remember)
    yield
    for simulation in made:
        simulation.servers.close()


def simulate(seed: int) -> EdgeSimulation:
    simulation = EdgeSimulation(seed, SIZES[1], sites=3, fault_pause_s=30.0)
    simulation.run(HOURS)
    return simulation


@pytest.mark.parametrize("seed", SEEDS)
def test_copies_equal_the_histories_of_the_sites(seed: int) -> None:
    simulation = simulate(seed)
    simulation.check()
    assert all(simulation.acked.values()), "otherwise it proves nothing"


def test_a_seed_gives_the_same_run() -> None:
    one, other = simulate(1), simulate(1)
    assert one.acked == other.acked
    assert one.servers.bytes == other.servers.bytes


def find_difference() -> bool:
    """Return whether one of the seeds finds a difference."""
    for seed in range(PLANTED_SEEDS):
        try:
            simulate(seed).check()
        except CopyDifference:
            return True
    return False


def test_a_message_skipped_after_a_reconnect_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    make = Upstream.make_create_request

    def skip_one(self: Any, start_position: StartPosition, *rest: Any, **options: Any) -> Any:
        if start_position.seq > 1:
            start_position = StartPosition(start_position.seq + 1)
        return make(self, start_position, *rest, **options)

    monkeypatch.setattr(Upstream, "make_create_request", skip_one)
    assert find_difference()


def test_an_ack_before_the_message_is_durable_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = GroupCommit.commit

    def reply_first(self: Any) -> None:
        self._publisher.publish_many(self.pending_replies.messages)
        self.pending_replies.messages.clear()
        commit(self)

    monkeypatch.setattr(GroupCommit, "commit", reply_first)
    assert find_difference()
